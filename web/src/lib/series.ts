/** What plots are drawn from: levels of several things on common moments, and rows of stretches. Pure. */
import type { BillingInterval, PlanVariant } from "./model";
import { count } from "./words";

export type Columns = [number[], ...(number | null)[][]];

export interface Steps {
  at: readonly number[];
  level: readonly number[];
}

export interface SeatRow {
  label: string;
  colour: string;
  stretches: readonly { since: number; until: number; share: number; said: string }[];
}

export function toSeconds(moment: string): number {
  return Date.parse(moment) / 1000;
}

/** Bring steps onto common moments: at each, the level that each of them has then; null before its first. */
export function alignSteps(steps: readonly Steps[]): Columns {
  const moments = [...new Set(steps.flatMap(({ at }) => at))].sort((a, b) => a - b);
  const columns = steps.map(({ at, level }) => {
    let place = -1;
    return moments.map((moment) => {
      while (place + 1 < at.length && (at[place + 1] as number) <= moment) place++;
      return place < 0 ? null : (level[place] as number);
    });
  });
  return [moments, ...columns];
}

/** Count how many intervals are open, from each moment at which that changes until the end. */
export function countOpen(
  intervals: readonly { since: string; until: string | null }[],
  begin: number,
  end: number,
): Steps {
  const changes = new Map<number, number>([[begin, 0]]);
  const add = (at: number, by: number): unknown => changes.set(at, (changes.get(at) ?? 0) + by);
  for (const { since, until } of intervals) {
    const from = Math.max(begin, toSeconds(since));
    const to = until ? toSeconds(until) : Infinity;
    if (to <= begin || from >= end) continue;
    add(from, 1);
    if (to < end) add(to, -1);
  }
  const at = [...changes.keys()].sort((a, b) => a - b);
  let sum = 0;
  const level = at.map((moment) => (sum += changes.get(moment) ?? 0));
  return { at: [...at, end], level: [...level, sum] };
}

interface Decision {
  at: string;
  workers_before: number;
  workers_after: number;
}

/** How many workers a pool wanted, by its decisions, from a moment until another. */
export function wantedSteps(decisions: readonly Decision[], begin: number, end: number): Steps {
  const first = decisions[0];
  if (!first) return { at: [], level: [] };
  const before = decisions.filter(({ at }) => toSeconds(at) < begin).at(-1);
  const within = decisions.filter(({ at }) => toSeconds(at) >= begin);
  const known = before ? begin : Math.max(begin, toSeconds(first.at));
  const start = before?.workers_after ?? first.workers_before;
  const at = [known, ...within.map((one) => toSeconds(one.at)), end];
  const level = [start, ...within.map((one) => one.workers_after)];
  return { at, level: [...level, level.at(-1) ?? 0] };
}

/** The machines of a pool that ran, out of the bill. */
export function runningOf(intervals: readonly BillingInterval[]): BillingInterval[] {
  return intervals.filter(({ state }) => state === "running");
}

/** The tracks of a plan, each with its place, which is its colour. */
export function tracksOf(variant: PlanVariant): string[] {
  return variant.levels.map(({ track }) => track);
}

/** The days of a plan from the first to the last, those without cost too, and what each track cost on each. */
export function costByDay(variant: PlanVariant): { days: string[]; tracks: { label: string; values: number[] }[] } {
  const known = variant.spent.map(({ day }) => day).sort();
  const [first, last] = [known[0], known.at(-1)];
  const days: string[] = [];
  for (let at = Date.parse(first ?? ""); first && last && at <= Date.parse(last); at += 86_400_000)
    days.push(new Date(at).toISOString().slice(0, 10));
  const tracks = [...new Set([...tracksOf(variant), ...variant.spent.map(({ track }) => track)])].map((label) => {
    const own = new Map(variant.spent.filter(({ track }) => track === label).map(({ day, usd }) => [day, usd ?? 0]));
    return { label, values: days.map((day) => own.get(day) ?? 0) };
  });
  return { days, tracks };
}

/** The planned workers of a plan, a row for each. */
export function seatRows(variant: PlanVariant, colour: (place: number) => string): SeatRow[] {
  const tracks = tracksOf(variant);
  const alone = new Set(variant.seats.map(({ pool }) => pool)).size === 1;
  return variant.seats.map(({ pool, track, number, stretches }) => ({
    label: `${alone ? "worker" : shorten(pool)} ${number}`,
    colour: colour(Math.max(0, tracks.indexOf(track))),
    stretches: stretches.map(({ since, until, labs, percent }) => ({
      since: toSeconds(since),
      until: toSeconds(until),
      share: percent / 100,
      said: `${count(labs, "lab")}, ${Math.round(percent)} % full`,
    })),
  }));
}

function shorten(name: string): string {
  return name.length > 9 ? `${name.slice(0, 8)}…` : name;
}
