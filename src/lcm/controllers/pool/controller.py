"""The pool controller: of all processes that run one, the elected leader keeps every pool supplied with workers.

Started by `compose`. `PoolReconciler` looks at one pool at a time: `controllers.pool.demand` decides, `PoolEffects`
acts. Everything it must remember is in the pool's status and in its workers, so the next leader continues from there.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.controllers.pool.demand import PoolPlan, SeatTimelines, plan
from lcm.controllers.pool.effects import LAUNCH_BATCH, AppliedPlan, PoolEffects
from lcm.controllers.pool.index import PoolIndex, PoolRef
from lcm.controllers.pool.load import WaitingLoad, WaitingNeeds, choose_open_seats, measure_load
from lcm.controllers.pool.packing import PackRunner, SeatPacker, pack_here
from lcm.controllers.pool.phases import PoolPhaseChange, describe_conditions, next_phase, retry_at, with_conditions
from lcm.controllers.pool.report import (
    ALERT_NAMES,
    POOL_STUCK,
    add_decisions,
    add_failure,
    count_by_phase,
    find_alerts,
    measure_boots,
    next_boot_count_at,
    stops_for_load,
    summarize_capacity,
)
from lcm.controllers.pool.view import PoolView, is_over, suits_template
from lcm.controllers.runtime.election import ElectedController
from lcm.controllers.runtime.lifecycle import RaisedAlerts
from lcm.controllers.runtime.reconcile import DONE, RESYNC, Requeue, Runtime, requeue_at
from lcm.controllers.runtime.settings import CurrentSettings
from lcm.model.base.clock import Clock
from lcm.model.base.resource import Truth
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import PoolHeadroom
from lcm.model.kinds.pool import (
    POOL_MACHINE,
    FilledSeat,
    LabWorkerPool,
    LabWorkerPoolStatus,
    PoolCondition,
    PoolPhase,
    WorkerTemplate,
)
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.prices import SHIPPED_PRICES, PriceBook
from lcm.placement.claims import Terms
from lcm.placement.preference import planned_usd
from lcm.placement.scaling import LOAD_POLICIES, PoolLoad, SizeDecision, decide_size
from lcm.placement.small_runs import find_smaller_types
from lcm.system.tasks import TimeSlice, run_until_first_ends

MIN_INTERVAL: Final = timedelta(seconds=1)
"""The shortest time between two looks at a pool: five hundred bookings at once must not cause five hundred looks."""
FIGURES_INTERVAL: Final = timedelta(seconds=15)
"""How often figures alone are written: every write of a pool makes bookings in progress on it decide again."""
REFUSED_RETRY: Final = timedelta(minutes=1)
LOOK_AGAIN: Final = timedelta(minutes=5)
"""After this time a pool is looked at although nothing changed and nothing is due, unless all are looked at seldom."""
HEADROOM_INTERVAL: Final = timedelta(minutes=1)
"""How often the control plane is asked what is left for load, and what was measured."""
_NOT_FOR_LOAD: Final = frozenset({"hours", "paused", "policy"})
"""Why a pool shrinks whatever its load is: no cooldown begins with it."""
_ENDING: Final = frozenset({PoolPhase.DRAINING, PoolPhase.TERMINATING})
_FAILING: Final = frozenset({PoolPhase.INITIALIZING, PoolPhase.FAILED})
_FIGURE_FIELDS: Final = ("summary", "workers_by_phase", "conditions", "packing")
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _PastLook:
    """What a look at a pool was based on, and when another one is due even if all of that stays as it is."""

    seen: object
    due: datetime


class SizedLoad(NamedTuple):
    """A pool's load, and the size that was decided by it."""

    load: PoolLoad
    decision: SizeDecision


class _KnownHeadroom(NamedTuple):
    """What the control plane said, when, about which generation of a pool, and with which claims."""

    at: datetime
    generation: int
    claims: int
    headroom: PoolHeadroom


