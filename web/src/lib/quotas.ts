/** Quotas in words: what each limit counts, whom a rule is for, and where a refusal belongs. Pure. */
import { ProblemError } from "./api";
import type { QuotaLine, QuotaRule, QuotaView, Role } from "./model";
import { count, sayDollars, saySentence } from "./words";

export type Limit =
  "sessions" | "nodes" | "pending" | "ahead" | "hours_ahead" | "hours_per_month" | "usd_per_month" | "horizon_days";
export type Selector = "owner" | "role" | "namespace" | "track";

export const LIMITS: readonly { limit: Limit; title: string; unit: string }[] = [
  { limit: "sessions", title: "Labs at the same time", unit: "labs" },
  { limit: "nodes", title: "CML nodes at the same time", unit: "nodes" },
  { limit: "pending", title: "Labs waiting", unit: "labs" },
  { limit: "ahead", title: "Labs booked ahead", unit: "labs" },
  { limit: "hours_ahead", title: "Hours booked ahead", unit: "hours" },
  { limit: "hours_per_month", title: "Hours in a month", unit: "hours" },
  { limit: "usd_per_month", title: "Dollars in a month", unit: "USD" },
  { limit: "horizon_days", title: "How far ahead", unit: "days" },
];

export const SELECTORS: readonly { selector: Selector; title: string }[] = [
  { selector: "owner", title: "Owner" },
  { selector: "role", title: "Role" },
  { selector: "namespace", title: "Namespace" },
  { selector: "track", title: "Track" },
];

export const RULE_ROLES: readonly Role[] = ["user", "author", "operator", "admin"];

export function titleOf(limit: string): string {
  return LIMITS.find((one) => one.limit === limit)?.title ?? limit;
}

/** Say an amount of a limit, without its unit where the title has it. */
export function sayAmount(limit: string, amount: number): string {
  if (limit === "usd_per_month") return sayDollars(amount);
  const number = amount.toLocaleString([], { maximumFractionDigits: 1 });
  if (limit === "horizon_days") return count(amount, "day");
  return limit.startsWith("hours") ? `${number} h` : number;
}

/** Say where a limit comes from: "a rule for role author", "the default". */
export function saySource(source: string): string {
  if (source === "default") return "the default";
  return source.startsWith("rule: ") ? `a rule for ${source.slice("rule: ".length)}` : source;
}

/** How much of a limit is used, in percent; null if there is none, or nothing is counted. */
export function usedShare(line: QuotaLine): number | null {
  if (line.most === null || line.most === undefined || line.limit === "horizon_days") return null;
  return line.most > 0 ? ((line.used ?? 0) / line.most) * 100 : 100;
}

/** The lines of a view in the order of the pages; what has no limit and no use is left out. */
export function linesOf(view: QuotaView): QuotaLine[] {
  return LIMITS.flatMap(({ limit }) => view.lines.filter((line) => line.limit === limit));
}

/** Say what a view is about: everything, or what is in a namespace or on a track. */
export function sayScope({ namespace, track }: Pick<QuotaView, "namespace" | "track">): string {
  const parts = [track ? `on the track ${track}` : "", namespace ? `in the namespace ${namespace}` : ""].filter(
    Boolean,
  );
  return parts.length ? parts.join(" ") : "everywhere";
}

/** Say whom a rule is for. Without an owner and a role it bounds all of them together. */
export function sayRule(rule: QuotaRule): string {
  const who = rule.owner
    ? `${rule.owner}${rule.role ? ` as ${rule.role}` : ""}`
    : rule.role
      ? `each ${rule.role}`
      : "everybody together";
  const scope = sayScope(rule);
  return scope === "everywhere" ? who : `${who}, ${scope}`;
}

/** Say what a rule allows. */
export function sayLimits(rule: QuotaRule): string {
  const named = LIMITS.filter(({ limit }) => rule[limit] !== null && rule[limit] !== undefined);
  return named
    .map(
      ({ limit, title }) =>
        `${title.replace(/^[A-Z](?![A-Z])/, (letter) => letter.toLowerCase())}: ${sayAmount(limit, rule[limit] ?? 0)}`,
    )
    .join("; ");
}

/** What is typed into the form of a rule: text, as fields have it. */
export type RuleForm = Record<Selector | Limit, string>;

const FIELDS = [...SELECTORS.map(({ selector }) => selector), ...LIMITS.map(({ limit }) => limit)];

export function formOf(rule: Partial<QuotaRule> = {}): RuleForm {
  return Object.fromEntries(FIELDS.map((field) => [field, String(rule[field] ?? "")])) as RuleForm;
}

/** The rule that was typed. What is no number is sent as it is: the API says what is wrong with it. */
export function ruleOf(form: RuleForm): Record<string, string | number> {
  const limits = new Set<string>(LIMITS.map(({ limit }) => limit));
  const filled = FIELDS.flatMap((field): [string, string | number][] => {
    const text = form[field].trim();
    if (!text) return [];
    return [[field, limits.has(field) && /^-?\d+$/.test(text) ? Number(text) : text]];
  });
  return Object.fromEntries(filled);
}

export interface RuleFaults {
  /** By the field that each is about. */
  fields: Record<string, string>;
  /** What is about none of them. */
  rest: string;
}

/** Sort what the API refused by the fields of the rule at a place. */
export function sortFaults(error: unknown, place: number): RuleFaults {
  const found: RuleFaults = { fields: {}, rest: "" };
  const faults = error instanceof ProblemError ? error.faults : [];
  const rest: string[] = [];
  for (const { path, problem, remedy } of faults) {
    const said = saySentence(remedy ? `${problem}: ${remedy}` : problem);
    const field = path.startsWith(`spec.quotas.rules[${place}].`) ? (path.split(".").at(-1) ?? "") : "";
    if ((FIELDS as readonly string[]).includes(field)) found.fields[field] = said;
    else rest.push(said);
  }
  found.rest = faults.length ? rest.join(" ") : error instanceof Error ? error.message : String(error);
  return found;
}
