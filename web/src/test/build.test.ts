import { expect, test } from "vitest";
import type { BuildPlace } from "../lib/build";
import { isOutdated, reloadIfOutdated } from "../lib/build";

const page = (entry: string): string =>
  `<head><link rel="icon" href="/assets/mark.svg"><script type="module" crossorigin src="${entry}"></script></head>`;

/** A page whose server answers with what it is told. */
class Place implements BuildPlace {
  entry = "/assets/index-1.js";
  served: () => Promise<string> = async () => page(this.entry);
  time = 1_000_000;
  reloads = 0;
  #kept = new Map<string, string>();
  kept = {
    getItem: (name: string): string | null => this.#kept.get(name) ?? null,
    setItem: (name: string, value: string): void => void this.#kept.set(name, value),
  };
  read = (): Promise<string> => this.served();
  now = (): number => this.time;
  reload = (): void => void this.reloads++;
}

test("a page is not loaded again while the server is away, or has the same build, or none yet", async () => {
  const place = new Place();
  const answers = [async () => page(place.entry), () => Promise.reject(new Error("away")), async () => "being built"];
  for (const served of answers) {
    place.served = served;
    expect(await isOutdated(place)).toBe(false);
    await reloadIfOutdated(place);
  }
  expect(place.reloads).toBe(0);
});

test("another build is loaded, once a minute at most", async () => {
  const place = new Place();
  place.served = async () => page("/assets/index-2.js");
  for (let tries = 0; tries < 5; tries++) await reloadIfOutdated(place);
  expect(place.reloads).toBe(1);
  place.time += 60_000;
  await reloadIfOutdated(place);
  expect(place.reloads).toBe(2);
});
