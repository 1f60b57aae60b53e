"""What a pool needs next, decided from a `PoolView`: which seats get a worker, and which workers are released. Pure.

A worker is released in two looks. In the first it leaves the pool's seats. Whoever books meanwhile sees that the pool
changed and decides again without that worker. The second look knows every booking made before that. It pauses or
deletes the worker, or takes it back if a booking was faster.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import replace

from lcm.controllers.pool.index import PoolClaims, SeatClaim
from lcm.controllers.pool.view import (
    SMALL_LABEL,
    PoolView,
    is_leaving,
    is_lost,
    is_over,
    is_small,
    seat_number,
    seat_spec,
)
from lcm.model.base.capacity import ZERO_AMOUNT, Claim
from lcm.model.kinds.pool import PoolPhase, SmallRun
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker, WorkerPhase
from lcm.placement.limits import OPENING_POLICIES
from lcm.placement.places import is_wanted
from lcm.placement.seats import KEEP_THROUGH_GAP, SeatDemand, Seats, seat_demand
from lcm.placement.small_runs import choose_small_run, holds_run, run_pause

PAUSE_LIMIT: Final = timedelta(hours=12)
"""A worker is paused instead of deleted if its next claim begins within this: a launch takes longer than a start."""

LINGER_TIME: Final = timedelta(minutes=1)
"""How long a worker stays after its last session has left."""

_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_RESTING: Final = frozenset({WorkerPhase.STOPPING, WorkerPhase.STOPPED})
ADOPTION_BATCH: Final = 50
"""How many workers of others one look takes into seats: the commit asserts for each that nobody is on it."""


@dataclass(slots=True)
class PoolPlan:
    """What is to be done, and which worker fills which seat afterwards.

    `needed` are the seats that must have a worker now; `next` tells when each seat is claimed next. `launch` and
    `resume` give a seat its worker. `let_go` are seats whose worker leaves them now; `pause` and `remove` are
    workers that left before. A worker in `retire` takes no more sessions and stops after the present ones.

    `small` are the seats whose machine is of a smaller type; for those in `chosen` that is only decided: what was
    booked meanwhile shows at the next look, and then it is launched.

    `promised` are the seats that the minimum, due claims and workers of others need, `open` those that load keeps
    open, and `busy` those besides that have sessions; `claimed_until` tells when those that are claimed now become
    free.
    """

    seats: dict[int, LabWorker] = field(default_factory=dict)
    needed: Mapping[int, SeatDemand] = field(default_factory=dict)
    next: Mapping[int, SeatDemand] = field(default_factory=dict)
    promised: frozenset[int] = frozenset()
    open: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()
    claimed_until: Mapping[int, datetime | None] = field(default_factory=dict)
    small: dict[int, SmallRun] = field(default_factory=dict)
    chosen: set[int] = field(default_factory=set)
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
        made_of = max(view.pool.spec.max_workers, claims.highest_number), view.lead
        if made_of != self._made_of or claims is not self._claims:
            self._made_of, self._claims, self._held = made_of, claims, {}
            self.seats = Seats(ZERO_AMOUNT, made_of[0], lead=view.lead)
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
    made = PoolPlan(seats=_filled_seats(view), small={one.number: one for one in view.status.small_runs})
    _find_needed(view, made, seats)
    _fill_seats(view, made, seats)
    if view.status.phase is PoolPhase.TERMINATING:
        made.needed, made.seats, made.small = {}, {}, {}
        made.remove += [one for one in view.workers if view.owns(one) and one.metadata.deletion_timestamp is None]
        return made
    _end_small_runs(view, made, seats)
    _supply_needed(view, made)
    _choose_small_runs(view, made, seats)
    for number, worker in sorted(made.seats.items(), key=lambda one: one[0]):
        _release_unneeded(view, made, number, worker)
    seated = {one.metadata.uid for one in made.seats.values()}
    for worker in view.workers:
        _decide_unseated(view, made, worker, is_seated=worker.metadata.uid in seated)
    return made


def _find_needed(view: PoolView, made: PoolPlan, seats: Seats) -> None:
    """Find which seats need a worker, now and next: those of the minimum, those claimed, those open for load."""
    always = frozenset(range(1, view.minimum + 1))
    claimed = seat_demand(seats, view.now)
    due = {number for number, one in claimed.items() if one.start_by <= view.now}
    made.open = frozenset(number for number in _open_seats(view, made) if number <= view.pool.spec.max_workers)
    busy = {number for number in due - always if view.traits.drains and not _is_promised(view, made, seats, number)}
    made.promised = always | (due - busy) | _foreign_seats(view, made)
    made.busy = frozenset(busy)
    kept = dict.fromkeys(sorted(always | made.open), SeatDemand(view.now, None))
    made.claimed_until = {number: claimed[number].needed_until for number in due}
    made.next = {**claimed, **kept}
    made.needed = {number: one for number, one in made.next.items() if number in kept or number in due - busy}
    moments = [moment for one in made.next.values() for moment in one if moment and moment > view.now]
    made.changes_at = min((*moments, *filter(None, [view.times.next_change(view.now)])), default=None)


def _open_seats(view: PoolView, made: PoolPlan) -> Collection[int]:
    """Return the seats that load keeps open; before the first decision those that have a worker anyway."""
    if view.is_ending:
        return ()
    known = view.status.open_seats
    if known is not None:
        return known
    return [number for number, one in made.seats.items() if view.traits.drains and view.owns(one) and is_wanted(one)]


def _is_promised(view: PoolView, made: PoolPlan, seats: Seats, number: int) -> bool:
    """Return whether a claim that is due on a seat is not that of a session on the seat's worker."""
    worker, until = made.seats.get(number), view.now + view.lead
    home, placed = worker.metadata.uid if worker else None, view.claims.placed
    due = (one.holder for one in seats[number].held.values() if one.claim.start <= until and one.claim.end > view.now)
    return home is None or any(holder not in placed or placed[holder].worker_id != home for holder in due)


