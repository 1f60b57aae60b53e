import { describe, expect, test } from "vitest";
import { isMovable, snapStart } from "../lib/calendar";
import type { Sessions } from "../lib/classes";
import {
  aheadOf,
  classOf,
  countStates,
  learnersConsequences,
  learnersDeed,
  leftOf,
  meetingAt,
  parseRoster,
  partFields,
  sayShift,
  sayWould,
  shiftWall,
  wallMinutes,
  worriesOf,
} from "../lib/classes";
import { byMeeting, handOutRows, writeHtml, writeTable } from "../lib/handout";
import type { Booked, LabletSession, Reservation, SessionRow } from "../lib/model";
import { meetingsOf } from "../lib/reservations";
import { continueAddress, findNameProblem, savedFiles, sayContinues } from "../lib/saves";
import { isUsedByOther, manages, may, sayBooker } from "../lib/whose";

const NOW = Date.parse("2031-11-03T08:00:00Z");
const at = (hours: number): string => new Date(NOW + hours * 3_600_000).toISOString();
const claim = (from: number): object => ({ start: at(from - 0.25), end: at(from + 2 + 1 / 6), need: {} });
const EMAILS = ["ada@example.org", "bob@example.org"];
const whole = {
  kind: "Reservation",
  metadata: { name: "routing", uid: "u", namespace: "default" },
  spec: { definition: "d:1", timeslot_start: at(-1), timeslot_end: at(1), count: 2, student_emails: EMAILS },
  status: {
    held: [
      { number: 1, claim: claim(-1), session: "routing-1" },
      { number: 2, claim: claim(-1), session: "routing-2" },
      { number: 3, claim: claim(26), occurrence: 2, place: 2, starts_at: at(26) },
      { number: 4, claim: claim(26), occurrence: 2, place: 1, starts_at: at(26), seat: { pool: "p", number: 3 } },
      { number: 5, claim: claim(47) },
    ],
  },
} as unknown as Reservation;
const row = (name: string, phase: string, more: object = {}): SessionRow =>
  ({ kind: "LabletSession", uid: name, name, namespace: "default", phase, owner: "tess", ...more }) as SessionRow;
const sessions: Sessions = new Map([
  ["routing-1", row("routing-1", "RUNNING")],
  ["routing-2", row("routing-2", "SCHEDULED")],
]);
const meetings = meetingsOf(whole);

describe("the meetings of a class", () => {
  test("have their numbers, and each seat its learner, also after the class was changed", () => {
    expect(meetings.map(({ occurrence, start }) => [occurrence, start])).toEqual([
      [1, at(-1)],
      [2, at(26)],
      [3, at(47)],
    ]);
    expect(meetings[1]?.seats.map(({ learner, machine }) => [learner, machine])).toEqual([
      ["ada@example.org", "p 3"],
      ["bob@example.org", ""],
    ]);
  });

  test("can be moved unless something of them has begun, and extended until they are over", () => {
    expect(aheadOf(meetings, sessions, NOW).map(({ occurrence }) => occurrence)).toEqual([2, 3]);
    expect(leftOf(meetings, NOW)).toHaveLength(3);
    expect(aheadOf(meetings, sessions, Date.parse(at(60)))).toEqual([]);
    const ended: Sessions = new Map([
      ["routing-1", row("routing-1", "COMPLETED")],
      ["routing-2", row("routing-2", "TERMINATED")],
    ]);
    expect(aheadOf(meetings, ended, NOW).map(({ occurrence }) => occurrence)).toEqual([2, 3]);
  });

  test("are found by a moment, and counted by state", () => {
    expect(meetingAt(meetings, Date.parse(at(26.1)))?.occurrence).toBe(2);
    expect(countStates(meetings[0] as never, sessions)).toBe("1 running, 1 booked");
    expect(countStates(meetings[1] as never, sessions)).toBe("2 held");
  });
});

describe("a change of a class", () => {
  test("is about all that is left, one meeting, or one and all after it", () => {
    expect([partFields("all", 2), partFields("one", 2), partFields("onward", 2)]).toEqual([
      {},
      { occurrence: 2 },
      { occurrence: 2, onward: true },
    ]);
  });

  test("is said by the clock on the wall, and comes back where it was", () => {
    const begin = new Date(2031, 9, 25, 9).getTime();
    const week = 7 * 24 * 60;
    expect(new Date(shiftWall(begin, week)).getHours()).toBe(9);
    expect(wallMinutes(begin, shiftWall(begin, week))).toBe(week);
    expect(sayShift(-90)).toMatch(/^1 h 30 min earlier/);
    expect(sayShift(0)).toBe("It stays where it is.");
  });

  test("that would be accepted says what is then", () => {
    expect(sayWould(whole, NOW)).toMatch(/^It would be accepted: 3 meetings with 2 seats each/);
    const alone = { kind: "LabletSession", spec: { timeslot_start: at(1), timeslot_end: at(2) } };
    expect(sayWould(alone as LabletSession, NOW)).toMatch(/^It would be accepted: .* to /);
  });
});

