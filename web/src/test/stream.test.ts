import { describe, expect, test, vi } from "vitest";
import type { Alert, Row, SessionRow, Who } from "../lib/model";
import type { OpenLine } from "../lib/stream/client";
import { Tab } from "../lib/stream/client";
import type { Surroundings } from "../lib/stream/connection";
import { Connection, pauseAfter, streamPath } from "../lib/stream/connection";
import type { Frame } from "../lib/stream/frames";
import { FrameReader } from "../lib/stream/frames";
import type { ToHub, ToTab } from "../lib/stream/hub";
import { Hub } from "../lib/stream/hub";
import { Ledger } from "../lib/stream/ledger";

const session = (uid: string, phase: string, revision = 0): SessionRow =>
  ({ kind: "LabletSession", uid, name: uid, namespace: "default", phase, resource_version: revision }) as SessionRow;

const frame = (type: string, data: unknown, id = ""): Frame => ({ type, id, data: JSON.stringify(data) });

function snapshot(
  ledger: Ledger,
  rows: Row[],
  revision: number,
  more: { epoch?: string; alerts?: Alert[] } = {},
): void {
  ledger.take(frame("hello", {}));
  ledger.take(frame("snapshot", { rows, alerts: more.alerts ?? [] }));
  ledger.take(frame("ready", { revision, now: "" }, `${more.epoch ?? "e1"}.${revision}.1000000`));
}

function changed(ledger: Ledger, uid: string, phase: string, revision: number, epoch = "e1"): void {
  const row = session(uid, phase);
  const event = { time: "", kind: row.kind, name: uid, namespace: "default", data: {}, row };
  ledger.take(frame("lablet.session.status.changed", event, `${epoch}.${revision}.0`));
}

function deleted(ledger: Ledger, uid: string, revision: number, how = "deleted"): void {
  const event = {
    time: "",
    kind: "LabletSession",
    name: uid,
    namespace: "default",
    data: { kind: "LabletSession", uid },
  };
  ledger.take(frame(`lablet.session.${how}`, { ...event, row: null }, `e1.${revision}.1`));
}

const alert = (name: string): Alert =>
  ({ alert: name, kind: "LabWorker", name: "w1", namespace: "default", severity: "warning" }) as Alert;

const phases = (ledger: Ledger): Record<string, string> =>
  Object.fromEntries(ledger.everything().rows.map((row) => [row.uid, row.phase ?? ""]));

describe("frames", () => {
  test("come out whole however they are cut", () => {
    const text = "retry: 2000\n\nid: a.1.0\nevent: x\ndata: {}\n\n: alive\n\nevent: y\ndata: 1\n\n";
    for (let size = 1; size < text.length; size++) {
      const reader = new FrameReader();
      const found: Frame[] = [];
      for (let at = 0; at < text.length; at += size) found.push(...reader.take(text.slice(at, at + size)));
      expect(found).toEqual([
        { id: "a.1.0", type: "x", data: "{}" },
        { id: "", type: "y", data: "1" },
      ]);
    }
  });
});