def _foreign_seats(view: PoolView, made: PoolPlan) -> frozenset[int]:
    """Return the seats whose worker runs and was made by others: it is not given up."""
    return frozenset(number for number, one in made.seats.items() if not view.owns(one) and is_wanted(one))


def _supply_needed(view: PoolView, made: PoolPlan) -> None:
    """Find a worker for each seat that needs one: its own, a stopped one that no seat needs soon, or a new one."""
    spare = [number for number, one in sorted(made.seats.items()) if _is_spare(view, made, number, one)]
    for number in sorted(made.needed):
        present = made.seats.get(number)
        if present is None or is_leaving(present, view.now):
            made.seats.pop(number, None)
            if not spare:
                made.launch.append(number)
                continue
            present = made.seats[number] = made.seats.pop(spare.pop(0))
        if present.spec.wanted_state == "stopped":
            made.resume[number] = present


def _end_small_runs(view: PoolView, made: PoolPlan, seats: Seats) -> None:
    """Release smaller machines of which nothing is claimed any more until their runs end.

    What is claimed later gets another machine, even if somebody is still on this one.
    """
    for number, run in list(made.small.items()):
        worker = made.seats.get(number)
        if worker is None or not is_small(worker) or is_leaving(worker, view.now):
            continue
        if any(claim.start < run.until for claim in _claims_ahead(view, seats, number)):
            continue
        if number not in made.needed and (_must_stay(view, made, worker) or _is_lingering(view, made, worker)):
            continue
        del made.small[number], made.seats[number]
        if is_wanted(worker):
            made.let_go[number] = worker
        else:
            made.remove.append(worker)


def _choose_small_runs(view: PoolView, made: PoolPlan, seats: Seats) -> None:
    """Choose the types of new machines. One that was chosen is launched if what was booked since then fits it too."""
    spare = _last_spare_time(view, made)
    for number in list(made.launch):
        if _holds_all(view, made.small.get(number), seats):
            continue
        made.small.pop(number, None)
        claims, allowed = _claims_ahead(view, seats, number), _may_be_small(view, made, seats, number)
        found = choose_small_run(number, claims, view.smaller, run_pause(view.lead)) if allowed else None
        if found is not None and spare is not None and found.until <= spare:
            made.small[number] = found
            made.chosen.add(number)
            made.launch.remove(number)
    filled = {number for number, one in made.seats.items() if is_small(one)}
    made.small = {number: run for number, run in made.small.items() if number in filled.union(made.chosen, made.launch)}


def _holds_all(view: PoolView, run: SmallRun | None, seats: Seats) -> bool:
    """Return whether the machine of a small run holds all that is claimed of its seat by now."""
    room = next((one.room for one in view.smaller if run and one.name == run.instance_type), None)
    if run is None or room is None:
        return False
    return holds_run(run, _claims_ahead(view, seats, run.number), room, run_pause(view.lead))


def _is_chosen(view: PoolView, made: PoolPlan, seats: Seats, worker: LabWorker) -> bool:
    """Return whether a worker with a smaller machine is what was chosen for its seat."""
    run = made.small.get(seat_number(worker) or 0)
    return run is not None and run.instance_type == worker.metadata.labels[SMALL_LABEL] and _holds_all(view, run, seats)


def _may_be_small(view: PoolView, made: PoolPlan, seats: Seats, number: int) -> bool:
    """Return whether a seat needs a machine for nothing but slots that were booked: what else comes is not known."""
    if not view.smaller or view.is_ending or made.needed[number].needed_until is None:
        return False
    found = (view.claims.get(holder) for holder in seats[number].held)
    return view.pool.spec.policy in OPENING_POLICIES and not any(one is not None and one.asap for one in found)


