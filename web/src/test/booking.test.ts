import { describe, expect, test } from "vitest";
import {
  byStart,
  cellsOf,
  commonReason,
  daysFrom,
  durationsFor,
  findDefinitions,
  makeUpName,
  moveBy,
  sayReason,
  saySoon,
} from "../lib/booking";
import { barAt, costsByDay, daysBetween, findMachines, plannedRuns, stackBars, ticksOf } from "../lib/calendar";
import type {
  Booked,
  CalendarRow,
  DefinitionRow,
  Explanation,
  Reservation,
  ReservationRow,
  SlotOffer,
} from "../lib/model";
import { cancelConsequences, meetingsOf, reservationOf, sayRehearsal } from "../lib/reservations";

const NOW = new Date(2031, 10, 3, 9).getTime();
const HOUR = 3_600_000;
const at = (hours: number): string => new Date(NOW + hours * HOUR).toISOString();
const booked = (from: number, to: number, share: number): Booked =>
  ({ start: at(from), end: at(to), slot: { start: at(from), end: at(to) }, share }) as Booked;

describe("booking", () => {
  test("durations end with the longest that is allowed", () => {
    expect(durationsFor(100)).toEqual([5, 10, 15, 30, 45, 60, 90, 100]);
    expect(durationsFor(60).at(-1)).toBe(60);
  });

  test("only active labs are found, the newest version first", () => {
    const row = (name: string, phase = "active"): DefinitionRow => ({ name, phase, uid: name }) as DefinitionRow;
    const rows = [row("b:1.0.0"), row("a:1.2.0"), row("a:1.10.0"), row("a:2.0.0", "draft")];
    expect(findDefinitions(rows, "").map(({ name }) => name)).toEqual(["a:1.10.0", "a:1.2.0", "b:1.0.0"]);
    expect(findDefinitions(rows, "b 1").map(({ name }) => name)).toEqual(["b:1.0.0"]);
  });

  test("a made-up name is one that the API takes", () =>
    expect(makeUpName("ccna-basics:1.0.0", () => 0.5)).toMatch(/^ccna-basics-[a-z0-9]{5}$/));

  test("cells stand at the clock's times, with what was answered", () => {
    const [day] = daysFrom(NOW, 1);
    const offers = byStart([{ start: at(1), pool: "default/a", usd: "1.00" }] as SlotOffer[]);
    const cells = cellsOf(day ?? { start: 0, end: 0 }, offers);
    expect(cells).toHaveLength(48);
    expect(cells.filter(({ offer }) => offer).map(({ clock }) => clock)).toEqual([600]);
  });

  test("a reason that all starts share is told once", () => {
    const no = (why: string): SlotOffer => ({ start: at(0), why, reason: "", remedy: "" }) as SlotOffer;
    expect(commonReason([no("full"), no("full")])?.why).toBe("full");
    expect(commonReason([no("full"), no("hours")])).toBeNull();
    expect(sayReason(no("monthly_budget"))).toContain("budget");
    expect(sayReason(no("something_new"))).toBe("Not possible then");
  });

  test.each([
    ["assign", "A machine is free. Ready in about 1 h.", true],
    ["scale_up", "A machine is started for you. Ready in about 1 h.", true],
    ["wait", "All machines are busy. Ready in about 1 h.", true],
    ["refuse", "You have as many labs waiting as you may have", false],
  ])("%s is said as %s", (outcome, title, possible) => {
    const answer = { outcome, why: "pending_limit", reason: "r", slot: { start: at(1), end: at(2) } } as Explanation;
    expect(saySoon(answer, NOW)).toMatchObject({ title, possible });
  });

  test("arrow keys stay within the grid", () => {
    expect(moveBy("ArrowDown", 3, 7, 14)).toBe(10);
    expect(moveBy("ArrowDown", 10, 7, 14)).toBe(10);
    expect(moveBy("End", 0, 7, 14)).toBe(13);
    expect(moveBy("a", 0, 7, 14)).toBeNull();
  });
});

