"""What a pool needs next, decided from a view: which seats get a worker, and which workers go. Pure.

A worker is let go in two looks. In the first it leaves the pool's seats: whoever books meanwhile sees the pool changed
and decides anew, without it. In the second, which knows every booking from before that, it is paused or deleted; or
taken back, had somebody been faster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lcm.controllers.pool.view import Claimed, View, is_leaving, is_lost, is_over, is_wanted, seat_number
from lcm.model.base.capacity import NOTHING
from lcm.model.kinds.pool import PoolPhase
from lcm.model.kinds.worker import HOSTING, LabWorker
from lcm.placement.seats import KEEP, Demand, Seats, demand

PAUSED_FOR: Final = timedelta(hours=12)
"""A worker is paused, and not deleted, if its next claim begins within this: a launch takes longer than a start."""

LINGER: Final = timedelta(minutes=1)
"""A worker stays this long after its last session has left."""

ADOPTED: Final = 50
"""Workers of others that one look takes into seats: the commit holds each as nobody was on it."""


@dataclass(slots=True)
class Plan:
    """What is to be done, and who fills which seat then.

    `needed` are the seats that must have a worker now, `next` when each is claimed next. `launch` and `resume` give
    them one; `let_go` are seats whose worker leaves them, `pause` and `remove` are workers that left before. To
    `retire` is to take no more sessions, and to stop after the present ones.
    """

    seats: dict[int, LabWorker] = field(default_factory=dict)
    needed: Mapping[int, Demand] = field(default_factory=dict)
    next: Mapping[int, Demand] = field(default_factory=dict)
    launch: list[int] = field(default_factory=list)
    resume: dict[int, LabWorker] = field(default_factory=dict)
    let_go: dict[int, LabWorker] = field(default_factory=dict)
    pause: dict[int, LabWorker] = field(default_factory=dict)
    retire: list[LabWorker] = field(default_factory=list)
    remove: list[LabWorker] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Why something is not done that one might expect."""
    changes_at: datetime | None = None


class Timelines:
    """A pool's seats with the claims on them, changed by what changed since the last look: most does not."""

    def __init__(self) -> None:
        self._made_of: object = None
        self._seats = Seats(NOTHING, 0, lead=timedelta(0))
        self._held: dict[str, Claimed] = {}

    def of(self, view: View, filled: Mapping[int, LabWorker]) -> Seats:
        """Put the claims onto their seats that a seat's worker must run for.

        What is on another worker than its seat's ends there: a drained one is not replaced for the sake of who is on
        it.
        """
        wanted = {one.held.holder: one for one in _counted(view, filled)}
        size = max([view.pool.spec.max_workers, *(one.number for one in wanted.values())])
        made_of = size, view.lead, view.minimum
        if made_of != self._made_of:
            self._made_of, self._held = made_of, {}
            self._seats = Seats(NOTHING, size, lead=view.lead, standing=view.minimum)
        # The book gives the same object as long as a claim is the same, so that few are compared in full.
        for holder, one in self._held.items():
            if (new := wanted.get(holder)) is not one and new != one:
                self._seats.release(one.number, holder)
        for holder, one in wanted.items():
            if (known := self._held.get(holder)) is not one and known != one:
                self._seats.hold(one.number, one.held)
        self._held = wanted
        return self._seats


def plan(view: View, timelines: Timelines | None = None) -> Plan:
    """Say what a pool needs next."""
    made = Plan(seats=_filled(view))
    seats = (timelines or Timelines()).of(view, made.seats)
    made.next = demand(seats, view.now)
    made.needed = {number: one for number, one in made.next.items() if one.start_by <= view.now}
    moments = [moment for one in made.next.values() for moment in one if moment and moment > view.now]
    made.changes_at = min(moments, default=None)
    _fill(view, made)
    if view.status.phase is PoolPhase.TERMINATING:
        _end(view, made)
        return made
    for number in sorted(made.needed):
        _supply(view, made, number)
    for number, worker in sorted(made.seats.items(), key=lambda one: one[0]):
        _spare(view, made, number, worker)
    for worker in view.workers:
        _outside(view, made, worker)
    return made


def _counted(view: View, filled: Mapping[int, LabWorker]) -> Sequence[Claimed]:
    ours = {one.metadata.uid for one in view.workers if not is_over(one)}
    homes = {number: one.metadata.uid for number, one in filled.items() if not is_leaving(one, view.now)}
    # Whose worker is gone is to be placed anew, and needs its seat again.
    return [one for one in view.claims if one.worker_id not in ours or one.worker_id == homes.get(one.number)]


def kept(view: View, made: Plan, number: int) -> bool:
    """Tell whether a seat's worker is to go on running, if it does."""
    found = made.next.get(number)
    return not view.bearing.releases or (found is not None and found.start_by <= view.now + KEEP)


