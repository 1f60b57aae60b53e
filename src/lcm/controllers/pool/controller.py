"""The pool controller: of all processes that run one, the elected one follows every pool's demand.

Put together by `compose`. Everything it knows is in the store, so that whoever is elected next goes on.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.controllers.pool.demand import Plan, Timelines, plan
from lcm.controllers.pool.effects import AT_ONCE, Done, Hands, Reseating
from lcm.controllers.pool.phases import Turn, conditions, retry_at, said_of, turn
from lcm.controllers.pool.report import NAMES, by_phase, complaints, counted_at, decided, measured, stuck, summary
from lcm.controllers.pool.view import Book, PoolRef, View, is_over, is_owner
from lcm.controllers.runtime.election import Election
from lcm.controllers.runtime.reconcile import DONE, Again, Runtime, at
from lcm.controllers.runtime.settings import Current
from lcm.model.base.clock import Clock, Stopwatch
from lcm.model.base.resource import Truth
from lcm.model.kinds.pool import (
    POOL,
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
from lcm.placement.claims import Terms
from lcm.settings.load import Settings
from lcm.system.tasks import together

PACE: Final = timedelta(seconds=1)
"""So long after a look the next one comes at the earliest: five hundred bookings at once are not five hundred looks."""
FIGURES: Final = timedelta(seconds=15)
"""Figures alone are written down this often: every write of a pool makes those decide anew who book it meanwhile."""
REFUSED: Final = timedelta(minutes=1)
_FAILING: Final = frozenset({PoolPhase.INITIALIZING, PoolPhase.FAILED})
_FIGURES: Final = ("summary", "workers_by_phase", "conditions")
_log: Final = structlog.get_logger()


class Follower:
    """Sees to it that each seat has a worker when it needs one, and none when it does not."""

    def __init__(self, plane: Plane, cache: Cache, book: Book, *, clock: Clock, terms: Callable[[], Terms]) -> None:
        self._plane = plane
        self._cache = cache
        self._book = book
        self._clock = clock
        self._terms = terms
        self._hands = Hands(plane, cache)
        self._reseating = Reseating(plane)
        self._timelines: defaultdict[PoolRef, Timelines] = defaultdict(Timelines)
        self._looked: dict[PoolRef, datetime] = {}
        self._reported: dict[PoolRef, datetime] = {}
        self._raised: dict[str, set[str]] = {}

    async def reconcile(self, ref: PoolRef) -> Again:
        """Look at a pool, decide, do it, report, say when again."""
        pool = self._cache.get(ref)
        if pool is None or pool.status.phase in POOL.final:
            for kept in (self._looked, self._reported, self._timelines):
                kept.pop(ref, None)
            self._forget()
            return DONE
        now, before = self._clock.now(), self._looked.get(ref)
        if before is not None and now < before + PACE:
            return at(before + PACE, now)
        self._looked[ref] = now
        # What was booked before the pool was last written must be known: who booked later saw it as it is now.
        await self._cache.until(pool.metadata.resource_version)
        return await self._follow(self._cache.get(ref) or pool)

    def _forget(self) -> None:
        """Forget what is known by uid of pools that are gone."""
        alive = {one.metadata.uid for one in self._cache.all(LabWorkerPool)}
        self._raised = {uid: names for uid, names in self._raised.items() if uid in alive}
        self._reseating.forget_all_but(alive)

    async def troubled(self, ref: PoolRef, error: Exception) -> None:
        """Complain of a bug of ours that a pool cannot be helped past."""
        bug, pool = type(error).__name__, self._cache.get(ref)
        if pool is not None:
            self._raised.pop(pool.metadata.uid, None)  # the next look that succeeds settles it
        await self._plane.complain(ref, stuck(ref.name, bug, f"a bug of ours, please report it: {bug}: {error}"))

    async def _follow(self, pool: LabWorkerPool) -> Again:
        template = self._cache.get(Ref(WorkerTemplate, pool.spec.template, pool.metadata.namespace))
        if template is None:
            return await self._without_template(pool)
        view = self._view(pool, template)
        made = plan(view, self._timelines[ref_of(pool)])
        if await self._reseating.improve(view, made, self._book.version(ref_of(pool))):
            return at(view.now + PACE, view.now)  # the cache will know by then
        done = await self._hands.do(view, made)
        await self._complain(view, done.trouble)
        await self._report(view, made, done)
        return self._again(view, made, done)

    def _view(self, pool: LabWorkerPool, template: WorkerTemplate) -> View:
        seated = {seat.worker_id for seat in pool.status.seats}
        every = self._cache.all(LabWorker)
        ours = [one for one in every if one.metadata.uid in seated or is_owner(pool, one)]
        on = {one.metadata.uid: self._book.sessions_on(one.metadata.uid) for one in ours}
        return View(
            pool=pool,
            template=template,
            now=self._clock.now(),
            terms=self._terms(),
            claims=self._book.claims(ref_of(pool)),
            workers=sorted(ours, key=_by_name),
            strangers=self._strangers(pool, every),
            sessions={uid: len(found) for uid, found in on.items()},
            mixed=frozenset(uid for uid, found in on.items() if not all(_seated(one, pool) for one in found)),
        )

    def _strangers(self, pool: LabWorkerPool, every: Sequence[LabWorker]) -> Sequence[LabWorker]:
        """Give the workers of a pool's track that nobody made for a seat and that fill none.

        One with a session on it that has no seat stays outside: the seat's timeline would not know of it.
        """
        seated = {seat.worker_id for one in self._book.pools().values() for seat in one.status.seats}
        return [
            one
            for one in every
            if (one.metadata.namespace, one.spec.lab_track) == (pool.metadata.namespace, pool.spec.lab_track)
            and one.metadata.owner is None
            and one.metadata.uid not in seated
            and not self._book.sessions_on(one.metadata.uid)
        ]

    async def _without_template(self, pool: LabWorkerPool) -> Again:
        message = f"there is no WorkerTemplate {pool.spec.template}"
        said = [(PoolCondition.TEMPLATE_FOUND, Truth.FALSE, "NotFound", message)]
        status = msgspec.structs.replace(pool.status, conditions=conditions(pool, said, self._clock.now()))
        self._cache.accept(await self._plane.step(pool, status))
        return DONE

    async def _report(self, view: View, made: Plan, done: Done) -> None:
        next_ = turn(view, made)
        status = self._status(view, made, done, next_)
        if status == view.status:
            return
        ref, moved = ref_of(view.pool), next_.phase is not view.status.phase
        if not moved and self._trifling(ref, view, status):
            return
        stepped = await self._plane.step(view.pool, status, reason=next_.reason)
        self._reported[ref] = view.now
        if next_.phase not in POOL.final:  # then it is gone
            self._cache.accept(stepped)
        if moved:
            _log.info("pool stepped", pool=str(ref), phase=str(next_.phase), reason=next_.reason)

    def _status(self, view: View, made: Plan, done: Done, next_: Turn) -> LabWorkerPoolStatus:
        pool, workers = view.pool, _after(view, done)
        seconds, until = measured(view)
        noticed = pool.status.observed_generation if next_.phase is PoolPhase.FAILED else pool.metadata.generation
        return msgspec.structs.replace(
            pool.status,
            phase=next_.phase,
            observed_generation=noticed,
            seats=tuple(_filled(number, one) for number, one in sorted(made.seats.items())),
            summary=summary(view, workers),
            workers_by_phase=by_phase(workers),
            boot_seconds=seconds,
            boots_counted_until=until,
            decisions=decided(view, made, done),
            conditions=conditions(pool, said_of(view, made, done.trouble), view.now),
            last_error=next_.error or done.trouble or (pool.status.last_error if next_.phase in _FAILING else ""),
            scaled_up_at=view.now if next_.scaled == "up" else pool.status.scaled_up_at,
            scaled_down_at=view.now if next_.scaled == "down" else pool.status.scaled_down_at,
        )

    def _trifling(self, ref: PoolRef, view: View, status: LabWorkerPoolStatus) -> bool:
        """Tell whether nothing but figures changed, which were written down a moment ago."""
        before = {name: getattr(view.status, name) for name in _FIGURES}
        last = self._reported.get(ref)
        recent = last is not None and view.now < last + FIGURES
        return recent and msgspec.structs.replace(status, **before) == view.status

    async def _complain(self, view: View, trouble: str) -> None:
        ref, uid = ref_of(view.pool), view.pool.metadata.uid
        wrong = {one.alert: one for one in complaints(view, trouble)}
        for name in sorted((self._raised.get(uid, set(NAMES))) - set(wrong)):
            await self._plane.settle(ref, name)
        for name in sorted(set(wrong) - self._raised.get(uid, set())):
            await self._plane.complain(ref, wrong[name])
        self._raised[uid] = set(wrong)

    def _again(self, view: View, made: Plan, done: Done) -> Again:
        due = POOL.deadline(view.status.phase, view.status)
        moments = [
            made.changes_at,
            due[0] if due else None,
            counted_at(view),
            retry_at(view) if view.status.phase is PoolPhase.FAILED else None,
            self._reseating.look_at(view, made),
            view.now + REFUSED if done.trouble else None,
            view.now + PACE if made.let_go or len(made.launch) > AT_ONCE else None,
        ]
        ahead = [one for one in moments if one is not None and one > view.now]
        return at(min(ahead), self._clock.now()) if ahead else DONE


def _after(view: View, done: Done) -> Sequence[LabWorker]:
    """Give a pool's workers as they are after what was done."""
    changed = {
        one.metadata.uid: one for one in (*done.launched.values(), *done.resumed.values(), *done.paused.values())
    }
    left = {one.metadata.uid for one in done.removed if is_over(one)}
    known = {one.metadata.uid: one for one in view.workers if one.metadata.uid not in left}
    return list((known | changed).values())