class PoolReconciler:
    """Ensures that each seat has a worker when it needs one, and none when it does not."""

    def __init__(
        self,
        plane: Plane,
        cache: Cache,
        book: PoolIndex,
        *,
        clock: Clock,
        terms: Callable[[], Terms],
        packer: SeatPacker,
        resync: Callable[[], timedelta] = lambda: RESYNC,
        prices: PriceBook = SHIPPED_PRICES,
    ) -> None:
        self._plane = plane
        self._prices = prices
        self._cache = cache
        self._index = book
        self._clock = clock
        self._terms = terms
        self._resync = resync
        self._effects = PoolEffects(plane, cache)
        self._packer = packer
        self._timelines: defaultdict[PoolRef, SeatTimelines] = defaultdict(SeatTimelines)
        self._looked_at: dict[PoolRef, datetime] = {}
        self._past_looks: dict[PoolRef, _PastLook] = {}
        self._reported_at: dict[PoolRef, datetime] = {}
        self._headrooms: dict[PoolRef, _KnownHeadroom] = {}
        self._alerts = RaisedAlerts(plane, LabWorkerPool, ALERT_NAMES, stuck=POOL_STUCK)

    async def reconcile(self, ref: PoolRef) -> Requeue:
        """Look at a pool, decide, act, report, and return when to look again."""
        pool = self._cache.get(ref)
        if pool is None or pool.status.phase in POOL_MACHINE.final:
            for kept in (self._looked_at, self._past_looks, self._reported_at, self._timelines, self._headrooms):
                kept.pop(ref, None)
            self._alerts.forget(ref)
            self._index.forget(ref)
            self._packer.forget_all_but({one.metadata.uid for one in self._cache.all(LabWorkerPool)})
            return DONE
        now, before = self._clock.now(), self._looked_at.get(ref)
        if before is not None and now < before + MIN_INTERVAL:
            return requeue_at(before + MIN_INTERVAL, now)
        self._looked_at[ref] = now
        # The cache must hold every booking older than the pool's last write; later ones were decided on that write.
        await self._cache.wait_for_revision(pool.metadata.resource_version)
        return await self._reconcile_pool(self._cache.get(ref) or pool)

    async def report_bug(self, ref: PoolRef, error: Exception) -> None:
        """Raise an alert about a bug of ours that keeps a pool from being reconciled."""
        pool = self._cache.get(ref)
        if pool is not None:
            await self._alerts.raise_bug(pool, error)

    async def _reconcile_pool(self, pool: LabWorkerPool) -> Requeue:
        template = self._cache.get(Ref(WorkerTemplate, pool.spec.template, pool.metadata.namespace))
        if template is None:
            return await self._report_missing_template(pool)
        ref, view = ref_of(pool), self._view(pool, template, await self._find_headroom(pool))
        known, seen = self._past_looks.pop(ref, None), (_inputs_of(view), self._packer.figures_of(pool))
        if known is not None and known.seen == seen and view.now < known.due:
            self._past_looks[ref] = known
            return requeue_at(known.due, view.now)
        due = await self._look_closely(view)
        self._past_looks[ref] = _PastLook(seen, due)
        return requeue_at(due, self._clock.now())

    async def _look_closely(self, view: PoolView) -> datetime:
        """Decide, act and report. Return when another look is due if nothing changes."""
        pool = view.pool
        timelines, time_slice = self._timelines[ref_of(pool)], TimeSlice()
        for _ in timelines.update(view):
            await time_slice.yield_if_over()
        made = plan(view, timelines.seats)
        self._packer.consider(view, made)
        waiting = WaitingLoad()
        for _ in waiting.gather(view, made):
            await time_slice.yield_if_over()
        load = measure_load(view, made, waiting)
        sized = SizedLoad(load, decide_size(load))
        done = await self._effects.apply(view, made)
        self._alerts.end_bug(ref_of(pool))
        await self._alerts.sync(pool, find_alerts(view, done.trouble, load))
        figures_at = await self._report(view, made, done, sized)
        return min(self._next_look(view, made, done, sized), figures_at or self._last_look(view))

    async def _find_headroom(self, pool: LabWorkerPool) -> PoolHeadroom | None:
        """Return what budgets and licences leave for load, and what was measured, as of a minute ago or later.

        Where they leave little, every change of claims asks anew: a worker that a session has left is not counted as
        the session's any more, and must be counted as the load's.
        """
        if pool.spec.policy not in LOAD_POLICIES or pool.status.phase in _ENDING:
            return None
        ref, now, of = ref_of(pool), self._clock.now(), pool.metadata.generation
        known, claims = self._headrooms.get(ref), self._index.claims_on(ref).version
        moved = known is not None and bool(known.headroom.why) and known.claims != claims
        if known is None or known.generation != of or moved or now >= known.at + HEADROOM_INTERVAL:
            known = self._headrooms[ref] = _KnownHeadroom(now, of, claims, await self._plane.headroom(ref))
        return known.headroom

    def _view(self, pool: LabWorkerPool, template: WorkerTemplate, headroom: PoolHeadroom | None) -> PoolView:
        ours = self._index.workers_of(pool)
        on = {one.metadata.uid: self._index.sessions_on(one.metadata.uid) for one in ours}
        prices = self._prices.at(self._clock.now())
        return PoolView(
            pool=pool,
            template=template,
            now=self._clock.now(),
            terms=self._terms(),
            claims=self._index.claims_on(ref_of(pool)),
            workers=ours,
            strangers=self._adoptable_workers(pool, template),
            sessions={uid: len(found) for uid, found in on.items()},
            mixed=frozenset(uid for uid, found in on.items() if not all(_has_seat_in(one, pool) for one in found)),
            waiting=self._index.waiting_for(pool),
            needs=self._waiting_needs(pool, template).find,
            headroom=headroom,
            usd_hourly=planned_usd(template, prices),
            smaller=find_smaller_types(template, prices),
        )

    def _waiting_needs(self, pool: LabWorkerPool, template: WorkerTemplate) -> WaitingNeeds:
        neighbours, now = self._index.neighbours_of(pool), self._clock.now()
        terms = self._terms()
        return WaitingNeeds(self._cache, terms, pool, template, neighbours, now=now, price=self._known_price)

    def _known_price(self, pool: LabWorkerPool) -> Decimal | None:
        """Return what the control plane said last that a machine of a pool costs; None if it has not been asked."""
        known = self._headrooms.get(ref_of(pool))
        return known.headroom.usd_hourly if known is not None else None

    def _adoptable_workers(self, pool: LabWorkerPool, template: WorkerTemplate) -> Sequence[LabWorker]:
        """Return the workers of a pool's lab track, as its template describes them, that fill no seat of any pool.

        A worker with a session that has no seat is left out: the seat's timeline would not know of that session.
        """
        wanted = template.spec.worker.aws
        return [
            one
            for one in self._index.unowned_workers(pool)
            if one.spec.accepts_sessions
            and suits_template(one, wanted)
            and not self._index.sessions_on(one.metadata.uid)
        ]

    async def _report_missing_template(self, pool: LabWorkerPool) -> Requeue:
        message, now = f"there is no WorkerTemplate {pool.spec.template}", self._clock.now()
        said = [(PoolCondition.TEMPLATE_FOUND, Truth.FALSE, "NotFound", message)]
        status = msgspec.structs.replace(
            pool.status,
            conditions=with_conditions(pool, said, now),
            decisions=add_failure(pool.status.decisions, "no_template", message, now),
        )
        self._cache.accept(await self._plane.step(pool, status))
        return Requeue(self._resync())

    async def _report(self, view: PoolView, made: PoolPlan, done: AppliedPlan, sized: "SizedLoad") -> datetime | None:
        """Write what changed. Return when figures are to be written that were put off; None if there are none."""
        next_ = next_phase(view, made)
        status = self._status(view, made, done, next_, sized)
        if status == view.status:
            return None
        ref, moved = ref_of(view.pool), next_.phase is not view.status.phase
        if not moved and self._is_figures_only(ref, view, status):
            return self._reported_at[ref] + FIGURES_INTERVAL
        stepped = await self._plane.step(view.pool, status, reason=next_.reason)
        self._reported_at[ref] = view.now
        if next_.phase not in POOL_MACHINE.final:  # a pool in a final phase no longer exists
            self._cache.accept(stepped)
        if moved:
            _log.info("pool stepped", pool=str(ref), phase=str(next_.phase), reason=next_.reason)
        return None

    def _status(
        self, view: PoolView, made: PoolPlan, done: AppliedPlan, next_: PoolPhaseChange, sized: "SizedLoad"
    ) -> LabWorkerPoolStatus:
        size = sized.decision
        grown, shrunk = size.action == "scale_up", size.action == "scale_down" and size.why not in _NOT_FOR_LOAD
        shrunk = shrunk or stops_for_load(view.status.decisions, done)
        pool, workers = view.pool, _workers_after(view, done)
        seconds, until = measure_boots(view)
        noticed = pool.status.observed_generation if next_.phase is PoolPhase.FAILED else pool.metadata.generation
        return msgspec.structs.replace(
            pool.status,
            phase=next_.phase,
            observed_generation=noticed,
            seats=tuple(
                FilledSeat(number=number, worker_id=one.metadata.uid, worker_name=one.metadata.name)
                for number, one in sorted(made.seats.items())
            ),
            small_runs=tuple(made.small[number] for number in sorted(made.small)),
            summary=summarize_capacity(view, workers, sized.load),
            workers_by_phase=count_by_phase(workers),
            boot_seconds=seconds,
            boots_counted_until=until,
            decisions=add_decisions(view, made, done, size),
            open_seats=tuple(sorted(choose_open_seats(view, made, size))),
            load_up_at=view.now if grown else pool.status.load_up_at,
            load_down_at=view.now if shrunk else pool.status.load_down_at,
            pause=pool.status.pause if view.times.closed_reason(view.now) == "paused" else None,
            packing=self._packer.figures_of(pool),
            conditions=with_conditions(pool, describe_conditions(view, made, done.trouble), view.now),
            last_error=next_.error or done.trouble or (pool.status.last_error if next_.phase in _FAILING else ""),
            scaled_up_at=view.now if next_.scaled == "up" else pool.status.scaled_up_at,
            scaled_down_at=view.now if next_.scaled == "down" else pool.status.scaled_down_at,
        )

    def _is_figures_only(self, ref: PoolRef, view: PoolView, status: LabWorkerPoolStatus) -> bool:
        """Return whether nothing but figures changed, and figures were written recently."""
        before = {name: getattr(view.status, name) for name in _FIGURE_FIELDS}
        last = self._reported_at.get(ref)
        recent = last is not None and view.now < last + FIGURES_INTERVAL
        return recent and msgspec.structs.replace(status, **before) == view.status

    def _next_look(self, view: PoolView, made: PoolPlan, done: AppliedPlan, sized: "SizedLoad") -> datetime:
        due = POOL_MACHINE.deadline(view.status.phase, view.status)
        moments = [
            made.changes_at,
            sized.decision.due,
            due[0] if due else None,
            next_boot_count_at(view),
            retry_at(view) if view.status.phase is PoolPhase.FAILED else None,
            self._packer.next_look(view, made),
            view.now + REFUSED_RETRY if done.trouble else None,
            view.now + MIN_INTERVAL if made.let_go or made.chosen or len(made.launch) > LAUNCH_BATCH else None,
        ]
        return min((one for one in moments if one is not None and one > view.now), default=self._last_look(view))

    def _last_look(self, view: PoolView) -> datetime:
        """Return when to look although nothing changed: soon, where only that shows what was measured."""
        if view.headroom is not None:
            return view.now + HEADROOM_INTERVAL
        return view.now + max(LOOK_AGAIN, self._resync())


