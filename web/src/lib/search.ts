/** Finds pages and objects by words. Pure. */

export interface Hit {
  label: string;
  kind: string;
  note: string;
  path: string;
}

const MOST_HITS = 30;

/** Return the entries that hold every word, those whose label begins with the first word before the others. */
export function findHits(entries: Iterable<Hit>, sought: string): Hit[] {
  const words = sought.toLowerCase().split(/\s+/).filter(Boolean);
  const first = words[0];
  if (first === undefined) return [];
  const starts: Hit[] = [];
  const others: Hit[] = [];
  for (const hit of entries) {
    const label = hit.label.toLowerCase();
    const text = `${label} ${hit.kind} ${hit.note}`.toLowerCase();
    if (!words.every((word) => text.includes(word))) continue;
    if (label.startsWith(first)) starts.push(hit);
    else others.push(hit);
    if (starts.length >= MOST_HITS) break;
  }
  return [...starts, ...others].slice(0, MOST_HITS);
}

/** Offer to open a session that no list has any more: the archive is asked only by its page, for a whole name. */
export function archivedHit(sought: string): Hit[] {
  const name = sought.trim();
  if (!/^[a-z0-9][a-z0-9.-]+[a-z0-9]$/.test(name)) return [];
  return [{ label: name, kind: "session", note: "look in the archive", path: `/sessions/${encodeURIComponent(name)}` }];
}
