import { describe, expect, it } from "vitest";
import { parseSetting, sayDeeds, saySignInFailure, settingPatch, sinkState, sourceKind } from "../lib/admin";
import { claimedShares, claimSteps } from "../lib/claims";
import { budgetsOf, costOf } from "../lib/costs";
import type {
  AuditRecord,
  CostReport,
  LabletSession,
  LabWorkerPool,
  SessionRow,
  ShownSetting,
  Sink,
  WorkerRow,
} from "../lib/model";
import { claimsOf, listPorts, sayIdle } from "../lib/workers";

const setting = (type: ShownSetting["type"]): ShownSetting => ({
  name: "IDLE_THRESHOLD_MINUTES",
  group: "Idleness",
  meaning: "minutes",
  form: "whole minutes",
  value: "30",
  default: "30",
  source: "default",
  secret: false,
  field: "idle.threshold_minutes",
  choices: [],
  below: "",
  type,
});

describe("settings", () => {
  it("become what a document holds, or are refused with their form", () => {
    expect(parseSetting(setting("number"), " 45 ")).toBe(45);
    expect(() => parseSetting(setting("number"), "soon")).toThrow("Write whole minutes.");
    expect(() => parseSetting(setting("text"), " ")).toThrow("Write whole minutes.");
    expect(parseSetting(setting("list"), "us-east-1, ,eu-west-1")).toEqual(["us-east-1", "eu-west-1"]);
    expect(parseSetting(setting("boolean"), "true")).toBe(true);
    expect(settingPatch("idle.threshold_minutes", null)).toEqual({ spec: { idle: { threshold_minutes: null } } });
  });

  it("come from one of a few kinds of sources", () => {
    const kinds = ["default", "settings object", "environment variable X", "/etc/lcm/lcm.toml"].map(sourceKind);
    expect(kinds).toEqual(["default", "set here", "environment", "file"]);
  });
});

it("a failed sign-in is said in our own words, whatever the address says", () => {
  expect(saySignInFailure("")).toBe("");
  expect(saySignInFailure("no-role")).toContain("no role here");
  expect(saySignInFailure("Call 0190 now")).toBe("You were not signed in. Begin again.");
});

it("an audit record of many deeds is a line", () => {
  const deed = { verb: "create", kind: "LabWorker", name: "w" };
  expect(sayDeeds({ deeds: [deed] } as unknown as AuditRecord)).toBe("create LabWorker w");
  expect(sayDeeds({ deeds: Array(5).fill(deed) } as unknown as AuditRecord)).toContain("and 2 more");
});

it("a sink fails, has dead letters, delivers, or is off", () => {
  const sink = (more: object): Sink => ({ name: "s", url: "https://x", ...more }) as Sink;
  expect(sinkState(sink({ enabled: false })).word).toBe("Off");
  expect(sinkState(sink({})).word).toBe("New");
  expect(sinkState(sink({ status: { failures: 1 } }))).toEqual({ word: "Failing, 1 try", tone: "bad" });
  expect(sinkState(sink({ status: { failures: 0, dead_letters: 2 } })).tone).toBe("warn");
  expect(sinkState(sink({ status: { failures: 0, dead_letters: 0 } })).word).toBe("Nothing sent yet");
  expect(sinkState(sink({ status: { last_success_at: "2031-01-01T09:00:00Z" } })).tone).toBe("good");
});

