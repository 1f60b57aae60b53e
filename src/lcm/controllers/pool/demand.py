"""What a pool needs next, decided from a `PoolView`: which seats get a worker, and which workers are released. Pure.

A worker is released in two looks. In the first it leaves the pool's seats. Whoever books meanwhile sees that the pool
changed and decides again without that worker. The second look knows every booking made before that. It pauses or
deletes the worker, or takes it back if a booking was faster.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lcm.controllers.pool.index import PoolClaims, SeatClaim
from lcm.controllers.pool.view import PoolView, is_leaving, is_lost, is_over, seat_number
from lcm.model.base.capacity import ZERO_AMOUNT
from lcm.model.kinds.pool import PoolPhase
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker
from lcm.placement.places import is_wanted
from lcm.placement.seats import KEEP_THROUGH_GAP, SeatDemand, Seats, seat_demand

PAUSE_LIMIT: Final = timedelta(hours=12)
"""A worker is paused instead of deleted if its next claim begins within this: a launch takes longer than a start."""

LINGER_TIME: Final = timedelta(minutes=1)
"""How long a worker stays after its last session has left."""

ADOPTION_BATCH: Final = 50
"""How many workers of others one look takes into seats: the commit asserts for each that nobody is on it."""


@dataclass(slots=True)
class PoolPlan:
    """What is to be done, and which worker fills which seat afterwards.

    `needed` are the seats that must have a worker now; `next` tells when each seat is claimed next. `launch` and
    `resume` give a seat its worker. `let_go` are seats whose worker leaves them now; `pause` and `remove` are
    workers that left before. A worker in `retire` takes no more sessions and stops after the present ones.
    """

    seats: dict[int, LabWorker] = field(default_factory=dict)
    needed: Mapping[int, SeatDemand] = field(default_factory=dict)
    next: Mapping[int, SeatDemand] = field(default_factory=dict)
    launch: list[int] = field(default_factory=list)
    resume: dict[int, LabWorker] = field(default_factory=dict)
    let_go: dict[int, LabWorker] = field(default_factory=dict)
    pause: dict[int, LabWorker] = field(default_factory=dict)
    retire: list[LabWorker] = field(default_factory=list)
    remove: list[LabWorker] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Why something is not done that an operator might expect."""
    changes_at: datetime | None = None


class SeatTimelines:
    """A pool's seats with the claims for which the seat's worker must run.

    Only what changed since the last look is applied. A session on another worker than its seat's is not counted: a
    drained worker is not replaced for the sessions still on it.
    """

    def __init__(self) -> None:
        self._made_of: object = None
        self._claims: PoolClaims | None = None
        self._held: dict[str, SeatClaim] = {}
        self._elsewhere: frozenset[str] = frozenset()
        """The holders whose claims are not counted."""
        self.seats = Seats(ZERO_AMOUNT, 0, lead=timedelta(0))

    def update(self, view: PoolView) -> Iterator[None]:
        """Apply what changed, one claim at each step."""
        claims, elsewhere = view.claims, _find_elsewhere(view)
        changed = {*claims.take_changes(), *(elsewhere ^ self._elsewhere)}
        made_of = max(view.pool.spec.max_workers, claims.highest_number), view.lead, view.minimum
        if made_of != self._made_of or claims is not self._claims:
            self._made_of, self._claims, self._held = made_of, claims, {}
            self.seats = Seats(ZERO_AMOUNT, made_of[0], lead=view.lead, standing=view.minimum)
            changed = set(claims.holders())
        self._elsewhere = elsewhere
        for holder in sorted(changed):
            self._set(holder, None if holder in elsewhere else claims.get(holder))
            yield

    def _set(self, holder: str, claim: SeatClaim | None) -> None:
        before = self._held.pop(holder, None)
        if claim is not None:
            self._held[holder] = claim
        if before == claim:
            return
        if before is not None:
            self.seats.release(before.number, holder)
        if claim is not None:
            self.seats.hold(claim.number, claim.held)


def plan(view: PoolView, seats: Seats | None = None) -> PoolPlan:
    """Return what a pool needs next, given its seats as `SeatTimelines` has them now."""
    if seats is None:
        timelines = SeatTimelines()
        for _ in timelines.update(view):
            pass
        seats = timelines.seats
    made = PoolPlan(seats=_filled_seats(view))
    made.next = seat_demand(seats, view.now)
    made.needed = {number: one for number, one in made.next.items() if one.start_by <= view.now}
    moments = [moment for one in made.next.values() for moment in one if moment and moment > view.now]
    made.changes_at = min(moments, default=None)
    _fill_seats(view, made)
    if view.status.phase is PoolPhase.TERMINATING:
        made.needed, made.seats = {}, {}
        made.remove += [one for one in view.workers if view.owns(one) and one.metadata.deletion_timestamp is None]
        return made
    for number in sorted(made.needed):
        present = made.seats.get(number)
        if present is None or is_leaving(present, view.now):
            made.seats.pop(number, None)
            made.launch.append(number)
        elif present.spec.wanted_state == "stopped":
            made.resume[number] = present
    for number, worker in sorted(made.seats.items(), key=lambda one: one[0]):
        _release_unneeded(view, made, number, worker)
    seated = {one.metadata.uid for one in made.seats.values()}
    for worker in view.workers:
        _decide_unseated(view, made, worker, is_seated=worker.metadata.uid in seated)
    return made


