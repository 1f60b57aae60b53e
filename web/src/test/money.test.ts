/** What the bill, budgets, quotas and answers to many at once say. */
import { expect, test } from "vitest";
import { ProblemError } from "../lib/api";
import { itemsOf, parseLabels, sayAnswer, sayResult } from "../lib/batch";
import { regionWish } from "../lib/booking";
import {
  billOf,
  budgetOf,
  groupsFor,
  joinPages,
  monthsAround,
  ownersBudgets,
  roundParts,
  sayLine,
  writeCsv,
} from "../lib/ledger";
import type {
  BatchAnswer,
  BudgetLine,
  CalendarView,
  CostLedger,
  CostRow,
  LabWorkerPool,
  PoolChange,
  QuotaRule,
  QuotaView,
} from "../lib/model";
import { nextChange, sayAffected, sayOpenSeats, sayThresholds, sayWarmTier } from "../lib/pools";
import { formOf, ruleOf, sayAmount, sayLimits, sayRule, saySource, sortFaults, usedShare } from "../lib/quotas";
import { sayClassCost, sayPrice } from "../lib/reservations";

function row(name: string, usd: string, more: Partial<CostRow> = {}): CostRow {
  return { name, usd, unused_usd: "0", forecast_usd: "0", saved_usd: "0", ...more };
}

function ledger(rows: CostRow[], more: Partial<CostLedger> = {}): CostLedger {
  return {
    by: "owner",
    since: "2031-11-01T00:00:00Z",
    until: "2031-12-01T00:00:00Z",
    as_of: "2031-11-10T00:00:00Z",
    total_usd: "1",
    unused_usd: "0",
    forecast_usd: "0",
    forecast_unused_usd: "0",
    unpriced_seconds: 0,
    stays_since: null,
    rows,
    next: "",
    ...more,
  };
}

test("cents add up to the total, whatever each part loses by rounding", () => {
  expect(roundParts([0.333333, 0.333333, 0.333334])).toEqual([33, 33, 34]);
  expect(roundParts([0.006, 0.006, 0.006])).toEqual([1, 1, 0]);
  expect(roundParts([0.29, 0.57, 1.13])).toEqual([29, 57, 113]);
  expect(roundParts([])).toEqual([]);
  for (const parts of [[1.005, 2.675, 0.1], Array.from({ length: 97 }, (_, place) => place / 7)]) {
    const sum = parts.reduce((a, b) => a + b, 0);
    expect(roundParts(parts).reduce((a, b) => a + b, 0)).toBe(Math.round(sum * 100));
  }
});

test("a bill has the costliest first, what nobody used as its own line, and the total below", () => {
  const rows = [row("ada", "0.333333"), row("bob", "2.666667", { forecast_usd: "1.5" }), row("", "0")];
  const bill = billOf(ledger(rows, { unused_usd: "1.000000", total_usd: "4", forecast_unused_usd: "0.5" }));
  expect(bill.lines.map(({ name, cents }) => [name, cents])).toEqual([
    ["bob", 267],
    ["ada", 33],
    ["", 0],
  ]);
  expect([bill.unused.cents, bill.total.cents, bill.total.forecast]).toEqual([100, 400, 200]);
  expect([bill.hasUnused, bill.hasForecast, bill.hasSaved]).toEqual([false, true, false]);
  const days = [row("2031-11-01", "1"), row("2031-11-02", "9")];
  expect(billOf(ledger(days, { by: "day" })).lines.map(({ name }) => name)).toEqual(["2031-11-01", "2031-11-02"]);
});

test("the pages of a ledger are one, and its file is safe for spreadsheets", () => {
  const whole = joinPages([ledger([row("=cmd", "1")], { next: "more" }), ledger([row('a,"b"', "2")])]);
  expect(joinPages([])).toBeUndefined();
  expect(whole && writeCsv(whole)).toBe(
    'owner,usd,unused_usd,forecast_usd\n\'=cmd,1,0,0\n"a,""b""",2,0,0\nunused,0,0,0\n',
  );
});

