"""Plays many seeds, each in a process of its own, on all cores. Called by `make sim` through `world`."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

import msgspec

from lcm.sim.time.chance import collect_garbage_rarely
from lcm.sim.world.scenario import Scenario
from world.checked import CheckedWorld
from world.playing import play
from world.story import describe_outcome

HOUR_SECONDS: Final = 3_600


class SeedReport(msgspec.Struct, frozen=True):
    """The result of one seed."""

    seed: int
    hours: float
    face: str
    trace: str
    sessions: int
    mishaps: int
    commits: int
    violations: int
    told: str
    cpu_seconds: float
    speed: float

    def __str__(self) -> str:
        face = "" if self.face == "direct" else f" {self.face} face"
        return (
            f"seed {self.seed} trace {self.trace}{face} hours {self.hours:g} sessions {self.sessions} "
            f"mishaps {self.mishaps} commits {self.commits} speed {self.speed:.0f} x violations {self.violations}"
        )


def run_seed(scenario: Scenario) -> SeedReport:
    """Play one seed, in a process of its own."""
    worlds: list[CheckedWorld] = []

    def make(wanted: Scenario) -> CheckedWorld:
        worlds.append(CheckedWorld(wanted))
        return worlds[-1]

    began = _cpu_seconds()
    outcome = play(scenario, make)
    cpu = _cpu_seconds() - began
    return SeedReport(
        seed=scenario.seed,
        hours=scenario.hours,
        face=scenario.face,
        trace=outcome.trace,
        sessions=len(worlds[0].witness.seen.sessions),
        mishaps=worlds[0].mishaps,
        commits=outcome.commits,
        violations=len(outcome.violations),
        told=describe_outcome(outcome),
        cpu_seconds=cpu,
        speed=(scenario.hours + scenario.quiet_hours) * HOUR_SECONDS / max(cpu, 1e-9),
    )


def run_campaign(scenarios: Sequence[Scenario], at_once: int) -> Iterator[SeedReport]:
    """Play seeds, some at once, each in a process of its own; yield their reports in order."""
    fresh = get_context("spawn")
    with ProcessPoolExecutor(at_once, fresh, initializer=collect_garbage_rarely, max_tasks_per_child=1) as pool:
        yield from pool.map(run_seed, scenarios)


def _cpu_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system
