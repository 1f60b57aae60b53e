"""Better seats for bookings before their workers are launched, so that fewer have to be. Used by `follower`.

The search works on a copy, the plane checks and commits each step as a whole. What is not taken is tried again later:
every booking has a seat all the time.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from lcm.control.plane import Plane, ref_of
from lcm.controllers.pool.demand import Plan
from lcm.controllers.pool.view import View
from lcm.model.errors import Conflict, NoRoom
from lcm.model.placing import SeatChange
from lcm.model.worker import LabWorker
from lcm.placement.limits import OPENING, Rules
from lcm.placement.request import Held
from lcm.placement.reseat import Move, reseat
from lcm.placement.roster import Row, seats_of, usable_seats

AHEAD: Final = timedelta(minutes=10)
"""Seats are looked at so long before the first of their workers is started, when most bookings are known."""
MARGIN: Final = timedelta(minutes=5)
"""What begins so soon after a boot stays where it is: its worker is about to be started."""
SELDOM: Final = timedelta(minutes=5)
WITHIN: Final = timedelta(hours=24)
"""What begins later has time: it is looked at again before its own workers are launched."""
LOOKS: Final = 3_000
"""The search does not let anything else happen meanwhile: so many looks take about a tenth of a second."""
_log: Final = structlog.get_logger()


class Reseating:
    """Remembers when each pool was last looked at, and with which claims; who leads next looks once more."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._seen: dict[str, tuple[datetime, int]] = {}

    async def improve(self, view: View, plan: Plan, version: int) -> bool:
        """Move claims to better seats if a launch is near; tells whether any was moved."""
        ref = ref_of(view.pool)
        if not self._due(view, plan, version):
            return False
        self._seen[view.pool.metadata.uid] = view.now, version
        moved = 0
        try:
            for step in better(view, plan.seats):
                await self._plane.reseat(ref, step)
                moved += len(step)
        except (NoRoom, Conflict) as error:
            _log.info("claims keep their seats", pool=str(ref), error=str(error))
        if moved:
            _log.info("claims changed their seats", pool=str(ref), claims=moved)
        return bool(moved)

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Forget the pools that are gone."""
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in alive}

    def look_at(self, view: View, plan: Plan) -> datetime | None:
        """Say when the seats are worth a look, if nothing changes before; None if never."""
        first = _first_start(view, plan)
        return first - AHEAD if first is not None and first - AHEAD > view.now else None

    def _due(self, view: View, plan: Plan, version: int) -> bool:
        first = _first_start(view, plan)
        before, known = self._seen.get(view.pool.metadata.uid, (None, -1))
        rested = before is None or view.now >= before + SELDOM
        movable = view.pool.spec.policy in OPENING and not view.ending
        return movable and rested and known != version and first is not None and first <= view.now + AHEAD


def better(view: View, filled: Mapping[int, LabWorker]) -> Sequence[Sequence[SeatChange]]:
    """Give the steps that seat claims better, which do not begin before a worker could be started for them."""
    row = Row(view.pool, view.template, filled)
    near = [one for one in view.claims if one.held.claim.start < view.now + WITHIN]
    seats = seats_of(row, [(one.number, one.held) for one in near], view.terms)
    if seats is None:
        return ()
    rules = Rules(
        now=view.now,
        policy=view.pool.spec.policy,
        usable=usable_seats(row, view.now, view.terms),
        hours=view.pool.spec.allowed_hours,
    )
    steps = reseat(seats, rules=rules, since=view.now + view.lead + MARGIN, looks=LOOKS)
    return [[_change(move) for move in step] for step in steps]


def _change(move: Move) -> SeatChange:
    booking, number = _named(move.held)
    return SeatChange(booking=booking, after=move.after, number=number)


def _named(held: Held) -> tuple[str, int | None]:
    """Give the name of the booking that holds a claim, and the claim's number if it is a reservation."""
    name, _, number = held.holder.partition("/")[2].partition("#")
    return name, int(number) if number else None


def _first_start(view: View, plan: Plan) -> datetime | None:
    return min((one.start_by for one in plan.next.values() if one.start_by > view.now), default=None)
