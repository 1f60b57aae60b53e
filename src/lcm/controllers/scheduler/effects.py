"""What a plan asks of the plane: claims let go, sessions assigned, seats opened. Used by `placing` and `sessions`.

Somebody who was faster is no error: what changed comes by the watch, and the next plan knows it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, ref_of
from lcm.controllers.scheduler.places import Boot
from lcm.controllers.scheduler.queue_plan import MINUTE, Outcome, opens
from lcm.controllers.scheduler.view import View
from lcm.model.base.errors import Conflict, Gone, NoRoom, Refused
from lcm.model.kinds.placement import Assignment
from lcm.model.kinds.session import LabletSession, LabletSessionStatus, SchedulingDecision, Seat, Waiting, is_asap
from lcm.placement.limits import LIMITS
from lcm.placement.request import BOOTING

SHARE: Final = 0.05
"""By which part of the wait an estimate must have changed to be told again."""
_NEVER: Final = "nothing that is there or can be opened would ever fit it"
_NOT_NOW: Final = "nothing that is there or can be opened takes it now"
_CLOSED: Final = frozenset({"draining", "phase"})
"""By these a place says that it is closed, which may change."""
_FIGURES: Final = re.compile(r"\d+(?:[-:.]\d+)+")
"""Dates, times and sums, which change in a sentence while it says the same."""


def told(outcome: Outcome, boot: Boot) -> Waiting:
    """Say what somebody who waits wants to know. A seat is claimed for when its worker is sure to be up."""
    at, found = outcome.at, outcome.place
    early = boot.lead - boot.usual if found is not None and opens(found) and at == found.usable_at else timedelta(0)
    start = at - early + outcome.seeker.start_up if at is not None else None
    return Waiting(queue_position=outcome.position, estimated_start=start, basis=basis(outcome, boot)[:2000])


def basis(outcome: Outcome, boot: Boot) -> str:
    """Say in words what an estimate is made of."""
    found, at = outcome.place, outcome.at
    if found is None or at is None:
        decision = outcome.explained
        closed = any(one.filter in _CLOSED for one in decision.rejections)
        return f"{_NOT_NOW if closed else _NEVER}{_why(decision)}"
    if outcome.behind:
        return f"a session on {found.name} ends at {at:%H:%M}Z"
    usually = f"usually takes {max(1, round(boot.usual / MINUTE))} min"
    if opens(found):
        return f"a worker is to be started for the seat {found.name}, which {usually}"
    if found.closed == BOOTING:
        return f"worker {found.name} is booting and {usually}"
    return f"{found.name} has room from {at:%H:%M}Z on"


def untold(session: LabletSession, new: Waiting, now: datetime) -> bool:
    """Tell whether somebody who waits should hear of it."""
    old = session.status.waiting
    if old is None or (old.queue_position, _gist(old.basis)) != (new.queue_position, _gist(new.basis)):
        return True
    if old.estimated_start is None or new.estimated_start is None:
        return old.estimated_start is not new.estimated_start
    least = max(MINUTE, (new.estimated_start - now) * SHARE)
    return abs(new.estimated_start - old.estimated_start) > least


def with_waiting(
    session: LabletSession, waiting: Waiting | None, decision: SchedulingDecision | None
) -> LabletSessionStatus:
    """Give a status with what is told of the wait, and without a claim: it waits for what nobody keeps for it."""
    return msgspec.structs.replace(session.status, claim=None, seat=None, waiting=waiting, last_decision=decision)


def _gist(basis: str) -> str:
    return _FIGURES.sub("", basis)


def _why(decision: SchedulingDecision) -> str:
    most = max(decision.rejections, key=lambda one: one.count, default=None)
    return f"; {most.count} of {decision.candidates_evaluated} such as {most.examples[0]}" if most else ""


CONCURRENCY: Final = 8
DRIFT: Final = timedelta(minutes=15)
"""What is kept of a seat is kept anew when it begins by more than this earlier or later than was thought."""
T = TypeVar("T")
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Hands:
    """Writes through the plane, and takes note of the answers at once."""

    plane: Plane
    cache: Cache

    async def step(self, session: LabletSession, status: LabletSessionStatus, reason: str = "") -> LabletSession:
        """Put a status in place of a session's."""
        made = await self.plane.step(session, status, reason=reason)
        self.cache.accept(made)
        if made.status.phase is not session.status.phase:
            name, phase = session.metadata.name, str(made.status.phase)
            _log.info("session stepped", session=name, phase=phase, reason=reason)
        return made

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        """Put a session onto a worker or a seat."""
        made = await self.plane.schedule(session, assignment)
        self.cache.accept(made)
        seat = f"{assignment.seat.pool}/{assignment.seat.number}" if assignment.seat else ""
        _log.info("session placed", session=session.metadata.name, worker=made.status.worker_name, seat=seat)
        return made

    async def carry_out(
        self, view: View, outcomes: Sequence[Outcome], now: datetime, pause: timedelta
    ) -> Sequence[Outcome]:
        """Do what a plan says, and give what of it is true; what the plane refused is left alone during a pause.

        First all let go what they are not to keep, so that the others find room.
        """
        await each([one for one in outcomes if leaves(view, one)], self._let_go)
        wanted = [(one, found) for one in outcomes if (found := assignment(view, one, now))]
        wanted.sort(key=lambda one: one[1].worker_id is None)
        await each(wanted, lambda one: self._place(view, *one, now + pause))
        return [one for one in outcomes if one.place is None or stays(one) or not view.is_barred(one.place.id)]

    async def _let_go(self, outcome: Outcome) -> None:
        session = outcome.seeker.session
        await self.step(session, with_waiting(session, session.status.waiting, session.status.last_decision))

    async def _place(self, view: View, outcome: Outcome, wanted: Assignment, barred_until: datetime) -> None:
        session = self.cache.get(ref_of(outcome.seeker.session))
        assert outcome.place is not None, "it is to go somewhere"
        same = session is not None and session.status.phase is outcome.seeker.session.status.phase
        if session is None or not same or view.is_barred(outcome.place.id):
            return
        try:
            await self.schedule(session, wanted)
        except NoRoom as error:
            _log.info("place refused", session=session.metadata.name, place=outcome.place.name, error=str(error))
            view.bar(outcome.place.id, barred_until, str(error), whole_pool=error.why in LIMITS)
            if error.why in LIMITS:
                # Until after the place was tried again: a shorter one may be let in.
                view.turn_away(ref_of(session), barred_until + MINUTE)


