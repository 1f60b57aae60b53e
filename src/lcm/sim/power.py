"""When a simulated machine was on: `compute` tells it to what is attached to the machine, such as a simulated CML."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple


class Run(NamedTuple):
    """From when until when it was on, also moments to come; None while no end is planned."""

    on: datetime
    off: datetime | None


Power = Callable[[], Sequence[Run]]
"""Tells all runs, oldest first. Those that have ended stay at the beginning as they are."""
