"""What every mishap needs: the world, a random stream, and how long things stay bad. At the end all is mended."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, TypeVar

from lcm.providers.protocols.compute import InstanceState
from lcm.sim.cloud.machines import SimMachine
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.parts import SimLab
from lcm.sim.world.process import Process
from lcm.sim.world.world import World

T = TypeVar("T")
_EVERY_SECONDS: Final = 60.0
_LOOKS: Final = 60


class Trouble:
    """What mishaps act on, and the time in which they happen. A mishap waits with `stay`, then mends what it began."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stage = world.stage
        self.dice = world.stage.chance.stream("mishaps")
        self._over = asyncio.Event()
        self.is_shut_down = False
        """Whether nobody may start a process, because the store is being restored."""
        self.restores = 0
        """How often the store was put back; nobody restores what was saved of a state that is given up."""

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def end(self) -> None:
        """Begin no further mishap, and make all that were begun mend what they broke."""
        self._over.set()
        self.tell("trouble is over")

    def tell(self, text: str) -> None:
        """Write down what went wrong, and with what."""
        self.world.witness.tell(text)

    async def stay(self, least_seconds: float, most_seconds: float) -> float:
        """Leave things as they are for a while, at the longest until trouble is over."""
        seconds = self.dice.uniform(least_seconds, most_seconds)
        await self.wait_for(self._over.wait(), seconds)
        return seconds

    async def wait_for(self, done: Awaitable[object], seconds: float) -> bool:
        """Wait for something, for a limited time; return whether it came."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await done
                return True
        return False

    async def find_soon(self, find: Callable[[], T | None]) -> T | None:
        """Find what a mishap is about, now or as soon as there is one; None when there is none for long."""
        for _ in range(_LOOKS):
            if self.is_over or (found := find()) is not None:
                return None if self.is_over else found
            await self.wait_for(self._over.wait(), _EVERY_SECONDS)
        return None

    def restart(self) -> None:
        """Start as many processes as there should be."""
        while not self.is_shut_down and len(self.world.alive) < self.world.scenario.processes:
            self.tell(f"{self.world.boot().name} starts")

    def choose_process(self) -> Process | None:
        """Choose a process that runs."""
        running = [one for one in self.world.alive if one.host.running]
        return self.dice.choice(running) if running else None

    def find_leader(self, lease: str) -> Process | None:
        """Return the process that holds a lease; None if there is none."""
        holder = self.stage.store.holder(lease)
        return next((one for one in self.world.alive if one.name == holder), None)

    def choose_machine(self, *states: InstanceState, spot: bool = False) -> SimMachine | None:
        """Choose a machine in one of some states; with `spot` one that is only lent."""
        now, machines = self.world.clock.now(), self.stage.cloud.account.machines.values()
        found = [one for one in machines if one.state(now) in states and (one.spot or not spot)]
        return self.dice.choice(found) if found else None

    def choose_cml(self) -> tuple[str, Cml] | None:
        """Choose a CML that is up."""
        up = [(one.instance_id, one.cml) for one in self.stage.fleet.running_machines() if one.cml.is_up]
        return self.dice.choice(up) if up else None

    def choose_lab(self) -> tuple[Cml, SimLab] | None:
        """Choose a lab on any CML."""
        found: Sequence[tuple[Cml, SimLab]] = [
            (one.cml, lab) for one in self.stage.fleet.running_machines() if one.cml.is_up for lab in one.cml.labs
        ]
        return self.dice.choice(found) if found else None

    def span_of(self, seconds: float) -> timedelta:
        """Return seconds as a span."""
        return timedelta(seconds=seconds)
