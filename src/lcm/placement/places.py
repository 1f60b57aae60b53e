"""Workers and pools as the places of placement: what each can hold, from when on, and who has a claim on it.

Pure. The control plane's calendar, the scheduler and the pool's follower build their views of the fleet from this.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

from lcm.model.base.capacity import DIMENSIONS, NOTHING, Amount
from lcm.model.base.resource import Truth, condition
from lcm.model.kinds.pool import LabWorkerPool, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.reservation import RESERVATION, Reservation
from lcm.model.kinds.session import LabletSession, holds
from lcm.model.kinds.worker import HOSTING, LabWorker, LabWorkerSpec, WorkerCondition, WorkerPhase
from lcm.model.money.prices import declared_capacity
from lcm.placement.claims import Terms, boot_lead, usual_boot
from lcm.placement.limits import OPENING
from lcm.placement.request import BOOTING, DRAINING, Held, Place
from lcm.placement.seats import Seats, least

_P: Final = WorkerPhase
COMING: Final = frozenset(
    {_P.PENDING, _P.PROVISIONING_EC2, _P.EC2_READY, _P.STARTING, _P.READY_UNLICENSED, _P.LICENSING}
)
"""Phases of a machine that is on its way up."""
_KNOWN: Final = frozenset({_P.READY, _P.ACTIVE, _P.DRAINING})
_LEAVING: Final = frozenset({_P.DRAINING, _P.TERMINATING_EC2, _P.TERMINATED, _P.FAILED})
_SOON: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Row:
    """A pool with what its seats are made of: its template, and the workers that fill them, by number."""

    pool: LabWorkerPool
    template: WorkerTemplate
    workers: Mapping[int, LabWorker]

    @property
    def name(self) -> str:
        """Where the pool is, "namespace/name"."""
        return f"{self.pool.metadata.namespace}/{self.pool.metadata.name}"


def row_of(pool: LabWorkerPool, template: WorkerTemplate, workers: Mapping[str, LabWorker]) -> Row:
    """Put a pool together with those of the workers, by uid, that fill its seats."""
    filled = ((seat.number, workers.get(seat.worker_id)) for seat in pool.status.seats)
    return Row(pool, template, {number: worker for number, worker in filled if worker is not None})


def session_holder(session: LabletSession) -> str:
    """Name a session as one who holds a claim."""
    return f"{session.metadata.namespace}/{session.metadata.name}"


def reservation_holder(reservation: Reservation, number: int) -> str:
    """Name one of a reservation's claims, as long as no session has taken it over."""
    return f"{reservation.metadata.namespace}/{reservation.metadata.name}#{number}"


def held_by(booking: LabletSession | Reservation) -> Iterator[tuple[str, int, Held]]:
    """Give the claims that a booking has on seats: the pool's name, the seat's number, the claim."""
    if isinstance(booking, LabletSession):
        claim, seat = holds(booking), booking.status.seat
        if claim is not None and seat is not None:
            yield seat.pool, seat.number, Held(session_holder(booking), claim)
    elif booking.status.phase not in RESERVATION.final:
        for one in booking.status.held:
            if one.session is None and one.seat is not None:
                yield one.seat.pool, one.seat.number, Held(reservation_holder(booking, one.number), one.claim)


def accepting(worker: LabWorker) -> bool:
    """Tell whether a worker may be given a session now."""
    known = condition(worker.status.conditions, WorkerCondition.ACCEPTING_LABS)
    leaving = worker.metadata.deletion_timestamp is not None or worker.spec.wanted_state == "stopped"
    return (
        worker.status.phase in HOSTING and not leaving and (known.status is Truth.TRUE if known is not None else False)
    )


def usable_from(worker: LabWorker, now: datetime, boot: timedelta) -> datetime | None:
    """Say from when on a worker can be used: now, when it will have booted, or None if it is not on its way up."""
    if accepting(worker):
        return now
    leaving = worker.metadata.deletion_timestamp is not None or worker.spec.wanted_state == "stopped"
    if leaving or worker.status.phase not in COMING:
        return None
    return max(_began(worker, now) + boot, now + min(_SOON, boot))


