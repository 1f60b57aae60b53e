import type { Surroundings } from "./connection";

/** What a browser gives to the stream: its network, clock and chance. */
export const browser: Surroundings = {
  fetch: (path, signal) => fetch(path, { signal, headers: { accept: "text/event-stream" }, cache: "no-store" }),
  now: () => Date.now(),
  random: () => Math.random(),
  sleep: (milliseconds, signal) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      signal.addEventListener("abort", () => {
        clearTimeout(timer);
        resolve();
      });
    }),
};
