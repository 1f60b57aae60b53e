/** The hand-out of a class: who goes where, as rows, as a page of its own and as a table for spreadsheets. Pure. */
import type { LabletSession, Reservation } from "./model";
import { ENDED } from "./model";
import { meetingsOf } from "./reservations";
import { sayPhase } from "./words";

export interface HandOutRow {
  occurrence: number;
  start: string;
  end: string;
  /** 0 for a seat that the class no longer has. */
  place: number;
  learner: string;
  session: string;
  state: string;
  worker: string;
  urls: [name: string, url: string][];
}

const HEADINGS = ["When", "Seat", "Learner", "Session", "State", "Worker", "Addresses"];
const STYLE =
  "body{font-family:sans-serif;margin:2em}table{border-collapse:collapse}" +
  "th,td{border:1px solid #999;padding:.3em .6em;text-align:left;vertical-align:top}tr{break-inside:avoid}";

/** Return the seats of a class in the order of its meetings and places, with what became of their sessions. */
export function handOutRows(whole: Reservation, sessions: readonly LabletSession[]): HandOutRow[] {
  const known = new Map(sessions.map((one) => [one.metadata.name, one]));
  return meetingsOf(whole).flatMap(({ occurrence, start, end, seats }) =>
    seats.map(({ place, learner, session: name }): HandOutRow => {
      const held = { occurrence, place, learner, start, end, session: name };
      const session = known.get(name);
      if (!session) return { ...held, state: name ? "Gone" : "Booked", worker: "", urls: [] };
      const { spec, status } = session;
      const live = !ENDED.has(status?.phase ?? "");
      const addresses = Object.entries(status?.access_urls ?? {});
      const alone: [string, string][] = status?.access_url ? [["lab", status.access_url]] : [];
      return {
        ...held,
        learner: spec.student_email ?? "",
        start: spec.timeslot_start ?? start,
        end: status?.ends_at ?? spec.timeslot_end ?? end,
        state: sayPhase(status?.phase ?? ""),
        worker: live ? (status?.worker_name ?? "") : "",
        urls: live ? (addresses.length ? addresses.sort(([a], [b]) => (a < b ? -1 : 1)) : alone) : [],
      };
    }),
  );
}

/** Return the meetings of a hand-out, each with its rows. */
export function byMeeting(
  rows: readonly HandOutRow[],
): { key: string; start: string; end: string; rows: HandOutRow[] }[] {
  const found = new Map<string, { key: string; start: string; end: string; rows: HandOutRow[] }>();
  for (const row of rows) {
    const key = `${row.occurrence} ${row.start}`;
    const one = found.get(key) ?? { key, start: row.start, end: row.end, rows: [] };
    one.rows.push(row);
    found.set(key, one);
  }
  return [...found.values()];
}

/** Whether an address may be a link: others are shown as they are. */
export function isLink(url: string): boolean {
  return /^https?:\/\//i.test(url);
}

export type SaySlot = (start: string, end: string) => string;

function cells({ start, end, place, learner, session, state, worker }: HandOutRow, say: SaySlot): string[] {
  return [say(start, end), place ? String(place) : "", learner, session, state, worker];
}

/** Write a page that prints well and loads nothing. What others wrote is escaped. */
export function writeHtml(title: string, rows: readonly HandOutRow[], say: SaySlot): string {
  const head = HEADINGS.map((one) => `<th>${one}</th>`).join("");
  const body = rows.map((row) => {
    const links = row.urls.map(([name, url]) => {
      const shown = escape(url);
      return `${escape(name)}: ${isLink(url) ? `<a href="${shown}">${shown}</a>` : shown}`;
    });
    const all = cells(row, say).map((cell) => `<td>${escape(cell)}</td>`);
    return `<tr>${all.join("")}<td>${links.join("<br>")}</td></tr>`;
  });
  return [
    `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>${escape(title)}</title>`,
    `<style>${STYLE}</style></head><body><h1>${escape(title)}</h1><table><thead><tr>${head}</tr></thead><tbody>`,
    ...body,
    "</tbody></table></body></html>",
    "",
  ].join("\n");
}

/** Write a table for spreadsheets; no cell of it is a formula to them. */
export function writeTable(rows: readonly HandOutRow[], say: SaySlot): string {
  const lines = rows.map((row) => {
    const urls = row.urls.map(([name, url]) => `${name}=${url}`).join(" ");
    return [...cells(row, say), urls].map(quote).join(",");
  });
  return [HEADINGS.map((one) => one.toLowerCase()).join(","), ...lines, ""].join("\n");
}

function escape(text: string): string {
  const signs: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text.replace(/[&<>"']/g, (sign) => signs[sign] ?? sign);
}

function quote(text: string): string {
  const safe = /^[=+\-@\t\r\n]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
