/** Something that a page reads besides the rows: asked for at once, and again when what it depends on changes. */
import { untrack } from "svelte";
import { describe, ProblemError } from "./api";
import { live } from "./live.svelte";
import { Question } from "./question";

const NOT_FOUND = 404;

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
  /** Whether the answer was that there is no such thing. */
  missing = $state(false);

  #question: Question<T>;
  /** Whether it had a revision, and has none any more. */
  #left = $state(false);

  /**
   * `subject` returns what it is about; null means that there is nothing to ask for. An answer about another subject is
   * dropped. `revision` returns what tells that the same subject may have changed: it is then asked for again, about
   * once a second at most; undefined, after it was something, means that it is gone, and is not asked for. Both must
   * read reactive state. Call it while a component is set up. What failed is asked for again when the connection is
   * back, and once after a while if it may have passed.
   */
  constructor(
    subject: () => string | null,
    ask: (signal: AbortSignal) => Promise<T>,
    revision: () => string | number | undefined = () => 0,
  ) {
    this.#question = new Question(ask, {
      told: (value) => this.#take(value),
      failed: (error) => this.#fail(error),
    });
    // What they are made of may change while they stay: that asks nothing.
    const about = $derived(subject());
    const newest = $derived(revision());
    let known = false;
    onReturn(() => {
      if (this.error) this.refresh();
    });
    $effect(() => {
      if (about === null) return;
      this.#question.begin();
      return () => this.#question.end();
    });
    $effect(() => {
      known ||= newest !== undefined;
      this.#left = known && newest === undefined;
      if (newest !== undefined) this.#question.renew();
      else if (known) this.#question.rest();
    });
  }

  /** Whether there is no such thing, or none any more. What was read of one that left stays. */
  get gone(): boolean {
    return this.missing || this.#left;
  }

  /** Ask again. */
  refresh(): void {
    this.#question.renew();
  }

  #take(value: T): void {
    this.value = value;
    this.error = "";
    this.loading = this.missing = false;
  }

  #fail(error: unknown): void {
    this.error = describe(error);
    this.missing = error instanceof ProblemError && error.status === NOT_FOUND;
    if (this.missing) this.value = undefined;
    this.loading = false;
  }
}
