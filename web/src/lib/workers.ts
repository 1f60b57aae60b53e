/** What may be done with a worker in its phase, and what follows from it, in words. Pure. */
import type { TimedClaim } from "./claims";
import type { CalendarView, LabletSession, LabWorker, Metrics, SessionRow, WorkerRow } from "./model";
import { ENDED } from "./model";
import { count, sayDistance, sayMoment, saySentence } from "./words";

export type WorkerVerb = "drain" | "undrain" | "pause" | "resume" | "snooze" | "terminate";

const SERVING: ReadonlySet<string> = new Set(["READY", "ACTIVE", "READY_UNLICENSED"]);
const OVER: ReadonlySet<string> = new Set(["TERMINATED", "TERMINATING_EC2"]);

/** The phases in which CML runs, and is measured. */
const MEASURED: ReadonlySet<string> = new Set([...SERVING, "LICENSING", "DRAINING", "UNLICENSING"]);

/** Return a worker's last measurement; undefined if its machine is off, or not up again: that one is of before. */
export function measuredNow(row: WorkerRow, metrics: ReadonlyMap<string, Metrics>): Metrics | undefined {
  return MEASURED.has(row.phase ?? "") ? metrics.get(row.uid) : undefined;
}

/** Return the verbs that make sense now. */
export function verbsFor(row: WorkerRow): WorkerVerb[] {
  const phase = row.phase ?? "";
  if (OVER.has(phase)) return [];
  const verbs: WorkerVerb[] = [];
  if (row.pause_at) verbs.push("snooze");
  if (SERVING.has(phase)) verbs.push("drain", "pause");
  if (phase === "DRAINING") verbs.push("undrain");
  if (phase === "STOPPED") verbs.push("resume");
  verbs.push("terminate");
  return verbs;
}

export const VERB_WORDS: Record<WorkerVerb, { button: string; title: string; done: string }> = {
  drain: { button: "Drain", title: "Drain", done: "is draining" },
  undrain: { button: "Cancel the drain", title: "Cancel the drain of", done: "takes sessions again" },
  pause: { button: "Pause", title: "Pause", done: "will be paused" },
  resume: { button: "Resume", title: "Resume", done: "will be started" },
  snooze: { button: "Snooze", title: "Postpone the pause of", done: "stays awake for now" },
  terminate: { button: "Terminate", title: "Terminate", done: "will be terminated" },
};

/** Say what follows if this is done to a worker with these sessions on it. */
export function consequencesOf(verb: WorkerVerb, row: WorkerRow, there: SessionRow[], now: number): string[] {
  const running = sessionsInWords(there, now);
  switch (verb) {
    case "drain":
      return [
        "No new session is placed on it.",
        there.length
          ? `${running} They may go on until they end, or until the drain's deadline.`
          : "No session is on it: it is drained at once.",
        "Bookings that count on it are moved to other workers where there is room; those that find none are at risk.",
      ];
    case "undrain":
      return ["It takes new sessions again.", "Sessions that are on it are not affected."];
    case "pause":
      return [
        there.length
          ? `${running} Its machine is stopped only when they have ended.`
          : "No session is on it: its machine is stopped now.",
        "A stopped machine costs its disk only. To start it again takes several minutes.",
      ];
    case "resume":
      return [
        "Its machine is started, and costs money from then on.",
        "It takes several minutes until it serves sessions.",
      ];
    case "snooze":
      return ["It is not paused for being idle until the snooze is over, and costs money meanwhile."];
    case "terminate":
      return [
        there.length ? `${running} They are left to end first, or until the drain's deadline.` : "No session is on it.",
        "Its licence is given back; its machine and its disk are deleted. That cannot be undone.",
        ...(row.pool ? [`Its pool ${row.pool} may start another one in its place.`] : []),
      ];
  }
}

function sessionsInWords(there: SessionRow[], now: number): string {
  const last = there
    .map(({ ends_at }) => ends_at ?? "")
    .sort()
    .at(-1);
  const until = last ? `, the last until ${sayMoment(last, now)}` : "";
  return `${count(there.length, "session is", "sessions are")} on it${until}.`;
}

/** Return what is booked on a worker: sessions that are on it, and bookings that the calendar plans for it. */
export function claimsOf(row: WorkerRow, sessions: readonly SessionRow[], calendar?: CalendarView): TimedClaim[] {
  const found = new Map<string, TimedClaim>();
  const byName = new Map(sessions.map((one) => [`${one.namespace}/${one.name}`, one]));
  const add = (key: string, start: string, end: string, session?: SessionRow): void => {
    const [cpu, memory] = [session?.need?.cpu_millis ?? 0, session?.need?.memory_mb ?? 0];
    found.set(key, { start: new Date(start).getTime(), end: new Date(end).getTime(), cpu, memory });
  };
  for (const one of sessions)
    if (one.worker_id === row.uid && one.starts_at && one.ends_at && !ENDED.has(one.phase ?? ""))
      add(`${one.namespace}/${one.name}`, one.starts_at, one.ends_at, one);
  for (const line of calendar?.rows ?? []) {
    if (line.worker !== row.name || line.namespace !== row.namespace) continue;
    for (const one of line.booked) {
      const key = `${line.namespace}/${one.name}`;
      add(key, one.start, one.end, byName.get(key));
    }
  }
  return [...found.values()];
}

export interface UsedPort {
  number: number;
  name: string;
  session: string;
  namespace: string;
}

/** Return which port serves what, by number; those of labs that no session made have no session. */
export function listPorts(sessions: readonly LabletSession[], foreign: readonly number[]): UsedPort[] {
  const ours = sessions.flatMap(({ metadata, status }) =>
    Object.entries(status?.allocated_ports ?? {}).map(([name, number]) => ({
      number,
      name,
      session: metadata.name,
      namespace: metadata.namespace ?? "default",
    })),
  );
  const others = foreign.map((number) => ({ number, name: "", session: "", namespace: "" }));
  return [...ours, ...others].sort((a, b) => a.number - b.number);
}

/** Say why a worker does not work, and when it is tried again. */
export function sayFailure(error: string, retryAt: string | null | undefined, now: number): string {
  const again = retryAt && Date.parse(retryAt) > now ? ` It is tried again ${sayDistance(retryAt, now)}.` : "";
  return `${saySentence(error)}${again}`;
}

type Idle = NonNullable<NonNullable<LabWorker["status"]>["idle"]>;

/** Say whether a worker is idle, and why. */
export function sayIdle(idle: Idle, now: number): string {
  const snoozed = idle.snoozed_until && new Date(idle.snoozed_until).getTime() > now;
  const until = snoozed ? `; not paused before ${sayMoment(idle.snoozed_until ?? "", now)}` : "";
  return `${idle.idle ? "yes" : "no"}: ${idle.reason}${until}`;
}
