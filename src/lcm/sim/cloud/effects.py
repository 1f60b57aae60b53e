"""What is done to the simulated outside, told as it is done, on the host of whoever does it.

Made by the account, by the labs of a CML and by its licence; `sim.world` listens. Without a listener nothing is told.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Final, NamedTuple


class Effect(NamedTuple):
    """One thing that is done: to a machine, or on it to a lab, by the lab's title."""

    verb: str
    instance_id: str
    lab: str = ""


OnEffect = Callable[[Effect], None]
"""Hears of an effect at the very moment: machines are as they were before it, but for one that is new."""
OnLab = Callable[[str, str], None]
"""Hears a verb and a lab's title, or nothing where it is about the CML itself."""


SENDER: Final[ContextVar[str | None]] = ContextVar("SENDER", default=None)
"""The host whose request is carried out now, where that is not done on the host itself."""


def unheard(*_told: object) -> None:
    """Listen to nothing."""


class Run(NamedTuple):
    """From when until when it was on, also moments to come; None while no end is planned."""

    on: datetime
    off: datetime | None


Power = Callable[[], Sequence[Run]]
"""Tells all runs, oldest first. Those that have ended stay at the beginning as they are."""