describe("what is known", () => {
  test("is nothing until a snapshot is complete", () => {
    const ledger = new Ledger();
    ledger.take(frame("hello", {}));
    ledger.take(frame("snapshot", { rows: [session("a", "PENDING", 3)] }));
    expect(ledger.complete).toBe(false);
    expect(ledger.position).toBe("");
    expect(ledger.everything().rows).toEqual([]);
  });

  test("is never replaced by something older", () => {
    const ledger = new Ledger();
    snapshot(ledger, [session("a", "RUNNING", 12)], 10);
    changed(ledger, "a", "SCHEDULED", 11);
    expect(phases(ledger)).toEqual({ a: "RUNNING" });
    changed(ledger, "a", "COLLECTING", 13);
    snapshot(ledger, [session("a", "RUNNING", 12)], 12);
    expect(phases(ledger)).toEqual({ a: "COLLECTING" });
  });

  test("is gone once it is in the archive", () => {
    const ledger = new Ledger();
    snapshot(ledger, [session("a", "COMPLETED", 5)], 5);
    deleted(ledger, "a", 9, "archived");
    expect(ledger.takeChanges().gone).toEqual(["LabletSession/a"]);
  });

  test("does not come back once it is deleted", () => {
    const ledger = new Ledger();
    snapshot(ledger, [session("a", "RUNNING", 5)], 5);
    deleted(ledger, "a", 9);
    changed(ledger, "a", "STOPPING", 8);
    expect(phases(ledger)).toEqual({});
    expect(ledger.takeChanges().gone).toEqual(["LabletSession/a"]);
  });

  test("loses what a new snapshot no longer shows, and keeps what is newer than it", () => {
    const ledger = new Ledger();
    snapshot(ledger, [session("a", "RUNNING", 5), session("b", "RUNNING", 5)], 5);
    changed(ledger, "b", "STOPPING", 20);
    ledger.takeChanges();
    snapshot(ledger, [session("c", "PENDING", 9)], 10);
    expect(phases(ledger)).toEqual({ b: "STOPPING", c: "PENDING" });
    expect(ledger.takeChanges()).toMatchObject({ reset: false, gone: ["LabletSession/a"] });
  });

  test("is void in another history, whose revisions may be lower", () => {
    const ledger = new Ledger();
    snapshot(ledger, [session("a", "RUNNING", 500)], 500);
    ledger.takeChanges();
    changed(ledger, "a", "STOPPING", 900, "e0");
    expect(phases(ledger)).toEqual({ a: "RUNNING" });
    snapshot(ledger, [session("a", "PENDING", 7)], 8, { epoch: "e2" });
    expect(phases(ledger)).toEqual({ a: "PENDING" });
    expect(ledger.takeChanges().reset).toBe(true);
  });

  test("changes once per object in a batch, whatever happened in it", () => {
    const ledger = new Ledger();
    snapshot(ledger, [], 1);
    ledger.takeChanges();
    for (let revision = 2; revision < 100; revision++) changed(ledger, "a", `P${revision}`, revision);
    const { rows, events } = ledger.takeChanges();
    expect(rows).toEqual([{ ...session("a", "P99"), resource_version: 99 }]);
    expect(events).toHaveLength(98);
    expect(ledger.position).toBe("e1.99.0");
  });

  test("holds alerts until they are cleared, or a snapshot shows them no more", () => {
    const ledger = new Ledger();
    snapshot(ledger, [], 5, { alerts: [alert("HighCpu"), alert("Silent")] });
    const event = { time: "", kind: "LabWorker", name: "w1", namespace: "default", row: null };
    ledger.take(frame("alert.cleared", { ...event, data: alert("HighCpu") }, "e1.6.0"));
    expect(Object.values(ledger.everything().alerts)).toEqual([alert("Silent")]);
    snapshot(ledger, [], 9);
    expect(ledger.everything().alerts).toEqual({});
  });
});

/** A server that answers each connection as told; time passes only when the test says so. */
class Server implements Surroundings {
  asked: string[] = [];
  time = 1000;
  answers: ((signal: AbortSignal) => Promise<Response>)[] = [];
  fetch = (path: string, signal: AbortSignal): Promise<Response> => {
    this.asked.push(path);
    const answer = this.answers.shift();
    return answer
      ? answer(signal)
      : new Promise((_, refuse) => signal.addEventListener("abort", () => refuse(new Error("cut"))));
  };
  now = (): number => this.time;
  random = (): number => 0.5;
  sleep: Surroundings["sleep"] = () => Promise.resolve();
}

const stream = (text: string) => async (): Promise<Response> => new Response(text);
const refusal = (status: number) => async (): Promise<Response> => new Response("", { status });
const settle = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 20));

describe("a connection", () => {
  test("resumes where it was cut, and says so meanwhile", async () => {
    const server = new Server();
    const states: string[] = [];
    let position = "";
    server.answers.push(stream("id: e1.4.0\nevent: x\ndata: {}\n\n"), refusal(503), stream(": alive\n\n"));
    const connection = new Connection(server, {
      position: () => position,
      onFrames: (frames) => (position = frames.at(-1)?.id ?? position),
      onLink: (link) => states.push(link.state),
    });
    void connection.run();
    await settle();
    connection.close();
    expect(server.asked.slice(0, 3)).toEqual([streamPath(""), streamPath("e1.4.0"), streamPath("e1.4.0")]);
    expect(states.slice(0, 5)).toEqual(["connecting", "live", "lost", "lost", "live"]);
    expect(connection.link.contactAt).toBe(1000);
  });

  test("ends when nobody is signed in", async () => {
    const server = new Server();
    server.answers.push(refusal(401));
    const connection = new Connection(server, { position: () => "", onFrames: () => {}, onLink: () => {} });
    await connection.run();
    expect(connection.link.state).toBe("signed-out");
    expect(server.asked).toHaveLength(1);
  });

  test("waits longer also if the server says hello and hangs up", async () => {
    const server = new Server();
    const pauses: number[] = [];
    server.sleep = (milliseconds) => {
      pauses.push(milliseconds);
      return Promise.resolve();
    };
    for (let count = 0; count < 3; count++) server.answers.push(stream("retry: 2000\n\n"));
    const connection = new Connection(server, { position: () => "", onFrames: () => {}, onLink: () => {} });
    void connection.run();
    await settle();
    connection.close();
    expect(pauses).toEqual([1, 2, 3].map((failures) => pauseAfter(failures, 0.5)));
  });

  test("waits longer after each failure, and never long", () => {
    const pauses = [0, 1, 2, 3, 10, 100].map((failures) => pauseAfter(failures, 1));
    expect(pauses).toEqual([300, 600, 1200, 2400, 5000, 5000]);
  });
});

