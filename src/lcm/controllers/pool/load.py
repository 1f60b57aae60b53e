"""A pool's load, gathered from its view, and which planned workers are open for it after a decision. Pure.

`PoolReconciler` asks `placement.scaling` with these facts. Only seats that load keeps open are opened and closed here;
what is promised has its workers by `controllers.pool.demand`.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Ref
from lcm.controllers.pool.demand import PoolPlan
from lcm.controllers.pool.index import SeatClaim
from lcm.controllers.pool.view import PoolView, is_leaving
from lcm.model.base.capacity import ZERO_AMOUNT, Amount, Claim
from lcm.model.base.resource import Truth, find_condition, shorten_text
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, PoolCondition, WorkerTemplate
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.prices import declared_capacity
from lcm.placement.claims import Terms, need_of, request_for, usual_boot
from lcm.placement.hours import open_times_of
from lcm.placement.limits import LOAD_LIMITS, LoadRoom
from lcm.placement.places import (
    COMING_PHASES,
    PoolSnapshot,
    is_accepting,
    is_wanted,
    template_place,
    template_room,
)
from lcm.placement.preference import preference
from lcm.placement.request import Place, PlacementRequest
from lcm.placement.rules import static_rejection
from lcm.placement.scaling import LOAD_POLICIES, ROOMY, MachineCount, PoolLoad, SizeDecision, largest_first

REFUSED: Final = "Refused"
"""The reason of the condition Ready when a worker could not be made."""


_HINDRANCES: Final = frozenset({"maximum", "launch_failed", "no_template", *LOAD_LIMITS})
"""Why a pool starts no worker for those who wait, however long they do."""


@dataclass(slots=True)
class WaitingLoad:
    """Who waits: how many whom nobody holds soon, and the machines for them; who waits for a boot, or suits nobody."""

    unheld: int = 0
    machines: int = 0
    held: int = 0
    unsuited: int = 0

    def gather(self, view: PoolView, made: PoolPlan) -> Iterator[None]:
        """Count all who wait, a session or a size at each step."""
        soon = view.now + usual_boot(view.pool, view.terms) + view.terms.instantiation
        needs = Counter[Amount]()
        for session in list(view.waiting.values()):
            self._count(view, session, soon, needs)
            yield
        machine = find_machine(view, made)
        found = MachineCount(machine, view.pool.spec.max_workers, _coming_rooms(view, made, machine))
        for need in largest_first(needs):
            found.add(need, needs[need])
            yield
        self.unheld, self.machines = found.unheld, found.machines
        self.held += needs.total() - found.unheld

    def _count(self, view: PoolView, session: LabletSession, soon: datetime, needs: Counter[Amount]) -> None:
        if session.status.seat is not None:
            self.held += session.status.seat.pool == view.pool.metadata.name
        elif not _is_held_soon(session, soon):
            need = view.needs(session)
            self.unsuited += need is None
            if need is not None:
                needs[need] += 1


def find_machine(view: PoolView, made: PoolPlan) -> Amount:
    """Return what a worker of the pool's template holds; nothing if that is not known."""
    return template_room(PoolSnapshot(view.pool, view.template, made.seats)) or ZERO_AMOUNT


def measure_load(view: PoolView, made: PoolPlan, waiting: WaitingLoad) -> PoolLoad:
    """Return what a pool's size is decided by; who waits was counted before."""
    spec, status, times = view.pool.spec, view.status, view.times
    active = {one.metadata.uid: one for one in view.workers if _is_active(view, one)}
    serving = sum(map(is_accepting, active.values()))
    taken = [one for one in _claims_on(view, made, active) if one.held.claim.end > view.now]
    machine, told = find_machine(view, made), view.headroom
    claimed, booked = _find_peak(taken, view.now)
    closed = times.closed_reason(view.now)
    assert closed in {"", "hours", "paused"}, closed
    return PoolLoad(
        policy=spec.policy,
        now=view.now,
        thresholds=spec.thresholds,
        least=view.least,
        most=spec.max_workers,
        serving=serving,
        coming=len(active) - serving,
        capacity=_sum_amounts(
            [one.status.capacity or declared_capacity(one.spec) or machine for one in active.values()]
        ),
        claimed=claimed,
        booked=booked,
        machine=machine,
        measured_cpu=told.cpu_utilization if told else None,
        measured_memory=told.memory_utilization if told else None,
        labs=sum(view.sessions.get(uid, 0) for uid in active),
        waiting=waiting.unheld,
        machines=waiting.machines,
        held=waiting.held,
        unsuited=waiting.unsuited,
        current=len(made.promised | made.open),
        promised=len(made.promised),
        busy=len(made.busy - made.promised),
        leaving=_count_leaving(view, made),
        closed=closed,  # type: ignore[arg-type]  # asserted above
        opens_at=times.next_change(view.now) if closed else None,
        room=LoadRoom(told.workers, told.why, told.reason) if told else ROOMY,
        up_at=status.load_up_at,
        down_at=status.load_down_at,
        failing=_describe_failure(view, made),
    )


