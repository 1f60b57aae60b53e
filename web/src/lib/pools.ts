/** Pools in words: why they did something or nothing, what they may do, and what they have promised. Pure. */
import type { CalendarView, LabWorkerPool, PoolChange, PoolPacking, PoolRow, SessionRow, WorkerRow } from "./model";
import { sayWeekday } from "./reservations";
import { capitalise, count, sayDollars, saySpan } from "./words";

const POLICIES: Record<string, string> = {
  NONE: "Serves what its workers hold; starts and stops none by itself.",
  CAPACITY_BASED: "Grows when CPU or memory pass a threshold, or somebody waits; shrinks when both are low.",
  LAB_COUNT_BASED: "Grows and shrinks with the number of labs on its workers, and when somebody waits.",
  SCHEDULED: "Starts workers ahead of what is booked, and lets them go afterwards.",
  HYBRID: "Starts workers ahead of what is booked, and for load that is not.",
};

export function sayPolicy(policy: string): string {
  return POLICIES[policy] ?? "";
}

/** A policy's name as people write it. */
export function namePolicy(policy: string): string {
  return capitalise(policy.replaceAll("_", " ").toLowerCase());
}

const ACTIONS: Record<string, string> = {
  scale_up: "Added workers",
  scale_down: "Let workers go",
  none: "Did nothing",
};

export function sayAction(action: string): string {
  return ACTIONS[action] ?? action;
}

/** How many workers a pool wants: what it decided last, else its minimum. */
export function wantedOf(pool: LabWorkerPool): number {
  return pool.status?.decisions?.at(-1)?.workers_after ?? pool.spec.min_workers ?? 0;
}

export function sayHours(spec: LabWorkerPool["spec"]): string {
  const hours = spec.allowed_hours;
  const days = hours?.weekdays?.length ? `on ${hours.weekdays.map(sayWeekday).join(", ")}` : "";
  if (!hours || (hours.start_hour ?? 0) % 24 === (hours.end_hour ?? 24) % 24)
    return days ? `${days}, all day, ${hours?.time_zone ?? "UTC"}` : "at any time";
  const two = (hour: number): string => `${String(hour).padStart(2, "0")}:00`;
  const times = `from ${two(hours.start_hour ?? 0)} to ${two(hours.end_hour ?? 24)}`;
  return [days, times, hours.time_zone ?? "UTC"].filter(Boolean).join(", ");
}

/** Say from which load on a pool grows and shrinks; "" if its policy does not go by load. */
export function sayThresholds({ policy, thresholds }: LabWorkerPool["spec"]): string {
  const percent = (share: number): string => `${Math.round(share * 100)} %`;
  const limits = thresholds;
  if (!limits || policy === "NONE" || policy === "SCHEDULED") return "";
  const said =
    policy === "LAB_COUNT_BASED"
      ? `grows above ${limits.max_labs_per_worker} labs a worker, shrinks below ${limits.min_labs_per_worker}`
      : `grows above ${percent(limits.cpu_scale_up)} of CPU or ${percent(limits.memory_scale_up)} of memory, ` +
        `shrinks below ${percent(limits.cpu_scale_down)} and ${percent(limits.memory_scale_down)}`;
  return `${said}; ${limits.scale_up_cooldown_minutes} min apart up, ${limits.scale_down_cooldown_minutes} down`;
}

/** Say how many machines are kept stopped to be started again quickly, and how many are. */
export function sayWarmTier({ spec, status }: LabWorkerPool): string {
  const kept = spec.warm_workers ?? 0;
  if (!kept) return "none is kept: what is not needed is deleted";
  return `up to ${kept} stopped; ${status?.workers_by_phase?.["STOPPED"] ?? 0} at present`;
}

/** Say which planned workers have a machine for the load, besides what is promised. */
export function sayOpenSeats(status: LabWorkerPool["status"]): string {
  const open = status?.open_seats ?? [];
  return open.length ? `${open.join(", ")}` : "none";
}

export interface NextChange {
  at: string;
  text: string;
}

/** Return what changes next by what is known now: a pause that ends, a machine that is needed, or no longer. */
export function nextChange(pool: LabWorkerPool, calendar: CalendarView, now: number): NextChange | null {
  const found: NextChange[] = [];
  const until = pool.status?.pause?.until;
  if (until) found.push({ at: until, text: "its pause ends" });
  for (const row of calendar.rows) {
    if (row.pool !== pool.metadata.name || row.namespace !== (pool.metadata.namespace ?? "default")) continue;
    for (const { start, end } of row.runs) {
      found.push({ at: start, text: `planned worker ${row.seat} gets a machine for what is booked` });
      if (end < calendar.until)
        found.push({ at: end, text: `nothing is booked on planned worker ${row.seat} any more` });
    }
  }
  return found.filter(({ at }) => Date.parse(at) > now).sort((a, b) => Date.parse(a.at) - Date.parse(b.at))[0] ?? null;
}

