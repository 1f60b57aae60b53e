/** What reservations hold and what follows from changing them, in words. Pure. */
import type { ClassCost, Explanation, Reservation, ReservationRow, SessionRow } from "./model";
import { count, sayDate, sayDollars, sayMoment } from "./words";

const OVER: ReadonlySet<string> = new Set(["COMPLETED", "CANCELLED", "FAILED"]);

/** A seat of a reservation: a session, or the claim that is held for one. */
export interface SeatLine {
  number: number;
  /** Whose it is among the learners, counted from 1; 0 for one that the class no longer has. */
  place: number;
  /** "" if nobody is named. */
  learner: string;
  /** "" until the session exists. */
  session: string;
  machine: string;
}

/** One meeting of a reservation: its time, and its seats. */
export interface Meeting {
  /** Its number in the series, counted from 1. */
  occurrence: number;
  start: string;
  end: string;
  seats: SeatLine[];
}

/** How long after its slot a claim ends. The start of a claim depends on the settings of when it was booked. */
const CLEAN_UP_MS = 10 * 60_000;

/**
 * Group what a reservation holds by meeting. Until it is changed, occurrence, place and start of a claim follow from
 * its number and the spec.
 */
export function meetingsOf({ spec, status }: Reservation): Meeting[] {
  const long = Date.parse(spec.timeslot_end) - Date.parse(spec.timeslot_start);
  const each = spec.count ?? 1;
  const meetings = new Map<string, Meeting>();
  for (const held of status?.held ?? []) {
    const { number, claim, seat, session } = held;
    const occurrence = held.occurrence ?? Math.floor((number - 1) / each) + 1;
    const place = held.place ?? ((number - 1) % each) + 1;
    const end = Date.parse(claim.end) - CLEAN_UP_MS;
    const meeting = meetings.get(`${occurrence} ${end}`) ?? {
      occurrence,
      start: new Date(held.starts_at ?? end - long).toISOString(),
      end: new Date(end).toISOString(),
      seats: [],
    };
    const learner = spec.student_emails?.[place - 1] ?? "";
    const machine = seat ? `${seat.pool} ${seat.number}` : "";
    meeting.seats.push({ number, place, learner, session: session ?? "", machine });
    meetings.set(`${occurrence} ${end}`, meeting);
  }
  for (const { seats } of meetings.values()) seats.sort((a, b) => a.place - b.place || a.number - b.number);
  return [...meetings.values()].sort((a, b) => (a.start < b.start ? -1 : 1));
}

export function isOver(row: ReservationRow): boolean {
  return OVER.has(row.phase ?? "");
}

export function canCancel(row: ReservationRow): boolean {
  return !isOver(row) && row.phase !== "CANCELLING";
}

/** Say what follows if a reservation is cancelled. */
export function cancelConsequences(row: ReservationRow, sessions: readonly SessionRow[], now: number): string[] {
  const running = sessions.filter(({ phase }) => phase === "RUNNING" || phase === "INSTANTIATING");
  const coming = sessions.length - running.length;
  const last = row.ends_at && Date.parse(row.ends_at) > now ? ` until ${sayMoment(row.ends_at, now)}` : "";
  return [
    `All seats that are still held for it are given up${last}; others may take them at once.`,
    ...(running.length
      ? [
          `${count(running.length, "lab")} of it ${running.length === 1 ? "runs" : "run"} now: the work is saved, then they end.`,
        ]
      : []),
    ...(coming > 0
      ? [`${count(coming, "session")} that ${coming === 1 ? "waits" : "wait"} for the start end too.`]
      : []),
    "It cannot be taken back: book again instead, if there is still room.",
  ];
}

export const WEEKDAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"] as const;
export type Weekday = (typeof WEEKDAYS)[number];
const DAY_NAMES: Record<Weekday, string> = {
  mon: "Monday",
  tue: "Tuesday",
  wed: "Wednesday",
  thu: "Thursday",
  fri: "Friday",
  sat: "Saturday",
  sun: "Sunday",
};