describe("claims over time", () => {
  const claim = (start: number, end: number): { start: number; end: number; cpu: number; memory: number } => ({
    start,
    end,
    cpu: 2,
    memory: 4,
  });

  it("change where a booking begins or ends", () => {
    const steps = claimSteps([claim(-5, 10), claim(5, 20), claim(200, 300)], 0, 100);
    expect(steps.map(({ at, cpu }) => [at, cpu])).toEqual([
      [0, 2],
      [5, 4],
      [10, 2],
      [20, 0],
    ]);
    expect(claimedShares(steps.slice(0, 1), { cpu: 4, memory: 2 }, 1000)).toEqual([
      [0, 1],
      [50, 50],
      [100, 100],
    ]);
  });

  it("come from sessions on the worker and from the calendar, each once", () => {
    const worker = { uid: "u", name: "w", namespace: "default" } as WorkerRow;
    const span = { starts_at: "2031-01-01T09:00:00Z", ends_at: "2031-01-01T11:00:00Z" };
    const need = { cpu_millis: 1000, memory_mb: 2048 };
    const sessions = [
      { name: "a", namespace: "default", worker_id: "u", phase: "RUNNING", need, ...span },
      { name: "b", namespace: "default", phase: "SCHEDULED", need, ...span },
      { name: "c", namespace: "default", worker_id: "u", phase: "COMPLETED", need, ...span },
    ] as unknown as SessionRow[];
    const booked = ["a", "b"].map((name) => ({ name, start: span.starts_at, end: span.ends_at }));
    const rows = [{ worker: "w", namespace: "default", booked }];
    const found = claimsOf(worker, sessions, { rows } as never);
    expect(found.map(({ cpu }) => cpu)).toEqual([1000, 1000]);
  });
});

it("ports are listed by number, those of strangers too", () => {
  const session = { metadata: { name: "s" }, status: { allocated_ports: { R1_serial: 2002, R2_serial: 2001 } } };
  const found = listPorts([session as unknown as LabletSession], [2003]);
  expect(found.map(({ number, name, session }) => [number, name, session])).toEqual([
    [2001, "R2_serial", "s"],
    [2002, "R1_serial", "s"],
    [2003, "", ""],
  ]);
});

it("idleness is said with its reason and its snooze", () => {
  const idle = { idle: true, reason: "nobody is there", judged_at: "2031-01-01T09:00:00Z" } as never as Parameters<
    typeof sayIdle
  >[0];
  expect(sayIdle(idle, 0)).toBe("yes: nobody is there");
  expect(sayIdle({ ...idle, snoozed_until: "2031-01-01T09:00:00Z" }, 0)).toContain("not paused before");
});

describe("what pools cost", () => {
  const pool = (place: string, budget: object): LabWorkerPool => {
    const [namespace, name] = place.split("/");
    return { metadata: { namespace, name }, spec: { budget } } as LabWorkerPool;
  };
  const machine = (place: string, pool: string, usd_hourly: string | null, usd: string): [object, object] => {
    const [namespace, worker_name] = place.split("/");
    return [
      { namespace, worker_name, pool, usd_hourly, until: null },
      { name: place, usd },
    ];
  };
  const machines = [
    machine("default/w1", "a", "2", "10"),
    machine("default/w2", "b", "3", "20"),
    machine("other/w1", "a", "5", "40"),
    machine("default/by-hand", "", null, "0"),
  ];
  const report = {
    intervals: machines.map(([interval]) => interval),
    by_worker: machines.map(([, total]) => total),
  } as CostReport;

  it("is that of the pool's own namespace", () => {
    expect(costOf(report)).toEqual({ hourly: 10, total: 70, unknown: 1 });
    const own = costOf(report, ({ namespace, pool }) => namespace === "other" && pool === "a");
    expect(own).toEqual({ hourly: 5, total: 40, unknown: 0 });
  });

  it("is compared with the limits of those that have one, by the hour and by the month", () => {
    const pools = [
      pool("default/a", { monthly_usd: "100", hourly_usd: "4" }),
      pool("default/b", { monthly_usd: "50" }),
      pool("other/a", {}),
    ];
    expect(budgetsOf(pools, report)).toEqual({
      hourly: { spent: 2, limit: 4 },
      monthly: { spent: 30, limit: 150 },
      unlimited: 1,
    });
    expect(budgetsOf([pool("default/a", {})], report)).toEqual({ hourly: null, monthly: null, unlimited: 1 });
  });
});
