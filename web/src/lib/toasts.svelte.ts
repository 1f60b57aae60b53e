/** Short notes about what was just done, or why it was not. */
import { describe } from "./api";
import type { Tone } from "./words";

export interface Toast {
  id: number;
  text: string;
  tone: Tone;
}

const SHOWN_MS = 6_000;

class Toasts {
  list = $state<Toast[]>([]);
  #next = 1;

  tell(text: string, tone: Tone = "good"): void {
    const id = this.#next++;
    this.list.push({ id, text, tone });
    // What went wrong stays until it is read.
    if (tone !== "bad") setTimeout(() => this.close(id), SHOWN_MS);
  }

  close(id: number): void {
    this.list = this.list.filter((toast) => toast.id !== id);
  }

  /** Do something, and tell when it is done. What it throws is for the caller: `Ask` tells it in its dialog. */
  async tellDone(doing: () => Promise<unknown>, done: string): Promise<true> {
    await doing();
    this.tell(done);
    return true;
  }

  /** Do something, and tell how it went. Returns whether it went well. */
  async during(doing: () => Promise<unknown>, done: string): Promise<boolean> {
    try {
      return await this.tellDone(doing, done);
    } catch (error) {
      this.tell(describe(error), "bad");
      return false;
    }
  }
}

export const toasts = new Toasts();
