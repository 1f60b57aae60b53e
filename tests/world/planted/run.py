"""All planted faults, and `python -m world.planted.run [WORD]`, which searches for those whose names have a word.

`make planted` calls it. Each is searched for in a process of its own, on all cores.
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from world.planted.capacity import CAPACITY, RUSH
from world.planted.faults import QUIET, Finding, Planted, search
from world.planted.installation import INSTALLATION
from world.planted.machines import MACHINES
from world.planted.people import PEOPLE
from world.planted.pools import POOLS
from world.planted.prebuilt import PREBUILT_FAULTS
from world.planted.sessions import SESSIONS
from world.planted.words import WORDS

PLANTED: Final[tuple[Planted, ...]] = (
    *CAPACITY,
    *INSTALLATION,
    *MACHINES,
    *PEOPLE,
    *POOLS,
    *PREBUILT_FAULTS,
    *SESSIONS,
    *WORDS,
)
QUICK: Final = tuple(one for one in PLANTED if one.scenario in (QUIET, RUSH))
"""Those that are found within a few seconds."""


def search_for(name: str) -> Finding:
    return search(next(one for one in PLANTED if one.name == name))


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    names = [one.name for one in PLANTED if word in one.name or word in one.rule]
    lost = 0
    print(f"{'fault':<40} {'seed':>4} {'after':>8} {'CPU s':>6}  what must never happen")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for found in pool.map(search_for, names):
            lost += found.seed is None
            print(_line(found), flush=True)
    print(f"{len(names) - lost} of {len(names)} found")
    return 1 if lost or not names else 0


def _line(found: Finding) -> str:
    if found.seed is None:
        return f"{found.name:<40}    -        - {found.cpu_seconds:6.1f}  NOT FOUND: {found.text}"
    after = str(found.after).partition(".")[0]
    return f"{found.name:<40} {found.seed:>4} {after:>8} {found.cpu_seconds:6.1f}  {found.rule}"


if __name__ == "__main__":
    sys.exit(main())
