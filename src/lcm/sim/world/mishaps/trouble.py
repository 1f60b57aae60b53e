"""What every mishap needs: the world, its dice, and how long things stay bad. When trouble is over, all is mended."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, TypeVar

from lcm.providers.protocols.compute import InstanceState
from lcm.sim.cloud.machines import Machine
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.parts import Lab
from lcm.sim.world.process import Process
from lcm.sim.world.world import World

T = TypeVar("T")
_EVERY_SECONDS: Final = 60.0
_LOOKS: Final = 60


class Trouble:
    """The time in which things go wrong. A mishap waits with `lasts` and then mends what it began."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stage = world.stage
        self.dice = world.stage.chance.stream("mishaps")
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def end(self) -> None:
        """Begin nothing any more, and have everything mended that was begun."""
        self._over.set()
        self.tell("trouble is over")

    def tell(self, text: str) -> None:
        """Say what went wrong, and with what."""
        self.world.witness.tell(text)

    async def lasts(self, least_seconds: float, most_seconds: float) -> float:
        """Leave things as they are for a while, at the longest until trouble is over."""
        seconds = self.dice.uniform(least_seconds, most_seconds)
        await self.until(self._over.wait(), seconds)
        return seconds

    async def until(self, done: Awaitable[object], seconds: float) -> bool:
        """Wait for something, not for ever; tell whether it came."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await done
                return True
        return False

    async def soon(self, find: Callable[[], T | None]) -> T | None:
        """Find what a mishap is about, now or as soon as there is one; not when there is none for long."""
        for _ in range(_LOOKS):
            if self.is_over or (found := find()) is not None:
                return None if self.is_over else found
            await self.until(self._over.wait(), _EVERY_SECONDS)
        return None

    def restart(self) -> None:
        """Start as many processes as there should be."""
        while len(self.world.alive) < self.world.scenario.processes:
            self.tell(f"{self.world.boot().name} starts")

    def process(self) -> Process | None:
        """Choose a process that runs."""
        running = [one for one in self.world.alive if one.host.running]
        return self.dice.choice(running) if running else None

    def leader(self, lease: str) -> Process | None:
        """Find the process that holds a lease."""
        holder = self.stage.store.holder(lease)
        return next((one for one in self.world.alive if one.name == holder), None)

    def machine(self, *states: InstanceState) -> Machine | None:
        """Choose a machine in one of some states."""
        now = self.world.clock.now()
        found = [one for one in self.stage.cloud.account.machines.values() if one.state(now) in states]
        return self.dice.choice(found) if found else None

    def cml(self) -> tuple[str, Cml] | None:
        """Choose a CML that is up."""
        up = [(one.instance_id, one.cml) for one in self.stage.fleet.hosts() if one.cml.up]
        return self.dice.choice(up) if up else None

    def lab(self) -> tuple[Cml, Lab] | None:
        """Choose a lab on any CML."""
        found: Sequence[tuple[Cml, Lab]] = [
            (one.cml, lab) for one in self.stage.fleet.hosts() if one.cml.up for lab in one.cml.labs
        ]
        return self.dice.choice(found) if found else None

    def in_(self, seconds: float) -> timedelta:
        """Write seconds as a span."""
        return timedelta(seconds=seconds)
