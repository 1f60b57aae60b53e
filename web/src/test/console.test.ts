import { describe, expect, it } from "vitest";
import { sayClosed, sayGuests, sayRefused, waitBefore, withNotice } from "../lib/console/words";
import { sayNodeState, spread, withStates } from "../lib/topology";

describe("why a console is not connected", () => {
  it("heals by itself where that may help", () => {
    expect(sayClosed(1001, "").heals).toBe(true);
    expect(sayClosed(1006, "").heals).toBe(true);
    expect(sayClosed(4503, "unreachable").heals).toBe(true);
    for (const code of [4401, 4403, 4409]) expect(sayClosed(code, "x").heals).toBe(false);
    expect(sayClosed(4999, "something new")).toEqual({ text: "Closed: something new.", heals: false });
  });
  it("is asked of the server when it was never open", () => {
    expect(sayRefused(409, "session s is STOPPING")).toEqual({ text: "Session s is STOPPING.", heals: false });
    expect(sayRefused(404, "no session").text).toContain("somebody else's");
    expect(sayRefused(401, "")).toEqual(sayClosed(4401, ""));
    expect([0, 426, 429, 503].every((status) => sayRefused(status, "later").heals)).toBe(true);
  });
  it("is tried again after longer and longer waits, not for ever", () => {
    expect([0, 1, 2, 3, 4, 5].map(waitBefore)).toEqual([1000, 2000, 4000, 8000, 15_000, 15_000]);
    expect(waitBefore(40)).toBeNull();
  });
});

describe("who else is there", () => {
  const joined = { type: "joined", who: "otto", role: "operator", console: "R1_serial", looking: true };
  it("comes and goes", () => {
    const there = withNotice([], JSON.stringify(joined));
    expect(sayGuests([...there, ...there])).toEqual(["otto (operator) looks along at R1_serial."]);
    expect(withNotice(there, JSON.stringify({ ...joined, type: "left", console: "R2_serial" }))).toEqual(there);
    expect(withNotice(there, JSON.stringify({ ...joined, type: "left" }))).toEqual([]);
    expect(withNotice(there, "no JSON")).toEqual(there);
    expect(sayGuests(withNotice([], JSON.stringify({ ...joined, looking: false })))[0]).toContain("uses R1_serial");
  });
});

describe("a topology", () => {
  const node = (id: string, x: number | null, y: number | null) => ({ id, label: id, definition: "iosv", x, y });
  it("knows states by label", () => {
    const nodes = [node("R1", 0, 0), node("R2", 0, 0)];
    const known = [
      { label: "R1", state: "BOOTED" },
      { label: "R2", state: "BOOTED" },
      { label: "R2", state: "STOPPED" },
    ];
    expect(withStates(nodes, known).map(({ state }) => state)).toEqual(["BOOTED", null]);
    expect(sayNodeState("BOOTED")).toEqual(["Running", "good"]);
    expect(sayNodeState("SOMETHING_NEW")).toEqual(["Something new", "quiet"]);
  });
  it("is spread until nothing overlaps, and laid out where places are missing", () => {
    const places = spread([node("a", 0, 0), node("b", 50, 0)]);
    expect(places?.get("b")).toEqual({ x: 130, y: 0 });
    expect(spread([node("a", 0, 0), node("b", 400, 0)])?.get("b")).toEqual({ x: 400, y: 0 });
    expect(spread([node("a", 0, 0), node("b", 0, 0)])).toBeNull();
    expect(spread([node("a", null, 0)])).toBeNull();
  });
});
