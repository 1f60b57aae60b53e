"""A scenario is played to its end: people and mishaps, then a quiet time, then the last look."""

from datetime import timedelta

from lcm.sim.loop import run
from lcm.sim.world.checks.table import at_rest
from lcm.sim.world.mishaps import Trouble
from lcm.sim.world.people import arrive
from lcm.sim.world.scenario import Scenario
from lcm.sim.world.world import Outcome, World


def play(scenario: Scenario) -> Outcome:
    """Run a scenario to its end, or to the first thing that must never happen."""

    async def life() -> Outcome:
        world = World(scenario)
        await world.found()
        arrive(world)
        trouble = Trouble(world)
        trouble.begin()
        await world.pass_time(timedelta(hours=scenario.hours))
        if not world.witness.violations:
            trouble.end()
            await world.pass_time(timedelta(hours=scenario.quiet_hours))
        if not world.witness.violations:
            world.witness.note(at_rest(world))
        return world.outcome()

    return run(life, start=scenario.start)
