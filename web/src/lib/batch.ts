/** Many objects at once: what is asked, and what became of each. Pure. */
import type { BatchAnswer, BatchResult, Kind } from "./model";
import { capitalise, count, saySentence } from "./words";

/** The most that one batch may hold. */
export const MOST_ITEMS = 1000;

export interface Target {
  name: string;
  namespace: string;
}

/** What is done to each of them. */
export type Deed =
  | { op: "action"; action: { action: string } & Record<string, unknown> }
  | { op: "label"; labels: Record<string, string | null> };

export function itemsOf(kind: Kind, targets: readonly Target[], deed: Deed): Record<string, unknown>[] {
  return targets.map(({ name, namespace }) => ({ ...deed, kind, name, namespace }));
}

/** Read labels as they are typed, `room=7 old=`: what has no value is removed. Raises an Error that says what is wrong. */
export function parseLabels(typed: string): Record<string, string | null> {
  const words = typed.split(/[\s,]+/).filter(Boolean);
  const pairs = words.map((word): [string, string | null] => {
    const [name = "", ...value] = word.split("=");
    if (!name || !word.includes("=")) throw new Error(`Write ${word || "it"} as name=value, or name= to remove it.`);
    return [name, value.join("=") || null];
  });
  if (!pairs.length) throw new Error("Write at least one label, as name=value.");
  return Object.fromEntries(pairs);
}

/** Say in a sentence how many were done. */
export function sayAnswer(answer: BatchAnswer, noun: string): string {
  const refused = answer.refused ? `, ${answer.refused} refused` : "";
  const left = answer.results.length - answer.done - answer.refused;
  const rest = left ? `, ${left} left as they were` : "";
  return `${count(answer.done, noun)} done${refused}${rest}.`;
}

const OUTCOMES: Record<BatchResult["outcome"], string> = {
  done: "Done",
  unchanged: "As it was",
  refused: "Refused",
  skipped: "Left alone: others of them were refused",
};

/** Say what became of one of them. */
export function sayResult({ outcome, problem }: BatchResult): string {
  const why = problem?.detail ?? problem?.title;
  return why ? `${OUTCOMES[outcome]}: ${saySentence(why)}` : capitalise(OUTCOMES[outcome]);
}

export function toneOfResult({ outcome }: BatchResult): "good" | "bad" | "quiet" {
  return outcome === "done" ? "good" : outcome === "refused" ? "bad" : "quiet";
}