def _inputs_of(view: PoolView) -> object:
    """Return what tells whether anything that decisions about a pool are based on has changed, but for the time."""
    return (
        (view.pool.metadata.resource_version, view.template.metadata.resource_version, view.claims.version, view.terms),
        [(one.metadata.uid, one.metadata.resource_version) for one in (*view.workers, *view.strangers)],
        (view.sessions, view.mixed, view.waiting.version, view.headroom),
    )


def _workers_after(view: PoolView, done: AppliedPlan) -> Sequence[LabWorker]:
    """Return a pool's workers as they are after the plan was applied."""
    changed = {
        one.metadata.uid: one for one in (*done.launched.values(), *done.resumed.values(), *done.paused.values())
    }
    left = {one.metadata.uid for one in done.removed if is_over(one)}
    known = {one.metadata.uid: one for one in view.workers if one.metadata.uid not in left}
    return list((known | changed).values())


def _has_seat_in(session: LabletSession, pool: LabWorkerPool) -> bool:
    seat = session.status.seat
    return seat is not None and seat.pool == pool.metadata.name


LEASE: Final = "pool-controller"


@dataclass(frozen=True, slots=True)
class PoolController(ElectedController):
    """The pool controller of one process."""

    lease = LEASE
    kinds = (
        LabWorkerPool,
        WorkerTemplate,
        LabWorker,
        LabletSession,
        LabletDefinition,
        Reservation,
        SystemSettings,
    )
    pack: PackRunner = field(default=pack_here, kw_only=True)
    """Where claims are packed."""
    prices: PriceBook = field(default=SHIPPED_PRICES, kw_only=True)

    async def _work(self, plane: Plane, cache: Cache, settings: CurrentSettings) -> None:
        def resync() -> timedelta:
            return timedelta(seconds=settings().worker_controller_reconcile_interval)

        book = await PoolIndex.follow(cache)
        packer = SeatPacker(plane, cache, clock=self.clock, chance=self.chance, pack=self.pack)
        follower = PoolReconciler(
            plane,
            cache,
            book,
            clock=self.clock,
            terms=settings.terms,
            packer=packer,
            resync=resync,
            prices=self.prices,
        )
        runtime = Runtime(
            LEASE,
            follower.reconcile,
            cache,
            LabWorkerPool,
            clock=self.clock,
            chance=self.chance,
            resync=resync,
            resting=lambda _: DONE,  # each look says when the next is due
            report_bug=follower.report_bug,
            counts=self.counts,
        )
        book.subscribe(runtime.enqueue)
        packer.subscribe(runtime.enqueue)
        try:
            await run_until_first_ends(runtime.run(), packer.run())
        finally:
            book.stop()
