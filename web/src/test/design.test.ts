import { expect, test } from "vitest";
import type { CalendarView, ObservationReport } from "../lib/model";
import {
  compareVersions,
  definitionConsequences,
  needsBy,
  nextVersion,
  sayAmount,
  sayVersions,
} from "../lib/definitions";
import { chooseLines, messageOf, withMessages } from "../lib/lines";
import { promisesOf, sayHours, sayPacking } from "../lib/pools";
import { saySentence } from "../lib/words";
import { alignSteps, countOpen, wantedSteps } from "../lib/series";

test("a fault says its line, its place and what to do", () => {
  const fault = { path: "line 13: nodes[0].tags[1]", problem: "not a tag", remedy: "write serial:5041" };
  expect(messageOf(fault)).toEqual({ line: 13, text: "nodes[0].tags[1]: not a tag. Write serial:5041." });
  expect(messageOf({ ...fault, path: "spec.topology: line 2" }).line).toBe(2);
  expect(messageOf({ path: "nodes", problem: "there are none" })).toEqual({
    line: null,
    text: "nodes: there are none.",
  });
});

test("messages stand beside their lines, and of a long file only what is near them is shown", () => {
  const lines = Array.from({ length: 5_000 }, (_, place) => `line ${place + 1}`);
  const shown = chooseLines(withMessages(lines, [{ line: 100, text: "wrong" }], "bad"));
  expect(shown.length).toBe(9);
  expect(shown[0]).toEqual({ left_out: 96 });
  expect(shown[4]).toEqual({ numbers: [100], text: "line 100", mark: "bad", messages: ["wrong"] });
  expect(shown.at(-1)).toEqual({ left_out: 4_897 });
  expect(withMessages(["a"], [{ line: 9, text: "ends too soon" }], "bad")[0]?.messages).toEqual(["ends too soon"]);
});

test("versions are ordered as numbers, and the next one is proposed", () => {
  expect(["1.10", "1.9", "2.0-rc1", "2.0"].sort(compareVersions)).toEqual(["1.9", "1.10", "2.0-rc1", "2.0"]);
  expect([nextVersion(undefined), nextVersion("1.0.3"), nextVersion("2")]).toEqual(["1.0.0", "1.1.0", "2.1"]);
});

test("observed needs are rounded up; without observations there are none", () => {
  const spread = { avg: 1, p50: 1, p95: 1.00001, max: 2, latest: 1, count: 3 };
  const measure = (name: string, p95: number) => ({
    measure: name,
    declared: 1,
    observed: { ...spread, p95 },
    difference: 0,
  });
  const report = {
    declared: { cpu_cores: 9, memory_gb: 5, storage_gb: 16 },
    measures: [],
  } as unknown as ObservationReport;
  expect(needsBy(report, "p95")).toBeNull();
  const seen = { ...report, measures: [measure("cpu_cores", 1.00001), measure("memory_mb", 1024.2)] };
  expect(needsBy(seen as unknown as ObservationReport, "p95")).toEqual({
    cpu_cores: 1.001,
    memory_gb: 1025 / 1024,
    storage_gb: 16,
  });
});

test("amounts are said as exactly as somebody compares them", () => {
  const said = [0.2368, 3.3229, 4, null].map((value) => sayAmount("cpu_cores", value));
  expect(said).toEqual(["0.24", "3.32", "4", "–"]);
  expect([992.9, 2304].map((value) => sayAmount("memory_mb", value))).toEqual(["0.97 GB", "2.25 GB"]);
});

test("the versions of CML that a lab runs on may be open at either end", () => {
  expect(sayVersions({ cml_version_min: "2.9", cml_version_max: null })).toBe("2.9 or newer");
  expect(sayVersions({ cml_version_max: "2.9" })).toBe("2.9 or older");
  expect(sayVersions({ cml_version_min: "2.7", cml_version_max: "2.9" })).toBe("2.7 to 2.9");
});

test("what refers to a definition keeps it from being deleted", () => {
  const use = { sessions: [], ended: 2, reservations: [] };
  expect(definitionConsequences("delete", use, [])[0]).toContain("Deprecate it instead");
});

test("levels of several things are brought onto common moments", () => {
  const steps = [
    { at: [10, 30], level: [1, 2] },
    { at: [20], level: [5] },
  ];
  expect(alignSteps(steps)).toEqual([
    [10, 20, 30],
    [1, 1, 2],
    [null, 5, 5],
  ]);
});

test("machines that run are counted out of the bill, and wanted ones out of decisions", () => {
  const at = (second: number): string => new Date(second * 1000).toISOString();
  const bill = [
    { since: at(0), until: at(50) },
    { since: at(20), until: null },
  ];
  expect(countOpen(bill, 10, 100)).toEqual({ at: [10, 20, 50, 100], level: [1, 2, 1, 1] });
  const decisions = [
    { at: at(5), workers_before: 0, workers_after: 1 },
    { at: at(40), workers_before: 1, workers_after: 3 },
  ];
  expect(wantedSteps(decisions, 10, 100)).toEqual({ at: [10, 40, 100], level: [1, 3, 3] });
  expect(wantedSteps([], 10, 100)).toEqual({ at: [], level: [] });
});

test("a pool's promises, hours and reasons in words", () => {
  const slot = { start: "2031-11-03T09:00:00Z", end: "2031-11-03T11:00:00Z" };
  const booked = [{ ...slot, slot, kind: "" as const, name: "", owner: "", phase: "", share: null }];
  const row = {
    namespace: "default",
    pool: "ccna",
    seat: 1,
    worker: "",
    phase: "",
    booked,
    runs: [],
    usd_hourly: null,
  };
  const calendar = { since: slot.start, until: slot.end, rows: [row, { ...row, pool: "other" }], rows_left_off: 0 };
  expect(
    promisesOf(calendar as unknown as CalendarView, "ccna", "default").map(({ seat, claims, until }) => [
      seat,
      claims,
      until,
    ]),
  ).toEqual([[1, 1, slot.end]]);
  const spec = {
    lab_track: "ccna",
    template: "metal",
    allowed_hours: { start_hour: 6, end_hour: 22, time_zone: "UTC" },
  };
  expect(sayHours(spec as Parameters<typeof sayHours>[0])).toBe("from 06:00 to 22:00, UTC");
  const weekdays = { ...spec.allowed_hours, weekdays: ["mon", "fri"] };
  expect(sayHours({ ...spec, allowed_hours: weekdays } as Parameters<typeof sayHours>[0])).toBe(
    "on Monday, Friday, from 06:00 to 22:00, UTC",
  );
  const packing = {
    at: slot.start,
    until: slot.end,
    claims: 9,
    moved: 2,
    machine_hours: 107,
    least_machine_hours: 98.5,
    saved_machine_hours: 0,
    saved_usd: "0",
    saved_since: null,
  };
  expect(sayPacking([packing, packing])).toBe(
    "What is booked for the next 7 days takes 214 machine-hours; no plan needs less than 197.",
  );
  expect(sayPacking([{ ...packing, saved_usd: "12.5" }])).toContain("Packing has saved 12.50 USD so far.");
  expect(saySentence("no planned worker needs a machine")).toBe("No planned worker needs a machine.");
});