def _filled(number: int, worker: LabWorker) -> FilledSeat:
    return FilledSeat(number=number, worker_id=worker.metadata.uid, worker_name=worker.metadata.name)


def _seated(session: LabletSession, pool: LabWorkerPool) -> bool:
    seat = session.status.seat
    return seat is not None and seat.pool == pool.metadata.name


def _by_name(worker: LabWorker) -> str:
    return worker.metadata.name


LEASE: Final = "pool-controller"
KINDS: Final = (LabWorkerPool, WorkerTemplate, LabWorker, LabletSession, Reservation, SystemSettings)


@dataclass(frozen=True, slots=True)
class PoolController:
    """One process's pool controller."""

    plane: Plane
    clock: Clock
    stopwatch: Stopwatch
    chance: Callable[[], float]
    settings: Settings
    holder: str

    async def run(self) -> None:
        """Lead whenever elected, until cancelled."""
        election = Election(
            self.plane,
            LEASE,
            self.holder,
            ttl_seconds=self.settings.worker_controller_leader_lease_ttl,
            stopwatch=self.stopwatch,
            chance=self.chance,
        )
        await election.run(self._lead)

    async def _lead(self, plane: Plane) -> None:
        cache = Cache(plane, *KINDS, chance=self.chance)
        await together(cache.run(), self._work(plane, cache))

    async def _work(self, plane: Plane, cache: Cache) -> None:
        await cache.ready()
        book, settings = Book(cache), Current(self.settings, cache)
        follower = Follower(plane, cache, book, clock=self.clock, terms=settings.terms)
        runtime = Runtime(
            LEASE,
            follower.reconcile,
            cache,
            LabWorkerPool,
            clock=self.clock,
            chance=self.chance,
            resync=lambda: timedelta(seconds=settings().worker_controller_reconcile_interval),
            troubled=follower.troubled,
        )
        book.tell(runtime.poke)
        try:
            await runtime.run()
        finally:
            book.stop()
