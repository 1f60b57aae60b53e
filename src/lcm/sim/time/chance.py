"""Seeded randomness and ids, and rare garbage collection for processes that only simulate.

A simulation makes one Chance from its seed and hands out its streams.
"""

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID


class Chance(random.Random):
    """Random draws that depend on nothing but the seed, split into independent streams."""

    def __init__(self, seed: int | str) -> None:
        self._seed = str(seed)
        self._streams: dict[str, Chance] = {}
        super().__init__(self._seed)

    def stream(self, name: str) -> "Chance":
        """Return the stream of this name, always the same one; draws from other streams do not affect it."""
        if name not in self._streams:
            self._streams[name] = Chance(f"{self._seed}/{name}")
        return self._streams[name]


class Ids:
    """Makes ids that look like UUIDs."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def __call__(self) -> str:
        return str(UUID(int=self._chance.getrandbits(128), version=4))


NEW_OBJECTS: Final = 1_000_000


def collect_garbage_rarely() -> None:
    """Collect garbage only after many new objects: reference counting frees nearly everything at once.

    With the default threshold a simulated day spends a fortieth of its time on collection and saves hardly any memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Collect garbage rarely for a while, and as before after it."""
    before = gc.get_threshold()
    collect_garbage_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
