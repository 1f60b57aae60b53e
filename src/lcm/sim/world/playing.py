"""Plays a scenario to its end: people and mishaps, then a quiet time, then the last checks."""

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
from lcm.sim.world.people.town import Population
from lcm.sim.world.scenario import Scenario
from lcm.sim.world.world import BUG, RunOutcome, World

WorldFactory = Callable[[Scenario], World]
OnLogLine = Callable[[MutableMapping[str, Any]], None]


def play(scenario: Scenario, make: WorldFactory = World) -> RunOutcome:
    """Run a scenario to its end, or to the first violation."""
    worlds: list[World] = []

    async def life() -> RunOutcome:
        world = make(scenario)
        worlds.append(world)
        await world.set_up()
        town, trouble = Population(world), Trouble(world)
        town.start()
        table.begin(trouble)
        await world.pass_time(timedelta(hours=scenario.hours))
        await _calm_down(world, trouble)
        return world.outcome()

    def on_log_line(told: MutableMapping[str, Any]) -> None:
        for world in worlds:
            _note_bug(world, told)

    with capture_logs(on_log_line):
        return run(life, start=scenario.start)


async def _calm_down(world: World, trouble: Trouble) -> None:
    """End all mishaps, let everything end that was begun, and check what is left."""
    trouble.end()
    if not world.witness.violations:
        await world.pass_time(timedelta(seconds=1))
        trouble.restart()
        await world.pass_time(timedelta(hours=world.scenario.quiet_hours))
    if not world.witness.violations:
        world.witness.check_at_rest()


@contextmanager
def capture_logs(heard: OnLogLine) -> Iterator[None]:
    """Keep logs silent while a world runs; each line is passed to `heard`."""

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
    """Check a log line, and record a bug that a controller met and survived."""
    world.witness.check_log_line(" ".join(map(str, told.values())))
    error = told.get("exc_info")
    if isinstance(error, BaseException):
        about = (str(told["object"]),) if "object" in told else ()
        world.witness.add_violations([Violation(BUG, f"{told.get('controller', '')}: {error!r}", about)])
