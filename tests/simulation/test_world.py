"""Whole worlds: processes, cloud, CMLs and people, with everything that can go wrong. `make sim` plays far more."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness import suite
from lcm.sim.world.scenario import Scenario
from lcm.system.clock import SystemClock
from world.__main__ import main
from world.checked import CheckedWorld
from world.one_line import format_scenario, parse_scenario
from world.planted.run import PLANTED
from world.playing import play
from world.scenarios import CAMPUS, CROWDED
from world.script import read_script, run_file
from world.story import describe_outcome

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
FRESH = int(SystemClock().now().timestamp())
ROOT = suite.ROOT


def short(seed: int, mishaps_an_hour: float = 24) -> Scenario:
    return msgspec.structs.replace(CROWDED, seed=seed, hours=1.2, quiet_hours=2.6, mishaps_an_hour=mishaps_an_hour)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_comes_to_what_is_expected(path: Path) -> None:
    expected, told = run_file(path, rewrite=bool(os.environ.get("LCM_REWRITE")))
    assert told == expected


def test_nothing_goes_wrong_with_a_seed_that_is_known() -> None:
    outcome = play(short(1))
    assert not outcome.violations, describe_outcome(outcome)


def test_nothing_goes_wrong_where_cmls_are_spoken_to_by_our_client() -> None:
    worlds: list[CheckedWorld] = []

    def make(scenario: Scenario) -> CheckedWorld:
        worlds.append(CheckedWorld(scenario))
        return worlds[-1]

    busy = msgspec.structs.replace(
        CROWDED, seed=7, face="client", processes=2, hours=1, quiet_hours=1.5, mishaps_an_hour=12
    )
    outcome = play(busy, make)
    assert not outcome.violations, describe_outcome(outcome)
    assert any(": import " in line.text for line in worlds[0].witness.story)


@pytest.mark.parametrize("number", [0, 1])
def test_nothing_goes_wrong_with_fresh_seeds(number: int) -> None:
    outcome = play(short(FRESH + number))
    assert not outcome.violations, describe_outcome(outcome)  # which says the seed


def test_a_run_that_went_wrong_is_replayed_by_the_line_it_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = next(one for one in PLANTED if one.name == "silence is taken for no lab")
    fault.plant(monkeypatch)
    outcomes = (play(msgspec.structs.replace(fault.scenario, seed=seed)) for seed in fault.seeds)
    told = next(describe_outcome(outcome) for outcome in outcomes if outcome.violations)
    line = next(line for line in told.splitlines() if line.startswith("  replay: ")).removeprefix("  replay: ")
    command = subprocess.run(
        [*shlex.split(line), "-n", "BIN=bin"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.replace("\\\n", "")
    _, asked = shlex.split(command.partition("-m world ")[2])[:2]
    assert main(["--one", asked]) == 1
    assert told in capsys.readouterr().out, "the same rule, text, trace and story"


def test_a_seed_is_the_same_run_whatever_the_order_of_sets() -> None:
    assert traced("1") == traced("2")


def test_another_seed_is_another_run() -> None:
    calm = msgspec.structs.replace(short(3, 0), hours=0.2, quiet_hours=0)
    assert play(calm).trace != play(msgspec.structs.replace(calm, seed=4)).trace


@pytest.mark.parametrize("line", ["at 8:00 book ccna-basics for 1h as ada", "expect ada RUNNING", "pool ccna"])
def test_a_line_that_says_nothing_known_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 says nothing known"):
        read_script(f"# a comment\n{line}\n---\n")


def test_a_seed_that_failed_once_is_kept_as_one_line() -> None:
    script = read_script("seed 7 hours 2 mishaps 12 processes 2\n---\nno violation\n")
    assert script.by_dice
    assert (script.scenario.seed, script.scenario.processes, script.scenario.mishaps_an_hour) == (7, 2, 12)
    by_client = read_script("seed 7 hours 2 mishaps 12 processes 2 crowded client\n---\nno violation\n")
    assert (script.scenario.face, by_client.scenario.face) == ("direct", "client")


def test_a_line_is_all_that_a_scenario_is() -> None:
    fault = next(one for one in PLANTED if one.scenario.labs != CROWDED.labs)
    slow = msgspec.structs.replace(CAMPUS.settings, metrics_poll_interval=77)
    odd = msgspec.structs.replace(CAMPUS, seed=3, hours=1 / 3, face="client", mishaps=("machine_dies",), settings=slow)
    for scenario in (CAMPUS, short(4), fault.scenario, odd):
        assert parse_scenario(format_scenario(scenario)) == scenario


def traced(hash_seed: str) -> str:
    """Play a short run in a process whose sets are ordered differently, and read its line."""
    command = [sys.executable, "-m", "world", "--first", "5", "--hours", "0.5", "--quiet-hours", "0.2"]
    command += ["--mishaps", "30", "--processes-at-once", "1"]
    told = subprocess.run(
        command,
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    line = next((line for line in told.stdout.splitlines() if line.startswith("seed 5 trace ")), "")
    assert line, told.stderr
    return line.partition(" speed ")[0]
