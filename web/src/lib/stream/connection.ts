/**
 * Keeps one event stream open: reads it, notes when the server was last heard of, and connects again when it is gone.
 *
 * It reads the bytes itself instead of using EventSource, which hides the heartbeats (so that nobody could say when the
 * last contact was), hides the status (so that "sign in again" looks like an outage), and gives up for good at a 503.
 */
import type { Frame } from "./frames";
import { FrameReader } from "./frames";

export type LinkState = "connecting" | "live" | "lost" | "signed-out";

export interface Link {
  state: LinkState;
  /** When the server was last heard of, in milliseconds; 0 for never. */
  contactAt: number;
}

export interface Surroundings {
  fetch: (path: string, signal: AbortSignal) => Promise<Response>;
  now: () => number;
  random: () => number;
  sleep: (milliseconds: number, signal: AbortSignal) => Promise<void>;
}

export interface Listener {
  position: () => string;
  onFrames: (frames: Frame[]) => void;
  onLink: (link: Link) => void;
}

const SILENCE_MS = 15_000;
const FIRST_PAUSE_MS = 300;
const LONGEST_PAUSE_MS = 5_000;
const UNAUTHORIZED = 401;

export class Connection {
  #link: Link = { state: "connecting", contactAt: 0 };
  #stop = new AbortController();
  #skipPause = new AbortController();
  #failures = 0;

  constructor(
    private readonly around: Surroundings,
    private readonly listener: Listener,
  ) {}

  get link(): Link {
    return this.#link;
  }

  /** Stay connected until `close`, or until nobody is signed in. */
  async run(): Promise<void> {
    const { signal } = this.#stop;
    this.#tell("connecting");
    while (!signal.aborted) {
      this.#failures++;
      const ended = await this.#once(signal);
      if (signal.aborted) return;
      if (ended === UNAUTHORIZED) {
        this.#tell("signed-out");
        return;
      }
      this.#tell("lost");
      this.#skipPause = new AbortController();
      await this.around.sleep(pauseAfter(this.#failures, this.around.random()), this.#skipPause.signal);
    }
  }

  /** Connect at once if it waits to do so. */
  hurry(): void {
    this.#skipPause.abort();
  }

  close(): void {
    this.#stop.abort();
    this.#skipPause.abort();
  }

  /** Follow the stream until it ends; return the status of an answer that was none. */
  async #once(stop: AbortSignal): Promise<number> {
    const attempt = new AbortController();
    const abort = (): void => attempt.abort();
    stop.addEventListener("abort", abort);
    let timer = setTimeout(abort, SILENCE_MS);
    try {
      const answer = await this.around.fetch(streamPath(this.listener.position()), attempt.signal);
      if (!answer.ok || answer.body === null) return answer.status;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const frames = new FrameReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return 0;
        clearTimeout(timer);
        timer = setTimeout(abort, SILENCE_MS);
        this.#link.contactAt = this.around.now();
        if (this.#link.state !== "live") this.#tell("live");
        else {
          // A server that has no time now says hello and hangs up: only one that goes on is well.
          this.#failures = 0;
          this.listener.onLink(this.#link);
        }
        const found = frames.take(value);
        if (found.length) this.listener.onFrames(found);
      }
    } catch {
      return 0; // cut off, refused, or silent for too long: all the same to a reader
    } finally {
      clearTimeout(timer);
      stop.removeEventListener("abort", abort);
      attempt.abort();
    }
  }

  #tell(state: LinkState): void {
    this.#link = { ...this.#link, state };
    this.listener.onLink(this.#link);
  }
}

export function streamPath(position: string): string {
  const resume = position ? `&last_event_id=${encodeURIComponent(position)}` : "";
  return `/api/events/stream?rows=true${resume}`;
}

export function pauseAfter(failures: number, random: number): number {
  const longest = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.min(failures, 10));
  return longest * (0.5 + random / 2);
}
