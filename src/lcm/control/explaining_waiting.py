"""What becomes of a session without a seat: the scheduler's decision, and of all answers the one that explains it.

Used by `explaining`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from lcm.control.desk import Desk
from lcm.control.explaining_places import Asked, Survey, Told, rejections, survey
from lcm.control.explaining_seats import NO_SIZE
from lcm.model.placing import MOST_PLACES, Explanation, Slot
from lcm.model.session import Seat
from lcm.placement.place import Placement, place
from lcm.placement.request import Request
from lcm.placement.rules import static_rejection
from lcm.placement.terms import asap_length

_ELSEWHERE: Final = frozenset({"lab_type", "track", "region"})
"""By these a place says only that it is for others."""
_RANKS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("license_affinity", "node_definitions", "cml_version", "licensed"), 1),
    **dict.fromkeys(("draining", "phase", "no_worker"), 3),
    **dict.fromkeys(("hours", "licences", "price_unknown", "hourly_budget", "monthly_budget"), 4),
}
"""The farther a place came, the more it says about what is in the way."""
_TOO_LARGE: Final = 2
_FARTHEST: Final = 5
_NO_PLACE: Final = "make a LabWorkerPool for the track, or add a worker"


async def waits(desk: Desk, asked: Asked) -> Explanation:
    """Decide about a session as the scheduler would, and say why."""
    found = await survey(desk, asked)
    request, strategy = asked.request, asked.terms.strategy
    placed, told = place(found.fleet, request, strategy), found.ask(request, strategy)
    decision = msgspec.structs.replace(placed.decision, rejections=() if _assigned(placed) else rejections(told))
    why, reason, remedy = _why(found, placed, told, request)
    taken = placed.place if placed.decision.action != "wait" else None
    answers = tuple(one.answer for one in told)
    return Explanation(
        outcome=decision.action,
        why=why,
        reason=reason,
        remedy=remedy,
        slot=_slot(asked, placed.at),
        seat=_seat(taken.name) if taken is not None and taken.seat else None,
        worker=taken.name if taken is not None and not taken.seat else "",
        waiting=asked.session.status.waiting,
        decision=decision,
        places=answers[:MOST_PLACES],
        places_left_off=found.left_off + max(0, len(answers) - MOST_PLACES),
    )


def _assigned(placed: Placement) -> bool:
    return placed.decision.action == "assign"


def _why(found: Survey, placed: Placement, told: Sequence[Told], request: Request) -> tuple[str, str, str]:
    """Say what is in the way in a word and in a sentence, and what helps."""
    if _assigned(placed):
        return "", placed.decision.reason, ""
    if not told and found.unsized:
        return "unknown_size", f"it is not known what a worker of pool {found.unsized[0]} holds", NO_SIZE
    if not told:
        return "no_pool", "there is neither a pool nor a worker in its namespace", _NO_PLACE
    culprit = _culprit(placed, told, request)
    why = "too_large" if culprit.hopeless else culprit.answer.filter
    said = f"{culprit.place.name}: {culprit.answer.reason}"
    others = sum(one.answer.filter == culprit.answer.filter for one in told) - 1
    likewise = f" ({others} more likewise)" if others else ""
    lead = placed.decision.reason if placed.place is not None else "no worker or seat takes it"
    return why, f"{lead}; {said}{likewise}{_unopened(found, culprit, told)}", culprit.answer.remedy


def _culprit(placed: Placement, told: Sequence[Told], request: Request) -> Told:
    """Pick the answer of the place it waits for, or else the one that says most."""
    awaited = placed.place.id if placed.place is not None else None
    for one in told:
        if one.place.id == awaited:
            return one
    return max(told, key=lambda one: _rank(one, request))


def _rank(told: Told, request: Request) -> int:
    asked = static_rejection(told.place, request)
    if asked is not None and asked[0] in _ELSEWHERE:
        return 0
    return _TOO_LARGE if told.hopeless else _RANKS.get(told.answer.filter, _FARTHEST)


def _unopened(found: Survey, culprit: Told, told: Sequence[Told]) -> str:
    """Say why no seat is opened meanwhile for one who waits for a worker."""
    closed = [one for one in told if one.place.id in found.barred and one.place.id != culprit.place.id]
    if not closed or culprit.place.seat:
        return ""
    return f"; no seat is opened for it: {closed[0].place.name}: {closed[0].answer.reason}"


def _slot(asked: Asked, at: datetime | None) -> Slot | None:
    """Say from when to when its lab would run."""
    spec = asked.session.spec
    if spec.timeslot_start is not None and spec.timeslot_end is not None:
        return Slot(start=spec.timeslot_start, end=spec.timeslot_end)
    if at is None:
        return None
    start = at + asked.terms.instantiation
    return Slot(start=start, end=start + asap_length(asked.session, start))


def _seat(name: str) -> Seat:
    pool, _, number = name.rpartition("/")
    return Seat(pool=pool, number=int(number))
