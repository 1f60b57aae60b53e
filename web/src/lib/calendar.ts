/** Where bookings stand in the calendar, and what days cost. Pure. */
import { midnight } from "./booking";
import type { Booked, CalendarRow, CostTotal } from "./model";
import { asDate, sayDay, sayTime } from "./words";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** The spans that can be shown, from an hour to a month. */
export const SPANS: readonly { key: string; title: string; length: number }[] = [
  { key: "1h", title: "1 hour", length: HOUR },
  { key: "3h", title: "3 hours", length: 3 * HOUR },
  { key: "12h", title: "12 hours", length: 12 * HOUR },
  { key: "1d", title: "1 day", length: DAY },
  { key: "3d", title: "3 days", length: 3 * DAY },
  { key: "7d", title: "1 week", length: 7 * DAY },
  { key: "31d", title: "1 month", length: 31 * DAY },
];
export const USUAL_SPAN = 3;

/**
 * Return what to ask for to show a span: more than it, and at whole parts of it, so that moving a little asks nothing;
 * and whole days, as a day costs what it costs however little of it is shown.
 */
export function spanToAsk(since: number, until: number): { since: number; until: number } {
  const part = (until - since) / 4;
  return {
    since: Math.min(Math.floor(since / part) * part - part, midnight(since)),
    until: Math.max(Math.ceil(until / part) * part + part, midnight(until, 1)),
  };
}

/** A bar: a booking on a machine, from `low` to `high` of its height. */
export interface Bar {
  booked: Booked;
  start: number;
  end: number;
  low: number;
  high: number;
}

const UNKNOWN_SHARE = 0.25;
const THINNEST = 0.08;

/**
 * Stack the bookings of a machine: each is as high as its share, on the lowest level that is free for all of its
 * time, so that the whole shows how full the machine is. What is more than the machine has is drawn at the top.
 */
export function stackBars(booked: readonly Booked[]): Bar[] {
  const bars: Bar[] = [];
  let active: Bar[] = [];
  for (const one of booked) {
    const [start, end] = [Date.parse(one.start), Date.parse(one.end)];
    active = active.filter((bar) => bar.end > start);
    const height = Math.max(THINNEST, one.share ?? UNKNOWN_SHARE);
    const low = Math.max(0, Math.min(1 - height, lowestFree(active, height)));
    const bar = { booked: one, start, end, low, high: Math.min(1, low + height) };
    bars.push(bar);
    active.push(bar);
  }
  return bars;
}

function lowestFree(active: readonly Bar[], height: number): number {
  let low = 0;
  for (const bar of active.toSorted((a, b) => a.low - b.low)) {
    if (bar.low - low >= height - 1e-9) return low;
    low = Math.max(low, bar.high);
  }
  return low;
}

/** Return the bar at a moment and height of a machine's line; the nearest in height within reach counts. */
export function barAt(bars: readonly Bar[], moment: number, height: number, reach = 0): Bar | null {
  const then = bars.filter((bar) => moment >= bar.start - reach && moment < bar.end + reach);
  const hit = then.find((bar) => height >= bar.low && height < bar.high);
  return hit ?? then.find((bar) => height < bar.high) ?? null;
}

/** What is dragged to another time. */
export interface Drag {
  bar: Bar;
  row: CalendarRow;
  /** Where its slot would begin. */
  start: number;
}

const QUARTER = 15 * MINUTE;
const FIVE = 5 * MINUTE;

/**
 * Return where a slot begins that was dragged so far: at a whole quarter of an hour by the viewer's clock, or at whole
 * five minutes where a short time is shown.
 */
export function snapStart(slot: number, by: number, span: number): number {
  const step = span > 4 * HOUR ? QUARTER : FIVE;
  const day = midnight(slot + by);
  return day + Math.round((slot + by - day) / step) * step;
}

/** Whether a booking may be taken hold of: it has a name for who looks, and has not begun. */
export function isMovable(booked: Booked, now: number): boolean {
  if (!booked.name || Date.parse(booked.slot.start) <= now) return false;
  return booked.kind === "Reservation" || booked.phase === "SCHEDULED" || booked.phase === "PENDING";
}

export interface Tick {
  at: number;
  label: string;
  /** A new day, or in longer spans a new week. */
  strong: boolean;
}

const STEPS = [5, 15, 30, 60, 120, 180, 360, 720].map((minutes) => minutes * MINUTE);

