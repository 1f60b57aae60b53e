import { describe, expect, test } from "vitest";
import { diffFields, diffLines } from "../lib/diff";

function said(before: string, after: string): string[] {
  const signs = { same: " ", added: "+", removed: "-" };
  return diffLines(before, after).map(({ sort, text }) => signs[sort] + text);
}

/** A small generator of numbers that are the same each time. */
function chance(seed: number): () => number {
  let state = seed;
  return () => (state = (state * 1103515245 + 12345) % 2147483648) / 2147483648;
}

describe("lines", () => {
  test("what is the same, what came and what went, with the numbers of both", () => {
    expect(said("a\nb\nc\n", "a\nx\nc\nd\n")).toEqual([" a", "-b", "+x", " c", "+d"]);
    expect(diffLines("a\nb", "b")).toEqual([
      { sort: "removed", text: "a", before: 1, after: null },
      { sort: "same", text: "b", before: 2, after: 1 },
    ]);
    expect(said("", "")).toEqual([]);
    expect(said("", "a\n")).toEqual(["+a"]);
    expect(said("a\r\nb\r\n", "a\nb\n")).toEqual([" a", " b"]);
  });

  test("both texts can be read from the list, whatever they are", () => {
    const draw = chance(7);
    for (let round = 0; round < 300; round++) {
      const text = (): string[] => Array.from({ length: draw() * 12 }, () => "abcd".charAt(draw() * 4));
      const [old, young] = [text(), text()];
      const found = diffLines(old.join("\n"), young.join("\n"));
      expect(found.filter(({ sort }) => sort !== "added").map(({ text }) => text)).toEqual(old);
      expect(found.filter(({ sort }) => sort !== "removed").map(({ text }) => text)).toEqual(young);
      for (const one of found.filter(({ sort }) => sort === "same"))
        expect([old[(one.before ?? 0) - 1], young[(one.after ?? 0) - 1]]).toEqual([one.text, one.text]);
    }
  });

  test.each([
    ["short lines that repeat", (draw: () => number) => "abc".charAt(draw() * 3), 400_000],
    ["lines that nobody has twice", (draw: () => number) => `line ${Math.floor(draw() * 1e9)} of a lab`, 40_000],
    ["few lines many times", (draw: () => number) => `      - interface ${Math.floor(draw() * 40)}`, 50_000],
  ])(
    "two files of a megabyte are compared soon: %s",
    (_, line, count) => {
      const draw = chance(3);
      const text = (): string => Array.from({ length: count }, () => line(draw)).join("\n");
      const [before, after] = [text(), text()];
      const begun = process.cpuUsage();
      const found = diffLines(before, after);
      const used = process.cpuUsage(begun); // what else runs on this machine does not count
      expect((used.user + used.system) / 1_000).toBeLessThan(3_000);
      expect(found.length).toBeGreaterThanOrEqual(count);
    },
    60_000,
  );
});

test("documents are compared field by field", () => {
  const before = { version: "1.0", needs: { cpu: 4, memory: 2 }, tracks: ["a"], note: "" };
  const after = { version: "1.1", needs: { cpu: 4, memory: 3 }, tracks: ["a", "b"], ports: { R1: { kind: "vnc" } } };
  expect(diffFields(before, after)).toEqual([
    { path: "needs.memory", before: "2", after: "3" },
    { path: "ports.R1.kind", before: null, after: "vnc" },
    { path: "tracks", before: "a", after: "a, b" },
    { path: "version", before: "1.0", after: "1.1" },
  ]);
  expect(diffFields(before, before)).toEqual([]);
});
