/** When a page asks for what it shows, under changes, silence and refusals. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ProblemError } from "../lib/api";
import { Question } from "../lib/question";

const LOST = new ProblemError(0, "Unreachable", "lost");
const told: string[] = [];
const failed: unknown[] = [];
let waiting: { signal: AbortSignal; answer: (value: string) => void; refuse: (error: Error) => void }[] = [];
let question: Question<string>;

beforeEach(() => {
  vi.useFakeTimers();
  [told.length, failed.length, waiting] = [0, 0, []];
  question = new Question((signal) => new Promise((answer, refuse) => waiting.push({ signal, answer, refuse })), {
    told: (value) => told.push(value),
    failed: (error) => failed.push(error),
  });
});

afterEach(() => vi.useRealTimers());

const pass = (milliseconds: number): Promise<unknown> => vi.advanceTimersByTimeAsync(milliseconds);

/** Answer the newest question, or refuse it. */
async function answer(how: string | Error): Promise<void> {
  const asked = waiting.at(-1);
  if (how instanceof Error) asked?.refuse(how);
  else asked?.answer(how);
  await pass(0);
}

test("it is asked at once, and changes in quick succession are asked for once", async () => {
  question.begin();
  await pass(0);
  await answer("first");
  await pass(2_000);
  for (let change = 0; change < 3; change++) {
    question.renew();
    await pass(90);
  }
  await pass(300);
  expect(waiting).toHaveLength(2);
  await answer("second");
  expect(told).toEqual(["first", "second"]);
});

test("changes that never end are asked for once a second, and what is on its way is answered", async () => {
  question.begin();
  await pass(0);
  for (let change = 0; change < 40; change++) {
    question.renew();
    await pass(250);
    if (change % 2) await answer(`${change}`);
  }
  expect(waiting.length).toBeGreaterThanOrEqual(9);
  expect(waiting.length).toBeLessThanOrEqual(11);
  expect(waiting.some(({ signal }) => signal.aborted)).toBe(false);
  expect(told.length).toBeGreaterThanOrEqual(9);
});

test("a change while it is asked is asked for once more afterwards", async () => {
  question.begin();
  await pass(0);
  question.renew();
  question.renew();
  await pass(5_000);
  expect(waiting).toHaveLength(1);
  await answer("before");
  await pass(300);
  await answer("after");
  await pass(60_000);
  expect(waiting).toHaveLength(2);
  expect(told).toEqual(["before", "after"]);
});

test("another subject ends what is on its way, whose answer is dropped", async () => {
  question.begin();
  await pass(0);
  question.begin();
  expect(waiting[0]?.signal.aborted).toBe(true);
  await answer("about the other");
  await pass(300);
  await answer("about this");
  expect(told).toEqual(["about this"]);
});

test("a question that nobody answers is given up for a newer one", async () => {
  question.begin();
  await pass(31_000);
  question.renew();
  await pass(300);
  await answer("newer");
  expect([waiting[0]?.signal.aborted, told]).toEqual([true, ["newer"]]);
});

test.each([
  [LOST, 2],
  [new ProblemError(503, "Unavailable", "busy"), 2],
  [new ProblemError(429, "TooMany", "slowly"), 2],
  [new ProblemError(404, "NotFound", "gone"), 1],
  [new TypeError("our own fault"), 1],
])("after %s it is asked so often: %i", async (error, times) => {
  question.begin();
  await pass(0);
  await answer(error);
  for (let second = 0; second < 20; second++) {
    await pass(1_000);
    await answer(error);
  }
  expect(waiting).toHaveLength(times);
  expect(failed).toHaveLength(times);
});

test("one that went well may be tried again after the next failure", async () => {
  question.begin();
  await pass(0);
  await answer(LOST);
  await pass(5_000);
  await answer("well");
  question.renew();
  await pass(1_000);
  await answer(LOST);
  await pass(5_000);
  expect(waiting).toHaveLength(4);
});

test("nothing is asked at rest, or at the end", async () => {
  question.begin();
  question.rest();
  await pass(60_000);
  expect(waiting).toHaveLength(0);
  question.renew();
  await pass(300);
  question.renew();
  question.end();
  question.renew();
  await answer("too late");
  await pass(60_000);
  expect(waiting).toHaveLength(1);
  expect(told).toEqual([]);
});
