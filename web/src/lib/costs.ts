/** What the cost report means for the fleet as a whole, and for pools. Pure. */
import type { BillingInterval, CostReport, LabWorkerPool } from "./model";

export interface Cost {
  /** What runs now costs in an hour. */
  hourly: number;
  total: number;
  /** Open intervals without a known price. */
  unknown: number;
}

/** Return what workers cost; with `counts`, only those that it is true of. */
export function costOf(report: CostReport, counts: (interval: BillingInterval) => boolean = () => true): Cost {
  const own = report.intervals.filter(counts);
  const workers = new Set(own.map((one) => `${one.namespace}/${one.worker_name}`));
  const open = own.filter((interval) => !interval.until);
  const known = open.flatMap(({ usd_hourly }) =>
    usd_hourly === null || usd_hourly === undefined ? [] : [Number(usd_hourly)],
  );
  return {
    hourly: add(known),
    total: add(report.by_worker.filter(({ name }) => workers.has(name)).map(({ usd }) => Number(usd))),
    unknown: open.length - known.length,
  };
}

/** What those spent who have a limit, and their limits. */
export interface Budget {
  spent: number;
  limit: number;
}

export interface Budgets {
  /** Null where no pool has such a limit. */
  hourly: Budget | null;
  monthly: Budget | null;
  /** Pools without a monthly limit. */
  unlimited: number;
}

/** Add up what pools may cost, and what the workers of just those pools do cost. */
export function budgetsOf(pools: readonly LabWorkerPool[], report: CostReport): Budgets {
  const hours = limitsOf(pools, "hourly_usd");
  const months = limitsOf(pools, "monthly_usd");
  const cost = (limits: ReadonlyMap<string, number>): Cost =>
    costOf(report, ({ namespace, pool }) => limits.has(`${namespace}/${pool}`));
  return {
    hourly: hours.size ? { spent: cost(hours).hourly, limit: add(hours.values()) } : null,
    monthly: months.size ? { spent: cost(months).total, limit: add(months.values()) } : null,
    unlimited: pools.length - months.size,
  };
}

/** The limits of those pools that have one. */
function limitsOf(pools: readonly LabWorkerPool[], which: "hourly_usd" | "monthly_usd"): Map<string, number> {
  return new Map(
    pools.flatMap(({ metadata, spec }) => {
      const limit = spec.budget?.[which];
      if (limit === null || limit === undefined) return [];
      return [[`${metadata.namespace ?? "default"}/${metadata.name}`, Number(limit)]];
    }),
  );
}

function add(amounts: Iterable<number>): number {
  return [...amounts].reduce((sum, amount) => sum + amount, 0);
}
