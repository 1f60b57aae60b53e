/** Pools in words: why they did something or nothing, what they may do, and what they have promised. Pure. */
import type { CalendarView, LabWorkerPool, PoolPacking, PoolRow, SessionRow, WorkerRow } from "./model";
import { capitalise, count, saySpan } from "./words";

const POLICIES: Record<string, string> = {
  NONE: "Serves what its workers hold; starts and stops none by itself.",
  CAPACITY_BASED: "Grows when CPU, memory or labs pass a threshold, or somebody waits; shrinks when all are low.",
  LAB_COUNT_BASED: "Grows and shrinks with the number of labs on its workers.",
  SCHEDULED: "Starts workers ahead of what is booked, and lets them go afterwards.",
  HYBRID: "Starts workers ahead of what is booked, and for those who wait.",
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
  if (!hours || (hours.start_hour ?? 0) % 24 === (hours.end_hour ?? 24) % 24) return "at any time";
  const two = (hour: number): string => `${String(hour).padStart(2, "0")}:00`;
  return `from ${two(hours.start_hour ?? 0)} to ${two(hours.end_hour ?? 24)}, ${hours.time_zone ?? "UTC"}`;
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
  const [taken, least] = [sum((one) => one.machine_hours), sum((one) => one.least_machine_hours)];
  return `What is booked for the next 7 days takes ${taken} machine-hours; no plan needs less than ${least}.`;
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
