"""People of the simulation: they book, most of them for later, some for now, and take what they are given."""

import asyncio
from datetime import timedelta
from typing import Final

from lcm.model.errors import Later, Refused
from lcm.model.identity import Caller, Role
from lcm.model.resource import Metadata
from lcm.model.session import LabletSession, LabletSessionSpec
from lcm.sim.world.ground import definition_name
from lcm.sim.world.world import World

PERSONS: Final = 40
_DAY_SECONDS: Final = 86_400
_AHEAD: Final = (30, 60, 120, 240, 480)
_MINUTES: Final = (30, 45, 60, 90, 120, 180)


def arrive(world: World) -> None:
    """Let people come until the scenario's end."""
    world.begin(Visitors(world).come())


class Visitors:
    """Those who want a lab."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.stage.chance.stream("visitors")
        self._number = 0

    async def come(self) -> None:
        """Want one lab after the other."""
        world = self._world
        mean = _DAY_SECONDS / world.scenario.sessions_a_day
        while world.clock.now() < world.scenario.end:
            await asyncio.sleep(self._dice.expovariate(1 / mean))
            await self._book()

    async def _book(self) -> None:
        self._number += 1
        name, person = f"s{self._number}", f"person-{self._dice.randrange(PERSONS)}"
        session = LabletSession(metadata=Metadata(name=name), spec=self._wanted())
        caller = Caller(name=person, role=Role.USER)
        try:
            await self._world.insist(caller, lambda plane: plane.create(session, request=name))
        except (Refused, Later) as error:
            self._world.witness.tell(f"{person} is refused {name}: {error}")

    def _wanted(self) -> LabletSessionSpec:
        lab = definition_name(self._dice.choice(self._world.scenario.labs))
        minutes = self._dice.choice(_MINUTES)
        if self._dice.random() < 0.3:  # noqa: PLR2004  most people plan
            return LabletSessionSpec(definition=lab, duration_minutes=minutes)
        ahead = timedelta(minutes=self._dice.choice(_AHEAD))
        start = self._world.clock.now().replace(second=0, microsecond=0) + ahead
        return LabletSessionSpec(definition=lab, timeslot_start=start, timeslot_end=start + timedelta(minutes=minutes))
