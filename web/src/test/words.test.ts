import { describe, expect, test } from "vitest";
import type { Column } from "../components/table";
import { optionsOf, RowKeeper, visibleSpan } from "../components/table";
import { sayEvent } from "../lib/events";
import type { LiveEvent, SessionRow, WorkerRow } from "../lib/model";
import type { Hit } from "../lib/search";
import { findHits } from "../lib/search";
import { canEnd, endConsequences, sayState } from "../lib/sessions";
import { sayCountdown, sayDate, sayDistance, sayMemory, saySpan, sayUtc, splitMoments, toneOf } from "../lib/words";
import { consequencesOf, sayFailure, verbsFor } from "../lib/workers";

const NOW = Date.parse("2031-11-03T09:00:00Z");
const HOUR = 3_600_000;
const at = (milliseconds: number): string => new Date(NOW + milliseconds).toISOString();
const session = (fields: Partial<SessionRow>): SessionRow =>
  ({ kind: "LabletSession", uid: "u", name: "n", namespace: "default", ...fields }) as SessionRow;
const worker = (fields: Partial<WorkerRow>): WorkerRow =>
  ({ kind: "LabWorker", uid: "w", name: "w", namespace: "default", ...fields }) as WorkerRow;

describe("words", () => {
  test.each([
    [4_000, "4 s"],
    [90_000, "1 min"],
    [HOUR, "1 h"],
    [25 * HOUR, "1 d 1 h"],
  ])("a span of %i ms is %s", (span, said) => expect(saySpan(span)).toBe(said));

  test("moments, distances and amounts are short", () => {
    expect(sayUtc(NOW)).toBe("2031-11-03 09:00:00 UTC");
    expect(sayDistance(NOW + HOUR, NOW)).toBe("in 1 h");
    expect(sayDistance(NOW - HOUR, NOW)).toBe("1 h ago");
    expect(sayCountdown(61_000)).toBe("1:01");
    expect(sayMemory(2355)).toBe("2.3 GB");
    expect(sayMemory(2304)).toBe("2.25 GB");
  });

  test("a phase that nobody foresaw is on its way", () => expect(toneOf("SOMETHING_NEW")).toBe("busy"));
});

describe("a sentence of the server", () => {
  test.each([
    ["tried again at 2031-11-03 09:00:41Z", ["tried again at ", { at: "2031-11-03T09:00:41Z" }]],
    [
      "booked from 2031-11-03 09:00 UTC on, until 2031-11-04T10:30Z",
      ["booked from ", { at: "2031-11-03T09:00Z" }, " on, until ", { at: "2031-11-04T10:30Z" }],
    ],
    ["no image 'CML-3.0*' since 09:00:41Z", ["no image 'CML-3.0*' since 09:00:41Z"]],
    ["", []],
  ])("is taken apart at its moments: %s", (text, parts) => {
    expect(splitMoments(text)).toEqual(parts);
  });

  test("has days that are said in full", () => {
    expect(sayDate("2031-11-03")).toMatch(/Mon.*2031/);
  });
});

describe("a session", () => {
  test.each([
    [
      { phase: "PENDING", queue_position: 3, estimated_start: at(HOUR) },
      "Waiting for room, number 3 in the queue; expected to start in 1 h.",
    ],
    [{ phase: "SCHEDULED", starts_at: at(HOUR) }, "Booked; starts in 1 h."],
    [{ phase: "INSTANTIATING", message: "nodes boot" }, "Starting: nodes boot"],
    [{ phase: "FAILED", last_error: "no room" }, "Failed: no room"],
    [{ phase: "COMPLETED", ends_at: at(-HOUR), files: 2 }, "Ended 1 h ago. 2 saved files."],
  ])("%o is said so", (fields, said) => expect(sayState(session(fields), NOW)).toBe(said));

  test("says what ending it gives up, and cannot be ended twice", () => {
    expect(endConsequences(session({ phase: "RUNNING", ends_at: at(HOUR) }), NOW).join(" ")).toContain(
      "1 h that are left",
    );
    expect(canEnd(session({ phase: "STOPPING" }))).toBe(false);
  });
});

describe("a worker", () => {
  test("that failed says why, and when it is tried again", () => {
    expect(sayFailure("no image", at(HOUR), NOW)).toBe("No image. It is tried again in 1 h.");
    expect(sayFailure("no image", at(-HOUR), NOW)).toBe("No image.");
    expect(sayFailure("no image", null, NOW)).toBe("No image.");
  });

  test("offers what makes sense in its phase", () => {
    expect(verbsFor(worker({ phase: "READY" }))).toEqual(["drain", "pause", "terminate"]);
    expect(verbsFor(worker({ phase: "STOPPED" }))).toEqual(["resume", "terminate"]);
    expect(verbsFor(worker({ phase: "TERMINATED" }))).toEqual([]);
  });

  test("names the sessions that a drain waits for", () => {
    const said = consequencesOf("drain", worker({}), [session({ ends_at: at(HOUR) })], NOW).join(" ");
    expect(said).toContain("1 session is on it");
    expect(consequencesOf("terminate", worker({ pool: "ccna" }), [], NOW).join(" ")).toContain("pool ccna");
  });
});

