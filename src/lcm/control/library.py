"""What is the same for all callers about files and about what labs teach. Made by `local`."""

from asyncio import Lock
from dataclasses import dataclass, field

from lcm.control.learning import USUAL
from lcm.model.learning import Review
from lcm.providers.artifacts import Artifacts


@dataclass(slots=True)
class Library:
    """Where files are, by what definitions are reviewed, and whose turn it is to teach one."""

    artifacts: Artifacts | None = None
    review: Review = USUAL
    turn: Lock = field(default_factory=Lock)
    """One at a time in a process: many sessions of a lab end together, and each would only disturb the others."""
