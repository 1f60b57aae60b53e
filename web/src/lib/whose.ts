/** Whose a session is, and what somebody may do with it. Pure; the API decides in any case. */
import type { LabletSession, SessionRow, Who } from "./model";
import { STAFF } from "./model";

type Person = Pick<Who, "name" | "role"> | null;

/** Whether a session was booked by this person. */
export function isOwn(who: Person, row: Pick<SessionRow, "owner">): boolean {
  return who !== null && who.role !== "guest" && row.owner === who.name;
}

/** Whether somebody manages a session: its owner, and staff. A learner only uses it. */
export function manages(who: Person, row: Pick<SessionRow, "owner">): boolean {
  return who !== null && (STAFF.includes(who.role) || isOwn(who, row));
}

/** Whether somebody may extend or end a session: a learner only if that was allowed. */
export function may(
  who: Person,
  row: SessionRow,
  session: LabletSession | undefined,
  verb: "extend" | "terminate",
): boolean {
  return manages(who, row) || (session?.spec.learner_may ?? []).includes(verb);
}

/** Who works in a session: the learner it is for, or its owner. */
export function userOf(row: Pick<SessionRow, "owner" | "student_email">): string {
  return row.student_email || row.owner || "";
}

/** Whether a session is used by somebody else, who is told of whoever opens its consoles. */
export function isUsedByOther(who: Person, row: SessionRow): boolean {
  if (who === null || !manages(who, row)) return false;
  return userOf(row) !== who.name;
}

/** Say who booked a session; "" if it was the one who reads it. */
export function sayBooker(who: Person, row: Pick<SessionRow, "owner">): string {
  return isOwn(who, row) || !row.owner ? "" : `Booked for you by ${row.owner}.`;
}
