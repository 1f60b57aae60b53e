/** What a session's row means, in words, and what may be done with it. Pure. */
import type { LabletSession, LiveEvent, SessionRow } from "./model";
import { ENDED } from "./model";
import { sayCores, sayDistance, sayMemory, sayMoment, saySpan } from "./words";

/** Say where a session is in its life, in a sentence. */
export function sayState(row: SessionRow, now: number): string {
  switch (row.phase) {
    case "PENDING":
      return sayWaiting(row, now);
    case "SCHEDULED":
      return row.starts_at && new Date(row.starts_at).getTime() > now
        ? `Booked; starts ${sayDistance(row.starts_at, now)}.`
        : "Booked; it starts as soon as its machine is ready.";
    case "INSTANTIATING":
      return row.message ? `Starting: ${row.message}` : "Starting.";
    case "RUNNING":
      return row.ends_at ? `Running; ends ${sayDistance(row.ends_at, now)}.` : "Running.";
    case "COLLECTING":
      return "Its time is over; your work is being saved.";
    case "STOPPING":
      return "Being removed from its machine.";
    default:
      return sayEnd(row, now);
  }
}

function sayWaiting(row: SessionRow, now: number): string {
  const place = row.queue_position ? `, number ${row.queue_position} in the queue` : "";
  const start = row.estimated_start ? `; expected to start ${sayDistance(row.estimated_start, now)}` : "";
  return `Waiting for room${place}${start}.`;
}

function sayEnd(row: SessionRow, now: number): string {
  const when = row.ends_at ? ` ${sayDistance(row.ends_at, now)}` : "";
  const files = row.files ? ` ${row.files} saved file${row.files === 1 ? "" : "s"}.` : "";
  if (row.phase === "FAILED") return `Failed: ${row.last_error || "no reason was given"}`;
  if (row.phase === "EXPIRED") return `Its slot passed before it ran.${files}`;
  return `Ended${when.startsWith(" in") ? "" : when}.${files}`;
}

/** Whether a session may be ended: nothing that is over, or on its way there, can. */
export function canEnd(row: SessionRow): boolean {
  return !ENDED.has(row.phase ?? "") && row.phase !== "STOPPING" && row.phase !== "COLLECTING";
}

export function canExtend(row: SessionRow): boolean {
  return row.phase === "RUNNING" || row.phase === "SCHEDULED" || row.phase === "INSTANTIATING";
}

const NO_ROW = {
  created_at: null,
  lab_track: "",
  reservation_id: "",
  worker_id: "",
  queue_position: 0,
  estimated_start: null,
  step: "",
  percent: 0,
  message: "",
  consoles: 0,
  at_risk: "",
  outcome: "",
};

/** A row of a session that no list has any more, as of one in the archive. */
export function rowOf({ metadata, spec, status }: LabletSession): SessionRow {
  return {
    ...NO_ROW,
    kind: "LabletSession",
    uid: metadata.uid ?? "",
    name: metadata.name,
    namespace: metadata.namespace ?? "default",
    resource_version: metadata.resource_version ?? 0,
    phase: status?.phase ?? "",
    definition: spec.definition,
    owner: spec.owner ?? "",
    student_email: spec.student_email ?? "",
    starts_at: spec.timeslot_start ?? null,
    ends_at: status?.ends_at ?? spec.timeslot_end ?? null,
    worker_name: status?.worker_name ?? "",
    need: status?.claim?.need ?? null,
    files: status?.artifacts?.length ?? 0,
    last_error: status?.last_error ?? "",
  };
}

/** Whether an event is the deletion of just this session: another may have its name by now. */
export function isDeletion(event: LiveEvent | undefined, { metadata }: LabletSession): boolean {
  return event?.type.endsWith(".deleted") === true && event.data["uid"] === metadata.uid;
}

export interface Step {
  title: string;
  state: "done" | "now" | "next";
}

const STEPS: readonly [string, string][] = [
  ["fetch", "Get the lab's file and its ports"],
  ["import", "Import it"],
  ["start", "Start its nodes"],
  ["converge", "Nodes boot"],
  ["run", "Ready"],
];

/** The way of a session from its machine to RUNNING, and where it is on it. */
export function stepsOf(row: SessionRow): Step[] {
  const place = STEPS.findIndex(([key]) => key === row.step);
  return STEPS.map(([, title], index) => ({
    title,
    state: index < place ? "done" : index === place ? "now" : "next",
  }));
}

/** Return the address of a tab, from that of its session's page. */
export function tabOf(path: string, tab: string): string {
  const [page, query] = path.split("?");
  return `${page}/${tab}${query ? `?${query}` : ""}`;
}

