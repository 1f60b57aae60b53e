/** The connection of one console: it opens, it says why it is not open, and it comes back by itself where that may help. */
import { get, ProblemError } from "../api";
import { clock } from "../clock.svelte";
import type { Guest } from "./words";
import { sayClosed, sayRefused, waitBefore, withNotice, type Ending } from "./words";

export type LinkState = "connecting" | "open" | "waiting" | "ended";

export class ConsoleLink {
  state = $state<LinkState>("connecting");
  /** Why it is not open. */
  reason = $state("");
  /** When it is tried again. */
  retryAt = $state(0);
  /** Who else is there, as its owner is told. */
  guests = $state.raw<readonly Guest[]>([]);

  #path: string;
  #socket: WebSocket | null = null;
  #timer = 0;
  #tries = 0;
  #opened: () => void = () => {};
  #taken: (bytes: Uint8Array) => void = () => {};
  #closed: () => void = () => {};

  constructor(path: string, look: boolean) {
    this.#path = look ? `${path}${path.includes("?") ? "&" : "?"}look=true` : path;
  }

  /** Connect. `opened` is called each time it is open, `taken` with what comes, `closed` when it is no longer open. */
  start(opened: () => void, taken: (bytes: Uint8Array) => void, closed: () => void): void {
    this.#opened = opened;
    this.#taken = taken;
    this.#closed = closed;
    this.#connect();
  }

  /** Try at once, whatever came before. */
  reconnect(): void {
    this.#tries = 0;
    this.#connect();
  }

  send(bytes: Uint8Array<ArrayBuffer>): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(bytes);
  }

  /** Close for good, with a reason if it is not the viewer's own wish. */
  stop(reason = ""): void {
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
    this.#end({ text: reason, heals: false });
  }

  #connect(): void {
    clearTimeout(this.#timer);
    this.#socket?.close();
    this.state = "connecting";
    const socket = new WebSocket(this.#path.replace(/^/, location.origin.replace(/^http/, "ws")));
    let wasOpen = false;
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      if (this.#socket !== socket) return;
      wasOpen = true;
      this.state = "open";
      this.reason = "";
      this.#opened();
    };
    socket.onmessage = ({ data }: MessageEvent<ArrayBuffer | string>) => {
      if (this.#socket !== socket) return;
      if (typeof data === "string") this.guests = withNotice(this.guests, data);
      else {
        this.#tries = 0;
        this.#taken(new Uint8Array(data));
      }
    };
    socket.onclose = ({ code, reason }) => {
      if (this.#socket !== socket) return;
      this.#socket = null;
      if (wasOpen) this.#end(sayClosed(code, reason));
      else void this.#askWhy();
    };
  }

  /** A browser does not say why a connection was refused: ask for the same without an upgrade. */
  async #askWhy(): Promise<void> {
    let ending: Ending = sayRefused(426, "");
    try {
      await get(this.#path);
    } catch (error) {
      if (error instanceof ProblemError) ending = sayRefused(error.status, error.message);
    }
    if (this.#socket === null && this.state === "connecting") this.#end(ending);
  }

  #end({ text, heals }: Ending): void {
    const wait = heals ? waitBefore(this.#tries++) : null;
    this.guests = [];
    this.reason = text;
    this.state = wait === null ? "ended" : "waiting";
    this.#closed();
    if (wait === null) return;
    this.retryAt = clock.read() + wait;
    this.#timer = window.setTimeout(() => this.#connect(), wait);
  }
}