def _filled_seats(view: PoolView) -> dict[int, LabWorker]:
    workers = {one.metadata.uid: one for one in view.workers if not is_over(one)}
    return {one.number: workers[one.worker_id] for one in view.status.seats if one.worker_id in workers}


def _find_elsewhere(view: PoolView) -> frozenset[str]:
    """Return the holders whose session is on a worker of the pool that is not, or not for long, that of its seat."""
    ours = {one.metadata.uid for one in view.workers if not is_over(one)}
    homes = {number: one.metadata.uid for number, one in _filled_seats(view).items() if not is_leaving(one, view.now)}
    # A session whose worker is gone is placed again, and needs its seat again.
    return frozenset(
        holder
        for holder, one in view.claims.placed.items()
        if one.worker_id in ours and one.worker_id != homes.get(one.number)
    )


def keeps_running(view: PoolView, made: PoolPlan, number: int) -> bool:
    """Return whether a seat's worker should go on running, if it runs."""
    found = made.next.get(number)
    return not view.traits.releases or (found is not None and found.start_by <= view.now + KEEP_THROUGH_GAP)


def _fill_seats(view: PoolView, made: PoolPlan) -> None:
    """Give seats the workers that were made for them but not recorded, and workers of others if the policy adopts them.

    A session that came onto a worker while it was released holds no seat. Such a worker is not seated: the seat's
    timeline would not know of that session.
    """
    unfit = view.mixed | {one.metadata.uid for one in made.seats.values()}
    for worker in sorted(view.workers, key=_seniority):
        number = seat_number(worker)
        fits = number is not None and number not in made.seats and not is_leaving(worker, view.now)
        if number is None or not fits or worker.metadata.uid in unfit or not view.owns(worker):
            continue
        if not is_wanted(worker) or keeps_running(view, made, number):
            made.seats[number] = worker
    if view.traits.adopts:
        numbers = sorted(range(1, view.pool.spec.max_workers + 1), key=lambda number: number not in made.needed)
        free = [number for number in numbers if number not in made.seats]
        unused = [one for one in sorted(view.strangers, key=_seniority) if not is_leaving(one, view.now)]
        made.seats |= dict(zip(free, unused[:ADOPTION_BATCH], strict=False))


def _release_unneeded(view: PoolView, made: PoolPlan, number: int, worker: LabWorker) -> None:
    """Release a seat's worker that is not needed."""
    if (
        number in made.needed
        or not view.owns(worker)
        or is_leaving(worker, view.now)
        or keeps_running(view, made, number)
    ):
        return
    if not is_wanted(worker):
        if not _is_claimed_soon(view, made, number) and not view.is_busy(worker):
            del made.seats[number]  # it is paused, so no booking relies on it
            made.remove.append(worker)
    elif not _must_stay(view, made, worker) and not _is_lingering(view, made, worker):
        made.let_go[number] = worker
        del made.seats[number]


def _decide_unseated(view: PoolView, made: PoolPlan, worker: LabWorker, *, is_seated: bool) -> None:
    """Decide about a worker of the pool that fills no seat."""
    decided = any(worker is one for one in (*made.let_go.values(), *made.remove))
    if decided or not view.owns(worker) or worker.metadata.deletion_timestamp is not None:
        return
    if is_lost(worker, view.now):
        made.remove.append(worker)
    elif view.traits.releases and is_wanted(worker) and not is_seated and not is_leaving(worker, view.now):
        number = seat_number(worker)
        if view.is_busy(worker):
            made.retire.append(worker)
        elif _must_stay(view, made, worker):
            return
        elif number is not None and number not in made.seats and _is_claimed_soon(view, made, number):
            made.pause[number] = worker
        else:
            made.remove.append(worker)


def _must_stay(view: PoolView, made: PoolPlan, worker: LabWorker) -> bool:
    """Return whether a worker must stay although no claim needs it, and note why."""
    name, foreign = worker.metadata.name, worker.status.foreign.labs
    if view.is_busy(worker):
        made.notes.append(f"{name} is not released: sessions are still on it")
    elif foreign:
        made.notes.append(f"{name} is not released: {foreign} labs run on it that no session made")
    return view.is_busy(worker) or foreign > 0


def _is_lingering(view: PoolView, made: PoolPlan, worker: LabWorker) -> bool:
    """Return whether a worker became free just now: a session that waits for it is placed within moments."""
    history = worker.status.history
    until = history[-1].at + LINGER_TIME if history and worker.status.phase in HOSTING_PHASES else view.now
    if until <= view.now:
        return False
    made.changes_at = min(made.changes_at or until, until)
    return True


def _is_claimed_soon(view: PoolView, made: PoolPlan, number: int) -> bool:
    """Return whether a seat's next claim is near enough for its worker to be paused until then."""
    found = made.next.get(number)
    return found is not None and found.start_by + view.lead <= view.now + PAUSE_LIMIT


def _seniority(worker: LabWorker) -> tuple[bool, float, str]:
    created = worker.metadata.created_at
    return not is_wanted(worker), created.timestamp() if created else 0.0, worker.metadata.name


def seats_text(numbers: Sequence[int]) -> str:
    """Return the planned workers with these numbers as text."""
    told = ", ".join(map(str, sorted(numbers)))
    return f"planned worker {told}" if len(numbers) == 1 else f"planned workers {told}"