/** What is known about when a session that starts is ready. */
export interface Expected {
  /** When it began to start. */
  began: string | undefined;
  /** How long the nodes of such labs usually take to boot. */
  usualSeconds: number | undefined;
  /** When it is ready by what was planned with. */
  planned: string | undefined;
}

/** Say when a session that starts will be ready; "" if nothing is known about it. */
export function sayReady({ began, usualSeconds, planned }: Expected, now: number): string {
  if (began && usualSeconds) {
    const usual = usualSeconds * 1000;
    const left = Date.parse(began) + usual - now;
    if (left > 0) return `Usually ready in about ${sayRoughly(left)}.`;
    return `It takes longer than usual: such labs are usually ready after about ${sayRoughly(usual)}.`;
  }
  const left = planned ? Date.parse(planned) - now : 0;
  return left > 0 ? `Planned to be ready in about ${sayRoughly(left)}.` : "";
}

function sayRoughly(milliseconds: number): string {
  return saySpan(Math.max(60_000, milliseconds));
}

/** What follows if a session ends later. */
export function extendConsequences(row: SessionRow, minutes: number, now: number): string[] {
  const end = row.ends_at ? new Date(row.ends_at).getTime() + minutes * 60_000 : 0;
  return [
    ...(end && Number.isFinite(end)
      ? [`It ends at ${sayMoment(end, now)} instead of ${sayMoment(row.ends_at ?? "", now)}.`]
      : []),
    "Only if its machine is free for that long; what others have booked is not touched.",
    "The time counts towards your quota, and is charged like the rest.",
  ];
}

/** What was booked and what was seen, side by side. */
export interface Compared {
  what: string;
  booked: string;
  given: string;
  used: string;
  /** Whether more was seen than was booked. */
  over: boolean;
}

export function compareUse({ status }: LabletSession): Compared[] {
  const seen = status?.observed_resources;
  if (!seen) return [];
  const { used } = seen;
  const boot = status?.boot_use;
  const need = status?.claim?.need;
  const cpu = need?.cpu_millis ?? 0;
  const memory = need?.memory_mb ?? 0;
  const mostCpu = boot ? `, ${sayCores(boot.cpu_cores * 1000)} at boot` : "";
  const mostMemory = boot ? `, ${sayMemory(Math.round(boot.memory_mb))} at boot` : "";
  return [
    {
      what: "CPU",
      booked: cpu ? sayCores(cpu) : "–",
      given: sayCores(seen.total_cpu_cores * 1000),
      used: used ? sayCores(used.cpu_cores * 1000) + mostCpu : "not known",
      over: cpu > 0 && seen.total_cpu_cores * 1000 > cpu,
    },
    {
      what: "Memory",
      booked: memory ? sayMemory(memory) : "–",
      given: sayMemory(seen.total_memory_mb),
      used: used ? sayMemory(Math.round(used.memory_mb)) + mostMemory : "not known",
      over: memory > 0 && seen.total_memory_mb > memory,
    },
    {
      what: "Nodes",
      booked: need?.nodes ? String(need.nodes) : "–",
      given: String(seen.actual_node_count),
      used: "",
      over: !!need?.nodes && seen.actual_node_count > need.nodes,
    },
  ];
}

/** The ports of a session: given, and as they were seen. */
export interface ComparedPort {
  name: string;
  given: number | null;
  seen: number | null;
  drifted: boolean;
}

export function comparePorts({ status }: LabletSession): ComparedPort[] {
  const given = status?.allocated_ports ?? {};
  const seen = status?.observed_ports;
  const names = [...new Set([...Object.keys(given), ...Object.keys(seen ?? {})])].sort();
  return names.map((name) => ({
    name,
    given: given[name] ?? null,
    seen: seen?.[name] ?? null,
    drifted: !!seen && status?.port_drift_detected === true && seen[name] !== given[name],
  }));
}

/** What follows if a session is ended now. */
export function endConsequences(row: SessionRow, now: number): string[] {
  if (row.phase === "PENDING" || row.phase === "SCHEDULED")
    return ["The booking is given up, and others may take its room.", "It cannot be taken back; book again instead."];
  const left = row.ends_at ? new Date(row.ends_at).getTime() - now : 0;
  return [
    ...(row.phase === "RUNNING"
      ? ["The configuration of its nodes is saved first; you can download it afterwards."]
      : []),
    "Its consoles are closed, and the lab is removed from its machine.",
    ...(left > 60_000 ? [`The ${saySpan(left)} that are left are given up.`] : []),
  ];
}