describe("the calendar", () => {
  test("bars that overlap are stacked, those that do not share a level", () => {
    const bars = stackBars([booked(0, 2, 0.5), booked(1, 3, 0.25), booked(2, 4, 0.5)]);
    expect(bars.map(({ low, high }) => [low, high])).toEqual([
      [0, 0.5],
      [0.5, 0.75],
      [0, 0.5],
    ]);
    expect(barAt(bars, NOW + 1.5 * HOUR, 0.6)).toBe(bars[1]);
    expect(barAt(bars, NOW + 5 * HOUR, 0.1)).toBeNull();
  });

  test("labels have room, from an hour to a month", () => {
    for (const hours of [1, 24, 31 * 24]) {
      const ticks = ticksOf(NOW, NOW + hours * HOUR, 900);
      expect(ticks.length).toBeGreaterThan(1);
      expect(ticks.length).toBeLessThanOrEqual(16);
    }
  });

  test("a day costs what was paid and what is planned", () => {
    const days = daysBetween(NOW - HOUR, NOW + 24 * HOUR);
    const row = { runs: [{ start: at(-2), end: at(2) }], usd_hourly: "5" } as unknown as CalendarRow;
    const total = { name: "2031-11-03", usd: "7.5", seconds: 1, unpriced_seconds: 0, saved_usd: "0" };
    const paid = { since: days[0]?.start ?? 0, until: NOW, days: [total] };
    expect(costsByDay(days, paid, plannedRuns([row]), NOW)).toMatchObject([
      { spent: 7.5, expected: 10 },
      { spent: 0, expected: 0 },
    ]);
    for (const unknown of [undefined, { ...paid, since: NOW }])
      expect(costsByDay(days, unknown, plannedRuns([row]), NOW)).toMatchObject([{ spent: null }, { spent: 0 }]);
  });

  test("machines are found by their name and by who booked", () => {
    const rows = [
      { worker: "w1", pool: "a", seat: 1, booked: [{ name: "x", owner: "ada" }] },
      { worker: "", pool: "b", seat: 2, booked: [] },
    ] as unknown as CalendarRow[];
    expect(findMachines(rows, "ada", "")).toHaveLength(1);
    expect(findMachines(rows, "b/2", "")).toHaveLength(1);
    expect(findMachines(rows, "", "b")).toHaveLength(1);
  });
});

describe("a reservation", () => {
  const spec = { definition: "d", timeslot_start: at(1), timeslot_end: at(3), count: 2 };
  const claim = (from: number): object => ({ start: at(from - 0.25), end: at(from + 2 + 1 / 6), need: {} });
  const made = {
    spec,
    status: {
      held: [
        { number: 1, claim: claim(1), seat: { pool: "p", number: 1 } },
        { number: 2, claim: claim(1), session: "class-2" },
        { number: 3, claim: claim(25) },
      ],
    },
  } as unknown as Reservation;

  test("its claims are grouped by meeting, each at the time of its slot", () => {
    expect(meetingsOf(made).map(({ start, end, seats }) => [start, end, seats.length])).toEqual([
      [at(1), at(3), 2],
      [at(25), at(27), 1],
    ]);
    expect(sayRehearsal(made, NOW)).toContain("2 meetings");
  });

  test("a series that skips the day of its first slot meets at its own times", () => {
    const held = [26, 50].map((from, place) => ({ number: place + 1, claim: claim(from) }));
    expect(meetingsOf({ ...made, status: { held } } as unknown as Reservation)).toMatchObject([
      { start: at(26), end: at(28) },
      { start: at(50), end: at(52) },
    ]);
  });

  test("what somebody filled in becomes a document, once it is complete", () => {
    const wish = {
      name: "c",
      definition: "d",
      start: "2031-11-03T09:00",
      minutes: 60,
      namespace: "other",
      seats: 3,
      every: "week",
      weekdays: ["mon"],
      until: "",
      owner: "",
      emails: "a@x.org, b@x.org",
      track: "",
    } as const;
    expect(reservationOf(wish, "UTC")).toBeNull();
    expect(reservationOf({ ...wish, until: "2031-12-01" }, "UTC")).toMatchObject({
      metadata: { namespace: "other" },
      spec: { count: 3, recurrence: { every: "week", weekdays: ["mon"] }, student_emails: ["a@x.org", "b@x.org"] },
    });
  });

  test("what follows from cancelling names what runs", () => {
    const row = { ends_at: at(5) } as ReservationRow;
    const said = cancelConsequences(row, [{ phase: "RUNNING" }, { phase: "SCHEDULED" }] as never, NOW).join(" ");
    expect(said).toContain("1 lab of it runs now");
    expect(said).toContain("1 session that waits");
  });
});