describe("the hub", () => {
  const ready = `event: hello\ndata: {}\n\nevent: snapshot\ndata: ${JSON.stringify({ rows: [session("a", "RUNNING", 3)] })}\n\nid: e1.4.1000000\nevent: ready\ndata: {"revision":4,"now":""}\n\n`;
  const open =
    (text: string) =>
    async (signal: AbortSignal): Promise<Response> =>
      new Response(
        new ReadableStream({
          start(controller) {
            controller.enqueue(new TextEncoder().encode(text));
            signal.addEventListener("abort", () => controller.error(new Error("cut")));
          },
        }),
      );
  const tab = (): { told: ToTab[]; postMessage: (message: ToTab) => void } => {
    const told: ToTab[] = [];
    return { told, postMessage: (message) => told.push(message) };
  };

  /** Wait until a tab was told the rows, however busy the machine is. */
  const heard = ({ told }: { told: ToTab[] }): Promise<void> =>
    vi.waitFor(
      () => expect(told.some((one) => one.type === "changes" && !one.more && one.changes.rows.length > 0)).toBe(true),
      4_000,
    );

  test("opens one stream for all tabs, and tells a late one everything", async () => {
    const server = new Server();
    server.answers.push(open(ready));
    const hub = new Hub(server);
    const [first, second] = [tab(), tab()];
    hub.receive(first, { type: "join", name: "ada", role: "user" });
    await heard(first);
    hub.receive(second, { type: "join", name: "ada", role: "user" });
    expect(server.asked).toHaveLength(1);
    const everything = second.told.find((message) => message.type === "everything");
    expect(everything).toMatchObject({ complete: true, changes: { rows: [{ uid: "a" }] } });
    const batches = first.told.filter((message) => message.type === "changes" && message.changes.rows.length > 0);
    expect(batches).toHaveLength(1);
  });

  test("tells a large state in parts, the last of which has all that is not a row", async () => {
    const rows = Array.from({ length: 1_300 }, (_, place) => session(`s${place}`, "RUNNING", 3));
    const text = `event: hello\ndata: {}\n\nevent: snapshot\ndata: ${JSON.stringify({ rows, alerts: [alert("Silent")] })}\n\n`;
    const server = new Server();
    server.answers.push(open(`${text}id: e1.4.1000000\nevent: ready\ndata: {"revision":4,"now":""}\n\n`));
    const hub = new Hub(server);
    const [first, late] = [tab(), tab()];
    hub.receive(first, { type: "join", name: "ada", role: "admin" });
    await heard(first);
    hub.receive(late, { type: "join", name: "ada", role: "admin" });
    for (const { told } of [first, late]) {
      const parts = told.filter((message) => "changes" in message).filter(({ changes }) => changes.rows.length > 0);
      const shape = parts.map(({ changes, more }) => [changes.rows.length, more]);
      expect(shape).toEqual([
        [500, true],
        [500, true],
        [300, undefined],
      ]);
      const last = parts.at(-1);
      expect(last?.changes).toMatchObject({ reset: true });
      expect(Object.keys(last?.changes.alerts ?? {})).toHaveLength(1);
    }
  });

  test("says once that it is live, however often it hears", async () => {
    const server = new Server();
    server.answers.push(async () => {
      const chunks = [ready, ": alive\n\n", ": alive\n\n", ": alive\n\n"].map((text) => new TextEncoder().encode(text));
      return new Response(
        new ReadableStream({
          async pull(controller) {
            const next = chunks.shift();
            await settle();
            if (next) controller.enqueue(next);
          },
        }),
      );
    });
    const hub = new Hub(server);
    const mine = tab();
    hub.receive(mine, { type: "join", name: "ada", role: "user" });
    await heard(mine);
    await new Promise((resolve) => setTimeout(resolve, 200));
    const states = mine.told.flatMap((message) => (message.type === "link" ? [message.link.state] : []));
    expect(states.filter((state) => state === "live")).toHaveLength(1);
  });

  test("tells a tab everything that was silent for so long that it was told nothing more", async () => {
    const server = new Server();
    server.answers.push(open(ready));
    const hub = new Hub(server);
    const [asleep, awake] = [tab(), tab()];
    hub.receive(asleep, { type: "join", name: "ada", role: "user" });
    hub.receive(awake, { type: "join", name: "ada", role: "user" });
    server.time += 200_000;
    hub.receive(awake, { type: "alive" });
    await heard(awake);
    expect(awake.told.at(-1)).toMatchObject({ type: "changes", changes: { rows: [{ uid: "a" }] } });
    asleep.told.length = 0;
    hub.receive(asleep, { type: "alive" });
    expect(asleep.told.at(-1)).toMatchObject({ type: "everything", complete: true, changes: { rows: [{ uid: "a" }] } });
    hub.receive(asleep, { type: "alive" });
    expect(asleep.told.at(-1)).toMatchObject({ type: "link", link: { state: "live" } });
  });

  test("says by how much the server's clock is ahead", async () => {
    const server = new Server();
    server.answers.push(open(ready.replace('"now":""', `"now":"${new Date(61_000).toISOString()}"`)));
    const hub = new Hub(server);
    const mine = tab();
    hub.receive(mine, { type: "join", name: "ada", role: "user" });
    await heard(mine);
    expect(mine.told.at(-1)).toMatchObject({ type: "changes", ahead: 60_000 });
  });

  test("forgets what one person saw when another signs in, and tells so", async () => {
    const server = new Server();
    server.answers.push(open(ready));
    const hub = new Hub(server);
    const first = tab();
    hub.receive(first, { type: "join", name: "ada", role: "user" });
    await heard(first);
    const other = tab();
    hub.receive(other, { type: "join", name: "bob", role: "user" });
    expect(server.asked).toHaveLength(2);
    expect(other.told.find((message) => message.type === "everything")).toMatchObject({
      complete: false,
      changes: { rows: [] },
    });
    expect(first.told).toContainEqual({ type: "who", who: "user bob" });
  });
});

