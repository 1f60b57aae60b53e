"""Faults planted in production code, to see that the simulation finds them: what one is, and how it is searched for.

A fault is put in place by patches within the process that plays, and taken out again; production code knows nothing of
it. It is found when a run with it breaks its line of "what must never happen", and the same run without it breaks none.
The faults stand in `planted_*.py`; `make planted` runs all, `simulation/test_planted.py` some.
"""

import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from lcm.sim.world.scenario import Scenario, ScenarioPool
from world.checked import CheckedWorld, RunOutcome
from world.playing import play
from world.scenarios import CLASSROOM

Deed = Callable[[CheckedWorld], Coroutine[Any, Any, None]]
Plant = Callable[[pytest.MonkeyPatch], None]


QUIET: Final = msgspec.structs.replace(
    CLASSROOM,
    processes=1,
    hours=0.8,
    quiet_hours=0.5,
    pools=(ScenarioPool(track="ccna", most=1, least=1),),
    sessions_a_day=0,
    bystanders=False,
)
"""One process and one machine, and nobody but those whose deeds a fault brings along."""
BUSY: Final = msgspec.structs.replace(
    QUIET, hours=1.5, quiet_hours=3.0, pools=(ScenarioPool(track="ccna", most=2, least=1),), sessions_a_day=250
)
"""One process, two machines, and people who book."""


@dataclass(frozen=True)
class Planted:
    name: str
    rule: str
    plant: Plant
    scenario: Scenario
    deed: Deed | None = None
    """What happens in the world besides, with the fault and without."""
    neighbours: tuple[str, ...] = ()
    """Lines that the same fault may break first."""
    seeds: Iterable[int] = range(1, 9)
    """Tried in this order."""


@dataclass(frozen=True)
class Finding:
    """What came of a search; seed None: no seed showed it."""

    name: str
    rule: str
    seed: int | None
    after: timedelta
    cpu_seconds: float
    text: str


@dataclass
class _Played:
    outcome: RunOutcome
    after: timedelta


def search(planted: Planted) -> Finding:
    """Play one seed after the other until one shows the fault."""
    began, seen = cpu_seconds(), "no violation"
    for seed in planted.seeds:
        with pytest.MonkeyPatch.context() as patch:
            planted.plant(patch)
            played = _play(planted, seed)
        broken = played.outcome.violations
        right = [one for one in broken if one.rule in {planted.rule, *planted.neighbours}]
        seen = f"{broken[0].rule}: {broken[0].text}" if broken else seen
        if not right:
            continue
        healthy = _play(planted, seed).outcome.violations
        if healthy:
            seen = f"also without the fault: {healthy[0].rule}: {healthy[0].text}"
            continue
        cpu = cpu_seconds() - began
        return Finding(planted.name, right[0].rule, seed, played.after, cpu, right[0].text)
    return Finding(planted.name, planted.rule, None, timedelta(0), cpu_seconds() - began, seen)


def _play(planted: Planted, seed: int) -> _Played:
    scenario = msgspec.structs.replace(planted.scenario, seed=seed)
    moments: list[datetime] = []

    async def notice(world: CheckedWorld) -> None:
        await world.witness.violated.wait()
        moments.append(world.clock.now())

    def make(wanted: Scenario) -> CheckedWorld:
        world = CheckedWorld(wanted)
        world.begin(notice(world))
        if planted.deed is not None:
            world.begin(planted.deed(world))
        return world

    outcome = play(scenario, make)
    end = scenario.end + timedelta(hours=scenario.quiet_hours)
    return _Played(outcome, (moments[0] if moments else end) - scenario.start)


def everywhere(patch: pytest.MonkeyPatch, old: object, new: object) -> None:
    """Put something in place of something else wherever production code has it; the witness keeps its own."""
    replaced = 0
    for name, module in list(sys.modules.items()):
        if not name.startswith("lcm.") or name.startswith("lcm.sim.world"):
            continue
        for key, value in list(vars(module).items()):
            if value is old:
                patch.setattr(module, key, new)
                replaced += 1
            elif isinstance(value, dict):
                for place in [place for place, one in value.items() if one is old]:
                    patch.setitem(value, place, new)
                    replaced += 1
    assert replaced, f"no module has {old}"


def changed(scenario: Scenario, **changes: Any) -> Scenario:
    return msgspec.structs.replace(scenario, **changes)


def cpu_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system