/** Return the moments to label between two, in the viewer's zone, so that labels have room. */
export function ticksOf(since: number, until: number, width: number, room = 58): Tick[] {
  const most = Math.max(2, Math.floor(width / room));
  const step = STEPS.find((one) => (until - since) / one <= most);
  return step === undefined ? dayTicks(since, until, most) : timeTicks(since, until, step);
}

function timeTicks(since: number, until: number, step: number): Tick[] {
  return daysBetween(since, until)
    .flatMap(({ start, end }) =>
      timesOf(start, end, step).map((at) => {
        const isDay = at === start;
        return { at, label: isDay ? sayDay(at) : sayTime(at), strong: isDay };
      }),
    )
    .filter(({ at }) => at >= since && at < until);
}

/** The moments of a day at which its clock shows a whole step, however long the day is. */
function timesOf(start: number, end: number, step: number): number[] {
  const times = [start];
  const stride = Math.min(step, HOUR);
  for (let at = start + stride; at < end; at += stride) {
    const local = new Date(at);
    const shown = (local.getHours() * 60 + local.getMinutes()) * MINUTE;
    // Where labels stand further apart, there is no room for an hour that the clock shows twice.
    if (shown % step === 0 && (step === stride || at - (times.at(-1) ?? 0) > HOUR)) times.push(at);
  }
  return times;
}

function dayTicks(since: number, until: number, most: number): Tick[] {
  const days = daysBetween(since, until);
  const step = Math.ceil(days.length / most);
  return days
    .filter((day, number) => number % step === 0 && day.start >= since)
    .map(({ start }) => ({ at: start, label: sayDay(start), strong: new Date(start).getDay() === 1 }));
}

/** The days of the viewer's zone that a span touches. */
export function daysBetween(since: number, until: number): { start: number; end: number; key: string }[] {
  const date = new Date(since);
  const days = [];
  for (let number = 0; ; number++) {
    const start = new Date(date.getFullYear(), date.getMonth(), date.getDate() + number);
    if (start.getTime() >= until) return days;
    const next = new Date(date.getFullYear(), date.getMonth(), date.getDate() + number + 1);
    days.push({ start: start.getTime(), end: next.getTime(), key: asDate(start) });
  }
}

/** What was paid on each day of a span. */
export interface Paid {
  since: number;
  until: number;
  days: readonly CostTotal[];
}

export interface DayCost {
  start: number;
  end: number;
  /** What was paid; null if that is not known. */
  spent: number | null;
  /** What machines that must run for bookings will cost until the end of the day. */
  expected: number;
  unpriced: boolean;
}

/** The time that a machine must run, and its price an hour. */
export interface PlannedRun {
  start: number;
  end: number;
  price: number;
}

/** Return when machines must run: thousands, so that this is done once for an answer and not with every look. */
export function plannedRuns(rows: readonly CalendarRow[]): PlannedRun[] {
  return rows.flatMap(({ runs, usd_hourly }) => {
    const price = Number(usd_hourly ?? 0);
    return (runs ?? []).map((run) => ({ start: Date.parse(run.start), end: Date.parse(run.end), price }));
  });
}

/** Return what each day costs: what was paid until now, and what the machines' planned time adds. */
export function costsByDay(
  days: readonly { start: number; end: number; key: string }[],
  paid: Paid | null | undefined,
  planned: readonly PlannedRun[],
  now: number,
): DayCost[] {
  const spent = new Map(paid?.days.map((one) => [one.name, one]));
  return days.map(({ start, end, key }) => {
    const total = spent.get(key);
    const from = Math.max(start, now);
    let expected = 0;
    for (const run of planned) {
      const long = Math.min(end, run.end) - Math.max(from, run.start);
      if (long > 0) expected += (long / HOUR) * run.price;
    }
    return {
      start,
      end,
      spent: start >= now ? 0 : paid && start >= paid.since && start < paid.until ? Number(total?.usd ?? 0) : null,
      expected,
      unpriced: (total?.unpriced_seconds ?? 0) > 0,
    };
  });
}

/** Return the machines whose name, pool or bookings hold every word. */
export function findMachines(rows: readonly CalendarRow[], sought: string, pool: string): CalendarRow[] {
  const words = sought.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    if (pool && row.pool !== pool) return false;
    if (!words.length) return true;
    const own = `${row.worker} ${row.pool}/${row.seat}`.toLowerCase();
    return words.every(
      (word) =>
        own.includes(word) ||
        (row.booked ?? []).some(({ name, owner }) => `${name} ${owner}`.toLowerCase().includes(word)),
    );
  });
}

export function machineName(row: CalendarRow): string {
  if (row.worker) return row.worker;
  return `${row.pool} ${row.seat}`;
}