describe("a table", () => {
  interface Sized {
    uid: string;
    name: string;
    size: number;
  }
  const columns: Column<Sized>[] = [
    { key: "name", title: "Name", value: ({ name }) => name },
    { key: "size", title: "Size", value: ({ size }) => size },
  ];
  const sized = (name: string, size: number, uid = name): Sized => ({ uid, name, size });
  const rows = [sized("beta", 2), sized("alpha", 10)];
  const facets = [{ key: "size", title: "Size", value: ({ size }: { size: number }) => String(size) }];
  const none = { sought: "", order: "", chosen: {} };

  test("keeps what matches every word and facet, in order", () => {
    const keep = (wish: object): readonly Sized[] =>
      new RowKeeper<Sized>().keep(rows, columns, facets, { ...none, ...wish });
    expect(keep({})).toEqual(rows);
    expect(keep({ order: "name" })[0]?.name).toBe("alpha");
    expect(keep({ order: "-size" })[0]?.name).toBe("alpha");
    expect(keep({ sought: "AL 10" })).toEqual([rows[1]]);
    expect(keep({ chosen: { size: "2" } })).toEqual([rows[0]]);
  });

  test("shows after any changes what it would show if it had just begun", () => {
    let seed = 7;
    const chance = (below: number): number => (seed = (seed * 16807) % 2147483647) % below;
    const usual = (a: Sized, b: Sized): number => a.size - b.size || (a.uid < b.uid ? -1 : a.uid > b.uid ? 1 : 0);
    const wishes = [
      none,
      { ...none, order: "name" },
      { ...none, order: "-size" },
      { ...none, sought: "n1" },
      { ...none, order: "-name", chosen: { size: "3" } },
    ];
    for (const wish of wishes) {
      const keeper = new RowKeeper<Sized>();
      let all = Array.from({ length: 200 }, (_, place) => sized(`n${chance(50)}`, chance(6), `u${place}`));
      for (let round = 0; round < 30; round++) {
        for (let change = chance(30); change > 0; change--) {
          const place = chance(all.length);
          if (chance(3)) all = all.with(place, sized(`n${chance(50)}`, chance(6), all[place]?.uid ?? ""));
          else if (chance(2)) all = all.toSpliced(place, 1);
          else all = [...all, sized(`n${chance(50)}`, chance(6), `v${round}-${change}`)];
        }
        const anew = new RowKeeper<Sized>().keep(all, columns, facets, wish, usual);
        expect(keeper.keep(all, columns, facets, wish, usual)).toEqual(anew);
      }
    }
  });

  test("sorts anew by what is not in the row", () => {
    const load = new Map([
      ["alpha", 1],
      ["beta", 2],
    ]);
    const busy: Column<Sized>[] = [
      { key: "load", title: "", value: ({ name }) => load.get(name) ?? 0, outside: true },
      { key: "name", title: "", value: ({ name }) => name },
    ];
    const keeper = new RowKeeper<Sized>();
    const names = (): string[] => keeper.keep(rows, busy, facets, { ...none, order: "load" }).map(({ name }) => name);
    expect(names()).toEqual(["alpha", "beta"]);
    load.set("alpha", 3);
    expect(names()).toEqual(["beta", "alpha"]);
  });

  test("offers the same choices until there are others", () => {
    const [facet] = facets;
    if (!facet) throw new Error("there is one");
    const first = optionsOf(rows, facet, []);
    expect(first).toEqual(["10", "2"]);
    expect(optionsOf([...rows].reverse(), facet, first)).toBe(first);
    expect(optionsOf(rows.slice(1), facet, first)).toEqual(["10"]);
  });

  test("has in the page only what is in view, at either end and between", () => {
    expect(visibleSpan(0, 400, 40, 10_000)).toEqual({ from: 0, to: 18 });
    expect(visibleSpan(200_000, 400, 40, 10_000)).toEqual({ from: 4992, to: 5018 });
    expect(visibleSpan(999_999, 400, 40, 3).to).toBe(3);
  });
});

test("search finds by every word, what begins so first", () => {
  const hit = (label: string, kind: string): Hit => ({ label, kind, note: "", path: "/" });
  const all = [hit("my-lab", "session"), hit("lab-worker", "worker"), hit("other", "pool")];
  expect(findHits(all, "lab").map(({ label }) => label)).toEqual(["lab-worker", "my-lab"]);
  expect(findHits(all, "lab session").map(({ label }) => label)).toEqual(["my-lab"]);
  expect(findHits(all, " ")).toEqual([]);
});

test("an event is said in a line", () => {
  const event = (data: Record<string, unknown>): LiveEvent =>
    ({ id: "", uid: "", type: "", time: "", kind: "", name: "", namespace: "", data }) as LiveEvent;
  expect(sayEvent(event({ previous_state: "SCHEDULED", new_state: "INSTANTIATING", reason: "its time" }))).toBe(
    "Booked → Starting: its time",
  );
  expect(sayEvent(event({ cpu_utilization: 12.4, memory_utilization: null }))).toBe("CPU 12 %");
});
