"""Indexes over bookings and sessions, updated one change at a time. Used by `SchedulerView`.

`ClaimIndex`: who has a claim on which seat and on which worker. A session that has both counts on both: its seat is its
timeline, and its worker may have left that seat. `SessionIndex`: which sessions wait for a place, were promised one, or
are at risk. `PromisedSessions`: the sessions promised to one seat; of thousands, only those that can be in danger are
looked at.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lcm.control.plane.protocol import Ref, SessionRef
from lcm.model.base.capacity import Claim
from lcm.model.base.resource import Truth, has_condition
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, SessionCondition, SessionPhase, get_claim, is_asap, worker_of
from lcm.placement.places import claims_of_booking, session_holder
from lcm.placement.request import HeldClaim

PoolRef = Ref[LabWorkerPool]
Spot = tuple[PoolRef, int] | str
"""A seat, or a worker by its uid."""
_NONE: Mapping[str, HeldClaim] = {}


class ClaimIndex:
    """Claims by spot and holder."""

    def __init__(self, likely: Callable[[LabletSession, Claim], Claim]) -> None:
        """Index the claims of sessions; `likely` returns a claim as long as it is expected to last."""
        self._likely = likely
        self._by_spot: dict[Spot, dict[str, HeldClaim]] = {}
        self._seats_by_pool: dict[PoolRef, set[int]] = {}
        self._by_booking: dict[Ref[Any], dict[tuple[Spot, str], HeldClaim]] = {}
        self._expected_ends: dict[SessionRef, datetime] = {}

    def claims_at(self, spot: Spot) -> Mapping[str, HeldClaim]:
        """Return the claims on a spot, by holder."""
        return self._by_spot.get(spot, _NONE)

    def spots(self) -> Collection[Spot]:
        """Return the spots that have claims."""
        return self._by_spot.keys()

    def claimed_seats(self, pool: PoolRef) -> Collection[int]:
        """Return the numbers of a pool's seats that have claims."""
        return self._seats_by_pool.get(pool, ())

    def update(self, ref: Ref[Any], booking: LabletSession | Reservation | None) -> Iterable[tuple[Spot, str]]:
        """Index a booking as it is now. Return what changed: spots, with the holder on each."""
        before, after = self._by_booking.pop(ref, {}), dict(self._claims_of(ref, booking)) if booking else {}
        for spot, holder in before.keys() - after.keys():
            self._release(spot, holder)
        for key, held in after.items():
            if before.get(key) != held:
                self._hold(key[0], held)
        if after:
            self._by_booking[ref] = after
        self._expected_ends.pop(ref, None)
        if isinstance(booking, LabletSession) and booking.status.worker_id is not None and after:
            self._expected_ends[ref] = next(iter(after.values())).claim.end
        return [key for key in before | after if before.get(key) != after.get(key)]

    def find_overdue(self, now: datetime) -> Iterable[SessionRef]:
        """Return the sessions on workers that should have left by now."""
        return [ref for ref, end in self._expected_ends.items() if end <= now]

    def _hold(self, spot: Spot, held: HeldClaim) -> None:
        if spot not in self._by_spot and not isinstance(spot, str):
            self._seats_by_pool.setdefault(spot[0], set()).add(spot[1])
        self._by_spot.setdefault(spot, {})[held.holder] = held

    def _release(self, spot: Spot, holder: str) -> None:
        here = self._by_spot.get(spot, {})
        here.pop(holder, None)
        if here:
            return
        self._by_spot.pop(spot, None)
        if not isinstance(spot, str) and spot[0] in self._seats_by_pool:
            self._seats_by_pool[spot[0]].discard(spot[1])
            if not self._seats_by_pool[spot[0]]:
                del self._seats_by_pool[spot[0]]

    def _claims_of(
        self, ref: Ref[Any], booking: LabletSession | Reservation
    ) -> Iterator[tuple[tuple[Spot, str], HeldClaim]]:
        claim = get_claim(booking) if isinstance(booking, LabletSession) else None
        likely = self._likely(booking, claim) if isinstance(booking, LabletSession) and claim else None
        for pool, number, held in claims_of_booking(booking):
            spot = Ref(LabWorkerPool, pool, ref.namespace), number
            yield (spot, held.holder), HeldClaim(held.holder, likely) if likely else held
        if isinstance(booking, LabletSession) and likely and booking.status.worker_id is not None:
            holder = session_holder(booking)
            yield (booking.status.worker_id, holder), HeldClaim(holder, likely)