def assignment(view: View, outcome: Outcome, now: datetime) -> Assignment | None:
    """Say what is asked of the plane for a session; None if it has to wait, or has what it is to get."""
    session, found, at = outcome.seeker.session, outcome.place, outcome.at
    if found is None or at is None or not _worth(session, at):
        return None
    seat, claim = view.seat_of(found.id), outcome.claim
    worker: str | None = None
    if is_asap(session):
        if outcome.now:
            worker = found.id
        elif not tentative(outcome) or keeps(session, seat, at):
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
        decision=outcome.explained,
        waiting=told(outcome, view.boot(found.id)) if is_asap(session) and not outcome.now else None,
        reason=outcome.decision.reason[:2000],
    )


def tentative(outcome: Outcome) -> bool:
    """Tell whether a seat is kept for a session that cannot begin yet: one whose worker is to come up for it."""
    found, at = outcome.place, outcome.at
    return found is not None and found.seat and at is not None and at <= (found.usable_at or at) + MINUTE


def keeps(session: LabletSession, seat: Seat | None, at: datetime) -> bool:
    """Tell whether a session has on a seat what it is to have there."""
    claim = session.status.claim
    return claim is not None and session.status.seat == seat and abs(claim.start - at) <= DRIFT


def leaves(view: View, outcome: Outcome) -> bool:
    """Tell whether a session that was never promised anything is to give up the seat that is kept for it."""
    session = outcome.seeker.session
    if not is_asap(session) or session.status.claim is None:
        return False
    stays = outcome.place is not None and view.seat_of(outcome.place.id) == session.status.seat
    return not stays or not (outcome.now or tentative(outcome))


async def each(several: Sequence[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Do something for each, a few at once; what others have changed meanwhile is left to the next look."""

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


def stays(outcome: Outcome) -> bool:
    """Tell whether a session is to have what it has."""
    return outcome.place is not None and outcome.place.id == outcome.seeker.kept


def _worth(session: LabletSession, at: datetime) -> bool:
    """Tell whether anything would be left of a slot that begins so late."""
    end = session.status.ends_at
    return is_asap(session) or end is None or at < end
