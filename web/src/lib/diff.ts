/**
 * What changed between two texts, line by line, and between two documents, field by field. Pure.
 *
 * Lines that occur once in both texts are matched first, in the longest common order; what is between them is compared
 * by Myers' method. All comparisons together may take a limited number of steps: what is left when they are used up is
 * shown as replaced, so that no pair of files holds up the page.
 */

export interface DiffLine {
  sort: "same" | "added" | "removed";
  text: string;
  /** Line numbers, from 1; null where the line is not in that text. */
  before: number | null;
  after: number | null;
}

const MOST_STEPS = 3_000_000;

type Pair = readonly [before: number, after: number];
interface Budget {
  steps: number;
}

/** Return the lines of both texts in one list. */
export function diffLines(before: string, after: string): DiffLine[] {
  const old = splitLines(before);
  const young = splitLines(after);
  const found: DiffLine[] = [];
  let a = 0;
  let b = 0;
  for (const [x, y] of [...matchLines(old, young), [old.length, young.length] as const]) {
    while (a < x) found.push({ sort: "removed", text: old[a] ?? "", before: ++a, after: null });
    while (b < y) found.push({ sort: "added", text: young[b] ?? "", before: null, after: ++b });
    if (x < old.length) found.push({ sort: "same", text: old[x] ?? "", before: ++a, after: ++b });
  }
  return found;
}

export function splitLines(text: string): string[] {
  const lines = text.split(/\r?\n/);
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

/** Return which lines of two texts are the same, in order. */
function matchLines(old: readonly string[], young: readonly string[]): Pair[] {
  const [a, b] = toNumbers(old, young);
  const [first, last] = commonEnds(a, b);
  const inner = matchInner(a, b, { a0: first, a1: a.length - last, b0: first, b1: b.length - last });
  const head = Array.from({ length: first }, (_, place): Pair => [place, place]);
  const tail = Array.from({ length: last }, (_, place): Pair => [a.length - last + place, b.length - last + place]);
  return [...head, ...inner, ...tail];
}

/** Give each distinct line a number: numbers are compared faster. */
function toNumbers(old: readonly string[], young: readonly string[]): [Int32Array, Int32Array] {
  const known = new Map<string, number>();
  const number = (line: string): number => {
    const found = known.get(line);
    if (found !== undefined) return found;
    known.set(line, known.size);
    return known.size - 1;
  };
  return [Int32Array.from(old, number), Int32Array.from(young, number)];
}

function commonEnds(a: Int32Array, b: Int32Array): [first: number, last: number] {
  const most = Math.min(a.length, b.length);
  let first = 0;
  while (first < most && a[first] === b[first]) first++;
  let last = 0;
  while (last < most - first && a[a.length - 1 - last] === b[b.length - 1 - last]) last++;
  return [first, last];
}

interface Span {
  a0: number;
  a1: number;
  b0: number;
  b1: number;
}

function matchInner(a: Int32Array, b: Int32Array, span: Span): Pair[] {
  const budget: Budget = { steps: MOST_STEPS };
  const found: Pair[] = [];
  let { a0, b0 } = span;
  const anchors: Pair[] = [...matchUnique(a, b, span), [span.a1, span.b1]];
  for (const anchor of anchors) {
    for (const pair of matchByMyers(a, b, { a0, a1: anchor[0], b0, b1: anchor[1] }, budget)) found.push(pair);
    if (anchor[0] < span.a1) found.push(anchor);
    [a0, b0] = [anchor[0] + 1, anchor[1] + 1];
  }
  return found;
}

/** Match lines that are once in both: the longest sequence of them that has the same order in both. */
function matchUnique(a: Int32Array, b: Int32Array, { a0, a1, b0, b1 }: Span): Pair[] {
  const inA = placesOfUnique(a, a0, a1);
  const inB = placesOfUnique(b, b0, b1);
  const pairs: Pair[] = [];
  for (let x = a0; x < a1; x++) {
    const y = inA.get(a[x] as number) === x ? inB.get(a[x] as number) : undefined;
    if (y !== undefined && y >= 0) pairs.push([x, y]);
  }
  return longestRising(pairs);
}

/** Return where each number stands; -1 for one that stands twice. */
function placesOfUnique(values: Int32Array, from: number, to: number): Map<number, number> {
  const found = new Map<number, number>();
  for (let place = from; place < to; place++) {
    const value = values[place] as number;
    found.set(value, found.has(value) ? -1 : place);
  }
  return found;
}

/** Return the longest of the sequences in which both places rise. */
function longestRising(pairs: readonly Pair[]): Pair[] {
  const ends: number[] = []; // ends[n] is the pair with the lowest end of all sequences of n + 1 pairs
  const previous = new Int32Array(pairs.length).fill(-1);
  for (const [place, [, y]] of pairs.entries()) {
    let low = 0;
    let high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((pairs[ends[middle] as number] as Pair)[1] < y) low = middle + 1;
      else high = middle;
    }
    previous[place] = low > 0 ? (ends[low - 1] as number) : -1;
    ends[low] = place;
  }
  const found: Pair[] = [];
  for (let place = ends.at(-1) ?? -1; place >= 0; place = previous[place] as number) found.push(pairs[place] as Pair);
  return found.reverse();
}

