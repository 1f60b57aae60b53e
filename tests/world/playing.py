"""Plays a scenario to its end: people and mishaps, then a quiet time, then the last checks."""

from collections.abc import Callable, MutableMapping
from datetime import timedelta
from typing import Any

from lcm.sim.time.loop import run
from lcm.sim.world.mishaps import table
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.scenario import Scenario
from lcm.sim.world.world import BUG, Violation, capture_logs
from world.checked import CheckedWorld, RunOutcome
from world.people.population import Population

WorldFactory = Callable[[Scenario], CheckedWorld]


def play(scenario: Scenario, make: WorldFactory = CheckedWorld) -> RunOutcome:
    """Run a scenario to its end, or to the first violation."""
    worlds: list[CheckedWorld] = []

    async def life() -> RunOutcome:
        world = make(scenario)
        worlds.append(world)
        await world.prepare()
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


async def _calm_down(world: CheckedWorld, trouble: Trouble) -> None:
    """End all mishaps, let everything end that was begun, and check what is left."""
    trouble.end()
    if not world.witness.violations:
        await world.pass_time(timedelta(seconds=1))
        trouble.restart()
        await world.pass_time(timedelta(hours=world.scenario.quiet_hours))
    if not world.witness.violations:
        world.witness.check_at_rest()


def _note_bug(world: CheckedWorld, told: MutableMapping[str, Any]) -> None:
    """Check a log line, and record a bug that a controller met and survived."""
    world.witness.check_log_line(" ".join(map(str, told.values())))
    error = told.get("exc_info")
    if isinstance(error, BaseException):
        about = (str(told["object"]),) if "object" in told else ()
        world.witness.add_violations([Violation(BUG, f"{told.get('controller', '')}: {error!r}", about)])
