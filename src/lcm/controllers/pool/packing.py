"""Keeps what is booked well packed: claims change their seats so that machines run for a shorter time.

A booking gets its seat before later ones are known. A promise is of capacity and not of a seat, so until machines
start, all claims of a pool are packed again as one problem (`placement.pack_problem`): before each launch, soon after
many changes, and now and then after few. That may take many seconds, and is done beside the looks at pools, one pool
at a time, where the `pack` given to the controller does it. The control plane checks and commits each step as a whole,
so bookings that come meanwhile, another leader and the end of the process leave every booking with a seat that takes
it. What is refused is packed again later.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, ref_of
from lcm.controllers.pool.demand import PoolPlan
from lcm.controllers.pool.index import PoolRef, SeatClaim
from lcm.controllers.pool.view import PoolView
from lcm.controllers.runtime.reconcile import DONE, Requeue, Runtime
from lcm.model.base.capacity import ZERO_AMOUNT
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, NoRoom, TooLarge
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.pool import LabWorkerPool, PoolPacking
from lcm.model.kinds.worker import LabWorker
from lcm.placement.limits import OPENING_POLICIES
from lcm.placement.pack import MOST_STEPS
from lcm.placement.pack_board import PackTerms
from lcm.placement.pack_kinds import MachineKind
from lcm.placement.pack_problem import STEPS_PER_CLAIM, PackAnswer, PackProblem, SeatedClaim, solve_packing
from lcm.placement.pack_steps import SeatMove
from lcm.placement.places import PoolSnapshot, SeatShapes, seat_shapes
from lcm.placement.seats import smaller_amount
from lcm.system.tasks import TimeSlice

PACK_AHEAD: Final = timedelta(minutes=10)
"""Claims are packed this long before the first of their workers is started, when most bookings are known."""
PACK_MARGIN: Final = timedelta(minutes=5)
"""A claim that begins this soon after a boot stays where it is: its worker is about to be started."""
PACK_INTERVAL: Final = timedelta(minutes=5)
"""Before a launch, and when many claims changed, they are packed this often at most."""
MANY_CHANGES: Final = 50
"""At least so many claims, and a tenth of all, are many."""
QUIET_INTERVAL: Final = timedelta(minutes=30)
"""At other times they are packed this often, if any changed."""
HORIZON: Final = timedelta(days=7)
"""Claims that begin later are left for later."""
MOST_CLAIMS: Final = 20_000
CLAIMS_PER_CHANGE: Final = 5
"""For each claim that changed, so many are worth another look."""
MOVE_PRICE: Final = timedelta(minutes=1)
"""A claim changes its seat only for this much machine time: moving is work as well."""
STEP_PAUSE_SECONDS: Final = 0.05
"""Between two steps bookings have their turn: each step holds the pool's guard."""
MOST_REFUSED: Final = 20
"""As many steps as there are, and so many, may be refused before the rest is given up: too much has changed."""
_AT_ONCE: Final = 500
"""After so many claims it is asked whether others should have their turn."""
_HOUR_MICROS: Final = 3_600_000_000
_PRICE_UNIT: Final = 1_000
"""Prices are compared in tenths of a cent."""
_log: Final = structlog.get_logger()

PackRunner = Callable[[PackProblem], Awaitable[PackAnswer]]
"""Solves a problem, wherever that is done."""


async def pack_here(problem: PackProblem) -> PackAnswer:
    """Solve a problem in this process: in virtual time, where computing takes none."""
    return solve_packing(problem)


class _LastPacking(NamedTuple):
    """When a pool was packed last, and the version of its claims that this has led to."""

    at: datetime
    version: int


class _WantedPacking(NamedTuple):
    """A pool that is to be packed, the workers on its seats, and how often its claims changed since it was packed."""

    view: PoolView
    filled: Mapping[int, LabWorker]
    changes: int


