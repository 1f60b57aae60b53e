"""What the scheduler asks of the plane, and what waiting sessions are told.

Claims are released, sessions assigned, seats opened. Used by `PlacementLoop` and `SchedulingReconciler`. That somebody
else was faster is no error: the change arrives by the watch, and the next plan knows it. A waiting session gets its
queue position, an estimate and its basis. It is written again only when it has changed noticeably, so waiting sessions
cost few writes.
"""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, ref_of
from lcm.controllers.scheduler.places import BootTime
from lcm.controllers.scheduler.queue_plan import MINUTE, PlacementOutcome
from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.base.errors import Conflict, Gone, NoRoom, Refused
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.placement import Assignment
from lcm.model.kinds.session import LabletSession, LabletSessionStatus, SchedulingDecision, Seat, Waiting, is_asap
from lcm.placement.places import unopened_id
from lcm.placement.request import BOOTING, is_unopened_seat
from lcm.placement.rules import is_static

NEWS_SHARE: Final = 0.05
"""The part of the wait by which an estimate must have changed to be written again."""
_NEVER: Final = "no worker, present or planned, can ever take it"
_NOT_NOW: Final = "no worker, present or planned, can take it now"
_CLOSED: Final = frozenset({"draining", "phase"})
"""Filters that mean a place is closed now, which may change."""
_FIGURES: Final = re.compile(r"(?<!\d)\d++(?:[-:.]\d+)+")
"""Dates, times and sums: they change in a sentence while its meaning stays the same."""


def waiting_status(outcome: PlacementOutcome, boot: BootTime) -> Waiting:
    """Return queue position, estimate and basis for a waiting session.

    A seat is claimed from when its worker is sure to be up; the estimate uses the usual boot time.
    """
    at, found = outcome.at, outcome.place
    early = (
        boot.lead - boot.usual
        if found is not None and is_unopened_seat(found) and at == found.usable_at
        else timedelta(0)
    )
    start = at - early + outcome.seeker.start_up if at is not None else None
    return Waiting(
        queue_position=outcome.position, estimated_start=start, basis=shorten_text(explain_estimate(outcome, boot))
    )


def explain_estimate(outcome: PlacementOutcome, boot: BootTime) -> str:
    """Return in words what an estimate is based on; the estimate itself is the only time that is told."""
    found, at = outcome.place, outcome.at
    if found is None or at is None:
        decision = outcome.full_decision
        passing = any(not is_static(why) for why, _ in outcome.seeker.request.refused.values())
        closed = passing or any(one.filter in _CLOSED for one in decision.rejections)
        most = max(decision.rejections, key=lambda one: one.count, default=None)
        main = f"; {most.count} of {decision.candidates_evaluated} such as {most.examples[0]}" if most else ""
        return f"{_NOT_NOW if closed else _NEVER}{main}"
    if outcome.behind:
        return f"a session on {found.name} ends before"
    minutes = round(boot.usual / MINUTE)
    usually = f"usually takes {minutes} min" if minutes else f"usually takes {math.ceil(boot.usual.total_seconds())} s"
    if is_unopened_seat(found):
        return f"a machine will be started for planned worker {found.name}, which {usually}"
    if found.closed == BOOTING:
        return f"worker {found.name} is booting and {usually}"
    return f"{found.name} has room then"


def is_news(session: LabletSession, new: Waiting, now: datetime) -> bool:
    """Return whether a waiting session should be told of a new estimate."""
    old = session.status.waiting
    if old is None or old.queue_position != new.queue_position:
        return True
    if _FIGURES.sub("", old.basis) != _FIGURES.sub("", new.basis):
        return True
    if old.estimated_start is None or new.estimated_start is None:
        return old.estimated_start is not new.estimated_start
    least = max(MINUTE, (new.estimated_start - now) * NEWS_SHARE)
    return abs(new.estimated_start - old.estimated_start) > least


def with_waiting(
    session: LabletSession, waiting: Waiting | None, decision: SchedulingDecision | None
) -> LabletSessionStatus:
    """Return a status with the waiting information and without a claim: nothing is held for the session."""
    return msgspec.structs.replace(session.status, claim=None, seat=None, waiting=waiting, last_decision=decision)


