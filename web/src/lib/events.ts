/** Events in their order, and what each says in a line. Pure. */
import type { LiveEvent } from "./model";
import { sayPhase } from "./words";

const MOST = 1000;

interface Place {
  epoch: string;
  revision: number;
  place: number;
}

/** Read an event's id, EPOCH.REVISION.PLACE: where it stands in a history. */
function placeOf(id: string): Place {
  const [epoch = "", revision = "", place = ""] = id.split(".");
  return { epoch, revision: Number(revision), place: Number(place) };
}

function compare(a: Place, b: Place): number {
  return a.revision - b.revision || a.place - b.place;
}

/** Whether events that were listed end before those that came live begin: what was between them is not known. */
export function isApart(listed: readonly LiveEvent[], came: readonly LiveEvent[]): boolean {
  const [last, first] = [listed.at(-1), came[0]];
  if (!last || !first) return false;
  const [end, begin] = [placeOf(last.id), placeOf(first.id)];
  return end.epoch !== begin.epoch || compare(end, begin) < 0;
}

/** Put events that were listed and those that came live into one list: each once, the newest first. */
export function mergeEvents(listed: readonly LiveEvent[], came: readonly LiveEvent[]): LiveEvent[] {
  const found = new Map([...listed, ...came].map((event) => [event.id, { event, place: placeOf(event.id) }]));
  const sorted = [...found.values()].sort((a, b) => compare(b.place, a.place));
  return sorted.slice(0, MOST).map(({ event }) => event);
}

/** Count those that are newer than one, which need not be among them. */
export function countNewer(events: readonly LiveEvent[], than: LiveEvent | undefined): number {
  const place = than && placeOf(than.id);
  return place ? events.filter(({ id }) => compare(placeOf(id), place) > 0).length : events.length;
}

export function sayEvent({ data }: LiveEvent): string {
  const text = (name: string): string => (typeof data[name] === "string" ? (data[name] as string) : "");
  const from = text("previous_state") || text("old_phase");
  const to = text("new_state") || text("new_phase");
  const why = text("message") || text("reason");
  if (to) return [`${sayPhase(from)} → ${sayPhase(to)}`, why].filter(Boolean).join(": ");
  if (why) return why;
  if (typeof data["cpu_utilization"] === "number") return measured(data);
  const phase = text("phase");
  return phase ? sayPhase(phase) : "";
}

function measured(data: Record<string, unknown>): string {
  const part = (label: string, name: string): string =>
    typeof data[name] === "number" ? `${label} ${Math.round(data[name] as number)} %` : "";
  return [part("CPU", "cpu_utilization"), part("memory", "memory_utilization"), part("disk", "storage_utilization")]
    .filter(Boolean)
    .join(", ");
}
