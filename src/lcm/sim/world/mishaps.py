"""What goes wrong, by the dice: a table of mishaps, each a small function that begins one and says how it ends."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from lcm.sim.chance import Chance
from lcm.sim.world.world import World

Mishap = Callable[[World, Chance], Coroutine[Any, Any, None]]
_HOUR_SECONDS: Final = 3_600


async def process_dies(world: World, dice: Chance) -> None:
    """Kill a process, and start another a while later."""
    dice.choice(world.alive).host.kill()
    await asyncio.sleep(dice.uniform(1, 120))
    world.boot()


MISHAPS: Final[tuple[tuple[int, Mishap], ...]] = ((3, process_dies),)
"""How often, and what."""


class Trouble:
    """Mishaps, one after the other, until it ends; what was begun is then mended."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.stage.chance.stream("mishaps")
        self._over = False

    def begin(self) -> None:
        """Let things go wrong from now on."""
        if self._world.scenario.mishaps_an_hour:
            self._world.begin(self._rage())

    def end(self) -> None:
        """Begin nothing any more."""
        self._over = True

    async def _rage(self) -> None:
        while not self._over:
            await asyncio.sleep(self._dice.expovariate(self._world.scenario.mishaps_an_hour / _HOUR_SECONDS))
            weights, mishaps = zip(*MISHAPS, strict=True)
            (mishap,) = self._dice.choices(mishaps, weights)
            self._world.witness.tell(mishap.__name__)
            await mishap(self._world, self._dice)
