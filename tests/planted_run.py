"""`python tests/planted_run.py [WORD]`: searches for planted faults whose names have a word. See `make planted`."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from planted import Finding, search
from planted_table import PLANTED


def search_for(name: str) -> Finding:
    return search(next(one for one in PLANTED if one.name == name))


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    names = [one.name for one in PLANTED if word in one.name or word in one.rule]
    lost = 0
    print(f"{'fault':<44} {'seed':>4} {'after':>8} {'CPU s':>6}  what must never happen")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for one in pool.map(search_for, names):
            lost += one.seed is None
            seed, after = (one.seed, str(one.after).partition(".")[0]) if one.seed is not None else ("-", "-")
            found = one.rule if one.seed is not None else f"NOT FOUND, {one.text}"
            print(f"{one.name:<44} {seed:>4} {after:>8} {one.cpu_seconds:6.1f}  {found}", flush=True)
    print(f"{len(names) - lost} of {len(names)} found")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
