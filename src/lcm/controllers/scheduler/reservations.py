"""Keeps reservations: creates their sessions in time, counts ended ones, ends those of cancelled ones.

`decide` is pure. Everything it uses is in the store: which claims have become sessions, and what became of those.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, Plane, Ref, Terminate, ref_of
from lcm.controllers.runtime.lifecycle import Report, Wait
from lcm.controllers.runtime.reconcile import DONE, Requeue, requeue_at
from lcm.model.base.clock import Clock
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.placement import MAX_SESSIONS_PER_COMMIT
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation, ReservationPhase, ReservationStatus
from lcm.model.kinds.session import CLEAN_UP_TIME, SESSION_MACHINE, LabletSession
from lcm.model.telemetry.alert import AlertFinding, Severity

CREATE_AHEAD: Final = timedelta(days=7)
"""How long before its claim begins a session is created."""
COUNT_INTERVAL: Final = timedelta(seconds=15)
"""Ended sessions are counted at most this often."""
OVERDUE_ALERT: Final = "CancellationOverdue"
_P: Final = ReservationPhase
ReservationRef = Ref[Reservation]


@dataclass(frozen=True, slots=True)
class ReservationFacts:
    """A reservation, and those of its sessions that still exist, by name."""

    reservation: Reservation
    sessions: Mapping[str, LabletSession]
    now: datetime


@dataclass(frozen=True, slots=True)
class Fulfil:
    """Create the sessions of these claims."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TerminateSessions:
    """End these sessions."""

    sessions: tuple[str, ...]


ReservationDecision = Fulfil | TerminateSessions | Report[ReservationStatus] | Wait


def decide(facts: ReservationFacts) -> ReservationDecision:
    """Return what a reservation needs next."""
    decider = DECIDERS.get(facts.reservation.status.phase)
    return decider(facts) if decider else Wait()


def _decide_promised(facts: ReservationFacts) -> ReservationDecision:
    due = _due_claims(facts)
    return Fulfil(due) if due else Wait(_next_due_at(facts))


def _decide_active(facts: ReservationFacts) -> ReservationDecision:
    due, status = _due_claims(facts), facts.reservation.status
    if due:
        return Fulfil(due)
    limit = RESERVATION_MACHINE.deadline(_P.ACTIVE, status)
    ended, left = _count_ended(facts), [one for one in status.held if one.session is None and one.claim.end > facts.now]
    if not left and ended == sum(one.session is not None for one in status.held):
        return _report_phase(facts, _P.COMPLETED, "all its sessions have ended")
    if limit is not None and facts.now >= limit[0] + CLEAN_UP_TIME:
        return _report_phase(facts, _P.COMPLETED, limit[1].why)
    if status.sessions_ended != ended:
        return Report(msgspec.structs.replace(status, sessions_ended=ended))
    moments = [moment for moment in (_next_due_at(facts), limit[0] + CLEAN_UP_TIME if limit else None) if moment]
    return Wait(min(moments, default=None))


def _decide_cancelling(facts: ReservationFacts) -> ReservationDecision:
    live = tuple(name for name, one in facts.sessions.items() if one.status.phase not in SESSION_MACHINE.final)
    if live:
        return TerminateSessions(live)
    return _report_phase(facts, _P.CANCELLED, "its sessions have ended and its claims are let go")


DECIDERS: Final[Mapping[ReservationPhase, Callable[[ReservationFacts], ReservationDecision]]] = {
    _P.PROMISED: _decide_promised,
    _P.ACTIVE: _decide_active,
    _P.CANCELLING: _decide_cancelling,
}


def rest_of(reservation: Reservation) -> Requeue | None:
    """Return whether nothing is to be decided about a reservation until it changes; None if it does not rest.

    What is decided of one that is not being cancelled names the time of the next look, and a change of one of its
    sessions calls for one.
    """
    return None if reservation.status.phase is _P.CANCELLING else DONE


def _report_phase(facts: ReservationFacts, phase: ReservationPhase, reason: str) -> Report[ReservationStatus]:
    made = sum(one.session is not None for one in facts.reservation.status.held)
    changes: dict[str, Any] = {"phase": phase, "sessions_made": made, "sessions_ended": _count_ended(facts)}
    return Report(msgspec.structs.replace(facts.reservation.status, **changes), reason)


def _due_claims(facts: ReservationFacts) -> tuple[int, ...]:
    """Return the numbers of the claims whose sessions are to be created now; claims that are over need none."""
    held = facts.reservation.status.held
    return tuple(
        one.number
        for one in held
        if one.session is None and one.claim.start <= facts.now + CREATE_AHEAD and one.claim.end > facts.now
    )


def _next_due_at(facts: ReservationFacts) -> datetime | None:
    starts = [one.claim.start for one in facts.reservation.status.held if one.session is None]
    return min((start - CREATE_AHEAD for start in starts if start - CREATE_AHEAD > facts.now), default=None)


def _count_ended(facts: ReservationFacts) -> int:
    names = [one.session for one in facts.reservation.status.held if one.session is not None]
    found = [facts.sessions.get(name) for name in names]
    return sum(one is None or one.status.phase in SESSION_MACHINE.final for one in found)


