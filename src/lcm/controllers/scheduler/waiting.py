"""What somebody who waits is told: which in the queue, until when, and what that is based on. Pure.

It is told again only when it has changed by so much that somebody would care, so that those who wait cost few writes.
"""

import re
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.controllers.scheduler.pace import Boot
from lcm.controllers.scheduler.queue_plan import MINUTE, Outcome, opens
from lcm.model.decision import SchedulingDecision
from lcm.model.session import LabletSession, LabletSessionStatus, Waiting
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
