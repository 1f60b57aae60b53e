/** To make something once, though answers get lost; and what is said while it is waited for. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { create, get, isPassing, isUnanswered, ProblemError } from "../lib/api";
import { BookingAttempt, moveBy, sayWhy } from "../lib/booking";
import type { Explanation } from "../lib/model";
import { tracksOf } from "../lib/pools";
import { reservationOf } from "../lib/reservations";
import { archivedHit } from "../lib/search";
import { sayReady, tabOf } from "../lib/sessions";
import { asDate, asField, sayDay, saySentence, sayTime } from "../lib/words";

const LOST = new ProblemError(0, "Unreachable", "lost");
const TAKEN = new ProblemError(409, "AlreadyExists", "taken");
const keys: (string | null)[] = [];
let answers: (number | "lost")[] = [];

beforeEach(() => {
  keys.length = 0;
  vi.stubGlobal("location", { protocol: "http:" });
  vi.stubGlobal("document", { cookie: "" });
  vi.stubGlobal("fetch", (_: string, { headers }: { headers: Record<string, string> }) => {
    keys.push(headers["idempotency-key"] ?? null);
    const answer = answers.shift() ?? 201;
    if (answer === "lost") return Promise.reject(new TypeError("lost"));
    return Promise.resolve(Response.json({ reason: "r", detail: "d" }, { status: answer }));
  });
});

afterEach(() => vi.unstubAllGlobals());

test("what was asked without an answer is asked with the same key, until one comes", async () => {
  answers = ["lost", 503, 201, 201];
  await expect(create("/api/things", { name: "a" })).rejects.toThrow("does not answer");
  await expect(create("/api/things", { name: "a" })).rejects.toThrow("d");
  await create("/api/things", { name: "a" });
  await create("/api/things", { name: "a" });
  expect(new Set(keys.slice(0, 3)).size).toBe(1);
  expect(keys[0]).toMatch(/^[0-9a-f]{32}$/);
  expect(keys[3]).not.toBe(keys[0]);
});

test("another thing has another key, and so has one that was refused", async () => {
  answers = ["lost", "lost", 409, 201];
  await expect(create("/api/things", { name: "b" })).rejects.toThrow();
  await expect(create("/api/things", { name: "c" })).rejects.toThrow();
  await expect(create("/api/things", { name: "c" })).rejects.toThrow();
  await create("/api/things", { name: "c" });
  expect(keys[1]).not.toBe(keys[0]);
  expect(keys[2]).toBe(keys[1]);
  expect(keys[3]).not.toBe(keys[2]);
});

test("an answer that is cut off is none, unless nobody waits for it any more", async () => {
  const cut = (): Promise<Response> =>
    Promise.resolve(new Response(new ReadableStream({ pull: (line) => line.error(new TypeError("cut")) })));
  vi.stubGlobal("fetch", cut);
  const error: unknown = await create("/api/things", { name: "d" }).catch((why: unknown) => why);
  expect([isUnanswered(error), isPassing(error)]).toEqual([true, true]);
  await expect(get("/api/things", {}, AbortSignal.abort())).rejects.toThrow("cut");
});

test("a booking keeps its name while it is not known whether it was made", async () => {
  const attempt = new BookingAttempt();
  const names: string[] = [];
  const send = (error?: Error) => (name: string) => {
    names.push(name);
    return error ? Promise.reject(error) : Promise.resolve(name);
  };
  await expect(attempt.book("lab:1", "monday", send(LOST))).rejects.toBe(LOST);
  expect(isUnanswered(LOST)).toBe(true);
  expect(await attempt.book("lab:1", "monday", send())).toBe(names[0]);
  expect(await attempt.book("lab:1", "monday", send())).not.toBe(names[0]);
  await expect(attempt.book("lab:1", "monday", send(LOST))).rejects.toBe(LOST);
  expect(await attempt.book("lab:1", "tuesday", send())).not.toBe(names[3]);
});

test("a name that is taken is made up anew, a few times", async () => {
  const names: string[] = [];
  const send = (name: string): Promise<never> => {
    names.push(name);
    return Promise.reject(TAKEN);
  };
  await expect(new BookingAttempt().book("lab:1", "w", send)).rejects.toBe(TAKEN);
  expect(new Set(names).size).toBe(3);
});

test.each([
  ["wait", "memory", "The machines that could run it are full."],
  ["wait", "hours", "Closed: outside the hours of the machines."],
  ["promise", "", "Room on a machine is kept for it."],
  ["promise", "booting", "Its machine is starting."],
  ["wait", "something_new", "The sentence of the API."],
])("%s for %s is said as %s", (outcome, why, said) =>
  expect(sayWhy({ outcome, why, reason: "the sentence of the API" } as Explanation)).toBe(said),
);

test("a start says how long such labs usually take, else what was planned", () => {
  const now = Date.parse("2031-11-03T09:00:00Z");
  const at = (seconds: number): string => new Date(now + seconds * 1000).toISOString();
  const known = { began: at(-60), usualSeconds: 200, planned: at(900) };
  expect(sayReady(known, now)).toBe("Usually ready in about 2 min.");
  expect(sayReady({ ...known, began: at(-300) }, now)).toContain("longer than usual");
  expect(sayReady({ ...known, usualSeconds: undefined }, now)).toBe("Planned to be ready in about 15 min.");
  expect(sayReady({ began: undefined, usualSeconds: undefined, planned: undefined }, now)).toBe("");
});

test("a tab of a session keeps its namespace", () => {
  expect(tabOf("/sessions/a?namespace=exam", "consoles")).toBe("/sessions/a/consoles?namespace=exam");
  expect(tabOf("/sessions/a", "consoles")).toBe("/sessions/a/consoles");
});

test("a session that no list has is offered by its whole name only", () => {
  expect(archivedHit(" ada-monday ")).toMatchObject([{ label: "ada-monday", path: "/sessions/ada-monday" }]);
  expect([archivedHit(""), archivedHit("two words"), archivedHit("Ada")]).toEqual([[], [], []]);
});

test("a class may meet every other week", () => {
  const wish = {
    ...{ name: "n", namespace: "default", definition: "d", start: "2031-11-03T09:00", minutes: 60, seats: 2 },
    ...{ every: "week" as const, weekdays: [], until: "2031-12-01", owner: "", emails: "", track: "" },
  };
  expect(reservationOf({ ...wish, interval: 2 }, "UTC")).toMatchObject({ spec: { recurrence: { interval: 2 } } });
  expect(reservationOf({ ...wish, interval: 1 }, "UTC")).not.toHaveProperty("spec.recurrence.interval");
});

test("keys lead nowhere in an empty list", () => expect(moveBy("ArrowDown", 0, 1, 0)).toBe(0));

test("days, times and sentences have one form each", () => {
  const moment = new Date(2031, 10, 3, 9, 5).getTime();
  expect(asDate(moment)).toBe("2031-11-03");
  expect(asField(moment)).toBe("2031-11-03T09:05");
  expect(sayTime(moment)).toContain("05");
  expect(sayDay(moment, true)).not.toBe(sayDay(moment));
  expect([saySentence("so it is"), saySentence("Is it?")]).toEqual(["So it is.", "Is it?"]);
  expect(tracksOf([{ lab_track: "b" }, {}, { lab_track: "a" }, { lab_track: "b" }])).toEqual(["a", "b"]);
});
