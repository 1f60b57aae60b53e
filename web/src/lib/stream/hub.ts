/** Shares one stream among tabs: each begins with everything that is known and then gets what changes, in batches. */
import type { Ready, Role } from "../model";
import type { Link, LinkState, Surroundings } from "./connection";
import { Connection } from "./connection";
import type { Frame } from "./frames";
import type { Changes } from "./ledger";
import { isEmpty, Ledger, noChanges } from "./ledger";

export type ToHub = { type: "join"; name: string; role: Role } | { type: "alive" } | { type: "leave" };
/**
 * With `more`, the message holds only rows, and the rest follows; with `reset`, nothing is valid before that is there.
 * `ahead` is by how many milliseconds the server's clock is ahead of this machine's; `who` is whose state it is.
 */
export type ToTab =
  | { type: "everything"; changes: Changes; complete: boolean; ahead: number; link: Link; more?: boolean }
  | { type: "changes"; changes: Changes; complete: boolean; ahead: number; more?: boolean }
  | { type: "link"; link: Link }
  | { type: "who"; who: string };

/** The part of a MessagePort that a hub needs. */
export interface Port {
  postMessage: (message: ToTab) => void;
}

const BATCH_MS = 100;
const LARGE_BATCH_MS = 250;
const LARGE = 2_000;
const SILENT_TAB_MS = 180_000;
/** Rows in one message: a tab reads a message at one go, and does nothing else meanwhile. */
const MOST_ROWS = 500;

/** Return somebody as hubs tell people apart: what they see depends on both. */
export function personOf({ name, role }: { name: string; role: Role }): string {
  return `${role} ${name}`;
}

export class Hub {
  #ledger = new Ledger();
  #tabs = new Map<Port, number>();
  #who = "";
  #connection: Connection | null = null;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #told: LinkState = "connecting";
  #ahead = 0;

  constructor(private readonly around: Surroundings) {}

  /** Take a message of a tab. One that was silent for too long has missed changes, and is told everything. */
  receive(port: Port, message: ToHub): void {
    if (message.type === "leave") {
      this.#tabs.delete(port);
      return;
    }
    const known = this.#tabs.has(port);
    this.#tabs.set(port, this.around.now());
    if (message.type === "join") this.#join(port, personOf(message));
    else if (known) post([port], { type: "link", link: this.#link });
    else this.#tellEverything(port);
  }

  /** Follow nothing any more. */
  close(): void {
    this.#tabs.clear();
    this.#connection?.close();
  }

  get #link(): Link {
    return this.#connection?.link ?? { state: "connecting", contactAt: 0 };
  }

  #join(port: Port, who: string): void {
    if (who !== this.#who) {
      this.#who = who;
      this.#ledger.clear();
      this.#send({ type: "who", who });
      this.#begin();
    } else if (this.#connection === null || this.#connection.link.state === "signed-out") this.#begin();
    else this.#connection.hurry();
    this.#tellEverything(port);
  }

  #tellEverything(port: Port): void {
    this.#flush();
    post([port], { type: "who", who: this.#who });
    post([port], {
      type: "everything",
      changes: this.#ledger.everything(),
      complete: this.#ledger.complete,
      ahead: this.#ahead,
      link: this.#link,
    });
  }

  #begin(): void {
    this.#connection?.close();
    const connection: Connection = new Connection(this.around, {
      position: () => this.#ledger.position,
      onFrames: (frames) => {
        if (connection !== this.#connection) return;
        for (const frame of frames) this.#ledger.take(frame);
        this.#readClock(frames);
        this.#timer ??= setTimeout(() => this.#flush(), this.#ledger.size > LARGE ? LARGE_BATCH_MS : BATCH_MS);
      },
      onLink: (link) => {
        if (connection !== this.#connection) return;
        if (link.state === "signed-out") this.#ledger.clear();
        // When the server was last heard of is of interest once it is not heard of any more.
        if (link.state === "live" && this.#told === "live") return;
        this.#told = link.state;
        this.#send({ type: "link", link });
      },
    });
    this.#connection = connection;
    void connection.run();
  }

  #readClock(frames: Frame[]): void {
    const ready = frames.findLast(({ type }) => type === "ready");
    const now = ready ? Date.parse((JSON.parse(ready.data) as Ready).now) : NaN;
    if (!Number.isNaN(now)) this.#ahead = now - this.around.now();
  }

  #flush(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    const changes = this.#ledger.takeChanges();
    if (isEmpty(changes)) return;
    this.#send({ type: "changes", changes, complete: this.#ledger.complete, ahead: this.#ahead });
  }

  #send(message: ToTab): void {
    const since = this.around.now() - SILENT_TAB_MS;
    for (const [port, seen] of this.#tabs) if (seen < since) this.#tabs.delete(port);
    post([...this.#tabs.keys()], message);
  }
}

/** Send a message; if it has many rows, in parts. */
function post(ports: Port[], message: ToTab): void {
  if (message.type === "link" || message.type === "who") {
    for (const port of ports) port.postMessage(message);
    return;
  }
  const { rows } = message.changes;
  const rest = Math.max(0, Math.ceil(rows.length / MOST_ROWS) - 1) * MOST_ROWS;
  for (const port of ports) {
    for (let from = 0; from < rest; from += MOST_ROWS)
      port.postMessage({
        ...message,
        changes: { ...noChanges(), reset: message.changes.reset, rows: rows.slice(from, from + MOST_ROWS) },
        more: true,
      });
    port.postMessage({ ...message, changes: { ...message.changes, rows: rows.slice(rest) } });
  }
}
