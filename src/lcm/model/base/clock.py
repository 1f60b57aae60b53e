"""The sources of time, as protocols. `system.clock` reads the machine's; `sim.time.loop` simulates one."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The current time, timezone-aware and in UTC."""

    def now(self) -> datetime:
        """Return the current time."""
        ...


class Stopwatch(Protocol):
    """Seconds since a fixed moment that is the same for every process of the machine; never stepped."""

    def seconds(self) -> float:
        """Return the seconds passed. A reboot may restart the count."""
        ...