describe("a tab", () => {
  const ada = { name: "ada", role: "user" } as Who;
  const link = (state: "live" | "lost"): ToTab => ({ type: "link", link: { state, contactAt: 0 } });

  /** A hub that says nothing by itself, and is closed or not. */
  class Silent {
    heard: ToHub[] = [];
    closed = false;
    tell: (message: ToTab) => void = () => {};
    fail: () => void = () => {};
    open: OpenLine = (take, fail) => {
      [this.tell, this.fail] = [take, fail];
      return { send: (message) => void this.heard.push(message), close: () => (this.closed = true) };
    };
  }

  function opened(): { tab: Tab; shared: Silent; own: Silent; told: ToTab[]; left: () => number } {
    const [shared, own, told] = [new Silent(), new Silent(), [] as ToTab[]];
    let count = 0;
    const tab = new Tab(
      ada,
      (message) => told.push(message),
      () => count++,
      [shared.open, own.open],
    );
    return { tab, shared, own, told, left: () => count };
  }

  test("says that the connection is lost, and has a hub of its own, when the shared one does not answer", () => {
    const { tab, shared, own, told } = opened();
    for (let beats = 0; beats < 10; beats++) {
      tab.beat();
      shared.tell(link("live"));
    }
    tab.beat();
    tab.beat();
    expect(own.heard).toEqual([]);
    tab.beat();
    expect(told.at(-1)).toEqual(link("lost"));
    expect(shared.closed).toBe(true);
    expect(own.heard).toEqual([{ type: "join", name: "ada", role: "user" }]);
    const before = told.length;
    shared.tell(link("live"));
    expect(told).toHaveLength(before);
    own.tell(link("live"));
    expect(told.at(-1)).toEqual(link("live"));
  });

  test("does the same at once when the shared one cannot be loaded", () => {
    const { shared, own, told } = opened();
    shared.fail();
    expect(told).toEqual([link("lost")]);
    expect(own.heard).toHaveLength(1);
    shared.fail();
    expect(own.heard).toHaveLength(1);
  });

  test("begins anew when somebody else has signed in", () => {
    const { shared, told, left } = opened();
    shared.tell({ type: "who", who: "user ada" });
    expect(left()).toBe(0);
    shared.tell({ type: "who", who: "admin ada" });
    expect(left()).toBe(1);
    expect(told).toEqual([]);
  });
});
