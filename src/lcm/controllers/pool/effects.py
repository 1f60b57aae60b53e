"""Carries out a pool's plan: workers are created, resumed, paused and deleted, and claims are moved to better seats.

Used by `PoolReconciler`. Every action may be repeated. A worker is created before its seat is recorded. If the leader
dies in between, the worker's labels name its pool and seat, and the next look finds it; a leader that does not know of
it yet is refused because the name is taken.

`SeatOptimizer` moves claims before workers are launched for them, so that fewer are needed. The search works on a copy,
and the plane checks and commits each step as a whole. Rejected moves are tried again later; every booking has a seat
all the time.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, count
from typing import Final

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.controllers.pool.demand import PoolPlan
from lcm.controllers.pool.view import POOL_LABEL, SEAT_LABEL, PoolView
from lcm.model.base.errors import Conflict, Gone, NoRoom, Refused
from lcm.model.base.resource import Metadata, Owner, shorten_text
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.worker import LabWorker
from lcm.placement.limits import OPENING_POLICIES, PromiseRules
from lcm.placement.places import PoolSnapshot, seats_of, usable_seats
from lcm.placement.repack import SeatMove, repack_seats

LAUNCH_BATCH: Final = 20
"""How many workers one look creates; the next look follows at once and creates more."""
_PREFIX_LIMIT: Final = 48
_log: Final = structlog.get_logger()


@dataclass(slots=True)
class AppliedPlan:
    """What one look did, and what was refused."""

    launched: dict[int, LabWorker] = field(default_factory=dict)
    resumed: dict[int, LabWorker] = field(default_factory=dict)
    paused: dict[int, LabWorker] = field(default_factory=dict)
    retired: list[LabWorker] = field(default_factory=list)
    removed: list[LabWorker] = field(default_factory=list)
    trouble: str = ""

    @property
    def has_additions(self) -> bool:
        """Whether workers were added."""
        return bool(self.launched or self.resumed)

    @property
    def has_removals(self) -> bool:
        """Whether workers were taken away."""
        return bool(self.paused or self.retired or self.removed)


class PoolEffects:
    """Carries out plans."""

    def __init__(self, plane: Plane, cache: Cache) -> None:
        self._plane = plane
        self._cache = cache

    async def apply(self, view: PoolView, plan: PoolPlan) -> AppliedPlan:
        """Carry out a plan; afterwards `plan.seats` includes the workers that were created for it."""
        done = AppliedPlan()
        for number in plan.launch[:LAUNCH_BATCH]:
            try:
                plan.seats[number] = done.launched[number] = await self._launch(view, number)
            except Refused as error:
                done.trouble = shorten_text(f"cannot create a machine for planned worker {number}: {error}")
                break
        for number, worker in plan.resume.items():
            if (made := await self._set_wanted_state(worker, "running")) is not None:
                plan.seats[number] = done.resumed[number] = made
        for number, worker in plan.pause.items():
            if (made := await self._set_wanted_state(worker, "stopped")) is not None:
                plan.seats[number] = done.paused[number] = made
        done.retired += [worker for worker in plan.retire if await self._set_wanted_state(worker, "stopped")]
        done.removed += [worker for worker in plan.remove if await self._remove(worker)]
        return done

    async def _launch(self, view: PoolView, number: int) -> LabWorker:
        namespace = view.pool.metadata.namespace
        made = await self._plane.create(
            seat_worker(view, number, lambda name: self._cache.get(Ref(LabWorker, name, namespace)) is not None)
        )
        self._cache.accept(made)
        _log.info("worker launched", pool=str(ref_of(view.pool)), seat=number, worker=made.metadata.name)
        return made

    async def _set_wanted_state(self, worker: LabWorker, state: str) -> LabWorker | None:
        """Set a worker's wanted state. None means that it changed meanwhile; the next look decides again."""
        ref, at = ref_of(worker), worker.metadata.resource_version
        try:
            made = await self._plane.patch(ref, {"spec": {"wanted_state": state}}, at=at)
        except (Conflict, Gone):
            return None
        self._cache.accept(made)
        _log.info("worker wanted", worker=str(ref), state=state)
        return made

    async def _remove(self, worker: LabWorker) -> bool:
        """Request a worker's deletion. Return False if it changed meanwhile."""
        ref = ref_of(worker)
        try:
            left = await self._plane.delete(ref, at=worker.metadata.resource_version)
        except (Conflict, Gone):
            return False
        if left.metadata.finalizers:
            self._cache.accept(left)
        _log.info("worker given up", worker=str(ref), phase=str(worker.status.phase))
        return True


