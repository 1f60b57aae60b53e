/** Where an object's page is, by role. Pure. */
import type { Role } from "./model";
import { AUTHORS, BOOKERS, STAFF } from "./model";

/** The folder of each kind's pages, and who may open them; without roles, everybody. Kept as in routes.ts. */
const PATHS: Record<string, { folder: string; roles?: readonly Role[] }> = {
  LabWorker: { folder: "workers", roles: STAFF },
  LabletSession: { folder: "sessions" },
  LabletDefinition: { folder: "definitions", roles: AUTHORS },
  LabWorkerPool: { folder: "pools", roles: STAFF },
  Reservation: { folder: "reservations", roles: BOOKERS },
  Sink: { folder: "sinks", roles: STAFF },
};

/** Return the address of an object's page for a role; null if there is none. Who publishes no labs may book them. */
export function addressOf(role: Role, kind: string, name: string, namespace: string): string | null {
  const page = PATHS[kind];
  if (!page) return null;
  const other = namespace === "default" ? "" : `namespace=${encodeURIComponent(namespace)}`;
  if (!page.roles || page.roles.includes(role))
    return `/${page.folder}/${encodeURIComponent(name)}${other && `?${other}`}`;
  if (kind === "LabletDefinition" && BOOKERS.includes(role))
    return `/book?lab=${encodeURIComponent(name)}${other && `&${other}`}`;
  return null;
}
