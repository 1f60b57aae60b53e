"""`python -m world`: plays many seeds on all cores, or scenarios from files. `make sim` calls it.

Most seeds call CMLs by their simulator's own methods, which is fast; some more do so through our client.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from lcm.sim.world.scenario import Scenario
from lcm.system.clock import SystemClock
from world.campaign import HOUR_SECONDS, SeedReport, run_campaign, run_seed
from world.one_line import parse_scenario
from world.scenarios import CAMPUS, draw_campus
from world.script import read_script, run_file

MISHAPS_AN_HOUR: Final = 6.0
_CLIENT_SHARE: Final = 0.25
"""Length of a seed that is played through the CML client, relative to one that is played directly, which is cheaper."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, play, and print the reports."""
    wanted = _argument_parser().parse_args(arguments)
    if wanted.files:
        return _play_files(wanted.files)
    if wanted.one is not None:
        return _print_reports(iter([run_seed(wanted.one)]))
    return _print_reports(
        run_campaign([*_read_kept_seeds(wanted.kept), *_random_scenarios(wanted)], wanted.processes_at_once)
    )


def _read_kept_seeds(folder: Path | None) -> Sequence[Scenario]:
    """Read the seeds that have failed once."""
    return [read_script(path.read_text()).scenario for path in sorted(folder.glob("*.txt"))] if folder else []


def _random_scenarios(wanted: argparse.Namespace) -> Sequence[Scenario]:
    first = int(SystemClock().now().timestamp()) if wanted.first is None else wanted.first
    numbers = range(first, first + wanted.seeds + wanted.client_seeds)
    return [_random_scenario(wanted, seed, by_client=seed >= first + wanted.seeds) for seed in numbers]


def _random_scenario(wanted: argparse.Namespace, seed: int, *, by_client: bool) -> Scenario:
    """Return a seed's scenario: every other one has pools and quotas that the seed draws."""
    return msgspec.structs.replace(
        draw_campus(seed) if seed % 2 else CAMPUS,
        seed=seed,
        face="client" if by_client else "direct",
        hours=wanted.hours * (_CLIENT_SHARE if by_client else 1),
        quiet_hours=wanted.quiet_hours,
        mishaps_an_hour=wanted.mishaps,
        mishaps=tuple(wanted.only),
        processes=wanted.processes,
    )


def _print_reports(reports: Iterator[SeedReport]) -> int:
    wrong, cpu, lived = [], 0.0, 0.0
    for report in reports:
        _print(str(report))
        cpu, lived = cpu + report.cpu_seconds, lived + report.cpu_seconds * report.speed
        if report.violations:
            wrong.append(report.seed)
            _print(report.told)
    _print(
        f"{lived / HOUR_SECONDS:.0f} hours in {cpu:.0f} CPU seconds, {lived / max(cpu, 1e-9):.0f} x real time a core"
    )
    _print(f"violations in seeds {', '.join(map(str, wrong))}" if wrong else "no violation")
    return 1 if wrong else 0


def _play_files(files: Sequence[Path]) -> int:
    different = 0
    for path in files:
        expected, told = run_file(path, rewrite=bool(os.environ.get("LCM_REWRITE")))
        different += expected != told
        _print(f"{path}: {'as expected' if expected == told else 'not as expected'}")
        _print(told)
    return 1 if different else 0


def _argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m world", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="scenarios to play; without them seeds are played")
    parser.add_argument(
        "--one", type=_scenario_argument, help="the line of one scenario, as it is told where one went wrong"
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument(
        "--client-seeds", type=int, default=0, help="how many more by our CML client, a quarter as long"
    )
    parser.add_argument("--kept", type=Path, help="a folder of seeds to play besides, one in a file")
    parser.add_argument("--first", type=int, help="the first of them; from the clock if not said")
    parser.add_argument("--hours", type=float, default=24.0, help="how long people come and things go wrong")
    parser.add_argument("--quiet-hours", type=float, default=CAMPUS.quiet_hours, help="how long nothing happens then")
    parser.add_argument("--mishaps", type=float, default=MISHAPS_AN_HOUR, help="how many an hour")
    parser.add_argument("--only", action="append", default=[], help="which mishap; may be repeated; all if not said")
    parser.add_argument("--processes", type=int, default=CAMPUS.processes, help="how many of ours there are")
    parser.add_argument("--processes-at-once", type=int, default=os.cpu_count() or 1, help="seeds played at once")
    return parser


def _scenario_argument(line: str) -> Scenario:
    found = parse_scenario(line)
    if found is None:
        raise argparse.ArgumentTypeError(f"no such line is known: {line}")
    return found


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