def _count_leaving(view: PoolView, made: PoolPlan) -> int:
    """Return how many workers that the pool made run and fill no seat: they stop as soon as nobody is on them."""
    seated = {one.metadata.uid for one in made.seats.values()}
    mine = (one for one in view.workers if view.owns(one) and one.metadata.uid not in seated)
    return sum(is_wanted(one) and not is_leaving(one, view.now) for one in mine)


def _is_active(view: PoolView, worker: LabWorker) -> bool:
    """Return whether a worker serves or comes up, and stays."""
    comes = is_accepting(worker) or worker.status.phase in COMING_PHASES
    return comes and is_wanted(worker) and not is_leaving(worker, view.now)


def _claims_on(view: PoolView, made: PoolPlan, active: dict[str, LabWorker]) -> Sequence[SeatClaim]:
    """Return the claims that begin before a machine could be started for them, on workers that serve or come up."""
    homes = {number: one.metadata.uid for number, one in made.seats.items()}
    near = view.claims.starting_before(view.now + view.lead)
    return [one for one in near if (one.worker_id or homes.get(one.number)) in active]


def _coming_rooms(view: PoolView, made: PoolPlan, machine: Amount) -> Sequence[Amount]:
    """Return what is free on the workers that come up, or are about to be made, as far as nothing is claimed later.

    Whoever waits was not given a place there yet, if the scheduler has not looked since.
    """
    near = [one for one in view.claims.starting_before(view.now + view.lead) if one.number in made.needed]
    counts = Counter(one.number for one in near)
    taken = {number: ZERO_AMOUNT for number in made.needed if counts[number] == view.claims.count_on(number)}
    for one in near:
        if one.number in taken and one.held.claim.end > view.now:
            taken[one.number] += one.held.claim.need
    coming = [number for number in sorted(taken) if _is_coming(view, made.seats.get(number))]
    return [machine - taken[number] for number in coming if taken[number].within(machine)]


def _is_coming(view: PoolView, worker: LabWorker | None) -> bool:
    return worker is None or (_is_active(view, worker) and not is_accepting(worker))


def _find_peak(taken: Sequence[SeatClaim], now: datetime) -> tuple[Amount, Amount]:
    """Return what is claimed when most is, from now on, of CPU and of memory, and what of each has a slot then.

    Claims that follow one another use the same room.
    """
    ends = deque(sorted(taken, key=lambda one: one.held.claim.end))
    cpu, memory = _Level(), _Level()
    for one in sorted(taken, key=lambda one: one.held.claim.start):
        while ends[0].held.claim.end <= max(one.held.claim.start, now):
            gone = ends.popleft()
            cpu.add(-gone.held.claim.need.cpu_millis, asap=gone.asap)
            memory.add(-gone.held.claim.need.memory_mb, asap=gone.asap)
        cpu.add(one.held.claim.need.cpu_millis, asap=one.asap)
        memory.add(one.held.claim.need.memory_mb, asap=one.asap)
    return (
        Amount(cpu_millis=cpu.peak[0], memory_mb=memory.peak[0]),
        Amount(cpu_millis=cpu.peak[1], memory_mb=memory.peak[1]),
    )


@dataclass(slots=True)
class _Level:
    """How much is claimed, and how much of it has a slot: now, and when most is claimed."""

    claimed: int = 0
    booked: int = 0
    peak: tuple[int, int] = (0, 0)

    def add(self, amount: int, *, asap: bool) -> None:
        self.claimed += amount
        self.booked += 0 if asap else amount
        self.peak = max(self.peak, (self.claimed, self.booked))


def _sum_amounts(amounts: Sequence[Amount]) -> Amount:
    """Return the sum of the dimensions that thresholds are about."""
    return Amount(cpu_millis=sum(one.cpu_millis for one in amounts), memory_mb=sum(one.memory_mb for one in amounts))