describe("learners", () => {
  test.each([
    ["ada@example.org\nbob@example.org", EMAILS],
    ["ada@example.org, bob@example.org;", EMAILS],
    ["Ada L. <ada@example.org>\nBob <bob@example.org>", EMAILS],
    ['\uFEFFname,email\r\n"Lovelace, A",x\r\n', null],
    ["name;email\nAda;ada@example.org\n\nBob;bob@example.org\n", EMAILS],
    ["email\nada@example.org\nbob@example.org", EMAILS],
    ["", []],
  ])("are read from %j", (text, emails) => {
    const found = parseRoster(text);
    if (emails) expect(found).toEqual({ emails, problem: "" });
    else expect(found.problem).toMatch(/^Line 2:/);
  });

  test("that cannot be read are told with their line", () => {
    expect(parseRoster("ada@example.org\nADA@example.org").problem).toBe("Line 2: ADA@example.org is there twice.");
    expect(parseRoster("ada@example.org\nbob").problem).toBe("Line 2: bob is no e-mail address.");
    expect(parseRoster("name,phone\nAda,1").problem).toContain("without the column email");
  });

  test("more or fewer of them change the seats too", () => {
    expect(learnersDeed(whole.spec, EMAILS).verb).toBe("learners");
    expect(learnersDeed(whole.spec, []).verb).toBe("learners");
    expect(learnersDeed(whole.spec, ["ada@example.org"])).toEqual({
      verb: "resize",
      body: { seats: 1, student_emails: ["ada@example.org"] },
    });
    expect(learnersConsequences(whole.spec, ["ada@example.org", "eve@example.org", "fay@example.org"])).toEqual([
      "2 learners get a seat.",
      "1 learner loses the seat, and does not see it any more.",
      "1 seat more is booked.",
      "Who stays keeps the own seat. Sessions that have begun stay as they are.",
    ]);
  });
});

test("what is at risk, failed or refused needs a look", () => {
  const rows = [
    row("risky", "SCHEDULED", { at_risk: "its machine is late" }),
    row("over", "COMPLETED", { at_risk: "of old" }),
    row("broken", "FAILED", { last_error: "no image" }),
  ];
  const classes = [{ uid: "c", name: "big", namespace: "default", phase: "FAILED", last_error: "no room" }];
  expect(worriesOf(rows, classes).map(({ text }) => text)).toEqual([
    "At risk: its machine is late",
    "Failed: no image",
    "Refused: no room",
  ]);
});

describe("the hand-out", () => {
  const running = {
    metadata: { name: "routing-1" },
    spec: { student_email: "ada@example.org", timeslot_start: at(-1) },
    status: {
      phase: "RUNNING",
      worker_name: "w",
      ends_at: at(1),
      access_urls: { R1: "https://w.example.org/?a=1&b=2", "=cmd": "javascript:alert(1)" },
    },
  } as unknown as LabletSession;
  const rows = handOutRows(whole, [running]);
  const say = (start: string): string => start;

  test("says of each seat whose it is, and what became of it", () => {
    expect(rows.map(({ learner, state, worker }) => [learner, state, worker])).toEqual([
      ["ada@example.org", "Running", "w"],
      ["bob@example.org", "Gone", ""],
      ["ada@example.org", "Booked", ""],
      ["bob@example.org", "Booked", ""],
      ["ada@example.org", "Booked", ""],
    ]);
    expect(byMeeting(rows).map((one) => one.rows.length)).toEqual([2, 2, 1]);
  });

  test("holds nothing that a browser or a spreadsheet would take for anything but text", () => {
    const page = writeHtml("<b>class</b>", rows, say);
    expect(page).toContain("&lt;b&gt;class&lt;/b&gt;");
    expect(page).toContain('<a href="https://w.example.org/?a=1&amp;b=2">');
    expect(page).not.toContain('href="javascript');
    const table = writeTable([{ ...(rows[0] as (typeof rows)[0]), learner: "=HYPERLINK(1)", session: 'a"b' }], say);
    expect(table).toContain(",'=HYPERLINK(1),");
    expect(table).toContain('"a""b"');
    expect(table.split("\n")).toHaveLength(3);
  });
});

