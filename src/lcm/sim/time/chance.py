"""Seeded chance and ids. The simulation makes one Chance from its seed and hands its streams around."""

import gc
import random
from typing import Final
from uuid import UUID


class Chance(random.Random):
    """Draws that depend on nothing but the seed, split into streams that do not disturb each other."""

    def __init__(self, seed: int | str) -> None:
        self._seed = str(seed)
        self._streams: dict[str, Chance] = {}
        super().__init__(self._seed)

    def stream(self, name: str) -> "Chance":
        """Return the stream of this name, always the same one: what others draw does not shift it."""
        if name not in self._streams:
            self._streams[name] = Chance(f"{self._seed}/{name}")
        return self._streams[name]


class Ids:
    """Makes ids that look like UUIDs."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def __call__(self) -> str:
        return str(UUID(int=self._chance.getrandbits(128), version=4))


NEW_OBJECTS: Final = 50_000


def collect_seldom() -> None:
    """Look for garbage after many new objects only: nearly everything goes as soon as nobody holds it any more.

    With the usual number a day's play spends a fortieth of its time on looking, and ends hardly smaller.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
