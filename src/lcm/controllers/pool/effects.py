"""What is done for a plan: workers are made, resumed, paused, deleted. Every verb may be repeated. Used by `follower`.

A worker is made before it is written down. Whoever dies in between leaves one that names its pool and its seat, by
which the next look finds it; and who does not know of it yet is told that its name is taken.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, ref_of
from lcm.controllers.pool.demand import Plan
from lcm.controllers.pool.view import POOL_LABEL, SEAT_LABEL, View
from lcm.model.base.errors import Conflict, Gone, NoRoom, Refused
from lcm.model.base.resource import Metadata, Owner
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.worker import LabWorker
from lcm.placement.limits import OPENING, Rules
from lcm.placement.places import Row, seats_of, usable_seats
from lcm.placement.repack import Move, reseat
from lcm.placement.request import Held

AT_ONCE: Final = 20
"""Workers that one look makes; the next, which comes at once, makes more."""
_LONGEST_PREFIX: Final = 48
_log: Final = structlog.get_logger()


@dataclass(slots=True)
class Done:
    """What a look did, by name, and what was refused."""

    launched: dict[int, LabWorker] = field(default_factory=dict)
    resumed: dict[int, LabWorker] = field(default_factory=dict)
    paused: dict[int, LabWorker] = field(default_factory=dict)
    retired: list[LabWorker] = field(default_factory=list)
    removed: list[LabWorker] = field(default_factory=list)
    trouble: str = ""

    @property
    def up(self) -> bool:
        """Whether workers were added."""
        return bool(self.launched or self.resumed)

    @property
    def down(self) -> bool:
        """Whether workers were taken away."""
        return bool(self.paused or self.retired or self.removed)


class Hands:
    """Carries plans out."""

    def __init__(self, plane: Plane, cache: Cache) -> None:
        self._plane = plane
        self._cache = cache

    async def do(self, view: View, plan: Plan) -> Done:
        """Do what a plan says; `plan.seats` has the workers made for it afterwards."""
        done = Done()
        for number in plan.launch[:AT_ONCE]:
            try:
                plan.seats[number] = done.launched[number] = await self._launch(view, number)
            except Refused as error:
                done.trouble = f"no worker can be made for seat {number}: {error}"[:2000]
                break
        for number, worker in plan.resume.items():
            if (made := await self._want(worker, "running")) is not None:
                plan.seats[number] = done.resumed[number] = made
        for number, worker in plan.pause.items():
            if (made := await self._want(worker, "stopped")) is not None:
                plan.seats[number] = done.paused[number] = made
        done.retired += [worker for worker in plan.retire if await self._want(worker, "stopped")]
        done.removed += [worker for worker in plan.remove if await self._remove(worker)]
        return done

    async def _launch(self, view: View, number: int) -> LabWorker:
        namespace = view.pool.metadata.namespace
        taken = {one.metadata.name for one in self._cache.all(LabWorker) if one.metadata.namespace == namespace}
        made = await self._plane.create(described(view, number, taken))
        self._cache.accept(made)
        _log.info("worker launched", pool=str(ref_of(view.pool)), seat=number, worker=made.metadata.name)
        return made

    async def _want(self, worker: LabWorker, state: str) -> LabWorker | None:
        """Want a worker running or stopped; None if it changed meanwhile, which the next look will judge."""
        ref, at = ref_of(worker), worker.metadata.resource_version
        try:
            made = await self._plane.patch(ref, {"spec": {"wanted_state": state}}, at=at)
        except (Conflict, Gone):
            return None
        self._cache.accept(made)
        _log.info("worker wanted", worker=str(ref), state=state)
        return made

    async def _remove(self, worker: LabWorker) -> bool:
        """Ask for a worker to go; tells whether it was as it had been seen."""
        ref = ref_of(worker)
        try:
            left = await self._plane.delete(ref, at=worker.metadata.resource_version)
        except (Conflict, Gone):
            return False
        if left.metadata.finalizers:
            self._cache.accept(left)
        _log.info("worker given up", worker=str(ref), phase=str(worker.status.phase))
        return True


def described(view: View, number: int, taken: Collection[str]) -> LabWorker:
    """Describe the worker of a seat, as its template says."""
    pool, template = view.pool, view.template.spec
    return LabWorker(
        metadata=Metadata(
            name=_free_name(template.name_prefix, number, taken),
            namespace=pool.metadata.namespace,
            labels={**template.labels, POOL_LABEL: pool.metadata.name, SEAT_LABEL: str(number)},
            annotations=template.annotations,
            owner=Owner(kind=pool.kind, name=pool.metadata.name, uid=pool.metadata.uid),
        ),
        spec=msgspec.structs.replace(template.worker, lab_track=pool.spec.lab_track, wanted_state="running"),
    )


def _free_name(prefix: str, number: int, taken: Collection[str]) -> str:
    first = f"{prefix[:_LONGEST_PREFIX].rstrip('.:-')}-{number}"
    if first not in taken:
        return first
    return next(name for again in range(2, len(taken) + 3) if (name := f"{first}-{again}") not in taken)


AHEAD: Final = timedelta(minutes=10)
"""Seats are looked at so long before the first of their workers is started, when most bookings are known."""
MARGIN: Final = timedelta(minutes=5)
"""What begins so soon after a boot stays where it is: its worker is about to be started."""
SELDOM: Final = timedelta(minutes=5)
WITHIN: Final = timedelta(hours=24)
"""What begins later has time: it is looked at again before its own workers are launched."""
LOOKS: Final = 3_000
"""The search does not let anything else happen meanwhile: so many looks take about a tenth of a second."""


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
