/**
 * Every page: its address, who may open it, and where its code is. To add one, write a component in `pages` and a row
 * here; web/README.md says more.
 */
import type { Component } from "svelte";
import Home from "./pages/Home.svelte";
import type { Role } from "./lib/model";
import { ADMIN, AUTHORS, BOOKERS, STAFF, TEACHERS } from "./lib/model";

/** What a page is given: the variable parts of its address. */
export type PageProps = Record<string, string>;
type Page = Component<PageProps>;

/** The parts of the navigation, in their order; within one, pages stand as in the list below. */
export const GROUPS = ["Work", "Labs", "Fleet", "System"] as const;
type Group = (typeof GROUPS)[number];

export interface RouteEntry {
  /** Parts that begin with a colon are variable; the last may end with a question mark, and be left out. */
  path: string;
  title: string;
  /** Without roles, everybody who is signed in may open it. */
  roles?: readonly Role[];
  /** Its place in the navigation: a group and a word; without one it is reached from other pages. */
  menu?: readonly [Group, string];
  load: () => Promise<{ default: unknown }>;
}

export const ROUTES: readonly RouteEntry[] = [
  { path: "/", title: "Home", menu: ["Work", "Home"], load: async () => ({ default: Home }) },
  {
    path: "/book",
    title: "Book a lab",
    menu: ["Work", "Book"],
    roles: BOOKERS,
    load: () => import("./pages/Book.svelte"),
  },
  {
    path: "/sessions",
    title: "Sessions",
    menu: ["Work", "Sessions"],
    roles: BOOKERS,
    load: () => import("./pages/Sessions.svelte"),
  },
  { path: "/sessions/:name/:tab?", title: "Session", load: () => import("./pages/Session.svelte") },
  {
    path: "/workers",
    title: "Workers",
    menu: ["Fleet", "Workers"],
    roles: STAFF,
    load: () => import("./pages/Workers.svelte"),
  },
  { path: "/workers/:name", title: "Worker", roles: STAFF, load: () => import("./pages/Worker.svelte") },
  {
    path: "/calendar",
    title: "Calendar",
    menu: ["Work", "Calendar"],
    roles: [...TEACHERS, "viewer"],
    load: () => import("./pages/Calendar.svelte"),
  },
  {
    path: "/reservations",
    title: "Reservations",
    menu: ["Work", "Reservations"],
    roles: TEACHERS,
    load: () => import("./pages/Reservations.svelte"),
  },
  {
    path: "/costs",
    title: "Costs",
    menu: ["Work", "Costs"],
    roles: BOOKERS,
    load: () => import("./pages/Costs.svelte"),
  },
  {
    path: "/quotas",
    title: "Quotas",
    menu: ["Work", "Quotas"],
    roles: BOOKERS,
    load: () => import("./pages/Quotas.svelte"),
  },
  {
    path: "/reservations/new",
    title: "Reserve for a class",
    roles: BOOKERS,
    load: () => import("./pages/ReservationNew.svelte"),
  },
  {
    path: "/reservations/:name",
    title: "Reservation",
    roles: BOOKERS,
    load: () => import("./pages/Reservation.svelte"),
  },
  {
    path: "/reservations/:name/hand-out",
    title: "Hand-out",
    roles: BOOKERS,
    load: () => import("./pages/HandOut.svelte"),
  },
  {
    path: "/definitions",
    title: "Definitions",
    menu: ["Labs", "Definitions"],
    roles: AUTHORS,
    load: () => import("./pages/Definitions.svelte"),
  },
  {
    path: "/definitions/new",
    title: "Publish a lab",
    roles: AUTHORS,
    load: () => import("./pages/definition/Publish.svelte"),
  },
  { path: "/definitions/:name", title: "Definition", roles: AUTHORS, load: () => import("./pages/Definition.svelte") },
  {
    path: "/pools",
    title: "Pools",
    menu: ["Fleet", "Pools"],
    roles: STAFF,
    load: () => import("./pages/Pools.svelte"),
  },
  { path: "/pools/:name", title: "Pool", roles: STAFF, load: () => import("./pages/Pool.svelte") },
  {
    path: "/planner",
    title: "Planner",
    menu: ["Labs", "Planner"],
    roles: STAFF,
    load: () => import("./pages/Planner.svelte"),
  },
  {
    path: "/alerts",
    title: "Alerts",
    menu: ["Fleet", "Alerts"],
    roles: STAFF,
    load: () => import("./pages/Alerts.svelte"),
  },
  {
    path: "/events",
    title: "Events",
    menu: ["Fleet", "Events"],
    roles: BOOKERS,
    load: () => import("./pages/Events.svelte"),
  },
  {
    path: "/sinks",
    title: "Sinks",
    menu: ["System", "Sinks"],
    roles: STAFF,
    load: () => import("./pages/Sinks.svelte"),
  },
  { path: "/sinks/:name", title: "Sink", roles: STAFF, load: () => import("./pages/Sink.svelte") },
  {
    path: "/audit",
    title: "Audit",
    menu: ["System", "Audit"],
    roles: ADMIN,
    load: () => import("./pages/Audit.svelte"),
  },
  {
    path: "/settings",
    title: "Settings",
    menu: ["System", "Settings"],
    roles: STAFF,
    load: () => import("./pages/Settings.svelte"),
  },
  {
    path: "/tokens",
    title: "Tokens",
    menu: ["System", "Tokens"],
    roles: [...BOOKERS, "viewer"],
    load: () => import("./pages/Tokens.svelte"),
  },
];

export interface Match {
  entry: RouteEntry;
  params: PageProps;
}

/** Find the page of an address; null if there is none. */
export function findRoute(path: string, routes: readonly RouteEntry[] = ROUTES): Match | null {
  const parts = split(path);
  for (const entry of routes) {
    const params = match(split(entry.path), parts);
    if (params) return { entry, params };
  }
  return null;
}

/** Return what tells pages apart: another object has a page of its own, while its tabs and filters are on one. */
export function pageKey({ entry, params }: Match, query: URLSearchParams): string {
  const name = params["name"];
  return name === undefined ? entry.path : JSON.stringify([entry.path, name, query.get("namespace") ?? "default"]);
}

function split(path: string): string[] {
  return path.split("/").filter(Boolean);
}

function match(pattern: string[], parts: string[]): PageProps | null {
  const fewest = pattern.at(-1)?.endsWith("?") ? pattern.length - 1 : pattern.length;
  if (parts.length < fewest || parts.length > pattern.length) return null;
  const params: PageProps = {};
  for (const [place, wanted] of pattern.slice(0, parts.length).entries()) {
    const part = parts[place] ?? "";
    if (wanted.startsWith(":")) params[wanted.replace(/^:|\?$/g, "")] = decode(part);
    else if (wanted !== part) return null;
  }
  return params;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export type { Page };
