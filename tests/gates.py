"""Branch coverage that some parts must reach by themselves; run by `make test` after the tests.

A part that does not exist has no gate; the total's gate is pytest's own.
"""

import io
import sys
from pathlib import Path

import coverage

GATES = {
    "lcm/placement/*": 90,
    "lcm/model/capacity.py": 90,
    "lcm/model/timeslots.py": 90,
    "lcm/model/topology*": 95,
    "lcm/controllers/election.py": 85,
    "lcm/controllers/scheduler/*": 85,
    "lcm/controllers/session/*": 85,
    "lcm/api/stream*": 80,
}


def main() -> int:
    data = coverage.Coverage()
    data.load()
    short = 0
    for pattern, wanted in GATES.items():
        if not list(Path("src").glob(pattern)):
            continue
        reached = data.report(include=[f"*/src/{pattern}"], file=io.StringIO())
        verdict = "ok" if reached >= wanted else "short"
        short += verdict == "short"
        sys.stdout.write(f"coverage {pattern} value={reached:.1f} goal={wanted} {verdict}\n")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