def _last_spare_time(view: PoolView, made: PoolPlan) -> datetime | None:
    """Return until when another seat has neither worker nor claim: whoever needs a large machine gets that one."""
    free = (number for number in range(1, view.pool.spec.max_workers + 1) if number not in made.seats)
    times = (made.next[number].start_by if number in made.next else _NEVER for number in free)
    return max((one for one in times if one > view.now), default=None)


def _claims_ahead(view: PoolView, seats: Seats, number: int) -> Sequence[Claim]:
    """Return what is claimed of a seat from now on; nothing of one that the pool no longer may have."""
    held = seats[number].held.values() if number <= len(seats) else ()
    return [one.claim for one in held if one.claim.end > view.now]


def _is_spare(view: PoolView, made: PoolPlan, number: int, worker: LabWorker) -> bool:
    """Return whether a worker is stopped, could fill any seat, and is not needed in its own soon."""
    idle = number not in made.needed and not _is_claimed_soon(view, made, number)
    stopped = worker.spec.wanted_state == "stopped" and worker.status.phase in _RESTING
    return idle and stopped and is_as_new(view, worker) and not view.is_busy(worker)


def is_as_new(view: PoolView, worker: LabWorker) -> bool:
    """Return whether a worker is one that the pool made as it would make one now."""
    spec = replace(seat_spec(view), wanted_state=worker.spec.wanted_state)
    return view.owns(worker) and not worker.status.failure and worker.spec == spec


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
    return found is not None and found.start_by <= view.now + KEEP_THROUGH_GAP


def _fill_seats(view: PoolView, made: PoolPlan, seats: Seats) -> None:
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
        if is_small(worker) and not _is_chosen(view, made, seats, worker):
            continue  # what is booked there since its run ended may not fit it
        if not is_wanted(worker) or keeps_running(view, made, number):
            made.seats[number] = worker
    if view.traits.adopts:
        numbers = sorted(range(1, view.pool.spec.max_workers + 1), key=lambda number: number not in made.needed)
        free = [number for number in numbers if number not in made.seats]
        unused = [one for one in sorted(view.strangers, key=_seniority) if not is_leaving(one, view.now)]
        made.seats |= dict(zip(free, unused[:ADOPTION_BATCH], strict=False))


def _release_unneeded(view: PoolView, made: PoolPlan, number: int, worker: LabWorker) -> None:
    """Release a seat's worker that is not needed, or drain it."""
    if number in made.needed or not view.owns(worker) or is_leaving(worker, view.now):
        return
    if number in made.busy:
        if is_wanted(worker):
            made.retire.append(worker)
        return
    if keeps_running(view, made, number):
        return
    if not is_wanted(worker):
        if not _is_kept_stopped(view, made, number, worker) and not view.is_busy(worker):
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
    elif is_wanted(worker) and not is_seated and not is_leaving(worker, view.now):
        number = seat_number(worker)
        if view.is_busy(worker):
            made.retire.append(worker)
        elif _must_stay(view, made, worker):
            return
        elif number is not None and number not in made.seats and _is_kept_stopped(view, made, number, worker):
            made.pause[number] = worker
        else:
            made.remove.append(worker)


def _is_kept_stopped(view: PoolView, made: PoolPlan, number: int, worker: LabWorker) -> bool:
    """Return whether a worker that is not needed is kept stopped: its seat is claimed soon, or the warm tier has room.

    Where licences are short, none is kept that would keep its licence.
    """
    if is_small(worker):
        return False
    if _is_claimed_soon(view, made, number):
        return True
    short = view.headroom is not None and view.headroom.why == "licences"
    if view.is_ending or short or not is_as_new(view, worker):
        return False
    others = {**{at: one for at, one in made.seats.items() if not is_wanted(one)}, **made.pause}
    warm = [at for at in others if at != number and at not in made.needed and not _is_claimed_soon(view, made, at)]
    return len(warm) < view.pool.spec.warm_workers


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
    if worker.status.phase is WorkerPhase.ACTIVE:
        until = view.now + LINGER_TIME  # it was not seen yet that the last one has left
    if until <= view.now:
        return False
    made.changes_at = min(made.changes_at or until, until)
    return True


def _is_claimed_soon(view: PoolView, made: PoolPlan, number: int) -> bool:
    """Return whether a seat's worker is to be paused until it is needed: for a claim, or when the pool opens."""
    found = made.next.get(number)
    if number <= view.least:
        return True
    return found is not None and found.start_by + view.lead <= view.now + PAUSE_LIMIT


def _seniority(worker: LabWorker) -> tuple[bool, float, str]:
    created = worker.metadata.created_at
    return not is_wanted(worker), created.timestamp() if created else 0.0, worker.metadata.name


def seats_text(numbers: Sequence[int]) -> str:
    """Return the planned workers with these numbers as text."""
    told = ", ".join(map(str, sorted(numbers)))
    return f"planned worker {told}" if len(numbers) == 1 else f"planned workers {told}"
