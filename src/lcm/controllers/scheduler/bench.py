"""Who was promised one seat: of thousands, only those are looked at who can be in danger. For `line_up`."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lcm.control.plane import SessionRef
from lcm.model.session import LabletSession


@dataclass(frozen=True, slots=True)
class _Sitter:
    """A session, which one after the other it came, and how long after its slot's beginning its claim begins."""

    session: LabletSession
    turn: int
    start: datetime
    after: timedelta


class Bench:
    """Sessions in the order in which they came, found by when their claims begin."""

    def __init__(self) -> None:
        self._sitters: dict[SessionRef, _Sitter] = {}
        self._starts: list[tuple[datetime, int, SessionRef]] = []
        self._afters: dict[timedelta, set[SessionRef]] = {}
        """By how late claims begin, which is the same for nearly all."""
        self._turns = 0

    def __len__(self) -> int:
        return len(self._sitters)

    def add(self, ref: SessionRef, session: LabletSession) -> None:
        """Take in a session with a claim that is not here."""
        claim = session.status.claim
        assert claim is not None, "only claims are promised"
        self._turns += 1
        after = claim.start - (session.spec.timeslot_start or claim.start)
        self._sitters[ref] = _Sitter(session, self._turns, claim.start, after)
        insort(self._starts, (claim.start, self._turns, ref))
        self._afters.setdefault(after, set()).add(ref)

    def remove(self, ref: SessionRef) -> None:
        """Forget a session that is here."""
        gone = self._sitters.pop(ref)
        del self._starts[bisect_left(self._starts, (gone.start, gone.turn))]
        self._afters[gone.after].remove(ref)
        if not self._afters[gone.after]:
            del self._afters[gone.after]

    def all(self) -> Sequence[LabletSession]:
        """Give all, in the order in which they came."""
        return [one.session for one in self._sitters.values()]

    def some(self, until: datetime, after: timedelta) -> Sequence[LabletSession]:
        """Give those whose claims begin by a moment, or so much later than their slots; in the order they came."""
        early = [ref for _, _, ref in self._starts[: bisect_right(self._starts, until, key=_start)]]
        late = [ref for how, refs in self._afters.items() if how > after for ref in refs]
        if not early and not late:
            return ()
        found = sorted((self._sitters[ref] for ref in {*early, *late}), key=lambda one: one.turn)
        return [one.session for one in found]


def _start(entry: tuple[datetime, int, SessionRef]) -> datetime:
    return entry[0]