def sessions_in(holders: Iterable[str]) -> Iterator[SessionRef]:
    """Yield the sessions among holders; the other holders are claims of reservations."""
    for holder in holders:
        namespace, _, name = holder.partition("/")
        if "#" not in name:
            yield Ref(LabletSession, name, namespace)


@dataclass(frozen=True, slots=True)
class _PromisedSession:
    """A session, its place in the order of arrival, and how long after its slot's start its claim starts."""

    session: LabletSession
    turn: int
    start: datetime
    after: timedelta


class PromisedSessions:
    """Sessions in order of arrival, found by when their claims begin."""

    def __init__(self) -> None:
        self._entries: dict[SessionRef, _PromisedSession] = {}
        self._starts: list[tuple[datetime, int, SessionRef]] = []
        self._afters: dict[timedelta, set[SessionRef]] = {}
        """References by how late the claim begins, which is the same for nearly all."""
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, ref: SessionRef, session: LabletSession) -> None:
        """Add a session with a claim that is not yet here."""
        claim = session.status.claim
        assert claim is not None, "only claims are promised"
        self._arrivals += 1
        after = claim.start - (session.spec.timeslot_start or claim.start)
        self._entries[ref] = _PromisedSession(session, self._arrivals, claim.start, after)
        insort(self._starts, (claim.start, self._arrivals, ref))
        self._afters.setdefault(after, set()).add(ref)

    def remove(self, ref: SessionRef) -> None:
        """Remove a session that is here."""
        gone = self._entries.pop(ref)
        del self._starts[bisect_left(self._starts, (gone.start, gone.turn))]
        self._afters[gone.after].remove(ref)
        if not self._afters[gone.after]:
            del self._afters[gone.after]

    def all(self) -> Sequence[LabletSession]:
        """Return all sessions in order of arrival."""
        return [one.session for one in self._entries.values()]

    def has_late(self, after: timedelta) -> bool:
        """Return whether a claim begins more than `after` past its slot."""
        return any(how > after for how in self._afters)

    def find_early_or_late(self, until: datetime, after: timedelta) -> Sequence[LabletSession]:
        """Return the sessions whose claim begins by `until`, or more than `after` past its slot; as they arrived."""
        early = [ref for _, _, ref in self._starts[: bisect_right(self._starts, until, key=lambda entry: entry[0])]]
        late = [ref for how, refs in self._afters.items() if how > after for ref in refs]
        if not early and not late:
            return ()
        found = sorted((self._entries[ref] for ref in {*early, *late}), key=lambda one: one.turn)
        return [one.session for one in found]


SeatKey = tuple[Ref[LabWorkerPool], int]
"""A seat of a pool."""
_P: Final = SessionPhase
_WAITING: Final = frozenset({_P.PENDING, _P.SCHEDULED})
_PROMISED: Final = "promised"


