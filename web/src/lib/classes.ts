/** How a class is changed: what is asked for, and what is said of it. Pure. */
import type { Booking, LabletSession, Reservation, SessionRow } from "./model";
import { ENDED, ON_WORKER } from "./model";
import type { Meeting } from "./reservations";
import { meetingsOf } from "./reservations";
import { count, sayMoment, sayPhase, saySpan } from "./words";

const MINUTE = 60_000;
export const MOST_SEATS = 400;

/** Which part of a series is changed: all that is left, one meeting, or one and all after it. */
export type Scope = "all" | "one" | "onward";
export type Sessions = ReadonlyMap<string, SessionRow>;

/** A class that meets once has no parts. */
export function partFields(scope: Scope, occurrence: number): { occurrence?: number; onward?: boolean } {
  if (scope === "all") return {};
  return scope === "one" ? { occurrence } : { occurrence, onward: true };
}

/** Return the meetings that can still be moved: something of them is to come, and nothing of them has begun. */
export function aheadOf(meetings: readonly Meeting[], sessions: Sessions, now: number): Meeting[] {
  return meetings.filter(({ end, seats }) => {
    if (Date.parse(end) <= now) return false;
    const phases = seats.map(({ session }) => sessions.get(session)?.phase ?? "");
    return !phases.some((phase) => ON_WORKER.has(phase)) && !(phases.length && phases.every((one) => ENDED.has(one)));
  });
}

/** Return the meetings that are not over: those can last longer. */
export function leftOf(meetings: readonly Meeting[], now: number): Meeting[] {
  return meetings.filter(({ end }) => Date.parse(end) > now);
}

/** Return by how many minutes one moment is later than another by the clock on the viewer's wall. */
export function wallMinutes(from: number, to: number): number {
  return Math.round((asUtc(to) - asUtc(from)) / MINUTE);
}

function asUtc(moment: number): number {
  const one = new Date(moment);
  return Date.UTC(one.getFullYear(), one.getMonth(), one.getDate(), one.getHours(), one.getMinutes());
}

/** Return the moment that is so many minutes later by the clock on the viewer's wall. */
export function shiftWall(moment: number, minutes: number): number {
  const one = new Date(moment);
  return new Date(
    one.getFullYear(),
    one.getMonth(),
    one.getDate(),
    one.getHours(),
    one.getMinutes() + minutes,
  ).getTime();
}

/** Say by how much something moves. */
export function sayShift(minutes: number): string {
  if (!minutes) return "It stays where it is.";
  return `${saySpan(Math.abs(minutes) * MINUTE)} ${minutes > 0 ? "later" : "earlier"}, by the clock on the wall.`;
}

/** Say which meetings a part of a series is. */
export function sayScope(scope: Scope, meeting: Meeting, now: number): string {
  const when = sayMoment(meeting.start, now);
  if (scope === "one") return `Only ${when}`;
  return scope === "all" ? "All that is left" : `${when} and all after it`;
}

/** Say what a booking would be after a change that was only tried. */
export function sayWould(made: Booking, now: number): string {
  if (made.kind === "LabletSession") {
    const { timeslot_start: start, timeslot_end: end } = made.spec;
    return start && end ? `It would be accepted: ${saySlot(start, end, now)}.` : "It would be accepted.";
  }
  const left = leftOf(meetingsOf(made as Reservation), now);
  const [first, last] = [left[0], left.at(-1)];
  if (!first || !last) return "It would be accepted.";
  const seats = count(first.seats.length, "seat");
  if (left.length === 1) return `It would be accepted: ${saySlot(first.start, first.end, now)}, ${seats}.`;
  return `It would be accepted: ${count(left.length, "meeting")} with ${seats} each, the next ${saySlot(first.start, first.end, now)}.`;
}

function saySlot(start: string, end: string, now: number): string {
  return `${sayMoment(start, now)} to ${sayMoment(end, Date.parse(start))}`;
}

/** Return the class that a session belongs to; "" if it was booked alone. */
export function classOf({ metadata }: LabletSession): string {
  return metadata.owner?.kind === "Reservation" ? metadata.owner.name : "";
}

/** Return the meeting of a class at a moment; the start of a session may differ from it a little. */
export function meetingAt(meetings: readonly Meeting[], start: number): Meeting | undefined {
  const distance = ({ start: one }: Meeting): number => Math.abs(Date.parse(one) - start);
  return meetings.toSorted((a, b) => distance(a) - distance(b))[0];
}

/** The learners that were written down, or what is wrong with that. */
export interface Roster {
  emails: string[];
  problem: string;
}

const ADDRESS = /^[^@\s]+@[^@\s]+$/;

