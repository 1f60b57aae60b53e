/** What the cost report means for the fleet as a whole. Pure. */
import type { CostReport, LabWorkerPool } from "./model";

export interface Cost {
  /** What runs now costs in an hour. */
  hourly: number;
  total: number;
  /** Open intervals without a known price. */
  unknown: number;
}

export function costOf(report: CostReport): Cost {
  const open = report.intervals.filter((interval) => !interval.until);
  const known = open.flatMap(({ usd_hourly }) =>
    usd_hourly === null || usd_hourly === undefined ? [] : [Number(usd_hourly)],
  );
  return {
    hourly: known.reduce((sum, price) => sum + price, 0),
    total: Number(report.total.usd),
    unknown: open.length - known.length,
  };
}

export interface BudgetSum {
  hourly: number | null;
  monthly: number | null;
  /** Pools without a monthly limit. */
  unlimited: number;
}

/** Add up what pools may cost; null where none has a limit. */
export function budgetOf(pools: readonly LabWorkerPool[]): BudgetSum {
  const sum = (values: (string | null | undefined)[]): number | null => {
    const known = values.filter((value) => value !== null && value !== undefined).map(Number);
    return known.length ? known.reduce((total, value) => total + value, 0) : null;
  };
  const monthly = pools.map(({ spec }) => spec.budget?.monthly_usd);
  return {
    hourly: sum(pools.map(({ spec }) => spec.budget?.hourly_usd)),
    monthly: sum(monthly),
    unlimited: monthly.filter((value) => value === null || value === undefined).length,
  };
}
