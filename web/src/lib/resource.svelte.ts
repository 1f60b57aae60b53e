/** Something that a page reads besides the rows: asked for at once, and again when what it depends on changes. */
import { untrack } from "svelte";
import { describe } from "./api";
import { live } from "./live.svelte";

const QUIET_MS = 300;

/** Do something each time the connection is there again; call it while a component is set up. */
export function onReturn(act: () => void): void {
  const there = $derived(live.link.state === "live");
  $effect(() => {
    if (there) untrack(act);
  });
}

export class Remote<T> {
  value = $state.raw<T | undefined>(undefined);
  error = $state("");
  loading = $state(true);

  #again: () => void = () => {};

  /**
   * `key` returns what it depends on, and must read reactive state; null means that there is nothing to ask for. Call
   * it while a component is set up. Changes in quick succession are asked for once; an answer that comes after a newer
   * question is dropped. What failed is asked for again when the connection is back.
   */
  constructor(key: () => string | null, ask: (signal: AbortSignal) => Promise<T>) {
    let turn = $state(0);
    let asked = false;
    // What the key is made of may change while the key stays: that asks nothing.
    const wanted = $derived(key());
    this.#again = () => turn++;
    onReturn(() => {
      if (this.error) this.refresh();
    });
    $effect(() => {
      void turn;
      if (wanted === null) return;
      const stop = new AbortController();
      const timer = setTimeout(() => void this.#ask(ask, stop.signal), asked ? QUIET_MS : 0);
      asked = true;
      return () => {
        clearTimeout(timer);
        stop.abort();
      };
    });
  }

  /** Ask again. */
  refresh(): void {
    this.#again();
  }

  async #ask(ask: (signal: AbortSignal) => Promise<T>, signal: AbortSignal): Promise<void> {
    try {
      const value = await ask(signal);
      if (signal.aborted) return;
      this.value = value;
      this.error = "";
    } catch (error) {
      if (signal.aborted) return;
      this.error = describe(error);
    }
    this.loading = false;
  }
}