describe("what was saved", () => {
  const file = (name: string, hours: number): object => ({ name, collected_at: at(hours), size_bytes: 1, digest: "" });
  const session = {
    metadata: { name: "mine" },
    spec: {},
    status: {
      artifacts: [file("save-1.yaml", -3), file("save-before-bgp.yaml", -2), file("lab.yaml", -1), file("x.log", 0)],
    },
  } as unknown as LabletSession;

  test("is listed with the lab at its end first, then the newest save", () => {
    expect(savedFiles(session).map(({ title }) => title)).toEqual([
      "The lab as it ended",
      "Save before-bgp",
      "Save 1",
      "x.log",
    ]);
    expect(savedFiles(undefined)).toEqual([]);
  });

  test("is continued on the booking page", () => {
    const from = { name: "mine", namespace: "n", definition: "d:1" };
    expect(continueAddress(from, "before-bgp")).toBe("/book?lab=d%3A1&continue=mine&save=before-bgp&namespace=n");
    expect(continueAddress({ ...from, namespace: "default" }, null)).toBe("/book?lab=d%3A1&continue=mine");
  });

  test("has a name that can be part of a file's", () => {
    expect(["", "a", "before-bgp"].map(findNameProblem)).toEqual(["", "", ""]);
    expect(["-a", "A", "a b", "x".repeat(41)].map((name) => findNameProblem(name) !== "")).toEqual(Array(4).fill(true));
  });

  test("says whether the lab has changed since", () => {
    const conditions = [{ type: "Continues", reason: "DefinitionDiffers", message: "R2 is new" }];
    const next = { spec: { continue_from: { session: "mine" } }, status: { conditions } };
    expect(sayContinues(next as unknown as LabletSession)).toEqual({ from: "mine", differs: true, text: "R2 is new" });
    expect(sayContinues(session)).toBeNull();
  });
});

describe("whose a session is", () => {
  const seat = row("seat", "RUNNING", { student_email: "ada@example.org" });
  const ada = { name: "ada", role: "user" } as const;
  const tess = { name: "tess", role: "instructor" } as const;
  const otto = { name: "otto", role: "operator" } as const;
  const guest = { name: "guest+seat", role: "guest" } as const;

  test("its owner and staff manage it; its learner does what was allowed", () => {
    expect([tess, otto, ada, guest, null].map((who) => manages(who, seat))).toEqual([true, true, false, false, false]);
    const allowed = { spec: { learner_may: ["extend"] } } as unknown as LabletSession;
    expect([may(ada, seat, undefined, "extend"), may(ada, seat, allowed, "extend")]).toEqual([false, true]);
    expect(may(ada, seat, allowed, "terminate")).toBe(false);
  });

  test("who looks into a seat that another uses is told so", () => {
    expect([tess, otto, ada].map((who) => isUsedByOther(who, seat))).toEqual([true, true, false]);
    expect(isUsedByOther(tess, row("own", "RUNNING"))).toBe(false);
    expect([sayBooker(ada, seat), sayBooker(tess, seat)]).toEqual(["Booked for you by tess.", ""]);
  });
});

describe("what is dragged in the calendar", () => {
  test("falls on a whole quarter of an hour, or on five minutes where little is shown", () => {
    const nine = new Date(2031, 10, 3, 9).getTime();
    const minutes = (count: number): number => count * 60_000;
    expect(snapStart(nine, minutes(22), minutes(24 * 60))).toBe(nine + minutes(15));
    expect(snapStart(nine, minutes(23), minutes(60))).toBe(nine + minutes(25));
    expect(snapStart(nine + minutes(7), minutes(-60), minutes(24 * 60))).toBe(nine - minutes(60) + minutes(0));
  });

  test("has a name and has not begun", () => {
    const slot = { start: at(1), end: at(2) };
    const booked = { kind: "Reservation", name: "c", phase: "", slot } as unknown as Booked;
    expect(isMovable(booked, NOW)).toBe(true);
    expect(isMovable({ ...booked, name: "" }, NOW)).toBe(false);
    expect(isMovable({ ...booked, slot: { start: at(-1), end: at(2) } }, NOW)).toBe(false);
    expect(isMovable({ ...booked, kind: "LabletSession", phase: "RUNNING" }, NOW)).toBe(false);
  });

  test("belongs to the class of its session", () => {
    const owner = { kind: "Reservation", name: "routing", uid: "u" };
    expect(classOf({ metadata: { name: "s", owner } } as unknown as LabletSession)).toBe("routing");
    expect(classOf({ metadata: { name: "s" } } as unknown as LabletSession)).toBe("");
  });
});
