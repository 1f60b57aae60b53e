/**
 * A tab's end of the stream: joins the hub of this browser, tells it that the tab is still there, and notices when the
 * hub is not: the SharedWorker cannot be loaded, or was ended. The tab then has a hub of its own.
 */
import type { Who } from "../model";
import type { ToHub, ToTab } from "./hub";
import { Hub, personOf } from "./hub";
import { browser } from "./surroundings";

const ALIVE_MS = 30_000;
const MOST_MISSED = 2;

export interface Line {
  send: (message: ToHub) => void;
  close: () => void;
}
/** Opens a line to a hub; `fail` is called if there is none. */
export type OpenLine = (take: (message: ToTab) => void, fail: () => void) => Line;

/**
 * Join as somebody; `take` is called with everything that the hub tells, and `leave` when somebody else has signed in
 * with this browser.
 */
export function joinStream(who: Who, take: (message: ToTab) => void, leave: () => void): void {
  const shared = typeof SharedWorker !== "undefined";
  const tab = new Tab(who, take, leave, shared ? [openSharedHub, openOwnHub] : [openOwnHub]);
  setInterval(() => tab.beat(), ALIVE_MS);
  addEventListener("pagehide", () => tab.send({ type: "leave" }));
  addEventListener("pageshow", (event) => {
    if (event.persisted) tab.join();
  });
  addEventListener("online", () => tab.join());
}

export class Tab {
  #line: Line | null = null;
  /** How often the hub has not answered. */
  #missed = 0;
  #place = 0;

  constructor(
    private readonly who: Who,
    private readonly take: (message: ToTab) => void,
    private readonly leave: () => void,
    private readonly openings: readonly OpenLine[],
  ) {
    this.#open();
  }

  send(message: ToHub): void {
    this.#line?.send(message);
  }

  join(): void {
    this.send({ type: "join", name: this.who.name, role: this.who.role });
  }

  /** Ask whether the hub is there; open another one if it did not answer the last times. */
  beat(): void {
    if (this.#missed >= MOST_MISSED) {
      this.#fail();
      return;
    }
    this.#missed++;
    this.send({ type: "alive" });
  }

  /** Open the next hub in turn; the last one again and again. */
  #open(): void {
    const place = this.#place++;
    const opening = this.openings[Math.min(place, this.openings.length - 1)];
    const ifCurrent = (act: () => void): void => {
      if (this.#place === place + 1) act();
    };
    this.#missed = 0;
    this.#line =
      opening?.(
        (message) => ifCurrent(() => this.#hear(message)),
        () => ifCurrent(() => this.#fail()),
      ) ?? null;
    this.join();
  }

  #fail(): void {
    this.#line?.close();
    this.take({ type: "link", link: { state: "lost", contactAt: 0 } });
    this.#open();
  }

  #hear(message: ToTab): void {
    this.#missed = 0;
    if (message.type !== "who") this.take(message);
    else if (message.who !== personOf(this.who)) this.leave();
  }
}

function openSharedHub(take: (message: ToTab) => void, fail: () => void): Line {
  const worker = new SharedWorker(new URL("./shared.ts", import.meta.url), { type: "module", name: "lcm" });
  worker.onerror = fail;
  worker.port.onmessage = (event: MessageEvent<ToTab>) => take(event.data);
  return { send: (message) => worker.port.postMessage(message), close: () => worker.port.close() };
}

/** Where the browser has no SharedWorker (Chrome on Android), or not any more, a tab has a stream of its own. */
function openOwnHub(take: (message: ToTab) => void): Line {
  const hub = new Hub(browser);
  const port = { postMessage: (message: ToTab) => take(structuredClone(message)) };
  return { send: (message) => hub.receive(port, message), close: () => hub.close() };
}