/** Say what a change of a pool concerns, and what becomes of it. */
export function sayAffected({ affected, affected_left_off: more }: PoolChange, keep: boolean): string {
  const number = affected.length + more;
  if (!number) return "It concerns nothing that was promised.";
  const several = number > 1;
  const kept = several ? "are kept: their machines are started" : "is kept: its machine is started";
  const ended = several ? "are ended, and their owners see why" : "is ended, and its owner sees why";
  return `${count(number, "promised booking")} ${keep ? kept : ended}.`;
}

/** Say how long its boots take, as far as they were measured. */
export function sayBoots(seconds: readonly number[]): string {
  if (!seconds.length) return "not measured yet";
  const sorted = [...seconds].sort((a, b) => a - b);
  const middle = sorted[Math.floor(sorted.length / 2)] ?? 0;
  return `${saySpan(middle * 1000)} (median of ${sorted.length}), ${saySpan((sorted.at(-1) ?? 0) * 1000)} at most`;
}

/** Return in words how long machines run for what is booked on some pools, and for how long they must by any plan. */
export function sayPacking(pools: readonly PoolPacking[]): string {
  const sum = (of: (one: PoolPacking) => number): string =>
    pools.reduce((total, one) => total + of(one), 0).toLocaleString(undefined, { maximumFractionDigits: 1 });
  const saved = pools.reduce((total, one) => total + Number(one.saved_usd), 0);
  const so = saved ? ` Packing has saved ${sayDollars(saved)} so far.` : "";
  const [taken, least] = [sum((one) => one.machine_hours), sum((one) => one.least_machine_hours)];
  return `What is booked for the next 7 days takes ${taken} machine-hours; no plan needs less than ${least}.${so}`;
}

export interface Spending {
  label: string;
  spent: number;
  /** Null where there is no limit. */
  limit: number | null;
}

export function sharePercent({ spent, limit }: Omit<Spending, "label">): number | null {
  return limit ? (spent / limit) * 100 : null;
}

/** Return the tracks of pools, or of labs, each once. */
export function tracksOf(rows: readonly { lab_track?: string }[]): string[] {
  return [...new Set(rows.map(({ lab_track }) => lab_track ?? ""))].filter(Boolean).sort();
}

const WARM: ReadonlySet<string> = new Set(["READY", "ACTIVE", "READY_UNLICENSED"]);

/** The workers of a pool, those that serve first; a warm one is ready and has no session. */
export function workersOf(
  pool: PoolRow,
  rows: readonly WorkerRow[],
  there: ReadonlyMap<string, readonly SessionRow[]>,
): { row: WorkerRow; sessions: number; warm: boolean }[] {
  return rows
    .filter((row) => row.pool === pool.name && row.namespace === pool.namespace && row.phase !== "TERMINATED")
    .map((row) => {
      const sessions = there.get(row.uid)?.length ?? 0;
      return { row, sessions, warm: sessions === 0 && WARM.has(row.phase ?? "") && row.accepts_sessions !== false };
    })
    .sort((a, b) => Number(WARM.has(b.row.phase ?? "")) - Number(WARM.has(a.row.phase ?? "")) || compare(a.row, b.row));
}

function compare(a: WorkerRow, b: WorkerRow): number {
  return a.name < b.name ? -1 : 1;
}

export interface Promised {
  seat: number;
  worker: string;
  claims: number;
  first: CalendarView["rows"][number]["booked"][number] | null;
  until: string;
}

/** What each planned worker of a pool has promised; those without promises are left out. */
export function promisesOf(calendar: CalendarView, pool: string, namespace: string): Promised[] {
  return calendar.rows
    .filter((row) => row.pool === pool && row.namespace === namespace && row.booked.length)
    .map(({ seat, worker, booked }) => ({
      seat,
      worker,
      claims: booked.length,
      first: booked[0] ?? null,
      until:
        booked
          .map(({ end }) => end)
          .sort()
          .at(-1) ?? "",
    }));
}

/** Say in a sentence what there is and what is wanted. */
export function sayNow(pool: LabWorkerPool): string {
  const { ready_workers: ready = 0, booting_workers: booting = 0 } = pool.status?.summary ?? {};
  const coming = booting ? `, ${booting} on the way` : "";
  return `It wants ${count(wantedOf(pool), "worker")}; ${ready === 1 ? "1 is" : `${ready} are`} ready${coming}.`;
}
