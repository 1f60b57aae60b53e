/** When something is asked for: at once, again when it may have changed, and once more when nobody answered. */
import { isPassing } from "./api";

/** Changes in quick succession are asked for once. */
const QUIET_MS = 300;
/** Under changes that never end it is asked this often. */
const APART_MS = 1_000;
const RETRY_MS = 5_000;
/** A question that was on its way for longer than this is not waited for if there is something new to ask. */
const PATIENCE_MS = 30_000;

export interface Listener<T> {
  told(value: T): void;
  failed(error: unknown): void;
}

export class Question<T> {
  /** Ends what is on its way; null if there is nothing to ask for. */
  #stop: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #dueAt = Infinity;
  #askedAt = -Infinity;
  #onItsWay = false;
  #changed = false;
  #retried = false;

  constructor(
    private readonly ask: (signal: AbortSignal) => Promise<T>,
    private readonly listener: Listener<T>,
  ) {}

  /** Ask about something, or something else: an answer about what was asked before is dropped. */
  begin(): void {
    const first = this.#askedAt === -Infinity;
    this.end();
    this.#stop = new AbortController();
    this.#plan(first ? 0 : QUIET_MS);
  }

  /** Ask again, as the answer may be another by now. A question that is on its way is answered first. */
  renew(): void {
    if (!this.#stop) return;
    const since = performance.now() - this.#askedAt;
    if (!this.#onItsWay) this.#plan(Math.max(QUIET_MS, APART_MS - since));
    else if (since < PATIENCE_MS) this.#changed = true;
    else this.begin();
  }

  /** Ask nothing more until somebody says so; an answer that is on its way still counts. */
  rest(): void {
    clearTimeout(this.#timer);
    this.#dueAt = Infinity;
    this.#changed = false;
  }

  /** There is nothing to ask for any more. */
  end(): void {
    this.rest();
    this.#stop?.abort();
    this.#stop = null;
    this.#onItsWay = false;
    this.#retried = false;
  }

  #plan(pause: number): void {
    const dueAt = performance.now() + pause;
    const signal = this.#stop?.signal;
    if (!signal || dueAt >= this.#dueAt) return;
    clearTimeout(this.#timer);
    this.#dueAt = dueAt;
    this.#timer = setTimeout(() => void this.#send(signal), pause);
  }

  async #send(signal: AbortSignal): Promise<void> {
    this.rest();
    this.#askedAt = performance.now();
    this.#onItsWay = true;
    let again = false;
    try {
      const value = await this.ask(signal);
      if (signal.aborted) return;
      this.#retried = false;
      this.listener.told(value);
    } catch (error) {
      if (signal.aborted) return;
      again = isPassing(error) && !this.#retried;
      this.listener.failed(error);
    }
    this.#onItsWay = false;
    if (this.#changed) this.renew();
    else if (again) {
      this.#retried = true;
      this.#plan(RETRY_MS);
    }
  }
}
