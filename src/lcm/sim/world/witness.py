"""Sees every commit and every effect, writes the trace, and asks the checks: what must never happen is seen at once."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from lcm.model.clock import Clock
from lcm.sim.host import HOST
from lcm.sim.world.checks.table import ALWAYS
from lcm.sim.world.checks.violation import Violation
from lcm.sim.world.seen import Seen
from lcm.store.base import Change


@dataclass(frozen=True, slots=True)
class Line:
    """Something that happened in the world, for the story of a run."""

    at: str
    text: str

    def __str__(self) -> str:
        return f"{self.at} {self.text}"


class Witness:
    """What is known of a run, and the first thing that was wrong with it."""

    def __init__(self, clock: Clock) -> None:
        self.seen = Seen()
        self.violations: list[Violation] = []
        self.violated = asyncio.Event()
        self.commits = 0
        self.log: list[Line] = []
        """What people did and what went wrong, in order."""
        self._clock = clock
        self._trace = hashlib.sha256()

    @property
    def trace(self) -> str:
        """Name everything that was committed until now, in its order: the same name, the same run."""
        return self._trace.hexdigest()[:16]

    def tell(self, text: str) -> None:
        """Write down what happened that no commit tells."""
        self.log.append(Line(f"{self._clock.now():%d %H:%M:%S}", text))
        self._trace.update(text.encode())

    def commit(self, revision: int, changes: Sequence[Change]) -> None:
        """See a commit, on the host that made it."""
        now, host = self._clock.now(), HOST.get()
        name = host.name if host else None
        self.commits += 1
        self._trace.update(f"{revision} {now.timestamp()} {name}".encode())
        for change in changes:
            self._trace.update(change.key.encode())
            self._trace.update(change.entry.value if change.entry else b"-")
            turn = self.seen.take(change, now, name)
            if turn is not None:
                for check in ALWAYS.get(type(turn.now), ()):
                    self.note(check(self.seen, turn))

    def note(self, wrong: Sequence[Violation]) -> None:
        """Keep what is wrong, and wake whoever runs the world."""
        if wrong:
            self.violations += wrong
            self.violated.set()