test("who does not see the fleet is offered no groups of it", () => {
  expect(groupsFor(false).map(({ by }) => by)).toEqual(["class", "track", "definition", "day", "session"]);
  expect(groupsFor(true).map(({ by }) => by)).toContain("pool");
  expect(sayLine("class", "")).toBe("Booked without a class");
  expect(sayLine("definition", "default/basics:1.0.0")).toBe("basics:1.0.0");
  expect(monthsAround(new Date(2031, 0, 31).getTime()).slice(0, 5)).toEqual([
    "2031-04",
    "2031-03",
    "2031-02",
    "2031-01",
    "2030-12",
  ]);
});

test("budgets warn from four fifths on", () => {
  const line = { kind: "pool", namespace: "default", name: "ccna", limit_usd: "100", warn_usd: "80", spent_usd: "10" };
  const states = ["79.99", "80", "100"].map((month_usd) => budgetOf({ ...line, month_usd } as BudgetLine).state);
  expect(states).toEqual(["good", "near", "over"]);
  const view = (owner: string | null, used: number, most: number | null): QuotaView => ({
    owner,
    namespace: null,
    track: null,
    lines: [{ limit: "usd_per_month", source: "default", used, most, left: null, at: null }],
  });
  const found = ownersBudgets([view("ada", 10, 100), view(null, 1, 2), view("eve", 9, 10), view("otto", 5, null)]);
  expect(found.map(({ name, state }) => [name, state])).toEqual([
    ["eve", "near"],
    ["ada", "good"],
  ]);
});

test("quotas are said with their units, their rules and whom they are for", () => {
  expect([sayAmount("usd_per_month", 500), sayAmount("hours_ahead", 1.25), sayAmount("horizon_days", 1)]).toEqual([
    "500.00 USD",
    "1.3 h",
    "1 day",
  ]);
  expect(saySource("rule: role author")).toBe("a rule for role author");
  const rule = ruleOf({ ...formOf(), role: "author", track: "ccna", sessions: "20" }) as unknown as QuotaRule;
  expect([sayRule(rule), sayLimits(rule)]).toEqual(["each author, on the track ccna", "labs at the same time: 20"]);
  expect(sayRule({ ...rule, role: null })).toBe("everybody together, on the track ccna");
  const line = { limit: "sessions", source: "default", used: 3, most: 4, left: 1, at: null };
  expect([usedShare(line), usedShare({ ...line, most: null }), usedShare({ ...line, most: 0 })]).toEqual([
    75,
    null,
    100,
  ]);
});

test("a refusal of a rule stands at the field that it is about", () => {
  expect(ruleOf({ ...formOf({ sessions: 3 }), owner: " ada ", nodes: "many" })).toEqual({
    owner: "ada",
    sessions: 3,
    nodes: "many",
  });
  const error = new ProblemError(422, "Invalid", "no", [
    { path: "spec.quotas.rules[1].nodes", problem: "is no whole number", remedy: "write one" },
    { path: "spec.quotas.rules[0].nodes", problem: "another rule's" },
    { path: "spec.quotas.rules[1]", problem: "selects the same as rule 0" },
  ]);
  expect(sortFaults(error, 1)).toEqual({
    fields: { nodes: "Is no whole number: write one." },
    rest: "Another rule's. Selects the same as rule 0.",
  });
  expect(sortFaults(new Error("gone"), 0).rest).toBe("gone");
});

test("many at once: labels are read, and each answer is said", () => {
  expect(parseLabels("room=7, old=")).toEqual({ room: "7", old: null });
  expect(() => parseLabels("room")).toThrow("name=value");
  expect(() => parseLabels(" ")).toThrow("at least one");
  expect(
    itemsOf("LabWorker", [{ name: "w1", namespace: "default" }], { op: "action", action: { action: "drain" } }),
  ).toEqual([{ op: "action", action: { action: "drain" }, kind: "LabWorker", name: "w1", namespace: "default" }]);
  const refused = { op: "action", kind: "LabletSession", namespace: "default", name: "s", outcome: "refused" as const };
  const problem = { title: "No", status: 409, detail: "it is over", reason: "IllegalStep", type: "" };
  const answer = { results: [{ ...refused, object: null, problem }], done: 0, refused: 1 } satisfies BatchAnswer;
  expect(sayAnswer(answer, "session")).toBe("0 sessions done, 1 refused.");
  expect(answer.results.map(sayResult)).toEqual(["Refused: It is over."]);
});

