"""`python -m world.weeks.run [WORD]`: plays the simulated weeks whose names or policies have a word, all without one.

`make weeks` calls it. Each is played in a process of its own, on all cores, and printed as one line of figures. At the
end it says which steps of the pools' phase table no week has taken.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from lcm.model.kinds.pool import POOL_MACHINE, ScalingPolicy
from lcm.sim.time.chance import collect_garbage_rarely
from world.weeks.figures import PhaseStep, WeekReport, play_week
from world.weeks.table import WEEKS, Week

RUNS: Final = tuple((week.name, policy) for week in WEEKS for policy in week.policies)
ALL_STEPS: Final = frozenset((str(step.source), str(step.target)) for step in POOL_MACHINE.steps)


def find_week(name: str) -> Week:
    """Return the week of a name."""
    return next(one for one in WEEKS if one.name == name)


def run_week(run: tuple[str, ScalingPolicy]) -> WeekReport:
    """Play a week under a policy."""
    name, policy = run
    week = find_week(name)
    return play_week(name, policy, week.under(policy), week.people)


def missing_steps(taken: Iterable[PhaseStep]) -> Sequence[PhaseStep]:
    """Return the steps of the pools' phase table that were not taken."""
    return sorted(ALL_STEPS - set(taken))


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    wanted = [run for run in RUNS if word in f"{run[0]} {run[1]}"]
    wrong, taken = 0, set[PhaseStep]()
    print(WeekReport.heading(), flush=True)
    fresh = get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), fresh, initializer=collect_garbage_rarely, max_tasks_per_child=1) as pool:
        for report in pool.map(run_week, wanted):
            print(report, flush=True)
            wrong += not report.is_right
            taken |= report.steps
            if report.told:
                print(report.told, flush=True)
    missing = missing_steps(taken) if len(wanted) == len(RUNS) else ()
    for source, target in missing:
        print(f"no week has a pool step from {source} to {target}")
    print(f"{len(wanted) - wrong} of {len(wanted)} weeks without a violation or a late start")
    return 1 if wrong or missing or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
