/** What the booking page asks, offers and says. Pure. */
import { isUnanswered, ProblemError } from "./api";
import type { DefinitionRow, Explanation, SlotOffer } from "./model";
import { saySentence, saySpan } from "./words";

export const STEP_MINUTES = 30;
export const DAYS_SHOWN = 7;
const MINUTE = 60_000;
const LENGTHS = [5, 10, 15, 30, 45, 60, 90, 120, 150, 180, 240, 300, 360, 480, 600, 720, 1440, 2880];
const USUAL_MINUTES = 120;
const ALPHABET = "bcdfghjkmnpqrstvwxz23456789";
const LONGEST_FAMILY = 53;

/** Return what a booking says about its region: nothing, where it must be, or where it should be. */
export function regionWish(region: string, required: boolean): { region_required?: string; region_preferred?: string } {
  if (!region) return {};
  return required ? { region_required: region } : { region_preferred: region };
}

/** Return the durations to choose from: round ones, and the longest that is allowed. */
export function durationsFor(longest: number): number[] {
  return [...LENGTHS.filter((minutes) => minutes < longest), longest];
}

export function usualDuration(longest: number): number {
  return Math.min(USUAL_MINUTES, longest);
}

/** Return the definitions that may be booked and hold every word, the newest version of a name first. */
export function findDefinitions(rows: readonly DefinitionRow[], sought: string): DefinitionRow[] {
  const words = sought.toLowerCase().split(/\s+/).filter(Boolean);
  return rows
    .filter((row) => row.phase === "active")
    .filter((row) => words.every((word) => `${row.name} ${row.lab_track ?? ""}`.toLowerCase().includes(word)))
    .sort((a, b) => compareNames(a.name, b.name));
}

/** Return the newest version of a lab that may be booked; undefined if there is none. */
export function newestVersion(
  rows: readonly DefinitionRow[],
  name: string,
  namespace: string,
): DefinitionRow | undefined {
  const family = name.split(":")[0];
  return findDefinitions(rows, "").find((row) => row.namespace === namespace && row.name.split(":")[0] === family);
}

function compareNames(one: string, other: string): number {
  const [family = "", version = ""] = one.split(":");
  const [family2 = "", version2 = ""] = other.split(":");
  return family.localeCompare(family2) || version2.localeCompare(version, undefined, { numeric: true });
}

/** Make up a name for a booking: basics-x7k2p. */
export function makeUpName(definition: string, chance: () => number = Math.random): string {
  const family = (definition.split(":")[0] ?? "").slice(0, LONGEST_FAMILY).replace(/[-.]+$/, "");
  const suffix = Array.from({ length: 5 }, () => ALPHABET[Math.floor(chance() * ALPHABET.length)]).join("");
  return `${family}-${suffix}`;
}

/**
 * Books what one person wishes for, once. A made-up name that is taken is made up anew; of one that no answer came
 * about, it is not known whether it is booked, so the same wish is sent with the same name again.
 */
export class BookingAttempt {
  #wish = "";
  #name = "";