def _filled(view: View) -> dict[int, LabWorker]:
    """Give the seats that have a worker by what was written down."""
    workers = {one.metadata.uid: one for one in view.workers if not is_over(one)}
    return {one.number: workers[one.worker_id] for one in view.status.seats if one.worker_id in workers}


def _fill(view: View, made: Plan) -> None:
    """Give seats the workers that were made for them and not written down, and those of others if the policy says.

    A session that came onto a worker while it was let go holds no seat: the seat's timeline would not know of it.
    """
    unfit = view.mixed | {one.metadata.uid for one in made.seats.values()}
    for worker in sorted(view.workers, key=_seniority):
        number = seat_number(worker)
        fits = number is not None and number not in made.seats and not is_leaving(worker, view.now)
        if number is None or not fits or worker.metadata.uid in unfit or not view.owns(worker):
            continue
        if not is_wanted(worker) or kept(view, made, number):
            made.seats[number] = worker
    if view.bearing.adopts:
        numbers = sorted(range(1, view.pool.spec.max_workers + 1), key=lambda number: number not in made.needed)
        free = [number for number in numbers if number not in made.seats]
        unused = [one for one in sorted(view.strangers, key=_seniority) if not is_leaving(one, view.now)]
        made.seats |= dict(zip(free, unused[:ADOPTED], strict=False))


def _supply(view: View, made: Plan, number: int) -> None:
    """See to it that a seat that needs a worker gets one."""
    worker = made.seats.get(number)
    if worker is None or is_leaving(worker, view.now):
        made.seats.pop(number, None)
        made.launch.append(number)
    elif worker.spec.wanted_state == "stopped":
        made.resume[number] = worker


def _spare(view: View, made: Plan, number: int, worker: LabWorker) -> None:
    """Let a seat's worker go that is not needed."""
    if number in made.needed or not view.owns(worker) or is_leaving(worker, view.now) or kept(view, made, number):
        return
    if not is_wanted(worker):
        if not _soon(view, made, number) and not view.busy(worker):
            del made.seats[number]  # it is paused: nobody could count on it
            made.remove.append(worker)
    elif not _held_back(view, made, worker) and not _lingers(view, made, worker):
        made.let_go[number] = worker
        del made.seats[number]


def _outside(view: View, made: Plan, worker: LabWorker) -> None:
    """Decide about a worker of the pool that fills no seat."""
    decided = any(worker is one for one in (*made.let_go.values(), *made.remove))
    if decided or not view.owns(worker) or worker.metadata.deletion_timestamp is not None:
        return
    if is_lost(worker, view.now):
        made.remove.append(worker)
    elif view.bearing.releases and is_wanted(worker) and not _seated(made, worker) and not is_leaving(worker, view.now):
        number = seat_number(worker)
        if view.busy(worker):
            made.retire.append(worker)
        elif _held_back(view, made, worker):
            return
        elif number is not None and number not in made.seats and _soon(view, made, number):
            made.pause[number] = worker
        else:
            made.remove.append(worker)


def _end(view: View, made: Plan) -> None:
    """End every worker that the pool made."""
    made.needed = {}
    made.seats = {}
    made.remove += [one for one in view.workers if view.owns(one) and one.metadata.deletion_timestamp is None]


def _held_back(view: View, made: Plan, worker: LabWorker) -> bool:
    """Tell whether a worker must not go although no claim needs it, and say why."""
    name, foreign = worker.metadata.name, worker.status.foreign.labs
    if view.busy(worker):
        made.notes.append(f"{name} is not released: sessions are still on it")
    elif foreign:
        made.notes.append(f"{name} is not released: {foreign} labs run on it that no session made")
    return view.busy(worker) or foreign > 0


def _lingers(view: View, made: Plan, worker: LabWorker) -> bool:
    """Tell whether a worker became free only now: a session that waits for it is placed within moments."""
    history = worker.status.history
    until = history[-1].at + LINGER if history and worker.status.phase in HOSTING else view.now
    if until <= view.now:
        return False
    made.changes_at = min(made.changes_at or until, until)
    return True


def _soon(view: View, made: Plan, number: int) -> bool:
    """Tell whether a seat's next claim is near enough for its worker to be paused until then."""
    found = made.next.get(number)
    return found is not None and found.start_by + view.lead <= view.now + PAUSED_FOR


def _seated(made: Plan, worker: LabWorker) -> bool:
    return any(one.metadata.uid == worker.metadata.uid for one in made.seats.values())


def _seniority(worker: LabWorker) -> tuple[bool, float, str]:
    created = worker.metadata.created_at
    return not is_wanted(worker), created.timestamp() if created else 0.0, worker.metadata.name


def in_words(numbers: Sequence[int]) -> str:
    """Name seats."""
    told = ", ".join(map(str, sorted(numbers)))
    return f"seat {told}" if len(numbers) == 1 else f"seats {told}"