class ReservationReconciler:
    """Reconciles one reservation at a time."""

    def __init__(self, plane: Plane, cache: Cache, *, clock: Clock) -> None:
        self._plane = plane
        self._cache = cache
        self._clock = clock
        self._by_session: dict[tuple[str, str], ReservationRef] = {}
        self._session_names: dict[Ref[Any], frozenset[str]] = {}
        self._counted_at: dict[Ref[Any], datetime] = {}
        self._ended_sessions: dict[Ref[Any], set[str]] = {}
        self._requeue: Callable[[ReservationRef], object] = lambda _: None
        for reservation in cache.all(Reservation):
            self._index(reservation)
        self.stop = cache.subscribe(self._on_change)

    def subscribe(self, poke: Callable[[ReservationRef], object]) -> None:
        """Call `poke` from now on with each reservation of which a session changed."""
        self._requeue = poke

    async def reconcile(self, ref: ReservationRef) -> Requeue:
        """Look at a reservation, decide, take one action, and return when to look again."""
        reservation = self._cache.get(ref)
        if reservation is None or reservation.status.phase in RESERVATION_MACHINE.final:
            return DONE
        now = self._clock.now()
        decision = decide(ReservationFacts(reservation, await self._find_sessions(reservation), now))
        match decision:
            case Fulfil(numbers):
                await self._fulfil(ref, numbers)
            case TerminateSessions(names):
                return await self._end_sessions(reservation, names)
            case Report(status) if status.phase is reservation.status.phase and now < self._next_count_at(ref):
                return requeue_at(self._next_count_at(ref), now)
            case Report(status, reason):
                self._counted_at[ref] = now
                self._cache.accept(await self._plane.step(reservation, status, reason=reason))
                await self._plane.clear_alert(ref, OVERDUE_ALERT)
            case Wait(until) if until is not None:
                return requeue_at(until, now)
        return DONE

    def _next_count_at(self, ref: ReservationRef) -> datetime:
        """Return when ended sessions may be counted again: a reservation of hundreds is expensive to write."""
        counted = self._counted_at.get(ref)
        return counted + COUNT_INTERVAL if counted else self._clock.now()

    async def _fulfil(self, ref: ReservationRef, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), MAX_SESSIONS_PER_COMMIT):
            for session in await self._plane.fulfil(ref, *numbers[first : first + MAX_SESSIONS_PER_COMMIT]):
                self._cache.accept(session)

    async def _end_sessions(self, reservation: Reservation, names: Sequence[str]) -> Requeue:
        for name in names:
            session = Ref(LabletSession, name, reservation.metadata.namespace)
            await self._plane.act(session, Terminate(reason="its reservation was cancelled"))
        limit = RESERVATION_MACHINE.deadline(reservation.status.phase, reservation.status)
        if limit is None:
            return DONE
        now = self._clock.now()
        if now >= limit[0]:
            left = f"{len(names)} of its sessions have not ended"
            told = f"{reservation.metadata.name} was cancelled, but {left}: {limit[1].why}"
            alert = AlertFinding(
                alert=OVERDUE_ALERT, severity=Severity.WARNING, reason="SessionsPresent", message=shorten_text(told)
            )
            await self._plane.raise_alert(ref_of(reservation), alert)
            return DONE
        return requeue_at(limit[0], now)

    async def _find_sessions(self, reservation: Reservation) -> Mapping[str, LabletSession]:
        """Find a reservation's sessions. The plane is asked for those missing in the cache, which may lag."""
        namespace = reservation.metadata.namespace
        found: dict[str, LabletSession] = {}
        over = self._ended_sessions.setdefault(ref_of(reservation), set())
        for name in [one.session for one in reservation.status.held if one.session is not None]:
            ref = Ref(LabletSession, name, namespace)
            # An ended session stays ended and moves to the archive, so it is read only once.
            session = self._cache.get(ref) or (None if name in over else await self._plane.get(ref))
            # The name of a deleted session may have been used again by somebody else.
            owner = session.metadata.owner if session else None
            if session is not None and owner is not None and owner.uid == reservation.metadata.uid:
                found[name] = session
            if name not in found or found[name].status.phase in SESSION_MACHINE.final:
                over.add(name)
        return found

    def _on_change(self, seen: ObjectChange) -> None:
        if isinstance(seen.resource, Reservation):
            self._index(seen.resource)
        elif seen.ref.kind is Reservation:
            self._forget(seen.ref)
        concerned = (
            self._by_session.get((seen.ref.namespace, seen.ref.name)) if seen.ref.kind is LabletSession else None
        )
        if concerned is not None:
            self._requeue(concerned)

    def _index(self, reservation: Reservation) -> None:
        ref = ref_of(reservation)
        if reservation.status.phase in RESERVATION_MACHINE.final:
            self._forget(ref)
            return
        names = {one.session for one in reservation.status.held if one.session is not None}
        for name in names - self._session_names.get(ref, frozenset()):
            self._by_session[ref.namespace, name] = ref
        if names:
            self._session_names[ref] = frozenset(names)

    def _forget(self, ref: Ref[Any]) -> None:
        self._counted_at.pop(ref, None)
        self._ended_sessions.pop(ref, None)
        for name in self._session_names.pop(ref, ()):
            if self._by_session.get((ref.namespace, name)) == ref:
                del self._by_session[ref.namespace, name]
