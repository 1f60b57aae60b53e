import { afterAll, expect, test, vi } from "vitest";

const nothing = (): void => {};
// The clock ticks from its import on, and needs a document for as long as it does.
vi.useFakeTimers();
vi.stubGlobal("document", { addEventListener: nothing, hidden: false });
vi.stubGlobal("addEventListener", nothing);
const { me } = await import("../lib/me.svelte");

afterAll(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("who is there is asked again after a pause while nobody answers, and nobody is asked to sign in meanwhile", async () => {
  const answers = [
    () => Promise.reject(new TypeError("away")),
    () => Promise.reject(new TypeError("away")),
    async () => new Response(JSON.stringify({ name: "ada", role: "user" })),
  ];
  vi.stubGlobal("fetch", () => answers.shift()?.() ?? new Promise(nothing));
  await me.find();
  expect([me.asked, me.who, me.error]).toEqual([true, null, "The server does not answer. Try again in a moment."]);
  void me.find();
  expect(me.error).not.toBe("");
  await vi.advanceTimersByTimeAsync(6_000);
  expect([me.who?.name, me.error]).toEqual(["ada", ""]);
});