class SeatPacker:
    """Packs the claims of pools. What it remembers is only to do it seldom: a new leader begins anew."""

    def __init__(
        self,
        plane: Plane,
        cache: Cache,
        *,
        clock: Clock,
        chance: Callable[[], float],
        pack: PackRunner,
    ) -> None:
        self._plane = plane
        self._clock = clock
        self._pack = pack
        self._wake: Callable[[PoolRef], object] = lambda _: None
        self._last: dict[str, _LastPacking] = {}
        self._figures: dict[str, PoolPacking] = {}
        self._wanted: dict[PoolRef, _WantedPacking] = {}
        self._runtime = Runtime(
            "seat-packer",
            self._pack_pool,
            cache,
            LabWorkerPool,
            clock=clock,
            chance=chance,
            concurrency=1,
            resting=lambda _: DONE,
            concerns=lambda _: False,
        )

    def subscribe(self, wake: Callable[[PoolRef], object]) -> None:
        """Call `wake` from now on with each pool for which there are new figures."""
        self._wake = wake

    async def run(self) -> None:
        """Pack the pools that it is asked for until cancelled, or until an error ends the term."""
        await self._runtime.run()

    def consider(self, view: PoolView, plan: PoolPlan) -> None:
        """Queue a pool to be packed, if a launch is near or much has changed since they were."""
        due, uid = self._due_at(view, plan), view.pool.metadata.uid
        if due is not None and due <= view.now:
            ref, changes = ref_of(view.pool), view.claims.version - self._last[uid].version
            earlier = self._wanted.get(ref)
            self._last[uid] = _LastPacking(view.now, view.claims.version)
            self._wanted[ref] = _WantedPacking(view, dict(plan.seats), changes + (earlier.changes if earlier else 0))
            self._runtime.enqueue(ref)

    def figures_of(self, pool: LabWorkerPool) -> PoolPacking | None:
        """Return how well a pool is packed, as it was when it was packed last; None if nobody knows.

        What was written is taken from the pool: the control plane adds what was saved in dollars.
        """
        new, known = self._figures.get(pool.metadata.uid), pool.status.packing
        return known if new is None or (known is not None and known.at >= new.at) else new

    def next_look(self, view: PoolView, plan: PoolPlan) -> datetime | None:
        """Return when to look at a pool if nothing changes before; None means never."""
        due = self._due_at(view, plan)
        return due if due is not None and due > view.now else None

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Forget what is remembered about pools that no longer exist."""
        for kept in (self._last, self._figures):
            for uid in kept.keys() - alive:
                del kept[uid]
        for ref in [ref for ref, one in self._wanted.items() if one.view.pool.metadata.uid not in alive]:
            del self._wanted[ref]

    def _due_at(self, view: PoolView, plan: PoolPlan) -> datetime | None:
        """Return when a pool is to be packed; None if that would change nothing."""
        version, uid = view.claims.version, view.pool.metadata.uid
        before = self._last.setdefault(uid, _LastPacking(view.now - QUIET_INTERVAL, 0))
        if view.pool.spec.policy not in OPENING_POLICIES or view.is_ending or version == before.version:
            return None
        many = version - before.version >= max(MANY_CHANGES, len(view.claims) // 10)
        soon, quiet = before.at + PACK_INTERVAL, before.at + QUIET_INTERVAL
        first = min((one.start_by for one in plan.next.values() if one.start_by > view.now), default=None)
        return min(soon if many else quiet, quiet if first is None else max(soon, first - PACK_AHEAD))

    async def _pack_pool(self, ref: PoolRef) -> Requeue:
        """Find better seats for the claims of a pool, and move them step by step; until that is done, it is wanted."""
        wanted = self._wanted.get(ref)
        if wanted is not None:
            await self._pack_wanted(ref, wanted._replace(view=replace(wanted.view, now=self._clock.now())))
        if self._wanted.get(ref) is wanted:
            self._wanted.pop(ref, None)
        return DONE

    async def _pack_wanted(self, ref: PoolRef, wanted: _WantedPacking) -> None:
        view = wanted.view
        uid, version = view.pool.metadata.uid, view.claims.version
        problem = await make_problem(view, wanted.filled, wanted.changes)
        if problem is None:
            return
        answer = await self._pack(problem)
        moved = await self._take_steps(ref, answer.steps)
        self._last[uid] = _LastPacking(view.now, version + moved)
        self._figures[uid] = _make_figures(view, problem, answer, moved, self.figures_of(view.pool))
        self._wake(ref)

    async def _take_steps(self, ref: PoolRef, steps: Sequence[Sequence[SeatMove]]) -> int:
        """Move claims; return how many were moved. A step that is refused is taken in halves, but for what changed."""
        waiting, moved = deque(steps), 0
        for _ in range(2 * len(steps) + MOST_REFUSED):
            if not waiting:
                break
            step = waiting.popleft()
            try:
                await self._plane.reseat(ref, [_seat_change(move) for move in step])
                moved += len(step)
            except (NoRoom, Conflict, TooLarge) as error:
                _log.info("claims stay where they are", pool=str(ref), claims=len(step), error=str(error))
                if len(step) > 1:
                    waiting.extendleft((step[len(step) // 2 :], step[: len(step) // 2]))
            await asyncio.sleep(STEP_PAUSE_SECONDS)
        if moved:
            _log.info("claims moved to other planned workers", pool=str(ref), claims=moved)
        return moved


async def make_problem(view: PoolView, filled: Mapping[int, LabWorker], changes: int) -> PackProblem | None:
    """Return the claims of a pool as a packing problem; None while the size of a seat is not known.

    It is made in turns, of the claims that there are when it is begun. It is worth as many steps as claims may have
    to move for what changed: the plan was good before that.
    """
    shapes, version = seat_shapes(PoolSnapshot(view.pool, view.template, filled), view.terms), view.claims.version
    if shapes is None:
        return None
    claims = await _seated_claims(view)
    terms = _make_terms(shapes, max((one.seat for one in claims), default=0))
    steps = STEPS_PER_CLAIM * min(sum(not one.fixed for one in claims), CLAIMS_PER_CHANGE * changes)
    return PackProblem(terms, claims, min(MOST_STEPS, steps), version, _machine_kinds(view, shapes))


async def _seated_claims(view: PoolView) -> Sequence[SeatedClaim]:
    """Return the claims that are packed, in the order of their starts.

    A claim that begins so soon that its worker is about to start, or is there, keeps its seat. So does one that lasts
    until others begin that are left for later: where it could go they may be in the way.
    """
    near, rest_starts = await _near_claims(view)
    soon, time_slice, claims = view.now + view.lead + PACK_MARGIN, TimeSlice(), list[SeatedClaim]()
    for one in near:
        claim = one.held.claim
        late = rest_starts is not None and claim.end > rest_starts
        fixed = claim.start < soon or late or one.worker_id is not None
        claims.append(SeatedClaim(one.held.holder, claim, one.number, fixed))
        if len(claims) % _AT_ONCE == 0:
            await time_slice.yield_if_over()
    return claims


async def _near_claims(view: PoolView) -> tuple[Sequence[SeatClaim], datetime | None]:
    """Return the claims that begin within the horizon, and when the first of the others begins; None without any."""
    time_slice, near = TimeSlice(), list[SeatClaim]()
    for day in view.claims.by_days():
        for place, one in enumerate(sorted(day, key=lambda one: one.held.claim.start)):
            start = one.held.claim.start
            if start >= view.now + HORIZON or len(near) == MOST_CLAIMS:
                return near, start
            if one.held.claim.end > view.now:
                near.append(one)
            if place % _AT_ONCE == 0:
                await time_slice.yield_if_over()
    return near, None


def _make_terms(shapes: SeatShapes, highest: int) -> PackTerms:
    """Return what a pool is packed by. Nothing comes onto seats that hold less than the others, or are too many."""
    less = {
        number
        for number, own in shapes.own.items()
        if smaller_amount(shapes.room, own) != shapes.room or shapes.taken[number] != ZERO_AMOUNT
    }.union(shapes.limits)
    seats = max(shapes.most, highest)
    closed = {*range(shapes.most + 1, seats + 1), *(number for number in less if number <= seats)}
    standing = frozenset(number for number in shapes.always if number <= seats)
    return PackTerms(
        shapes.room, seats, shapes.lead, move_price=MOVE_PRICE, standing=standing, closed=frozenset(closed)
    )


def _machine_kinds(view: PoolView, shapes: SeatShapes) -> tuple[MachineKind, ...]:
    """Return the kinds of machines that runs may have, the template's first; none if there is only that."""
    if not view.smaller or view.usd_hourly is None:
        return ()
    small = ((one.name, smaller_amount(shapes.room, one.room), one.usd_hourly) for one in view.smaller)
    kinds = (("", shapes.room, view.usd_hourly), *small)
    return tuple(MachineKind(name, room, int(usd * _PRICE_UNIT)) for name, room, usd in kinds)


def _make_figures(
    view: PoolView, problem: PackProblem, answer: PackAnswer, moved: int, earlier: PoolPacking | None
) -> PoolPacking:
    wanted = sum(map(len, answer.steps))
    reached = answer.after if moved == wanted else answer.before
    gained = answer.saved if moved == wanted else 0
    saved = max(0, gained) / _HOUR_MICROS + (earlier.saved_machine_hours if earlier else 0)
    return PoolPacking(
        at=view.now,
        until=view.now + HORIZON,
        claims=len(problem.claims),
        moved=moved,
        machine_hours=round(reached / _HOUR_MICROS, 1),
        least_machine_hours=round(min(answer.bound, reached) / _HOUR_MICROS, 1),
        saved_machine_hours=round(saved, 3),
        saved_since=earlier.saved_since if earlier and earlier.saved_since else view.now,
    )


def _seat_change(move: SeatMove) -> SeatChange:
    """Return the change of a booking's claim, which has a number if it is a reservation's."""
    booking, _, number = move.holder.partition("/")[2].partition("#")
    return SeatChange(booking=booking, after=move.after, number=int(number) if number else None)