def seat_worker(view: PoolView, number: int, is_taken: Callable[[str], bool]) -> LabWorker:
    """Return the worker to create for a seat, as the template defines it, under a name that is not taken."""
    pool, template = view.pool, view.template.spec
    return LabWorker(
        metadata=Metadata(
            name=_free_name(template.name_prefix, number, is_taken),
            namespace=pool.metadata.namespace,
            labels={**template.labels, POOL_LABEL: pool.metadata.name, SEAT_LABEL: str(number)},
            annotations=template.annotations,
            owner=Owner(kind=pool.kind, name=pool.metadata.name, uid=pool.metadata.uid),
        ),
        spec=msgspec.structs.replace(template.worker, lab_track=pool.spec.lab_track, wanted_state="running"),
    )


def _free_name(prefix: str, number: int, is_taken: Callable[[str], bool]) -> str:
    first = f"{prefix[:_PREFIX_LIMIT].rstrip('.:-')}-{number}"
    others = (f"{first}-{again}" for again in count(2))
    return next(name for name in chain([first], others) if not is_taken(name))


RESEAT_AHEAD: Final = timedelta(minutes=10)
"""Seats are improved this long before the first of their workers is started, when most bookings are known."""
RESEAT_MARGIN: Final = timedelta(minutes=5)
"""A claim that begins this soon after a boot stays where it is: its worker is about to be started."""
RESEAT_INTERVAL: Final = timedelta(minutes=5)
RESEAT_HORIZON: Final = timedelta(hours=24)
"""Claims that begin later are left for later: they are looked at again before their own workers are launched."""
SEARCH_LIMIT: Final = 3_000
"""The search blocks everything else in the process; this many steps take about a tenth of a second."""


class SeatOptimizer:
    """Improves seats. Remembers for each pool when, and with which claims; a new leader does it once more."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._last_looks: dict[str, tuple[datetime, int]] = {}

    async def improve(self, view: PoolView, plan: PoolPlan, version: int) -> bool:
        """Move claims to better seats if a launch is near. Return whether any was moved."""
        ref = ref_of(view.pool)
        if not self._is_due(view, plan, version):
            return False
        self._last_looks[view.pool.metadata.uid] = view.now, version
        moved = 0
        try:
            for step in find_better_seats(view, plan.seats):
                await self._plane.reseat(ref, step)
                moved += len(step)
        except (NoRoom, Conflict) as error:
            _log.info("claims stay where they are", pool=str(ref), error=str(error))
        if moved:
            _log.info("claims moved to other planned workers", pool=str(ref), claims=moved)
        return bool(moved)

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Drop what is remembered about pools that no longer exist."""
        self._last_looks = {uid: seen for uid, seen in self._last_looks.items() if uid in alive}

    def next_look(self, view: PoolView, plan: PoolPlan) -> datetime | None:
        """Return when to look at the seats if nothing changes before; None means never."""
        first = _first_start_at(view, plan)
        return first - RESEAT_AHEAD if first is not None and first - RESEAT_AHEAD > view.now else None

    def _is_due(self, view: PoolView, plan: PoolPlan, version: int) -> bool:
        first = _first_start_at(view, plan)
        before, known = self._last_looks.get(view.pool.metadata.uid, (None, -1))
        rested = before is None or view.now >= before + RESEAT_INTERVAL
        movable = view.pool.spec.policy in OPENING_POLICIES and not view.is_ending
        return movable and rested and known != version and first is not None and first <= view.now + RESEAT_AHEAD


def find_better_seats(view: PoolView, filled: Mapping[int, LabWorker]) -> Sequence[Sequence[SeatChange]]:
    """Return the steps that move claims to better seats, if a worker can still be started for them in time."""
    row = PoolSnapshot(view.pool, view.template, filled)
    near = view.claims.starting_before(view.now + RESEAT_HORIZON)
    seats = seats_of(row, [(one.number, one.held) for one in near], view.terms)
    if seats is None:
        return ()
    rules = PromiseRules(
        now=view.now,
        policy=view.pool.spec.policy,
        usable=usable_seats(row, view.now, view.terms),
        hours=view.pool.spec.allowed_hours,
    )
    steps = repack_seats(seats, rules=rules, since=view.now + view.lead + RESEAT_MARGIN, looks=SEARCH_LIMIT)
    return [[_seat_change(move) for move in step] for step in steps]


def _seat_change(move: SeatMove) -> SeatChange:
    """Return the change of a booking's claim, which has a number if it is a reservation's."""
    booking, _, number = move.held.holder.partition("/")[2].partition("#")
    return SeatChange(booking=booking, after=move.after, number=int(number) if number else None)


def _first_start_at(view: PoolView, plan: PoolPlan) -> datetime | None:
    return min((one.start_by for one in plan.next.values() if one.start_by > view.now), default=None)
