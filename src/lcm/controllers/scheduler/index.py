"""Who has a claim on which seat and on which worker: an index of all bookings, kept up to date one by one. For `view`.

A session that has both counts on both: its seat is its timeline, and its worker may have left that seat.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lcm.control.plane.protocol import Ref, SessionRef
from lcm.model.base.capacity import Claim
from lcm.model.base.resource import Truth, condition
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, SessionCondition, SessionPhase, holds, is_asap
from lcm.placement.places import held_by, session_holder
from lcm.placement.request import Held

PoolRef = Ref[LabWorkerPool]
Spot = tuple[PoolRef, int] | str
"""A seat, or a worker by its uid."""
_NONE: Mapping[str, Held] = {}


class Holdings:
    """Claims by spot and holder."""

    def __init__(self, likely: Callable[[LabletSession, Claim], Claim]) -> None:
        """Hold the claims of sessions as long as they `likely` last."""
        self._likely = likely
        self._at: dict[Spot, dict[str, Held]] = {}
        self._seats: dict[PoolRef, set[int]] = {}
        self._of: dict[Ref[Any], dict[tuple[Spot, str], Held]] = {}
        self._ends: dict[SessionRef, datetime] = {}

    def at(self, spot: Spot) -> Mapping[str, Held]:
        """Give what is held on a spot."""
        return self._at.get(spot, _NONE)

    def spots(self) -> Collection[Spot]:
        """Give the spots on which anything is held."""
        return self._at.keys()

    def seats(self, pool: PoolRef) -> Collection[int]:
        """Give the numbers of a pool's seats on which anything is held."""
        return self._seats.get(pool, ())

    def note(self, ref: Ref[Any], booking: LabletSession | Reservation | None) -> Iterable[tuple[Spot, str]]:
        """Take note of a booking as it is now; gives what changed: spots, and the holder on each."""
        before, after = self._of.pop(ref, {}), dict(self._spots(ref, booking)) if booking else {}
        for spot, holder in before.keys() - after.keys():
            self._release(spot, holder)
        for key, held in after.items():
            if before.get(key) != held:
                self._hold(key[0], held)
        if after:
            self._of[ref] = after
        self._ends.pop(ref, None)
        if isinstance(booking, LabletSession) and booking.status.worker_id is not None and after:
            self._ends[ref] = next(iter(after.values())).claim.end
        return [key for key in before | after if before.get(key) != after.get(key)]

    def overdue(self, now: datetime) -> Iterable[SessionRef]:
        """Name the sessions on workers that should have been gone by now."""
        return [ref for ref, end in self._ends.items() if end <= now]

    def _hold(self, spot: Spot, held: Held) -> None:
        if spot not in self._at and not isinstance(spot, str):
            self._seats.setdefault(spot[0], set()).add(spot[1])
        self._at.setdefault(spot, {})[held.holder] = held

    def _release(self, spot: Spot, holder: str) -> None:
        here = self._at.get(spot, {})
        here.pop(holder, None)
        if here:
            return
        self._at.pop(spot, None)
        if not isinstance(spot, str) and spot[0] in self._seats:
            self._seats[spot[0]].discard(spot[1])
            if not self._seats[spot[0]]:
                del self._seats[spot[0]]

    def _spots(self, ref: Ref[Any], booking: LabletSession | Reservation) -> Iterator[tuple[tuple[Spot, str], Held]]:
        claim = holds(booking) if isinstance(booking, LabletSession) else None
        likely = self._likely(booking, claim) if isinstance(booking, LabletSession) and claim else None
        for pool, number, held in held_by(booking):
            spot = Ref(LabWorkerPool, pool, ref.namespace), number
            yield (spot, held.holder), Held(held.holder, likely) if likely else held
        if isinstance(booking, LabletSession) and likely and booking.status.worker_id is not None:
            holder = session_holder(booking)
            yield (booking.status.worker_id, holder), Held(holder, likely)


def sessions_in(holders: Iterable[str]) -> Iterator[SessionRef]:
    """Name the sessions among holders; the others are claims of reservations."""
    for holder in holders:
        namespace, _, name = holder.partition("/")
        if "#" not in name:
            yield Ref(LabletSession, name, namespace)


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


Chair = tuple[Ref[LabWorkerPool], int]
"""A seat of a pool."""
_P: Final = SessionPhase
_WAITING: Final = frozenset({_P.PENDING, _P.SCHEDULED})
_PROMISED: Final = "promised"


class LineUp:
    """Sessions by what they want."""

    def __init__(self) -> None:
        self.pending: dict[SessionRef, LabletSession] = {}
        """Those in PENDING."""
        self.promised: dict[Chair, Bench] = {}
        """Those with a slot that have a seat and no worker yet, by their seats."""
        self.flagged: dict[SessionRef, LabletSession] = {}
        """Those that somebody was told of as being at risk."""
        self._chairs: dict[SessionRef, Chair] = {}
        self._gists: dict[Ref[Any], object] = {}

    def note(self, ref: SessionRef, session: LabletSession | None) -> bool:
        """Take note of a session as it is now; tell whether that can matter to any who wait."""
        for where, belongs in ((self.pending, _waits), (self.flagged, at_risk)):
            if session is not None and belongs(session):
                where[ref] = session
            else:
                where.pop(ref, None)
        self._sit(ref, session)
        before, now = self._gists.pop(ref, None), _gist(session) if session else None
        if now is not None:
            self._gists[ref] = now
        return before != now

    def _sit(self, ref: SessionRef, session: LabletSession | None) -> None:
        before = self._chairs.pop(ref, None)
        if before is not None:
            self.promised[before].remove(ref)
            if not self.promised[before]:
                del self.promised[before]
        seat = session.status.seat if session else None
        if session is not None and seat is not None and _promised(session):
            chair = Ref(LabWorkerPool, seat.pool, ref.namespace), seat.number
            self.promised.setdefault(chair, Bench()).add(ref, session)
            self._chairs[ref] = chair


def at_risk(session: LabletSession) -> bool:
    """Tell whether a session carries the condition."""
    known = condition(session.status.conditions, SessionCondition.AT_RISK)
    return known is not None and known.status is Truth.TRUE


def _waits(session: LabletSession) -> bool:
    return session.status.phase is _P.PENDING


def _promised(session: LabletSession) -> bool:
    """Tell whether a session has a promise to wait for; the step that only says so changes nothing for anybody."""
    status = session.status
    return status.phase in _WAITING and status.claim is not None and status.worker_id is None and not is_asap(session)


def _gist(session: LabletSession) -> object:
    status = session.status
    return (
        session.metadata.uid,
        session.spec,
        _PROMISED if status.seat is not None and _promised(session) else status.phase,
        status.claim,
        status.seat,
        status.worker_id,
        status.ends_at,
        status.expires_at,
        status.retry_count,
    )