export function sayWeekday(day: Weekday): string {
  return DAY_NAMES[day];
}

/** What somebody filled in for a class. */
export interface ClassWish {
  name: string;
  namespace: string;
  definition: string;
  /** As the browser's field gives it: local time without a zone. */
  start: string;
  minutes: number;
  seats: number;
  every: "" | "day" | "week";
  /** Every so many days or weeks. */
  interval?: number;
  weekdays: readonly Weekday[];
  until: string;
  owner: string;
  emails: string;
  track: string;
}

/** Make the document of a reservation; null while something is missing. */
export function reservationOf(wish: ClassWish, zone: string): Record<string, unknown> | null {
  const start = new Date(wish.start);
  if (!wish.name || !wish.definition || !Number.isFinite(start.getTime()) || !wish.minutes || !(wish.seats >= 1))
    return null;
  if (wish.every && !wish.until) return null;
  const recurrence = wish.every && {
    every: wish.every,
    ...((wish.interval ?? 1) > 1 ? { interval: wish.interval } : {}),
    until: wish.until,
    time_zone: zone,
    ...(wish.every === "week" && wish.weekdays.length ? { weekdays: wish.weekdays } : {}),
  };
  return {
    metadata: { name: wish.name, namespace: wish.namespace },
    spec: {
      definition: wish.definition,
      timeslot_start: start.toISOString(),
      timeslot_end: new Date(start.getTime() + wish.minutes * 60_000).toISOString(),
      count: wish.seats,
      ...(recurrence ? { recurrence } : {}),
      owner: wish.owner,
      lab_track: wish.track,
      student_emails: parseEmails(wish.emails),
    },
  };
}

export function parseEmails(text: string): string[] {
  return text.split(/[\s,;]+/).filter(Boolean);
}

/** Say how often a reservation meets. */
export function sayRule(spec: Reservation["spec"]): string {
  const rule = spec.recurrence;
  if (!rule) return "once";
  const every = (rule.interval ?? 1) > 1 ? `every ${rule.interval} ${rule.every}s` : `every ${rule.every}`;
  const days = (rule.weekdays ?? []).map((day) => sayWeekday(day as Weekday)).join(", ");
  return `${every}${days ? ` on ${days}` : ""} until ${sayDate(rule.until)}, at the same time in ${rule.time_zone}`;
}

/** Say what a class will cost; "" if no price is known. */
export function sayPrice({ usd, sessions }: Pick<Explanation, "usd" | "sessions">): string {
  if (usd === null || usd === undefined) return "";
  const each = sessions > 1 ? `, ${sayDollars(Number(usd) / sessions)} for each lab` : "";
  return `It will cost about ${sayDollars(Number(usd))}${each}.`;
}

/** Say what a class has cost, and will. */
export function sayClassCost(cost: ClassCost): string {
  const ahead = cost.sessions_ahead ? `, ${sayDollars(Number(cost.booked_usd))} booked` : "";
  const unknown = cost.unpriced ? `; of ${count(cost.unpriced, "lab")} no price is known` : "";
  return `${sayDollars(Number(cost.spent_usd))} so far${ahead}${unknown}`;
}

/** Say what a rehearsed reservation would hold. */
export function sayRehearsal(made: Reservation, now: number): string {
  const meetings = meetingsOf(made);
  const labs = made.status?.held?.length ?? 0;
  const first = meetings[0];
  const last = meetings.at(-1);
  if (!first || !last) return "It would be accepted.";
  if (meetings.length === 1) return `It would be accepted: ${count(labs, "lab")}, ${sayMoment(first.start, now)}.`;
  return `It would be accepted: ${count(meetings.length, "meeting")} from ${sayMoment(first.start, now)} to ${sayMoment(last.start, now)}, ${count(labs, "lab")} in all.`;
}
