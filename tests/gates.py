"""The coverage table, and the branch coverage that the whole and some parts must reach; run by `make test`.

Most of the work is to read every source anew: each is read once, and every core reads its share. A gate whose files
are not there is a fault.
"""

import json
import os
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import coverage
from coverage.results import format_lines

GATES = {
    "lcm/*": 90,
    "lcm/placement/*": 90,
    "lcm/model/base/capacity.py": 90,
    "lcm/model/topology/*": 95,
    "lcm/controllers/runtime/election.py": 85,
    "lcm/controllers/scheduler/*": 85,
    "lcm/controllers/session/*": 85,
    "lcm/api/routes/stream.py": 80,
}
COLUMNS = "{:<62}{:>7}{:>7}{:>8}{:>8}{:>7}   {}"

Seen = Mapping[str, Any]
"""What coverage tells of one file."""


def main() -> int:
    files = seen(os.cpu_count() or 1)
    sys.stdout.write(COLUMNS.format("Name", "Stmts", "Miss", "Branch", "BrPart", "Cover", "Missing") + "\n")
    for name, one in sorted(files.items()):
        sys.stdout.write(row(name, [one], missing(one)))
    sys.stdout.write(row("TOTAL", files.values()))
    short = 0
    for pattern, wanted in GATES.items():
        part = [one for name, one in files.items() if fnmatch(name, f"src/{pattern}")]
        if not part:
            sys.stdout.write(f"coverage {pattern} names no file\n")
            short += 1
            continue
        reached = share(part)
        short += reached < wanted
        verdict = "ok" if reached >= wanted else "short"
        sys.stdout.write(f"coverage {pattern} value={reached:.1f} goal={wanted} {verdict}\n")
    return 1 if short else 0


def seen(processes: int) -> Mapping[str, Seen]:
    names = sorted(loaded().get_data().measured_files())
    with ProcessPoolExecutor(processes) as pool:
        parts = pool.map(told, [names[number::processes] for number in range(processes)])
        return {name: one for part in parts for name, one in part.items()}


def told(names: Sequence[str]) -> Mapping[str, Seen]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        loaded().json_report(morfs=names, outfile=str(report))
        files: Mapping[str, Seen] = json.loads(report.read_bytes())["files"]
        return files


def loaded() -> coverage.Coverage:
    measured = coverage.Coverage()
    measured.load()
    return measured


def row(name: str, part: Collection[Seen], missing: str = "") -> str:
    counts = (total(part, key) for key in ("num_statements", "missing_lines", "num_branches", "num_partial_branches"))
    return COLUMNS.format(name, *counts, f"{share(part):.1f}%", missing).rstrip() + "\n"


def missing(one: Seen) -> str:
    arcs = [(start, [end]) for start, end in one["missing_branches"]]
    return format_lines([*one["executed_lines"], *one["missing_lines"]], one["missing_lines"], arcs)


def share(part: Collection[Seen]) -> float:
    """Return the percentage of statements and branches that were run."""
    there = total(part, "num_statements") + total(part, "num_branches")
    return 100 * (total(part, "covered_lines") + total(part, "covered_branches")) / there if there else 100.0


def total(part: Collection[Seen], key: str) -> int:
    return sum(one["summary"][key] for one in part)


if __name__ == "__main__":
    sys.exit(main())