CONCURRENCY: Final = 8
DRIFT: Final = timedelta(minutes=15)
"""A seat held for a waiting session is claimed again when the expected start moves by more than this."""
T = TypeVar("T")
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SchedulerEffects:
    """Writes through the plane, and puts the answers into the cache at once."""

    plane: Plane
    cache: Cache

    async def step(self, session: LabletSession, status: LabletSessionStatus, reason: str = "") -> LabletSession:
        """Write a session's status."""
        made = await self.plane.step(session, status, reason=reason)
        self.cache.accept(made)
        if made.status.phase is not session.status.phase:
            name, phase = session.metadata.name, str(made.status.phase)
            _log.info("session stepped", session=name, phase=phase, reason=reason)
        return made

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        """Assign a session to a worker or a seat."""
        made = await self.plane.schedule(session, assignment)
        self.cache.accept(made)
        seat = f"{assignment.seat.pool}/{assignment.seat.number}" if assignment.seat else ""
        _log.info("session placed", session=session.metadata.name, worker=made.status.worker_name, seat=seat)
        return made

    async def apply(
        self, view: SchedulerView, outcomes: Sequence[PlacementOutcome], now: datetime, pause: timedelta
    ) -> Sequence[PlacementOutcome]:
        """Carry out a plan and return the outcomes that became true.

        What the plane refused is excluded during `pause`, for those who wish the same and nobody else. First all
        sessions release what they are not to keep, so that the others find room.
        """
        leaving = [one for one in outcomes if gives_up_seat(view, one)]
        await for_each(leaving, lambda one: self._release_claim(view, one, now + pause))
        wanted = [(one, found) for one in outcomes if (found := assignment_for(view, one, now))]
        wanted.sort(key=lambda one: one[1].worker_id is None)
        await for_each(wanted, lambda one: self._assign(view, *one, now + pause))
        return [one for one in outcomes if one.place is None or is_staying(one) or not _is_refused(view, one)]

    async def _release_claim(self, view: SchedulerView, outcome: PlacementOutcome, refused_until: datetime) -> None:
        """Release the seat that is held for a session.

        One whose worker does not take it looks like any other once nobody claims it: it is excluded for a while.
        """
        session, seat = outcome.seeker.session, outcome.seeker.session.status.seat
        await self.step(session, with_waiting(session, session.status.waiting, session.status.last_decision))
        if outcome.place is None and seat is not None:
            place_id = unopened_id(f"{session.metadata.namespace}/{seat.pool}", seat.number)
            error = NoRoom("the worker of this planned worker does not take it", why="phase")
            view.refuse(outcome.seeker.wish, place_id, refused_until, error)

    async def _assign(
        self, view: SchedulerView, outcome: PlacementOutcome, wanted: Assignment, refused_until: datetime
    ) -> None:
        session = self.cache.get(ref_of(outcome.seeker.session))
        assert outcome.place is not None, "it is to go somewhere"
        same = session is not None and session.status.phase is outcome.seeker.session.status.phase
        if session is None or not same or _is_refused(view, outcome):
            return
        try:
            await self.schedule(session, wanted)
        except NoRoom as error:
            _log.info("place refused", session=session.metadata.name, place=outcome.place.name, error=str(error))
            view.refuse(outcome.seeker.wish, outcome.place.id, refused_until, error)


def assignment_for(view: SchedulerView, outcome: PlacementOutcome, now: datetime) -> Assignment | None:
    """Return what to ask of the plane for a session; None if it has to wait, or already has it."""
    session, found, at = outcome.seeker.session, outcome.place, outcome.at
    if found is None or at is None or not _has_time_left(session, at):
        return None
    seat, claim = view.seat_of(found.id), outcome.claim
    worker: str | None = None
    if is_asap(session):
        if outcome.is_assigned:
            worker = found.id
        elif not is_tentative(outcome) or has_seat_at(session, seat, at):
            return None
    elif seat is None:
        worker = found.id
        if at > max(now, outcome.seeker.request.claim.start):
            return None
    elif seat == session.status.seat:
        return None
    return Assignment(
        start=claim.start,
        end=claim.end,
        worker_id=worker,
        seat=seat,
        decision=outcome.full_decision,
        waiting=waiting_status(outcome, view.boot_time(found.id))
        if is_asap(session) and not outcome.is_assigned
        else None,
        reason=shorten_text(outcome.decision.reason),
    )


def is_tentative(outcome: PlacementOutcome) -> bool:
    """Return whether a seat is held for a session that cannot begin yet, because a worker is to be started for it."""
    found, at = outcome.place, outcome.at
    return found is not None and found.seat and at is not None and at <= (found.usable_at or at) + MINUTE


def has_seat_at(session: LabletSession, seat: Seat | None, at: datetime) -> bool:
    """Return whether a session already holds a seat at about the right time."""
    claim = session.status.claim
    return claim is not None and session.status.seat == seat and abs(claim.start - at) <= DRIFT


def gives_up_seat(view: SchedulerView, outcome: PlacementOutcome) -> bool:
    """Return whether a session without a promise is to release the seat that is held for it."""
    session = outcome.seeker.session
    if not is_asap(session) or session.status.claim is None:
        return False
    if outcome.place is None or view.seat_of(outcome.place.id) != session.status.seat:
        return True
    # While its machine comes up the claim keeps it coming, also if somebody else is on it for a while.
    comes_in_time = outcome.place.seat and outcome.at is not None and outcome.at <= session.status.claim.start + DRIFT
    return not (outcome.is_assigned or is_tentative(outcome) or comes_in_time)


async def for_each(several: Sequence[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Run an action for each item, a few at once. What others changed meanwhile is left to the next look."""

    async def one(item: T) -> None:
        try:
            await work(item)
        except (Conflict, Gone):
            return
        except Refused as error:
            _log.warning("refused", error=str(error))

    for first in range(0, len(several), CONCURRENCY):
        answers = await asyncio.gather(*map(one, several[first : first + CONCURRENCY]), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer


def _is_refused(view: SchedulerView, outcome: PlacementOutcome) -> bool:
    return outcome.place is not None and view.is_refused(outcome.seeker.wish, outcome.place.id)


def is_staying(outcome: PlacementOutcome) -> bool:
    """Return whether a session keeps the place that it has."""
    return outcome.place is not None and outcome.place.id == outcome.seeker.kept


def _has_time_left(session: LabletSession, at: datetime) -> bool:
    """Return whether anything of a slot would be left if it began this late."""
    end = session.status.ends_at
    return is_asap(session) or end is None or at < end