def _began(worker: LabWorker, now: datetime) -> datetime:
    """Say when a worker's present way up began."""
    lines = list(takewhile(lambda line: line.phase in COMING, reversed(worker.status.history)))
    return lines[-1].at if lines else now


def whole_of(worker: LabWorker) -> Amount | None:
    """Say what a worker can hold if only our own labs are on it; None while that is not known.

    What a machine that is not licensed yet can hold says nothing about what it will.
    """
    status = worker.status
    settled = status.phase in _KNOWN or (status.phase is _P.READY_UNLICENSED and worker.spec.cml.license_token is None)
    return status.capacity if settled else None


def room_of(worker: LabWorker) -> Amount | None:
    """Say what a worker can hold beside the labs that no session made; None while that is not known."""
    whole, foreign = whole_of(worker), worker.status.foreign
    if whole is None or foreign == NOTHING:
        return whole
    return Amount(**{name: max(0, getattr(whole, name) - getattr(foreign, name)) for name in DIMENSIONS})


def template_room(row: Row) -> Amount | None:
    """Say what a worker of a pool's template holds; None if its machine is not known and none was seen yet."""
    declared = declared_capacity(row.template.spec.worker)
    if declared is not None:
        return declared
    seen = [one.status.capacity for one in row.workers.values() if one.status.capacity and one.status.phase in _KNOWN]
    return seen[0] if seen else None


def standing_seats(row: Row) -> frozenset[int]:
    """Say which seats have a worker whatever is booked: the minimum's, and those whose worker no policy releases."""
    spec = row.pool.spec
    least_ = 0 if spec.policy is ScalingPolicy.NONE else min(spec.min_workers, spec.max_workers)
    kept = [] if spec.policy in OPENING else [number for number, one in row.workers.items() if _runs(one)]
    return frozenset((*range(1, least_ + 1), *kept))


def _runs(worker: LabWorker) -> bool:
    gone = worker.metadata.deletion_timestamp is not None or worker.status.phase is _P.TERMINATED
    return not gone and worker.spec.wanted_state == "running"


def seats_of(row: Row, claims: Iterable[tuple[int, Held]], terms: Terms) -> Seats | None:
    """Put a pool's claims onto its seats; None while it is not known what a seat holds.

    A seat beyond the pool's size keeps the claims it has and takes no more. What labs take that no session made is not
    gone for good: it is told apart from what a seat holds. A worker that is drained says nothing of who comes after it.
    """
    room, claims = template_room(row), list(claims)
    if room is None:
        return None
    most = row.pool.spec.max_workers
    size = max([most, *(number for number, _ in claims)])
    staying = ((number, one) for number, one in row.workers.items() if one.status.phase is not _P.DRAINING)
    own = {number: found for number, worker in staying if (found := whole_of(worker)) is not None}
    taken = {number: _strangers(row.workers[number], room) for number in own}
    beyond = dict.fromkeys(range(most + 1, size + 1), NOTHING)
    seats = Seats(
        room,
        size,
        lead=boot_lead(row.pool, terms),
        besides=standing_seats(row),
        smaller=own | beyond,
        strangers=taken,
        most=most,
    )
    for number, held in claims:
        seats.hold(number, held)
    return seats


def _strangers(worker: LabWorker, room: Amount) -> Amount:
    """Say how much less a worker holds of what its seat promises because of the labs on it that no session made."""
    whole, left = whole_of(worker), room_of(worker)
    if whole is None or left is None or left is whole:
        return NOTHING
    return least(whole, room) - least(left, room)


