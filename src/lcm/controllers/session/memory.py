"""What looks remember: whose lab is out of sight, which workers are silent, how long labs take. Lost with the term.

Nothing is decided by it but how often somebody asks, and since when in vain.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lcm.controllers.session.view import Rules
from lcm.controllers.worker.view import Unknown
from lcm.model.clock import Clock

_DOUBLINGS: Final = 10
_FRESH: Final = timedelta(minutes=1)


@dataclass(slots=True)
class _Silence:
    """A worker that did not answer: what was heard instead, and until when nobody asks it again."""

    told: Unknown
    until: datetime
    failures: int = 0
    asked: bool = False


@dataclass(slots=True)
class Memory:
    """What the looks of one term have in common."""

    clock: Clock
    _silent: dict[str, _Silence] = field(default_factory=dict)
    _unseen: dict[str, datetime] = field(default_factory=dict)
    _usual: dict[tuple[str, str], tuple[datetime, timedelta | None]] = field(default_factory=dict)

    def silence(self, worker: str) -> Unknown | None:
        """Say what a worker answered last if it is not to be asked now: one at a time asks a silent one, in turn.

        Each who waits for an answer keeps a session waiting whose own worker would answer at once.
        """
        known = self._silent.get(worker)
        return known.told if known and (known.asked or self.clock.now() < known.until) else None

    @contextmanager
    def asking(self, worker: str) -> Iterator[None]:
        """Be the one who asks a worker, if it is silent."""
        known = self._silent.get(worker)
        if known is None:
            yield
            return
        known.asked = True
        try:
            yield
        finally:
            known.asked = False

    def heard(self, worker: str, answer: object, rules: Rules) -> None:
        """Take note of whether a worker answered; those who asked at the same time met the same silence."""
        if not isinstance(answer, Unknown) or answer.answered:
            self._silent.pop(worker, None)
            return
        now, known = self.clock.now(), self._silent.get(worker)
        if known is None:
            self._silent[worker] = _Silence(answer, now + rules.poll)
        elif now >= known.until:
            known.failures = min(known.failures + 1, _DOUBLINGS)
            known.told, known.until = answer, now + min(rules.poll * 2**known.failures, rules.seldom)

    def unseen(self, session: str, lab: object) -> datetime | None:
        """Say since when a session's lab has been asked for in vain; None if it was seen."""
        if isinstance(lab, Unknown):
            return self._unseen.setdefault(session, self.clock.now())
        self._unseen.pop(session, None)
        return None

    def usual(self, namespace: str, definition: str, find: Callable[[], timedelta | None]) -> timedelta | None:
        """Say how long labs of a definition take to start, as it was found within the last minute."""
        now, known = self.clock.now(), self._usual.get((namespace, definition))
        if known is None or now >= known[0] + _FRESH:
            known = self._usual[namespace, definition] = (now, find())
        return known[1]
