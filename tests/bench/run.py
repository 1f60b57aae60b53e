"""`make bench [ONLY=group]`: run every `bench_*` function of the files `bench_GROUP*.py` and print a line per figure.

Ends with 1 when a figure falls short or a baseline was too slow to mean anything.
"""

import asyncio
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.figures import Figure, line, verdict

HERE = Path(__file__).resolve().parent


def benches(only: str) -> Iterator[str]:
    for file in sorted(HERE.glob(f"bench_{only}*.py")):
        yield f"bench.{file.stem}"


async def run(module_name: str) -> list[Figure]:
    module = importlib.import_module(module_name)
    found = [
        bench for name, bench in inspect.getmembers(module, inspect.iscoroutinefunction) if name.startswith("bench_")
    ]
    figures: list[Figure] = []
    for bench in found:
        for figure in await bench():
            print(line(figure), flush=True)
            figures.append(figure)
    return figures


def main(only: str) -> int:
    names = list(benches(only))
    if not names:
        known = sorted({file.stem.split("_")[1] for file in HERE.glob("bench_*.py")})
        print(f"no bench group {only!r}; there are: {', '.join(known)}")
        return 2
    figures = [figure for name in names for figure in asyncio.run(run(name))]
    return 0 if all(verdict(figure) == "ok" for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