def usable_seats(row: Row, now: datetime, terms: Terms) -> Mapping[int, datetime]:
    """Say of each seat from when on it has a worker, without one being started for a booking."""
    lead, boot = boot_lead(row.pool, terms), usual_boot(row.pool, terms)
    found = {number: usable_from(worker, now, boot) for number, worker in row.workers.items()}
    usable = {number: moment for number, moment in found.items() if moment is not None}
    if row.pool.spec.policy in OPENING:
        standing = range(1, min(row.pool.spec.min_workers, row.pool.spec.max_workers) + 1)
        usable = dict.fromkeys(standing, now + lead) | usable
    return usable


def worker_place(worker: LabWorker, now: datetime, *, boot: timedelta, room: Amount | None = None) -> Place:
    """Give a worker as a place; `room` is what its seat holds, if it has one."""
    spec, usable = worker.spec, usable_from(worker, now, boot)
    own, whole = room_of(worker), whole_of(worker)
    return Place(
        id=worker.metadata.uid,
        name=worker.metadata.name,
        capacity=_held_in(own, room),
        whole=None if own is whole else _held_in(whole, room),
        licensed=_licensed(worker, usable, now),
        version=worker.status.cml.version,
        closed=_closed(worker, usable, now),
        usable_at=usable if usable is not None and usable > now else None,
        **_hosting(spec),  # type: ignore[arg-type]  # fields of Place, by name
    )


def _held_in(own: Amount | None, room: Amount | None) -> Amount:
    return least(own, room) if own and room else own or room or NOTHING


def coming_place(worker: LabWorker) -> Place | None:
    """Give a worker as what a booking can count on, its licence to come included; None for one that leaves."""
    status, token = worker.status, worker.spec.cml.license_token
    if worker.metadata.deletion_timestamp is not None or status.phase in _LEAVING:
        return None
    refused = status.phase is _P.READY_UNLICENSED and bool(status.failure)
    return Place(
        id=worker.metadata.uid,
        name=worker.metadata.name,
        capacity=NOTHING,
        licensed=status.cml.licensed or (token is not None and not refused),
        version=status.cml.version,
        seat=status.phase not in HOSTING,
        **_hosting(worker.spec),  # type: ignore[arg-type]  # fields of Place, by name
    )


def seat_place(row: Row, number: int, room: Amount, usable_at: datetime, *, closed: str = "") -> Place:
    """Give a seat that has no worker as a place: what its template promises."""
    return Place(
        id=seat_id(row, number),
        name=f"{row.pool.metadata.name}/{number}",
        capacity=room,
        licensed=None,
        closed=closed,
        usable_at=usable_at,
        seat=True,
        template=row.template.metadata.name,
        **_hosting(row.template.spec.worker, row.pool.spec.lab_track),  # type: ignore[arg-type]  # likewise
    )


def seat_id(row: Row, number: int) -> str:
    """Name a seat as a place."""
    return f"seat:{row.name}/{number}"


def _hosting(spec: LabWorkerSpec, track: str | None = None) -> Mapping[str, object]:
    return {
        "region": spec.aws.region,
        "track": spec.lab_track if track is None else track,
        "lab_types": frozenset(spec.lab_types),
        "licence": spec.cml.license_flavour,
    }


def _licensed(worker: LabWorker, usable: datetime | None, now: datetime) -> bool | None:
    """Tell whether a worker has a licence; of one on its way up, whether it will, unless it was refused one."""
    refused = worker.status.phase is _P.READY_UNLICENSED and bool(worker.status.failure)
    will = usable is not None and usable > now and worker.spec.cml.license_token is not None and not refused
    return will or worker.status.cml.licensed


def _closed(worker: LabWorker, usable: datetime | None, now: datetime) -> str:
    if usable is not None:
        return "" if usable <= now else BOOTING
    if worker.status.phase is _P.DRAINING or worker.metadata.deletion_timestamp is not None:
        return DRAINING
    known = condition(worker.status.conditions, WorkerCondition.ACCEPTING_LABS)
    told = known.reason if known is not None and worker.status.phase in HOSTING else str(worker.status.phase)
    return "it is wanted stopped" if worker.spec.wanted_state == "stopped" else told
