"""Where time comes from. The model only names it; `lcm.system` reads the machine's, `lcm.sim.loop` makes it up."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The present moment, aware and in UTC."""

    def now(self) -> datetime:
        """Return the present moment."""
        ...


class Stopwatch(Protocol):
    """Seconds since some fixed moment, the same for every process of the machine, never stepping."""

    def seconds(self) -> float:
        """Return the seconds that have passed; a reboot may begin anew."""
        ...