/** Match what is left with the fewest changes; nothing once the budget is used up. */
function matchByMyers(a: Int32Array, b: Int32Array, { a0, a1, b0, b1 }: Span, budget: Budget): Pair[] {
  const [n, m] = [a1 - a0, b1 - b0];
  if (n <= 0 || m <= 0) return [];
  const reached: Int32Array[] = [];
  let far = new Int32Array(3);
  for (let changes = 0; changes <= n + m; changes++) {
    // far[k + changes + 1] is how far diagonal k has come with this many changes.
    const next = new Int32Array(2 * changes + 3);
    for (let k = -changes; k <= changes; k += 2) {
      const down = k === -changes || (k !== changes && at(far, k - 1, changes) < at(far, k + 1, changes));
      let x = changes === 0 ? 0 : down ? at(far, k + 1, changes) : at(far, k - 1, changes) + 1;
      while (x < n && x - k < m && a[a0 + x] === b[b0 + x - k]) {
        x++;
        budget.steps--;
      }
      next[k + changes + 1] = x;
      if (x >= n && x - k >= m) return follow([...reached, next], changes, k, a0, b0);
    }
    budget.steps -= 2 * changes + 1;
    if (budget.steps <= 0) return [];
    reached.push(next);
    far = next;
  }
  return [];
}

/** Read how far a diagonal had come with one change less. */
function at(far: Int32Array, k: number, changes: number): number {
  return far[k + changes] ?? -1;
}

/** Walk back from the end, and return the pairs on the way. */
function follow(reached: Int32Array[], last: number, diagonal: number, a0: number, b0: number): Pair[] {
  const found: Pair[] = [];
  let k = diagonal;
  for (let changes = last; changes >= 0; changes--) {
    const x = (reached[changes] as Int32Array)[k + changes + 1] as number;
    const far = reached[changes - 1] ?? new Int32Array(0);
    const down = k === -changes || (k !== changes && at(far, k - 1, changes) < at(far, k + 1, changes));
    const before = changes === 0 ? 0 : down ? at(far, k + 1, changes) : at(far, k - 1, changes) + 1;
    for (let one = x - 1; one >= before; one--) found.push([a0 + one, b0 + one - k]);
    k += down ? 1 : -1;
  }
  return found.reverse();
}

export interface FieldChange {
  path: string;
  before: string | null;
  after: string | null;
}

/** Return the fields in which two documents differ, by path. */
export function diffFields(before: unknown, after: unknown): FieldChange[] {
  const old = new Map(fieldsOf(before, ""));
  const young = new Map(fieldsOf(after, ""));
  const paths = [...new Set([...old.keys(), ...young.keys()])].sort();
  return paths
    .map((path) => ({ path, before: old.get(path) ?? null, after: young.get(path) ?? null }))
    .filter((one) => one.before !== one.after);
}

function* fieldsOf(value: unknown, path: string): Generator<[string, string]> {
  if (value === null || value === undefined || value === "") return;
  if (Array.isArray(value) && value.every((one) => typeof one !== "object")) {
    if (value.length) yield [path, value.join(", ")];
  } else if (typeof value === "object") {
    for (const [name, member] of Object.entries(value)) yield* fieldsOf(member, path ? `${path}.${name}` : name);
  } else yield [path, String(value)];
}
