"""What a simulated world reports while it runs. This witness keeps bugs only; the tests' checks everything."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from lcm.sim.cloud.effects import Effect
from lcm.store.base import Change


@dataclass(frozen=True, slots=True)
class Violation:
    """Something happened that must never happen."""

    rule: str
    """The line of "what must never happen" that is broken."""
    text: str
    about: tuple[str, ...] = ()
    """The names of the objects whose stories explain it."""


class Witness:
    """Keeps the violations of a run. Subclasses override what they want to see."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.violated = asyncio.Event()
        self.commits = 0

    def record_commit(self, revision: int, changes: Sequence[Change]) -> None:
        """Record a commit, on the host that made it."""

    def record_effect(self, effect: Effect) -> None:
        """Record an effect on the outside, on the host that has it."""

    def record_robbed_lease(self, name: str, holder: str) -> None:
        """Record that the store ended a lease whose holder still believes in it."""

    def tell(self, text: str) -> None:
        """Record something that no commit shows."""

    def check_log_line(self, line: str) -> None:
        """Check a line of a log."""

    async def watch(self) -> None:
        """Check again and again, as long as the world lasts."""

    def add_violations(self, wrong: Sequence[Violation]) -> None:
        """Keep violations, and wake whoever runs the world."""
        if wrong:
            self.violations += wrong
            self.violated.set()
