/** How much of a worker is claimed over time, from what is booked on it. Pure. */

export interface TimedClaim {
  start: number;
  end: number;
  cpu: number;
  memory: number;
}

export interface ClaimStep {
  at: number;
  cpu: number;
  memory: number;
}

/** Return the claimed sums from one moment on, for each moment at which they change within a span. */
export function claimSteps(claims: readonly TimedClaim[], from: number, until: number): ClaimStep[] {
  const inside = claims.filter(({ start, end }) => start < until && end > from);
  const moments = new Set([from]);
  for (const { start, end } of inside) {
    if (start > from) moments.add(start);
    if (end < until) moments.add(end);
  }
  return [...moments]
    .sort((a, b) => a - b)
    .map((at) => {
      const held = inside.filter(({ start, end }) => start <= at && at < end);
      return {
        at,
        cpu: held.reduce((sum, claim) => sum + claim.cpu, 0),
        memory: held.reduce((sum, claim) => sum + claim.memory, 0),
      };
    });
}

/** Return moments in seconds, and the shares of the CPU and the memory, in percent, that are claimed from each on. */
export function claimedShares(
  steps: readonly ClaimStep[],
  whole: { cpu: number; memory: number },
  until: number,
): [number[], number[], number[]] {
  const share = (part: number, of: number): number => (of ? Math.min(100, (part / of) * 100) : 0);
  const all = [...steps, ...steps.slice(-1).map((last) => ({ ...last, at: until }))];
  return [
    all.map(({ at }) => at / 1000),
    all.map(({ cpu }) => share(cpu, whole.cpu)),
    all.map(({ memory }) => share(memory, whole.memory)),
  ];
}
