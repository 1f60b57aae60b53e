"""Keeps reservations: makes their sessions in time, counts those that have ended, ends those of a cancelled one.

`decide` is pure. Everything it goes by is in the store: which claims have become sessions, and what became of these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref, Seen, Terminate, ref_of
from lcm.controllers.runtime.reconcile import DONE, Again, at
from lcm.model.base.clock import Clock
from lcm.model.kinds.placement import FULFILLED_AT_ONCE
from lcm.model.kinds.reservation import RESERVATION, Reservation, ReservationPhase, ReservationStatus
from lcm.model.kinds.session import CLEAN_UP, SESSION, LabletSession
from lcm.model.telemetry.alert import Complaint, Severity

AHEAD: Final = timedelta(days=7)
"""How long before its claim begins a session is made."""
COUNTING: Final = timedelta(seconds=15)
"""How often sessions that have ended are counted at most."""
STUCK: Final = "CancellationOverdue"
_P: Final = ReservationPhase
ReservationRef = Ref[Reservation]


@dataclass(frozen=True, slots=True)
class Facts:
    """A reservation, and those of its sessions that are still there, by name."""

    reservation: Reservation
    sessions: Mapping[str, LabletSession]
    now: datetime


@dataclass(frozen=True, slots=True)
class Fulfil:
    """Make the sessions of these claims."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class End:
    """End these sessions."""

    sessions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Take a step, or count anew."""

    status: ReservationStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing until then, None: until something changes."""

    until: datetime | None = None


Decision = Fulfil | End | Report | Wait


def decide(facts: Facts) -> Decision:
    """Say what a reservation needs next."""
    decider = DECIDERS.get(facts.reservation.status.phase)
    return decider(facts) if decider else Wait()


def _promised(facts: Facts) -> Decision:
    due = _due(facts)
    return Fulfil(due) if due else Wait(_next(facts))


def _active(facts: Facts) -> Decision:
    due, status = _due(facts), facts.reservation.status
    if due:
        return Fulfil(due)
    limit = RESERVATION.deadline(_P.ACTIVE, status)
    ended, left = _ended(facts), [one for one in status.held if one.session is None and one.claim.end > facts.now]
    if not left and ended == sum(one.session is not None for one in status.held):
        return _to(facts, _P.COMPLETED, "all its sessions have ended")
    if limit is not None and facts.now >= limit[0] + CLEAN_UP:
        return _to(facts, _P.COMPLETED, limit[1].why)
    if status.sessions_ended != ended:
        return Report(msgspec.structs.replace(status, sessions_ended=ended))
    moments = [moment for moment in (_next(facts), limit[0] + CLEAN_UP if limit else None) if moment]
    return Wait(min(moments, default=None))


def _cancelling(facts: Facts) -> Decision:
    live = tuple(name for name, one in facts.sessions.items() if one.status.phase not in SESSION.final)
    if live:
        return End(live)
    return _to(facts, _P.CANCELLED, "its sessions have ended and its claims are let go")


DECIDERS: Final[Mapping[ReservationPhase, Callable[[Facts], Decision]]] = {
    _P.PROMISED: _promised,
    _P.ACTIVE: _active,
    _P.CANCELLING: _cancelling,
}


def _to(facts: Facts, phase: ReservationPhase, reason: str) -> Report:
    made = sum(one.session is not None for one in facts.reservation.status.held)
    changes: dict[str, Any] = {"phase": phase, "sessions_made": made, "sessions_ended": _ended(facts)}
    return Report(msgspec.structs.replace(facts.reservation.status, **changes), reason)


def _due(facts: Facts) -> tuple[int, ...]:
    """Give the numbers of the claims whose sessions are to be made now; what is over needs none."""
    held = facts.reservation.status.held
    return tuple(
        one.number
        for one in held
        if one.session is None and one.claim.start <= facts.now + AHEAD and one.claim.end > facts.now
    )


def _next(facts: Facts) -> datetime | None:
    starts = [one.claim.start for one in facts.reservation.status.held if one.session is None]
    return min((start - AHEAD for start in starts if start - AHEAD > facts.now), default=None)


def _ended(facts: Facts) -> int:
    names = [one.session for one in facts.reservation.status.held if one.session is not None]
    found = [facts.sessions.get(name) for name in names]
    return sum(one is None or one.status.phase in SESSION.final for one in found)


