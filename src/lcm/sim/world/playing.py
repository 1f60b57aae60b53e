"""A scenario is played to its end: people and mishaps, then a quiet time, then the last look."""

import logging
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import structlog

from lcm.sim.time.loop import run
from lcm.sim.world.checks.violation import Violation
from lcm.sim.world.mishaps import table
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.people.town import Town
from lcm.sim.world.scenario import Scenario
from lcm.sim.world.world import BUG, Outcome, World

Made = Callable[[Scenario], World]
Heard = Callable[[MutableMapping[str, Any]], None]


def play(scenario: Scenario, make: Made = World) -> Outcome:
    """Run a scenario to its end, or to the first thing that must never happen."""
    worlds: list[World] = []

    async def life() -> Outcome:
        world = make(scenario)
        worlds.append(world)
        await world.found()
        town, trouble = Town(world), Trouble(world)
        town.arrive()
        table.begin(trouble)
        await world.pass_time(timedelta(hours=scenario.hours))
        await _calm(world, trouble)
        return world.outcome()

    def heard(told: MutableMapping[str, Any]) -> None:
        for world in worlds:
            _note_bug(world, told)

    with quiet(heard):
        return run(life, start=scenario.start)


async def _calm(world: World, trouble: Trouble) -> None:
    """Have everything mended, let everything end that was begun, and look at what is left."""
    trouble.end()
    if not world.witness.violations:
        await world.pass_time(timedelta(seconds=1))
        trouble.restart()
        await world.pass_time(timedelta(hours=world.scenario.quiet_hours))
    if not world.witness.violations:
        world.witness.rest()


@contextmanager
def quiet(heard: Heard) -> Iterator[None]:
    """Keep logs silent while a world runs; each line is heard."""

    def hear(_logger: object, _level: str, told: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        heard(told)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO), processors=[hear])
    try:
        yield
    finally:
        structlog.configure(**before)


def _note_bug(world: World, told: MutableMapping[str, Any]) -> None:
    """Read a line of a log, and note a bug that a controller met and went on from."""
    world.witness.overhear(" ".join(map(str, told.values())))
    error = told.get("exc_info")
    if isinstance(error, BaseException):
        about = (str(told["object"]),) if "object" in told else ()
        world.witness.note([Violation(BUG, f"{told.get('controller', '')}: {error!r}", about)])