class WaitingNeeds:
    """Tells what waiting sessions take of the workers of a pool's template.

    Of several pools of a track, the first that suits a session and may grow starts a worker for it, in the order in
    which bookings ask them (`placement.preference`). `price` is what a machine of a pool costs an hour, if it is known.
    """

    def __init__(
        self,
        cache: Cache,
        terms: Terms,
        pool: LabWorkerPool,
        template: WorkerTemplate,
        neighbours: Sequence[LabWorkerPool] = (),
        *,
        now: datetime,
        price: Callable[[LabWorkerPool], Decimal | None] = lambda _: None,
    ) -> None:
        self._cache = cache
        self._terms = terms
        self._pool = pool
        self._price = price
        self._place = self._template_place(pool, template)
        self._neighbours = neighbours
        self._now = now
        self._rivals: Sequence[tuple[LabWorkerPool, Place]] | None = None

    def find(self, session: LabletSession) -> Amount | None:
        """Return what a session needs; None if this pool is to start no worker for it."""
        definition = self._cache.get(Ref(LabletDefinition, session.spec.definition, session.metadata.namespace))
        need = need_of(session, definition) if definition else None
        if definition is None or need is None or self._place is None:
            return None
        start = datetime.min.replace(tzinfo=UTC)
        request = request_for(session, definition, Claim(start=start, end=start, need=need), self._terms)
        if not _suits(self._place, request) or any(self._comes_first(*one, request) for one in self._find_rivals()):
            return None
        return need

    def _find_rivals(self) -> Sequence[tuple[LabWorkerPool, Place]]:
        if self._rivals is None:
            found = [(one, self._place_of(one)) for one in self._neighbours if _may_grow(one, self._now)]
            self._rivals = [(one, place) for one, place in found if place is not None]
        return self._rivals

    def _place_of(self, pool: LabWorkerPool) -> Place | None:
        template = self._cache.get(Ref(WorkerTemplate, pool.spec.template, pool.metadata.namespace))
        return self._template_place(pool, template) if template else None

    def _template_place(self, pool: LabWorkerPool, template: WorkerTemplate) -> Place | None:
        price = self._price(pool)
        known = template.spec.price_per_hour_usd if price is None else price
        return template_place(PoolSnapshot(pool, template, {}, usd_hourly=known))

    def _comes_first(self, rival: LabWorkerPool, place: Place, request: PlacementRequest) -> bool:
        assert self._place is not None, "it was asked before"
        theirs, own = (preference(one, request) for one in (place, self._place))
        return _suits(place, request) and (theirs, rival.metadata.name) < (own, self._pool.metadata.name)


def _may_grow(pool: LabWorkerPool, now: datetime) -> bool:
    """Return whether a pool would start a worker for who waits, as far as its status tells."""
    running, last = len(pool.status.seats), pool.status.decisions[-1] if pool.status.decisions else None
    return (
        pool.spec.policy in LOAD_POLICIES
        and pool.metadata.deletion_timestamp is None
        and running < pool.spec.max_workers
        and not open_times_of(pool).closed_reason(now)
        and (last is None or last.why not in _HINDRANCES)
    )


def _suits(place: Place, request: PlacementRequest) -> bool:
    return static_rejection(place, request) is None and request.claim.need.within(place.capacity)


def _is_held_soon(session: LabletSession, soon: datetime) -> bool:
    """Return whether a present worker takes a session before a new one could."""
    waiting = session.status.waiting
    return waiting is not None and waiting.estimated_start is not None and waiting.estimated_start <= soon


def _describe_failure(view: PoolView, made: PoolPlan) -> str:
    """Return what keeps workers that are needed from coming up; "" if nothing does."""
    ready = find_condition(view.status.conditions, PoolCondition.READY)
    if ready is not None and ready.status is Truth.FALSE and ready.reason == REFUSED:
        return ready.message
    needed = {made.seats[number].metadata.uid for number in made.needed if number in made.seats}
    failed = [one for one in view.workers if one.status.phase is WorkerPhase.FAILED and one.metadata.uid in needed]
    if not failed:
        return ""
    return shorten_text(f"{failed[0].metadata.name} does not come up: {failed[0].status.last_error}")


def choose_open_seats(view: PoolView, made: PoolPlan, decision: SizeDecision) -> frozenset[int]:
    """Return the seats that load keeps open from now on.

    Of those it gives up, the least used goes first, and of these the one that empties soonest. A seat whose worker
    runs, or is about to stop, is opened before one whose worker is stopped, and that before one that has none.
    """
    now, extra = len(made.promised | made.open), made.open - made.promised
    if view.times.closed_reason(view.now):
        return frozenset()
    if decision.size < now:
        leaving = sorted(extra, key=lambda number: _usage_of(view, made, number))[: now - decision.size]
        return made.open - set(leaving)
    free = set(range(1, view.pool.spec.max_workers + 1)) - made.promised - made.open
    more = sorted(free, key=lambda number: _opening_rank(view, made, number))[: decision.size - now]
    return made.open | set(more)


def _usage_of(view: PoolView, made: PoolPlan, number: int) -> tuple[int, datetime, int]:
    """Return how much a seat's worker is used, and when it empties; among equals the highest number goes first."""
    worker = made.seats.get(number)
    sessions = view.sessions.get(worker.metadata.uid, 0) if worker else 0
    found = made.claimed_until.get(number)
    return sessions, found or view.now, -number


def _opening_rank(view: PoolView, made: PoolPlan, number: int) -> tuple[int, int]:
    worker = made.seats.get(number)
    if worker is None:
        return 2, number
    if is_leaving(worker, view.now) or worker.status.phase is WorkerPhase.FAILED:
        return 3, number
    return int(worker.status.phase is WorkerPhase.STOPPED), number