class Reservations:
    """Looks at one reservation at a time."""

    def __init__(self, plane: Plane, cache: Cache, *, clock: Clock) -> None:
        self._plane = plane
        self._cache = cache
        self._clock = clock
        self._of: dict[tuple[str, str], ReservationRef] = {}
        self._names: dict[Ref[Any], frozenset[str]] = {}
        self._counted: dict[Ref[Any], datetime] = {}
        self._over: dict[Ref[Any], set[str]] = {}
        self._poke: Callable[[ReservationRef], object] = lambda _: None
        for reservation in cache.all(Reservation):
            self._remember(reservation)
        self.stop = cache.subscribe(self._note)

    def tell(self, poke: Callable[[ReservationRef], object]) -> None:
        """Say from now on of each reservation that one of its sessions changed."""
        self._poke = poke

    async def reconcile(self, ref: ReservationRef) -> Again:
        """Look at a reservation, decide, do one thing, say when again."""
        reservation = self._cache.get(ref)
        if reservation is None or reservation.status.phase in RESERVATION.final:
            return DONE
        now = self._clock.now()
        decision = decide(Facts(reservation, await self._sessions(reservation), now))
        match decision:
            case Fulfil(numbers):
                await self._fulfil(ref, numbers)
            case End(names):
                return await self._end(reservation, names)
            case Report(status) if status.phase is reservation.status.phase and now < self._counting(ref):
                return at(self._counting(ref), now)
            case Report(status, reason):
                self._counted[ref] = now
                self._cache.accept(await self._plane.step(reservation, status, reason=reason))
                await self._plane.settle(ref, STUCK)
            case Wait(until) if until is not None:
                return at(until, now)
        return DONE

    def _counting(self, ref: ReservationRef) -> datetime:
        """Say when sessions that have ended may be counted again: one of hundreds is long to write."""
        counted = self._counted.get(ref)
        return counted + COUNTING if counted else self._clock.now()

    async def _fulfil(self, ref: ReservationRef, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), FULFILLED_AT_ONCE):
            for session in await self._plane.fulfil(ref, *numbers[first : first + FULFILLED_AT_ONCE]):
                self._cache.accept(session)

    async def _end(self, reservation: Reservation, names: Sequence[str]) -> Again:
        for name in names:
            session = Ref(LabletSession, name, reservation.metadata.namespace)
            await self._plane.act(session, Terminate(reason="its reservation was cancelled"))
        limit = RESERVATION.deadline(reservation.status.phase, reservation.status)
        if limit is None:
            return DONE
        now = self._clock.now()
        if now >= limit[0]:
            told = (
                f"{reservation.metadata.name} is cancelled, and {len(names)} of its sessions do not end: {limit[1].why}"
            )
            alert = Complaint(alert=STUCK, severity=Severity.WARNING, reason="SessionsPresent", message=told[:2000])
            await self._plane.complain(ref_of(reservation), alert)
            return DONE
        return at(limit[0], now)

    async def _sessions(self, reservation: Reservation) -> Mapping[str, LabletSession]:
        """Find a reservation's sessions; what the cache does not know is asked for, for it may only be behind."""
        namespace = reservation.metadata.namespace
        found: dict[str, LabletSession] = {}
        over = self._over.setdefault(ref_of(reservation), set())
        for name in [one.session for one in reservation.status.held if one.session is not None]:
            ref = Ref(LabletSession, name, namespace)
            # One that has ended stays so, and is in the archive one day: it is not asked for again and again.
            session = self._cache.get(ref) or (None if name in over else await self._plane.get(ref))
            # A session that is gone has left its name to anybody.
            if session is not None and _is_of(session, reservation):
                found[name] = session
            if name not in found or found[name].status.phase in SESSION.final:
                over.add(name)
        return found

    def _note(self, seen: Seen) -> None:
        if isinstance(seen.resource, Reservation):
            self._remember(seen.resource)
        elif seen.ref.kind is Reservation:
            self._forget(seen.ref)
        concerned = self._of.get((seen.ref.namespace, seen.ref.name)) if seen.ref.kind is LabletSession else None
        if concerned is not None:
            self._poke(concerned)

    def _remember(self, reservation: Reservation) -> None:
        ref = ref_of(reservation)
        if reservation.status.phase in RESERVATION.final:
            self._forget(ref)
            return
        names = {one.session for one in reservation.status.held if one.session is not None}
        for name in names - self._names.get(ref, frozenset()):
            self._of[ref.namespace, name] = ref
        if names:
            self._names[ref] = frozenset(names)

    def _forget(self, ref: Ref[Any]) -> None:
        self._counted.pop(ref, None)
        self._over.pop(ref, None)
        for name in self._names.pop(ref, ()):
            if self._of.get((ref.namespace, name)) == ref:
                del self._of[ref.namespace, name]


def _is_of(session: LabletSession, reservation: Reservation) -> bool:
    owner = session.metadata.owner
    return owner is not None and owner.uid == reservation.metadata.uid
