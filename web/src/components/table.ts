/** What a table is made of, and which of its rows are shown. Pure. */

export interface Column<R> {
  key: string;
  title: string;
  /** What the row is sorted and searched by. */
  value: (row: R) => string | number;
  /** A CSS grid track. */
  width?: string;
  /** Numbers stand at the end. */
  end?: boolean;
  /** Left out on a phone. */
  spare?: boolean;
  /** Its value may change while the row does not: such a column is sorted anew each time, and not searched. */
  outside?: boolean;
}

export type Compare<R> = (a: R, b: R) => number;

export interface Facet<R> {
  key: string;
  title: string;
  value: (row: R) => string;
  say?: (value: string) => string;
}

export interface Wish {
  sought: string;
  /** The key of a column; with a minus before it, from the end. */
  order: string;
  chosen: Record<string, string>;
}

const SPARE_ROWS = 8;
/** If a larger share of the rows is new, sorting all of them is cheaper than finding a place for each. */
const FEW = 1 / 8;

/**
 * Finds the rows of a table that match every word and facet, in order.
 *
 * A row that changes is replaced by another object, so from one call to the next only those that are new are looked at,
 * and put into their places among the others. With 10,000 rows that is the difference between smooth and not.
 */
export class RowKeeper<R extends { uid: string }> {
  #wish = "";
  #sources: readonly unknown[] = [];
  #seen: ReadonlySet<R> = new Set();
  #kept: R[] = [];
  #texts = new WeakMap<R, string>();

  /** Return what is shown of these rows. `usual` is their order where none is asked for, and among equals. */
  keep(rows: readonly R[], columns: Column<R>[], facets: Facet<R>[], wish: Wish, usual?: Compare<R>): readonly R[] {
    const column = columns.find(({ key }) => key === wish.order.replace(/^-/, ""));
    const compare = column ? byColumn(column, wish.order.startsWith("-"), usual) : usual;
    const matches = this.#matcher(columns, facets, wish);
    const asked = JSON.stringify(wish);
    const sources = [columns, facets, usual];
    const same = asked === this.#wish && sources.every((one, place) => one === this.#sources[place]);
    const now = new Set(rows);
    const fresh = same ? rows.filter((row) => !this.#seen.has(row)) : rows;
    if (compare && !column?.outside && fresh.length < rows.length * FEW) {
      const kept = this.#kept.filter((row) => now.has(row));
      this.#kept = insert(kept, fresh.filter(matches).sort(compare), compare);
    } else {
      this.#kept = rows.filter(matches);
      if (compare) this.#kept.sort(compare);
    }
    this.#wish = asked;
    this.#sources = sources;
    this.#seen = now;
    return this.#kept;
  }

  #matcher(columns: Column<R>[], facets: Facet<R>[], wish: Wish): (row: R) => boolean {
    if (columns !== this.#sources[0]) this.#texts = new WeakMap();
    const words = wish.sought.toLowerCase().split(/\s+/).filter(Boolean);
    const strict = facets.filter(({ key }) => wish.chosen[key]);
    return (row) => {
      if (strict.some(({ key, value }) => value(row) !== wish.chosen[key])) return false;
      if (words.length === 0) return true;
      const text = this.#textOf(row, columns);
      return words.every((word) => text.includes(word));
    };
  }

  #textOf(row: R, columns: Column<R>[]): string {
    let text = this.#texts.get(row);
    if (text === undefined) {
      text = columns
        .filter(({ outside }) => !outside)
        .map(({ value }) => value(row))
        .join(" ")
        .toLowerCase();
      this.#texts.set(row, text);
    }
    return text;
  }
}

function byColumn<R extends { uid: string }>(
  { value }: Column<R>,
  backwards: boolean,
  usual: Compare<R> = byUid,
): Compare<R> {
  const sign = backwards ? -1 : 1;
  return (a, b) => {
    const [one, other] = [value(a), value(b)];
    return one < other ? -sign : one > other ? sign : usual(a, b);
  };
}

function byUid<R extends { uid: string }>(a: R, b: R): number {
  return a.uid < b.uid ? -1 : a.uid > b.uid ? 1 : 0;
}

/** Return sorted rows with others, sorted as well, in their places. */
function insert<R>(kept: R[], others: R[], compare: Compare<R>): R[] {
  if (others.length === 0) return kept;
  const all: R[] = [];
  let from = 0;
  for (const row of others) {
    const place = placeOf(kept, row, from, compare);
    for (let at = from; at < place; at++) all.push(kept[at] as R);
    all.push(row);
    from = place;
  }
  for (let at = from; at < kept.length; at++) all.push(kept[at] as R);
  return all;
}

/** Return the place of the first row that comes after this one. */
function placeOf<R>(sorted: R[], row: R, from: number, compare: Compare<R>): number {
  let [low, high] = [from, sorted.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (compare(sorted[middle] as R, row) <= 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the values that a facet can have, sorted; the array of before if they are the same. */
export function optionsOf<R>(rows: readonly R[], { value }: Facet<R>, before: readonly string[]): readonly string[] {
  const found = new Set<string>();
  for (const row of rows) found.add(value(row));
  found.delete("");
  if (found.size === before.length && before.every((one) => found.has(one))) return before;
  return [...found].sort();
}

/** Return which rows are in view, with some more on both sides. */
export function visibleSpan(
  scrolled: number,
  height: number,
  rowHeight: number,
  total: number,
): { from: number; to: number } {
  const from = Math.max(0, Math.floor(scrolled / rowHeight) - SPARE_ROWS);
  const to = Math.min(total, Math.ceil((scrolled + height) / rowHeight) + SPARE_ROWS);
  return { from: Math.min(from, Math.max(0, total - 1)), to };
}
