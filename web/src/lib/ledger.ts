/** The bill of a month by groups: what is asked, in which order it is shown, and how its parts add up. Pure. */
import type { BudgetLine, CostGroup, CostLedger, CostRow, QuotaView } from "./model";
import { capitalise, sayDate } from "./words";

/** What costs are grouped by; the last two are about machines, which only staff see. */
export const GROUPS: readonly { by: CostGroup; word: string; staff?: true }[] = [
  { by: "owner", word: "Owner", staff: true },
  { by: "class", word: "Class" },
  { by: "track", word: "Track" },
  { by: "definition", word: "Lab" },
  { by: "day", word: "Day" },
  { by: "session", word: "Session" },
  { by: "pool", word: "Pool", staff: true },
  { by: "worker", word: "Worker", staff: true },
];

export function groupsFor(isStaff: boolean): typeof GROUPS {
  return GROUPS.filter(({ staff }) => isStaff || !staff);
}

const MONTHS_BACK = 13;
const MONTHS_AHEAD = 3;
const MONTH = new Intl.DateTimeFormat([], { month: "long", year: "numeric" });

/** The month of a moment in the viewer's zone, as the API writes it: 2031-11. */
export function monthOf(moment: number, distance = 0): string {
  const date = new Date(moment);
  const first = new Date(date.getFullYear(), date.getMonth() + distance, 1);
  return `${first.getFullYear()}-${String(first.getMonth() + 1).padStart(2, "0")}`;
}

/** The months to choose from, the latest first: so far ahead as is usually booked, so far back as shares are kept. */
export function monthsAround(moment: number): string[] {
  return Array.from({ length: MONTHS_BACK + MONTHS_AHEAD + 1 }, (_, place) => monthOf(moment, MONTHS_AHEAD - place));
}

export function sayMonth(month: string): string {
  return MONTH.format(new Date(`${month}-01T00:00`));
}

/** Return a month as moments: its first, and that of the next one, in the viewer's zone. */
export function spanOf(month: string): { since: string; until: string } {
  const [year = 0, number = 1] = month.split("-").map(Number);
  return { since: new Date(year, number - 1, 1).toISOString(), until: new Date(year, number, 1).toISOString() };
}

/** The rows of all pages of a ledger, as its first page says the rest. */
export function joinPages(pages: readonly CostLedger[]): CostLedger | undefined {
  const first = pages[0];
  return first && { ...first, rows: pages.flatMap(({ rows }) => rows), next: "" };
}

/** A line of the bill, in cents that add up. */
export interface BillLine {
  name: string;
  cents: number;
  unused: number;
  forecast: number;
  saved: number;
}

export interface Bill {
  lines: BillLine[];
  /** What nobody used, as a line of its own. */
  unused: BillLine;
  total: BillLine;
  hasUnused: boolean;
  hasForecast: boolean;
  hasSaved: boolean;
}

/** Return a bill whose lines, in whole cents, add up to its total; days by date, all others by what they cost. */
export function billOf(ledger: CostLedger): Bill {
  const rows = ledger.by === "day" ? [...ledger.rows] : ledger.rows.toSorted(byCost);
  const amounts = (of: (row: CostRow) => string | undefined, rest: string): number[] =>
    roundParts([...rows.map((row) => Number(of(row) ?? 0)), Number(rest)]);
  const spent = amounts((row) => row.usd, ledger.unused_usd);
  const ahead = amounts((row) => row.forecast_usd, ledger.forecast_unused_usd);
  const lines = rows.map((row, place) => ({
    name: row.name,
    cents: spent[place] ?? 0,
    unused: cents(row.unused_usd),
    forecast: ahead[place] ?? 0,
    saved: cents(row.saved_usd),
  }));
  const unused = { name: "", cents: spent.at(-1) ?? 0, unused: 0, forecast: ahead.at(-1) ?? 0, saved: 0 };
  const total = {
    ...unused,
    cents: add(spent),
    forecast: add(ahead),
    saved: add(lines.map(({ saved }) => saved)),
  };
  return {
    lines,
    unused,
    total,
    hasUnused: lines.some((line) => line.unused > 0),
    hasForecast: total.forecast > 0,
    hasSaved: total.saved > 0,
  };
}

