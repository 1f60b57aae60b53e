/** Days of 23 and of 25 hours, as clocks in Berlin show them. */
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { spanToAsk, ticksOf } from "../lib/calendar";

const HOUR = 3_600_000;

beforeAll(() => void vi.stubEnv("TZ", "Europe/Berlin"));
afterAll(() => void vi.unstubAllEnvs());

const clockOf = (at: number): string => {
  const date = new Date(at);
  return `${date.getDate()} ${date.getHours()}:${String(date.getMinutes()).padStart(2, "0")}`;
};
const clocks = (since: number, hours: number, width: number): string[] =>
  ticksOf(since, since + hours * HOUR, width).map(({ at, strong }) => clockOf(at) + (strong ? "!" : ""));

test("each day has its label, whether clocks go forwards or back before it", () => {
  const spring = new Date(2031, 2, 29, 12).getTime();
  expect(clocks(spring, 60, 300)).toEqual(["29 12:00", "30 0:00!", "30 12:00", "31 0:00!", "31 12:00", "1 0:00!"]);
  const autumn = new Date(2031, 9, 25, 12).getTime();
  expect(clocks(autumn, 60, 300)).toEqual(["25 12:00", "26 0:00!", "26 12:00", "27 0:00!", "27 12:00"]);
  const hours = ["26 0:00!", "26 2:00", "26 4:00", "26 6:00", "26 8:00", "26 10:00"];
  expect(clocks(new Date(2031, 9, 26).getTime(), 12, 380)).toEqual(hours);
});

test("an hour that the clock shows twice has labels each time", () => {
  const second = Date.UTC(2031, 9, 26, 1);
  expect(clocks(second, 1, 900)).toHaveLength(12);
  expect(clocks(second - HOUR, 3, 250).filter((clock) => clock === "26 2:00")).toHaveLength(2);
});

test("whole days are asked for, of whatever length, however little is shown", () => {
  const [from, to] = [new Date(2031, 2, 30), new Date(2031, 2, 31)].map(Number);
  const noon = new Date(2031, 2, 30, 12).getTime();
  expect(spanToAsk(noon, noon + HOUR)).toEqual({ since: from, until: to });
  const month = spanToAsk(noon, noon + 31 * 24 * HOUR);
  expect(month.since).toBeLessThan(from ?? 0);
  expect(month.until - month.since).toBeLessThan(62 * 24 * HOUR);
});