test("a price is said before, and a class's total after", () => {
  expect(sayPrice({ usd: "10", sessions: 4 })).toBe("It will cost about 10.00 USD, 2.50 USD for each lab.");
  expect(sayPrice({ usd: null, sessions: 4 })).toBe("");
  const cost = { spent_usd: "3", booked_usd: "2", sessions_ended: 1, sessions_ahead: 1, unpriced: 0 };
  expect(sayClassCost(cost)).toBe("3.00 USD so far, 2.00 USD booked");
  expect(regionWish("", true)).toEqual({});
  expect(regionWish("eu-west-1", true)).toEqual({ region_required: "eu-west-1" });
  expect(regionWish("eu-west-1", false)).toEqual({ region_preferred: "eu-west-1" });
});

test("a pool's next change is the first of what is known, and promises are counted", () => {
  const row = {
    pool: "ccna",
    namespace: "default",
    seat: 2,
    runs: [{ start: "2031-11-03T08:00:00Z", end: "2031-11-03T12:00:00Z" }],
  };
  const other = { ...row, pool: "exam", runs: [{ start: "2031-11-03T07:30:00Z", end: "2031-11-03T07:45:00Z" }] };
  const calendar = {
    since: "2031-11-03T07:00:00Z",
    until: "2031-11-10T07:00:00Z",
    rows: [row, other],
  } as unknown as CalendarView;
  const pool = {
    metadata: { name: "ccna", namespace: "default" },
    spec: {},
    status: { pause: null },
  } as unknown as LabWorkerPool;
  const at = (time: string): number => Date.parse(`2031-11-03T${time}:00Z`);
  expect(nextChange(pool, calendar, at("07:00"))?.text).toBe("planned worker 2 gets a machine for what is booked");
  expect(nextChange(pool, calendar, at("09:00"))?.text).toBe("nothing is booked on planned worker 2 any more");
  expect(nextChange(pool, calendar, at("13:00"))).toBeNull();
  const paused = { ...pool, status: { pause: { until: "2031-11-03T07:10:00Z" } } } as LabWorkerPool;
  expect(nextChange(paused, calendar, at("07:00"))?.text).toBe("its pause ends");
  const change = { pool, affected: [{}], affected_left_off: 2, refused: 0 } as unknown as PoolChange;
  expect(sayAffected(change, true)).toBe("3 promised bookings are kept: their machines are started.");
  expect(sayAffected({ ...change, affected_left_off: 0 }, false)).toBe(
    "1 promised booking is ended, and its owner sees why.",
  );
  expect(sayAffected({ ...change, affected: [], affected_left_off: 0 }, true)).toBe(
    "It concerns nothing that was promised.",
  );
});

test("a pool says from which load on it changes, and what it keeps warm", () => {
  const thresholds = {
    cpu_scale_up: 0.75,
    cpu_scale_down: 0.3,
    memory_scale_up: 0.8,
    memory_scale_down: 0.4,
    max_labs_per_worker: 15,
    min_labs_per_worker: 3,
    scale_up_cooldown_minutes: 10,
    scale_down_cooldown_minutes: 20,
  };
  const say = (policy: string): string => sayThresholds({ policy, thresholds } as LabWorkerPool["spec"]);
  expect(say("HYBRID")).toBe(
    "grows above 75 % of CPU or 80 % of memory, shrinks below 30 % and 40 %; 10 min apart up, 20 down",
  );
  expect(say("LAB_COUNT_BASED")).toContain("grows above 15 labs a worker");
  expect(say("SCHEDULED")).toBe("");
  const pool = { spec: { warm_workers: 2 }, status: { workers_by_phase: { STOPPED: 1 }, open_seats: [1, 3] } };
  expect(sayWarmTier(pool as unknown as LabWorkerPool)).toBe("up to 2 stopped; 1 at present");
  expect(sayOpenSeats((pool as unknown as LabWorkerPool).status)).toBe("1, 3");
});
