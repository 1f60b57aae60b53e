"""How fast this machine is just now, so that a bar in seconds holds on a slow one, on a busy one and under coverage."""

import time
from collections.abc import Callable

_STEPS = 200_000
_USUAL_SECONDS = 0.012
"""What the steps below take on the machine that the bars were written on."""


def here(seconds: float, clock: Callable[[], float] = time.process_time) -> float:
    """Say what may take as long here as those seconds there; never less than those."""
    began = clock()
    sum(step * step for step in range(_STEPS))
    return seconds * max(1.0, (clock() - began) / _USUAL_SECONDS)