/** Read addresses: a table with the heading `email`, or a list with anything between them. Names are left out. */
export function parseRoster(text: string): Roster {
  const lines = text.replace(/^\uFEFF/, "").split(/\r?\n/);
  const heading = (lines[0] ?? "").split(/[,;\t]/).map((cell) => clean(cell).toLowerCase());
  const column = heading.indexOf("email");
  if (column < 0 && heading.length > 1 && !(lines[0] ?? "").includes("@"))
    return { emails: [], problem: "Its first line is a heading without the column email." };
  const emails: string[] = [];
  const seen = new Set<string>();
  for (const [place, line] of lines.entries()) {
    if (column >= 0 && place === 0) continue;
    for (const address of addressesOf(line, column)) {
      if (!ADDRESS.test(address)) return { emails, problem: `Line ${place + 1}: ${address} is no e-mail address.` };
      if (seen.has(address.toLowerCase())) return { emails, problem: `Line ${place + 1}: ${address} is there twice.` };
      seen.add(address.toLowerCase());
      emails.push(address);
    }
  }
  if (emails.length > MOST_SEATS) return { emails, problem: `A class has at most ${MOST_SEATS} learners.` };
  return { emails, problem: "" };
}

/** Return the addresses of a line: its cell in a column, or each word that is one; other cells are names. */
function addressesOf(line: string, column: number): string[] {
  const cells = line.split(/[,;\t]/).map(clean);
  if (column >= 0) return cells.some(Boolean) ? [cells[column] ?? ""] : [];
  const words = cells.flatMap((cell) => cell.split(/\s+/)).filter(Boolean);
  const found = words.map((word) => word.replace(/^<|>$/g, "")).filter((word) => word.includes("@"));
  return words.length && !found.length ? [line.trim().slice(0, 60)] : found;
}

function clean(cell: string): string {
  return cell
    .trim()
    .replace(/^"(.*)"$/, "$1")
    .trim();
}

/** Return what asks for these learners: seats are added or released if there are more or fewer of them. */
export function learnersDeed(
  spec: Reservation["spec"],
  emails: readonly string[],
): { verb: "learners" | "resize"; body: Record<string, unknown> } {
  if (!emails.length || emails.length === (spec.count ?? 1))
    return { verb: "learners", body: { student_emails: emails } };
  return { verb: "resize", body: { seats: emails.length, student_emails: emails } };
}

/** Say what follows from naming these learners. */
export function learnersConsequences(spec: Reservation["spec"], emails: readonly string[]): string[] {
  const before = new Set((spec.student_emails ?? []).map((one) => one.toLowerCase()));
  const after = new Set(emails.map((one) => one.toLowerCase()));
  const coming = emails.filter((one) => !before.has(one.toLowerCase())).length;
  const going = [...before].filter((one) => !after.has(one)).length;
  const seats = emails.length - (spec.count ?? 1);
  return [
    ...(emails.length ? [] : ["Nobody is named: the seats are yours alone until you name somebody."]),
    ...(coming ? [`${count(coming, "learner")} ${coming === 1 ? "gets" : "get"} a seat.`] : []),
    ...(going
      ? [
          `${count(going, "learner")} ${going === 1 ? "loses" : "lose"} the seat, and ${going === 1 ? "does" : "do"} not see it any more.`,
        ]
      : []),
    ...(emails.length && seats > 0 ? [`${count(seats, "seat")} more ${seats === 1 ? "is" : "are"} booked.`] : []),
    ...(emails.length && seats < 0 ? [`${count(-seats, "seat")} ${seats === -1 ? "is" : "are"} released.`] : []),
    "Who stays keeps the own seat. Sessions that have begun stay as they are.",
  ];
}

/** A line of what needs a look: something at risk, failed, or refused. */
export interface Worry {
  key: string;
  name: string;
  kind: "LabletSession" | "Reservation";
  namespace: string;
  text: string;
}

/** Return what needs a look among sessions and classes: at risk, failed or expired, the newest failures first. */
export function worriesOf(
  sessions: readonly SessionRow[],
  classes: readonly { uid: string; name: string; namespace: string; phase?: string; last_error?: string }[],
): Worry[] {
  const found: Worry[] = [];
  for (const { uid, name, namespace, phase, at_risk, last_error } of sessions) {
    const text =
      at_risk && !ENDED.has(phase ?? "")
        ? `At risk: ${at_risk}`
        : phase === "FAILED"
          ? `Failed: ${last_error || "no reason was given"}`
          : "";
    if (text) found.push({ key: uid, name, namespace, kind: "LabletSession", text });
  }
  for (const { uid, name, namespace, phase, last_error } of classes)
    if (last_error) {
      const text = phase === "FAILED" ? `Refused: ${last_error}` : last_error;
      found.push({ key: uid, name, namespace, kind: "Reservation", text });
    }
  return found;
}

/** Say how many seats of a meeting are in which state: "3 running, 1 held". */
export function countStates(meeting: Meeting, sessions: Sessions): string {
  const found = new Map<string, number>();
  for (const { session } of meeting.seats) {
    const phase = sessions.get(session)?.phase ?? "";
    const said = phase ? sayPhase(phase).toLowerCase() : session ? "gone" : "held";
    found.set(said, (found.get(said) ?? 0) + 1);
  }
  return [...found].map(([said, number]) => `${number} ${said}`).join(", ");
}
