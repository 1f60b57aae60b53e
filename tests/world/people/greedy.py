"""Somebody who books as much as they get: now, ahead and far away, all at once and at every process."""

import asyncio
from datetime import timedelta
from typing import Final

from lcm.control.plane.protocol import Ref
from lcm.model.base.resource import Metadata
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from world.people.visitors import Visitors

_EVERY_SECONDS: Final = 4 * 3_600
_AT_ONCE: Final = 15
"""How many are asked for at the same moment; more than anybody may have waiting."""
_AHEAD: Final = 60
"""How many slots are asked for; more than anybody may have ahead."""
_KEEPS: Final = 3
"""How many slots are kept; the others are cancelled before they begin, so that days stay short."""
_HALF_HOUR: Final = timedelta(minutes=30)
_FAR: Final = timedelta(days=100)


class Greedy(Visitors):
    """Gus, who wants everything."""

    async def grab(self) -> None:
        """Grab in one of three ways, once in a while."""
        while True:
            await self.wait_about(_EVERY_SECONDS)
            if self.is_late:
                return
            self._number += 1
            way = self.dice.choice((self._grab_now, self._grab_ahead, self._grab_far_away))
            await way(f"g{self._number}")

    async def _grab_now(self, name: str) -> None:
        lab, give_up = self._choose_lab(), self.world.clock.now() + timedelta(hours=1)
        spec = LabletSessionSpec(definition=lab, duration_minutes=30, give_up_at=give_up)
        await asyncio.gather(*(self._grab(f"{name}-{number}", spec) for number in range(_AT_ONCE)))

    async def _grab_ahead(self, name: str) -> None:
        lab, start = self._choose_lab(), self.world.clock.now().replace(second=0, microsecond=0) + _HALF_HOUR
        slots = max(int((self._deadline() - start) / _HALF_HOUR), 0)
        specs = (
            [
                LabletSessionSpec(
                    definition=lab,
                    timeslot_start=start + number * _HALF_HOUR,
                    timeslot_end=start + (number + 1) * _HALF_HOUR,
                )
                for number in (one % slots for one in range(_AHEAD))
            ]
            if slots
            else []
        )
        made = [one for number, spec in enumerate(specs) if (one := await self._grab(f"{name}-{number}", spec))]
        for one in made[_KEEPS:]:
            await self._delete(Ref(LabletSession, one.metadata.name), self.caller)

    async def _grab_far_away(self, name: str) -> None:
        start = self.world.clock.now() + _FAR
        spec = LabletSessionSpec(definition=self._choose_lab(), timeslot_start=start, timeslot_end=start + _HALF_HOUR)
        await self._grab(name, spec)

    async def _grab(self, name: str, spec: LabletSessionSpec) -> LabletSession | None:
        session = LabletSession(metadata=Metadata(name=name), spec=spec)
        return await self.want(f"grab {name}", lambda plane: plane.create(session, request=name))
