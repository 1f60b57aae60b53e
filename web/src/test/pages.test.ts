import { describe, expect, test } from "vitest";
import { useOf } from "../lib/definitions";
import { countNewer, isApart, mergeEvents } from "../lib/events";
import type {
  LabletSession,
  LiveEvent,
  Metrics,
  PoolRow,
  ReservationRow,
  Role,
  SessionRow,
  WorkerRow,
} from "../lib/model";
import { addressOf } from "../lib/paths";
import { tracksOf } from "../lib/pools";
import { canCancel, isOver } from "../lib/reservations";
import { isDeletion } from "../lib/sessions";
import { sayExactly } from "../lib/words";
import { measuredNow } from "../lib/workers";

const event = (id: string): LiveEvent => ({ id, uid: id }) as LiveEvent;
const events = (...places: string[]): LiveEvent[] => places.map((place) => event(`e.${place}`));
const places = (list: readonly LiveEvent[]): string[] => list.map(({ id }) => id.slice(2));

describe("events", () => {
  test("that were listed and that came live are one list, each once, the newest first", () => {
    const came = events("9.0", "9.1", "10.0");
    expect(places(mergeEvents(events("8.0", "9.0", "9.1"), came))).toEqual(["10.0", "9.1", "9.0", "8.0"]);
    expect(places(mergeEvents(events("9.1", "10.0", "11.0"), came))).toEqual(["11.0", "10.0", "9.1", "9.0"]);
  });

  test("are apart if some may be missing between them", () => {
    expect(isApart(events("8.0", "9.0"), events("9.0", "10.0"))).toBe(false);
    expect(isApart(events("8.0", "9.0"), events("9.1"))).toBe(true);
    expect(isApart([event("old.12.0")], [event("new.3.0")])).toBe(true);
    expect(isApart(events("8.0"), [])).toBe(false);
    expect(isApart([], events("8.0"))).toBe(false);
  });

  test("are counted since one that is no longer among them", () => {
    expect(countNewer(events("10.0", "9.1", "9.0"), event("e.9.0"))).toBe(2);
    expect(countNewer(events("10.0", "9.1", "9.0"), event("e.2.0"))).toBe(3);
    expect(countNewer(events("10.0"), undefined)).toBe(1);
  });

  test("of another day say which", () => {
    const now = new Date(2031, 10, 3, 9, 0, 5).getTime();
    expect(sayExactly(new Date(now).toISOString(), now)).toMatch(/^\d\d:00:05/);
    expect(sayExactly(new Date(now - 86_400_000).toISOString(), now)).toMatch(/2.*, \d\d:00:05/);
  });
});

describe("an object's page", () => {
  test.each<[Role, string, string, string | null]>([
    ["admin", "LabWorker", "default", "/workers/a%3A1"],
    ["operator", "LabletDefinition", "other", "/definitions/a%3A1?namespace=other"],
    ["author", "LabletDefinition", "default", "/definitions/a%3A1"],
    ["author", "LabWorker", "default", null],
    ["user", "LabletDefinition", "default", "/book?lab=a%3A1"],
    ["user", "LabletDefinition", "other", "/book?lab=a%3A1&namespace=other"],
    ["user", "LabletSession", "other", "/sessions/a%3A1?namespace=other"],
    ["user", "LabWorkerPool", "default", null],
    ["admin", "WorkerTemplate", "default", null],
    ["instructor", "Reservation", "default", "/reservations/a%3A1"],
    ["viewer", "LabletDefinition", "default", null],
    ["guest", "Reservation", "default", null],
    ["guest", "LabletSession", "default", "/sessions/a%3A1"],
  ])("of %s for %s in %s is %s", (role, kind, namespace, path) =>
    expect(addressOf(role, kind, "a:1", namespace)).toBe(path),
  );
});

test("a definition is used by what is booked in its own namespace", () => {
  const sessions = ["default", "other"].map((namespace) => ({ definition: "a:1", namespace }) as SessionRow);
  const reservations = [{ definition: "a:1", namespace: "other" } as ReservationRow];
  expect(useOf("a:1", "default", sessions, reservations)).toMatchObject({ sessions: [sessions[0]], reservations: [] });
});

test("what a machine that is off used last is not its use", () => {
  const metrics = new Map([["w", { cpu_utilization: 80 } as Metrics]]);
  const measured = (phase: string): Metrics | undefined => measuredNow({ uid: "w", phase } as WorkerRow, metrics);
  for (const phase of ["STOPPED", "FAILED", "STARTING", "TERMINATED"]) expect(measured(phase)).toBeUndefined();
  for (const phase of ["READY", "ACTIVE", "DRAINING"]) expect(measured(phase)?.cpu_utilization).toBe(80);
});

test("a session is deleted by an event of its own, not by that of another of its name", () => {
  const session = { metadata: { uid: "s" } } as LabletSession;
  const gone = (type: string, uid: string): LiveEvent => ({ ...event("e.9.0"), type, data: { uid } });
  expect(isDeletion(gone("lablet.session.deleted", "s"), session)).toBe(true);
  expect(isDeletion(gone("lablet.session.archived", "s"), session)).toBe(false);
  expect(isDeletion(gone("lablet.session.deleted", "before"), session)).toBe(false);
  expect(isDeletion(undefined, session)).toBe(false);
});

test("a reservation that is being cancelled is not over, and cannot be cancelled again", () => {
  const row = { phase: "CANCELLING" } as ReservationRow;
  expect([isOver(row), canCancel(row)]).toEqual([false, false]);
});

test("tracks of pools are listed once", () => {
  const pools = ["b", "", "a", "b"].map((lab_track) => ({ lab_track }) as PoolRow);
  expect(tracksOf(pools)).toEqual(["a", "b"]);
});