function byCost(a: CostRow, b: CostRow): number {
  const [one, other] = [Number(a.usd), Number(b.usd)];
  const [ahead, later] = [Number(a.forecast_usd ?? 0), Number(b.forecast_usd ?? 0)];
  return other - one || later - ahead || (a.name < b.name ? -1 : 1);
}

/**
 * Round dollars to cents so that they add up to the rounded sum: cents that are left over go to those that lost most.
 * The API's amounts are exact to a millionth; rounded one by one, a column would not be its total.
 */
export function roundParts(dollars: readonly number[]): number[] {
  const exact = dollars.map((amount) => amount * 100);
  const parts = exact.map((amount) => Math.floor(amount + 1e-6));
  const missing = Math.round(add(exact)) - add(parts);
  const order = exact.map((amount, place) => ({ place, lost: amount - (parts[place] ?? 0) }));
  order.sort((a, b) => b.lost - a.lost || a.place - b.place);
  for (const { place } of order.slice(0, missing)) parts[place] = (parts[place] ?? 0) + 1;
  return parts;
}

function cents(dollars: string | undefined): number {
  return Math.round(Number(dollars ?? 0) * 100);
}

function add(amounts: readonly number[]): number {
  return amounts.reduce((sum, amount) => sum + amount, 0);
}

/** Say what a line is about. */
export function sayLine(by: CostGroup, name: string): string {
  if (by === "day") return sayDate(name);
  if (name) return name.replace(/^default\//, "");
  return by === "class" ? "Booked without a class" : by === "pool" ? "Outside of pools" : "None";
}

const HEADINGS = ["usd", "unused_usd", "forecast_usd"] as const;

/** The whole ledger as a file for spreadsheets, as `lcm cost -o csv` writes it. */
export function writeCsv(ledger: CostLedger): string {
  const rest = { name: "unused", usd: ledger.unused_usd, unused_usd: "0", forecast_usd: ledger.forecast_unused_usd };
  const lines = [...ledger.rows, rest].map((row) =>
    [safeCell(row.name), ...HEADINGS.map((heading) => row[heading] ?? "0")].map(quote).join(","),
  );
  return [[ledger.by, ...HEADINGS].join(","), ...lines, ""].join("\n");
}

/** A text that no spreadsheet takes for a formula. */
function safeCell(text: string): string {
  return /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
}

function quote(text: string): string {
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A budget of a month: of a pool, a track or an owner. */
export interface BudgetUse {
  key: string;
  kind: string;
  name: string;
  limit: number;
  /** What is spent; null where only the month as a whole is counted. */
  spent: number | null;
  /** What the month will cost with all that is booked. */
  month: number;
  state: "good" | "near" | "over";
}

const WARN_SHARE = 0.8;

export function budgetOf(line: BudgetLine): BudgetUse {
  const [limit, month] = [Number(line.limit_usd), Number(line.month_usd)];
  const name = line.namespace === "default" ? line.name : `${line.namespace}/${line.name}`;
  const state = stateOf(month, limit, Number(line.warn_usd));
  return { key: `${line.kind} ${name}`, kind: line.kind, name, limit, spent: Number(line.spent_usd), month, state };
}

/** The budgets of owners: what quotas let them spend in a month; those with the least left first. */
export function ownersBudgets(views: readonly QuotaView[]): BudgetUse[] {
  const found = views.flatMap((view): BudgetUse[] => {
    const line = view.lines.find(({ limit }) => limit === "usd_per_month");
    if (!view.owner || !line || line.most === null || line.most === undefined) return [];
    const where = [view.namespace, view.track].filter(Boolean).join(", ");
    const name = where ? `${view.owner}, ${where}` : view.owner;
    const [limit, month] = [line.most, line.used ?? 0];
    return [{ key: `owner ${name}`, kind: "owner", name, limit, spent: null, month, state: stateOf(month, limit) }];
  });
  return found.sort((a, b) => share(b) - share(a) || (a.name < b.name ? -1 : 1));
}

function stateOf(month: number, limit: number, warnAt = limit * WARN_SHARE): BudgetUse["state"] {
  if (month >= limit) return "over";
  return month >= warnAt ? "near" : "good";
}

/** How much of a budget the month takes, in percent. */
export function share({ month, limit }: BudgetUse): number {
  return limit > 0 ? (month / limit) * 100 : month > 0 ? 100 : 0;
}

export function sayBudget(use: BudgetUse): string {
  return `${capitalise(use.kind)} ${use.name}`;
}