class SessionIndex:
    """Sessions by what they need from the scheduler."""

    def __init__(self) -> None:
        self.pending: dict[SessionRef, LabletSession] = {}
        """The sessions in PENDING."""
        self.promised: dict[SeatKey, PromisedSessions] = {}
        """The sessions with a slot that have a seat and no worker yet, by seat."""
        self.flagged: dict[SessionRef, LabletSession] = {}
        """The sessions that carry the condition of being at risk."""
        self._seat_keys: dict[SessionRef, tuple[SeatKey, int]] = {}
        """The seat of each session that was promised one, and the hour in which its claim begins."""
        self._by_hour: dict[int, Counter[SeatKey]] = {}
        self._served: dict[tuple[str, str], set[SessionRef]] = {}
        """The sessions on workers, by namespace and owner."""
        self._owners: dict[SessionRef, tuple[str, str]] = {}
        self._fingerprints: dict[Ref[Any], object] = {}

    def update(self, ref: SessionRef, session: LabletSession | None) -> bool:
        """Index a session as it is now. Return whether the change can matter to waiting sessions."""
        pending = session is not None and session.status.phase is _P.PENDING
        at_risk = session is not None and has_condition(session.status.conditions, SessionCondition.AT_RISK, Truth.TRUE)
        for where, belongs in ((self.pending, pending), (self.flagged, at_risk)):
            if session is not None and belongs:
                where[ref] = session
            else:
                where.pop(ref, None)
        self._update_promise(ref, session)
        self._update_served(ref, session)
        before, now = self._fingerprints.pop(ref, None), _fingerprint(session) if session else None
        if now is not None:
            self._fingerprints[ref] = now
        return before != now

    def count_served(self, session: LabletSession) -> int:
        """Count the sessions on workers of the same owner in the same namespace."""
        return len(self._served.get((session.metadata.namespace, session.spec.owner), ()))

    def seats_claimed_before(self, moment: datetime) -> set[SeatKey]:
        """Return the seats of which a promised claim begins before the end of a moment's hour."""
        last = _hour_of(moment)
        return {seat for hour, seats in self._by_hour.items() if hour <= last for seat in seats}

    def _update_served(self, ref: SessionRef, session: LabletSession | None) -> None:
        if session is not None and worker_of(session) is not None:
            self._owners[ref] = owner = ref.namespace, session.spec.owner
            self._served.setdefault(owner, set()).add(ref)
        elif (left := self._owners.pop(ref, None)) is not None:
            self._served[left].discard(ref)
            if not self._served[left]:
                del self._served[left]

    def _update_promise(self, ref: SessionRef, session: LabletSession | None) -> None:
        if ref in self._seat_keys:
            self._remove_promise(ref, *self._seat_keys.pop(ref))
        seat = session.status.seat if session else None
        if session is not None and seat is not None and _has_promise(session):
            chair = Ref(LabWorkerPool, seat.pool, ref.namespace), seat.number
            self.promised.setdefault(chair, PromisedSessions()).add(ref, session)
            hour = _hour_of(session.status.claim.start) if session.status.claim else 0
            self._by_hour.setdefault(hour, Counter())[chair] += 1
            self._seat_keys[ref] = chair, hour

    def _remove_promise(self, ref: SessionRef, seat: SeatKey, hour: int) -> None:
        self.promised[seat].remove(ref)
        if not self.promised[seat]:
            del self.promised[seat]
        self._by_hour[hour][seat] -= 1
        if not self._by_hour[hour][seat]:
            del self._by_hour[hour][seat]
        if not self._by_hour[hour]:
            del self._by_hour[hour]


def is_same_to_scheduler(before: object, after: object) -> bool:
    """Return whether a session did not change in what others may wait for, nor in what is kept of it here."""
    if not (isinstance(before, LabletSession) and isinstance(after, LabletSession)):
        return False
    old, new = before.status, after.status
    return (
        old.phase is new.phase
        and old.phase not in _WAITING
        and old.conditions == new.conditions
        and _fingerprint(before) == _fingerprint(after)
    )


def _hour_of(moment: datetime) -> int:
    return int(moment.timestamp() // 3600)


def _has_promise(session: LabletSession) -> bool:
    """Return whether a session waits for a promise; the step to SCHEDULED that only says so changes nothing."""
    status = session.status
    return status.phase in _WAITING and status.claim is not None and status.worker_id is None and not is_asap(session)


def _fingerprint(session: LabletSession) -> object:
    status = session.status
    return (
        session.metadata.uid,
        session.spec,
        _PROMISED if status.seat is not None and _has_promise(session) else status.phase,
        status.claim,
        status.seat,
        status.worker_id,
        status.ends_at,
        status.expires_at,
        status.retry_count,
    )
