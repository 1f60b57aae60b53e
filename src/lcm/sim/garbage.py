"""How often a process that does nothing but simulate looks for garbage. Called where such a process begins."""

import gc
from typing import Final

NEW_OBJECTS: Final = 50_000


def collect_seldom() -> None:
    """Look for garbage after many new objects only: nearly everything goes as soon as nobody holds it any more.

    With the usual number a day's play spends a fortieth of its time on looking, and ends hardly smaller.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
