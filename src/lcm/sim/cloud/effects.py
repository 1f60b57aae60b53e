"""Reports of what is done to the simulated cloud and labs, and when a simulated machine is on.

Effects are reported as they happen, on the host of whoever causes them: by the account, by a CML's labs and by its
licence. `sim.world` listens; without a listener nothing is reported.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Final, NamedTuple


class Effect(NamedTuple):
    """One thing that is done: to a machine, or on it to a lab, named by the lab's title."""

    verb: str
    instance_id: str
    lab: str = ""


OnEffect = Callable[[Effect], None]
"""Called at the very moment of an effect: machines are as they were before it, except for a new one."""
OnLabEffect = Callable[[str, str], None]
"""Called with a verb and a lab's title; the title is empty where it is about the CML itself."""


SENDER: Final[ContextVar[str | None]] = ContextVar("SENDER", default=None)
"""The host whose request is being carried out, where that is not done on the host itself."""


def ignore_effect(*_told: object) -> None:
    """Ignore an effect."""


class PowerRun(NamedTuple):
    """A time span in which a machine is on, future ones included; `off` None means no end is planned."""

    on: datetime
    off: datetime | None


PowerHistory = Callable[[], Sequence[PowerRun]]
"""Returns all runs, oldest first. Runs that have ended stay at the beginning unchanged."""