  /** Send a wish; throws what `send` throws. */
  async book<T>(lab: string, wish: string, send: (name: string) => Promise<T>, tries = 3): Promise<T> {
    if (wish !== this.#wish) [this.#wish, this.#name] = [wish, makeUpName(lab)];
    try {
      const made = await send(this.#name);
      this.#wish = "";
      return made;
    } catch (error) {
      if (isUnanswered(error)) throw error;
      this.#wish = "";
      if (!isTaken(error) || tries <= 1) throw error;
    }
    return this.book(lab, wish, send, tries - 1);
  }
}

function isTaken(error: unknown): boolean {
  return error instanceof ProblemError && (error.reason === "Conflict" || error.reason === "AlreadyExists");
}

/** Return the midnight, in the viewer's zone, that begins the day so many days after a moment's. */
export function midnight(moment: number, days = 0): number {
  const date = new Date(moment);
  return new Date(date.getFullYear(), date.getMonth(), date.getDate() + days).getTime();
}

/** A day of the viewer's zone, with the places of its slots. */
export interface Day {
  start: number;
  end: number;
}

export function daysFrom(first: number, count: number): Day[] {
  return Array.from({ length: count }, (_, day) => ({ start: midnight(first, day), end: midnight(first, day + 1) }));
}

/** One start in the calendar: the answer is missing while it is asked for, and of what is past. */
export interface Cell {
  start: number;
  /** What the clock shows, in minutes: rows of several days stand side by side by it. */
  clock: number;
  offer: SlotOffer | undefined;
}

/** Return the starts of a day, by what was answered so far. */
export function cellsOf(day: Day, offers: ReadonlyMap<number, SlotOffer>, step = STEP_MINUTES): Cell[] {
  const cells: Cell[] = [];
  for (let start = day.start; start < day.end; start += step * MINUTE) {
    const local = new Date(start);
    cells.push({ start, clock: local.getHours() * 60 + local.getMinutes(), offer: offers.get(start) });
  }
  return cells;
}

export function byStart(slots: readonly SlotOffer[]): Map<number, SlotOffer> {
  return new Map(slots.map((slot) => [new Date(slot.start).getTime(), slot]));
}

export function isOffered(offer: SlotOffer | undefined): boolean {
  return offer !== undefined && !offer.why;
}

const REASONS: Record<string, string> = {
  full: "Fully booked",
  foreign_labs: "The machines are in use by others",
  too_soon: "Too soon: no machine can be ready by then",
  too_large: "The lab is larger than any machine",
  no_worker: "No machine is there for it, and none is started for bookings",
  no_pool: "No machines serve this lab",
  unknown_size: "The size of the machines is not known yet",
  hours: "Closed: outside the hours of the machines",
  licences: "All licences are in use then",
  price_unknown: "The price of the machines is not known",
  hourly_budget: "The hour's budget is used up then",
  monthly_budget: "The month's budget is used up",
  track_budget: "The month's budget for this kind of lab is used up",
  live_limit: "You have as many labs at that time as you may have",
  ahead_limit: "You have as many labs booked ahead as you may have",
  pending_limit: "You have as many labs waiting as you may have",
  horizon_limit: "Too far ahead to be booked yet",
  nodes_limit: "Your labs have as many nodes at that time as they may have",
  hours_ahead_limit: "You have as many hours booked ahead as you may have",
  hours_limit: "You have used or booked all hours of your month",
  usd_limit: "You have spent or booked all that you may spend in that month",
  paused: "The machines are paused then",
};

/** Say why a start is not offered, in a few words. */
export function sayReason(offer: { why?: string; reason?: string }): string {
  return REASONS[offer.why ?? ""] ?? "Not possible then";
}

const FULL = "The machines that could run it are full";
const UNSUITED = "No machine that suits this lab is free for it";
const WAITS: Record<string, string> = {
  booting: "Its machine is starting",
  draining: "Its machine is being taken out of service",
  phase: "Its machine takes no labs at the moment",
  no_worker: "No machine has been started for it yet",
  at_risk: "It may not get its machine in time; another one is looked for",
  unknown_need: "It is not known how large the lab is",
  ...Object.fromEntries(["cpu", "memory", "storage", "nodes", "ports", "labs"].map((why) => [why, FULL])),
  ...Object.fromEntries(
    ["lab_type", "track", "region", "spot", "license_affinity", "licensed", "cml_version", "node_definitions"].map(
      (why) => [why, UNSUITED],
    ),
  ),
};
const NOTHING_MISSING: Record<string, string> = {
  assign: "A machine is free for it",
  promise: "Room on a machine is kept for it",
  scale_up: "A machine is started for it",
};

/** Say in plain words why a session waits; the sentence of the API where there are none. */
export function sayWhy({ why, outcome, reason }: Explanation): string {
  const plain = why ? (WAITS[why] ?? REASONS[why]) : NOTHING_MISSING[outcome];
  return saySentence(plain ?? reason);
}

/** Return the reason that all starts have in common; "" if one is offered, or the reasons differ. */
export function commonReason(offers: Iterable<SlotOffer>): SlotOffer | null {
  let common: SlotOffer | null = null;
  for (const offer of offers) {
    if (!offer.why || (common && common.why !== offer.why)) return null;
    common ??= offer;
  }
  return common;
}

export interface SoonAnswer {
  possible: boolean;
  title: string;
  detail: string;
}

/** Say when a lab that is wanted as soon as possible would be ready. */
export function saySoon(answer: Explanation, now: number): SoonAnswer {
  const start = answer.slot ? new Date(answer.slot.start).getTime() : null;
  const ready = start === null ? "" : ` Ready in about ${saySpan(Math.max(MINUTE, start - now))}.`;
  switch (answer.outcome) {
    case "assign":
      return { possible: true, title: `A machine is free.${ready}`, detail: "" };
    case "scale_up":
      return { possible: true, title: `A machine is started for you.${ready}`, detail: "" };
    case "refuse":
      return { possible: false, title: REASONS[answer.why] ?? "It cannot be booked", detail: say(answer) };
    default:
      return {
        possible: true,
        title: ready ? `All machines are busy.${ready}` : "All machines are busy; when one is free is not known yet.",
        detail: say(answer),
      };
  }
}

function say({ reason, remedy }: Explanation): string {
  return remedy ? `${reason}. What helps: ${remedy}.` : reason;
}

/** Return where an arrow key leads in a grid of so many columns; null for other keys. */
export function moveBy(key: string, place: number, columns: number, total: number): number | null {
  const steps: Record<string, number> = { ArrowUp: -columns, ArrowDown: columns, ArrowLeft: -1, ArrowRight: 1 };
  const step = steps[key];
  if (step === undefined) return key === "Home" ? 0 : key === "End" ? total - 1 : null;
  const next = place + step;
  return next < 0 || next >= total ? place : next;
}
