"""Workers and pools as the places of placement: what each can hold, from when on, and who has a claim on it.

Pure. The calendar, the scheduler and the pool controller build their views of the fleet from this.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import takewhile
from typing import Final, NamedTuple

from msgspec.structs import replace

from lcm.model.base.capacity import DIMENSIONS, ZERO_AMOUNT, Amount, dimension_words, find_exceeded
from lcm.model.base.resource import Truth, find_condition, has_condition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation
from lcm.model.kinds.session import LabletSession, get_claim
from lcm.model.kinds.worker import (
    HOSTING_PHASES,
    NOT_ADMITTED,
    LabWorker,
    LabWorkerSpec,
    WorkerCondition,
    WorkerPhase,
)
from lcm.model.money.prices import PriceBook, declared_capacity
from lcm.placement.claims import Terms, boot_lead, usual_boot
from lcm.placement.limits import OPENING_POLICIES
from lcm.placement.preference import planned_usd
from lcm.placement.request import BOOTING, DRAINING, HeldClaim, Place, PlacementRequest
from lcm.placement.rules import static_rejection
from lcm.placement.seats import RunLimit, Seats, smaller_amount
from lcm.placement.small_runs import run_pause, saved_hourly, smaller_room
from lcm.placement.timeline import micros
from lcm.placement.workers import KnownWorkers, definitions_of, find_image_facts, image_of, version_of

_P: Final = WorkerPhase
COMING_PHASES: Final = frozenset(
    {_P.PENDING, _P.PROVISIONING_EC2, _P.EC2_READY, _P.STARTING, _P.READY_UNLICENSED, _P.LICENSING}
)
"""Phases of a machine that is on its way up."""
_SIZED_PHASES: Final = frozenset({_P.READY, _P.ACTIVE, _P.DRAINING})
_LEAVING_PHASES: Final = frozenset({_P.DRAINING, _P.TERMINATING_EC2, _P.TERMINATED, _P.FAILED})
_SHORTEST_WAIT: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool with its template and the workers that fill its seats, by number.

    `node_definitions` are those that workers of the template's image have, None while none has listed them, and
    `version` is that of their CML, "" while none has told it. A worker tells it whether it fills a seat or not, so
    that what is known is not forgotten when its seat is given up. `usd_hourly` is what a machine of it costs;
    `saved_hourly` tells of seats with a smaller machine until when it costs less, and by how much.
    """

    pool: LabWorkerPool
    template: WorkerTemplate
    workers: Mapping[int, LabWorker]
    node_definitions: frozenset[str] | None = None
    version: str = ""
    usd_hourly: Decimal | None = None
    saved_hourly: Mapping[int, tuple[datetime, Decimal]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The pool's "namespace/name"."""
        return f"{self.pool.metadata.namespace}/{self.pool.metadata.name}"


def snapshot_pool(
    pool: LabWorkerPool, template: WorkerTemplate, workers: KnownWorkers, prices: PriceBook
) -> PoolSnapshot:
    """Combine a pool with those of the workers that fill its seats.

    What its image has is told by those in seats, or else by any other.
    """
    filled = ((seat.number, workers.get(seat.worker_id)) for seat in pool.status.seats)
    there = {number: worker for number, worker in filled if worker is not None}
    image = image_of(template.spec.worker)
    own = find_image_facts(one for one in there.values() if image_of(one.spec) == image)
    others = workers.image_facts(image)
    definitions = others.node_definitions if own.node_definitions is None else own.node_definitions
    return PoolSnapshot(
        pool,
        template,
        there,
        definitions,
        own.version or others.version,
        planned_usd(template, prices),
        saved_hourly(template, pool.status.small_runs, prices),
    )


def session_holder(session: LabletSession) -> str:
    """Return the name under which a session holds a claim."""
    return f"{session.metadata.namespace}/{session.metadata.name}"


def reservation_holder(reservation: Reservation, number: int) -> str:
    """Return the name under which a reservation holds a claim, as long as no session has taken it over."""
    return f"{reservation.metadata.namespace}/{reservation.metadata.name}#{number}"


def claims_of_booking(booking: LabletSession | Reservation) -> Iterator[tuple[str, int, HeldClaim]]:
    """Iterate over the claims that a booking has on seats: the pool's name, the seat's number, the claim."""
    if isinstance(booking, LabletSession):
        claim, seat = get_claim(booking), booking.status.seat
        if claim is not None and seat is not None:
            yield seat.pool, seat.number, HeldClaim(session_holder(booking), claim)
    elif booking.status.phase not in RESERVATION_MACHINE.final:
        for one in booking.status.held:
            if one.session is None and one.seat is not None:
                yield one.seat.pool, one.seat.number, HeldClaim(reservation_holder(booking, one.number), one.claim)


def is_accepting(worker: LabWorker) -> bool:
    """Return whether a worker may be given a session now."""
    accepts = has_condition(worker.status.conditions, WorkerCondition.ACCEPTING_LABS, Truth.TRUE)
    return accepts and worker.status.phase in HOSTING_PHASES and not _is_closed(worker)


def _is_closed(worker: LabWorker) -> bool:
    """Return whether somebody wants no more sessions on a worker, whatever it could do."""
    stays = worker.metadata.deletion_timestamp is None and worker.spec.wanted_state == "running"
    return not (stays and worker.spec.accepts_sessions)


def is_wanted(worker: LabWorker) -> bool:
    """Return whether a worker runs or is going to run."""
    gone = worker.metadata.deletion_timestamp is not None or worker.status.phase is _P.TERMINATED
    return not gone and worker.spec.wanted_state == "running"


def usable_from(worker: LabWorker, now: datetime, boot: timedelta) -> datetime | None:
    """Return when a worker can be used: now, or once it has booted; None if it is not on its way up."""
    if is_accepting(worker):
        return now
    if _is_closed(worker) or worker.status.phase not in COMING_PHASES:
        return None
    way_up = list(takewhile(lambda line: line.phase in COMING_PHASES, reversed(worker.status.history)))
    since = way_up[-1].at if way_up else now
    return max(since + boot, now + min(_SHORTEST_WAIT, boot))


def full_capacity(worker: LabWorker) -> Amount | None:
    """Return what a worker can hold if only sessions' labs are on it; None while that is not known.

    The capacity of a machine that is not licensed yet says nothing about what it will have.
    """
    status = worker.status
    settled = status.phase in _SIZED_PHASES or (
        status.phase is _P.READY_UNLICENSED and worker.spec.cml.license_token is None
    )
    return status.capacity if settled else None


def room_of(worker: LabWorker) -> Amount | None:
    """Return what a worker can hold beside the labs that no session made; None while that is not known."""
    whole, foreign = full_capacity(worker), worker.status.foreign
    if whole is None or foreign == ZERO_AMOUNT:
        return whole
    return Amount(**{name: max(0, getattr(whole, name) - getattr(foreign, name)) for name in DIMENSIONS})


def template_room(row: PoolSnapshot) -> Amount | None:
    """Return what a worker of a pool's template holds.

    None means that its machine type is not known and no worker of it was seen yet.
    """
    declared = declared_capacity(row.template.spec.worker)
    if declared is not None:
        return declared
    seen = [
        one.status.capacity for one in row.workers.values() if one.status.capacity and one.status.phase in _SIZED_PHASES
    ]
    return seen[0] if seen else None


def standing_seats(row: PoolSnapshot) -> frozenset[int]:
    """Return the seats that have a worker whatever is booked, while the pool is open.

    These are the pool's minimum, and those whose worker others made: no policy gives it up. What load keeps open is
    not among them: it yields to what is promised.
    """
    return frozenset(range(1, least_workers(row.pool) + 1)) | foreign_seats(row)


def least_workers(pool: LabWorkerPool) -> int:
    """Return how many workers a pool keeps while it is open."""
    return min(pool.spec.min_workers, pool.spec.max_workers)


def foreign_seats(row: PoolSnapshot) -> frozenset[int]:
    """Return the seats whose worker runs and was made by others, under the policies that adopt such workers."""
    uid = row.pool.metadata.uid
    if row.pool.spec.policy in OPENING_POLICIES:
        return frozenset()
    owners = ((number, one, one.metadata.owner) for number, one in row.workers.items())
    return frozenset(number for number, one, owner in owners if is_wanted(one) and (owner is None or owner.uid != uid))


class SeatShapes(NamedTuple):
    """What a pool's seats are made of besides its claims: what each holds, and which always have a worker.

    `own` is what the workers in seats hold, and `taken` what strangers take of that. Machines of smaller types are in
    `limits` instead.
    """

    room: Amount
    lead: timedelta
    most: int
    always: frozenset[int]
    own: Mapping[int, Amount]
    taken: Mapping[int, Amount]
    limits: Mapping[int, RunLimit]


def seat_shapes(row: PoolSnapshot, terms: Terms) -> SeatShapes | None:
    """Return what a pool's seats are made of now; None while the size of a seat is not known."""
    room = template_room(row)
    if room is None:
        return None
    staying = ((number, one) for number, one in row.workers.items() if one.status.phase is not _P.DRAINING)
    own = {number: found for number, worker in staying if (found := full_capacity(worker)) is not None}
    taken = {number: _foreign_usage(row.workers[number], room) for number in own}
    lead, limits = boot_lead(row.pool, terms), dict[int, RunLimit]()
    for run in row.pool.status.small_runs:
        holds = small_run_room(row, run.number) or room
        there = own.pop(run.number, holds)
        pause = run_pause(lead) // timedelta.resolution
        limits[run.number] = RunLimit(smaller_amount(holds, there), micros(run.until), pause)
    return SeatShapes(room, lead, row.pool.spec.max_workers, standing_seats(row), own, taken, limits)


def small_run_room(row: PoolSnapshot, number: int) -> Amount | None:
    """Return what the smaller machine of a seat holds, there or coming; None if it has none."""
    run = next((one for one in row.pool.status.small_runs if one.number == number), None)
    return smaller_room(row.template.spec.worker, run.instance_type) if run else None


def make_seats(shapes: SeatShapes, size: int) -> Seats:
    """Return so many seats, at least the most of the pool, without claims; those beyond it only keep what they have."""
    beyond = dict.fromkeys(range(shapes.most + 1, size + 1), ZERO_AMOUNT)
    return Seats(
        shapes.room,
        max(size, shapes.most),
        lead=shapes.lead,
        besides=shapes.always,
        smaller={**shapes.own, **beyond},
        strangers=shapes.taken,
        limits=shapes.limits,
        most=shapes.most,
    )


def adjust_seats(seats: Seats, before: SeatShapes, after: SeatShapes) -> bool:
    """Change seats to other shapes, at the cost of those that changed. Return False if they must be made anew."""
    if before[:3] != after[:3]:
        return False
    for number in {*before.own, *after.own, *before.limits, *after.limits}:
        if number <= len(seats):
            own = after.own.get(number) if number <= after.most else ZERO_AMOUNT
            seats.reshape(number, own, after.taken.get(number, ZERO_AMOUNT), after.limits.get(number))
    if before.always != after.always:
        seats.set_always(after.always)
    return True


def seats_of(row: PoolSnapshot, claims: Iterable[tuple[int, HeldClaim]], terms: Terms) -> Seats | None:
    """Return a pool's seats with its claims on them; None while the size of a seat is not known."""
    shapes, claims = seat_shapes(row, terms), list(claims)
    if shapes is None:
        return None
    seats = make_seats(shapes, max((number for number, _ in claims), default=0))
    for number, held in claims:
        seats.hold(number, held)
    return seats


def _foreign_usage(worker: LabWorker, room: Amount) -> Amount:
    """Return how much less of what its seat promises a worker holds because of labs that no session made."""
    whole, left = full_capacity(worker), room_of(worker)
    if whole is None or left is None or left is whole:
        return ZERO_AMOUNT
    return smaller_amount(whole, room) - smaller_amount(left, room)


def usable_seats(row: PoolSnapshot, now: datetime, terms: Terms) -> Mapping[int, datetime]:
    """Return from when on each seat has a worker, without one being started for a booking."""
    lead, boot = boot_lead(row.pool, terms), usual_boot(row.pool, terms)
    found = {number: usable_from(worker, now, boot) for number, worker in row.workers.items()}
    usable = {number: moment for number, moment in found.items() if moment is not None}
    # One of the minimum that is stopped now runs while the pool is open.
    opens = row.pool.spec.policy in OPENING_POLICIES
    standing = [one for one in range(1, least_workers(row.pool) + 1) if opens or one in row.workers]
    return dict.fromkeys(standing, now + lead) | usable


def worker_place(worker: LabWorker, now: datetime, *, boot: timedelta, room: Amount | None = None) -> Place:
    """Return a worker as a place; `room` is what its seat holds, if it has one."""
    spec, usable = worker.spec, usable_from(worker, now, boot)
    own, whole = room_of(worker), full_capacity(worker)
    return Place(
        id=worker.metadata.uid,
        name=worker.metadata.name,
        capacity=_capacity_in(own, room),
        whole=None if own is whole else _capacity_in(whole, room),
        licensed=_will_be_licensed(worker, usable, now),
        version=worker.status.cml.version,
        node_definitions=definitions_of([worker]),
        closed=_closed_reason(worker, usable, now),
        usable_at=usable if usable is not None and usable > now else None,
        **_hosting_fields(spec),  # type: ignore[arg-type]  # fields of Place, by name
    )


def _capacity_in(own: Amount | None, room: Amount | None) -> Amount:
    return smaller_amount(own, room) if own and room else own or room or ZERO_AMOUNT


def expected_place(worker: LabWorker) -> Place | None:
    """Return a worker as a booking can count on it, its coming licence included; None if it is leaving."""
    status, token = worker.status, worker.spec.cml.license_token
    if worker.metadata.deletion_timestamp is not None or status.phase in _LEAVING_PHASES:
        return None
    refused = status.phase is _P.READY_UNLICENSED and bool(status.failure)
    return Place(
        id=worker.metadata.uid,
        name=worker.metadata.name,
        capacity=ZERO_AMOUNT,
        licensed=status.cml.licensed or (token is not None and not refused),
        version=status.cml.version,
        node_definitions=definitions_of([worker]),
        seat=status.phase not in HOSTING_PHASES,
        **_hosting_fields(worker.spec),  # type: ignore[arg-type]  # fields of Place, by name
    )


def with_image_facts(place: Place, worker: LabWorker, row: PoolSnapshot) -> Place:
    """Return the place of a worker with what it has not told yet, but others of its pool's image have.

    Who cannot use them need not wait for it.
    """
    if image_of(worker.spec) != image_of(row.template.spec.worker):
        return place
    definitions = row.node_definitions if place.node_definitions is None else place.node_definitions
    return replace(place, version=place.version or row.version, node_definitions=definitions)


def template_place(row: PoolSnapshot) -> Place | None:
    """Return the place that every seat without a worker stands for; None while its size is not known."""
    room = template_room(row)
    if room is None:
        return None
    return replace(seat_place(row, 0, room, datetime.min.replace(tzinfo=UTC)), name=row.pool.metadata.name)


def find_unhostable(
    rows: Iterable[PoolSnapshot], workers: Iterable[LabWorker], request: PlacementRequest, now: datetime
) -> tuple[str, str, str] | None:
    """Return why no pool and no worker could ever host a request: a pool, the filter, the reason. None if one could.

    None also if no pool serves the request's track: a worker may be added for it at any time.
    """
    found = list[tuple[str, str, str]]()
    for row in rows:
        place = template_place(row)
        rejected = _lasting_rejection(place, request) if place is not None else None
        if rejected is None:
            return None
        if rejected[0] != "track":
            found.append((row.name, *rejected))
    by_image = defaultdict[object, list[LabWorker]](list)
    for worker in workers if found else ():
        by_image[image_of(worker.spec)].append(worker)
    if not found or any(_could_host(one, alike, request, now) for alike in by_image.values() for one in alike):
        return None
    return found[0]


def _could_host(worker: LabWorker, alike: Sequence[LabWorker], request: PlacementRequest, now: datetime) -> bool:
    """Return whether a worker could host a request once it is up, empty, and has the licence that it is to get.

    What is not known of it yet is known from those of its image.
    """
    size, cml = worker.status.capacity or declared_capacity(worker.spec), worker.status.cml
    place = replace(
        worker_place(worker, now, boot=timedelta(0)),
        seat=True,
        licensed=cml.licensed or worker.spec.cml.license_token is not None,
        version=cml.version or version_of(alike),
        node_definitions=definitions_of([worker] if cml.node_definitions is not None else alike),
    )
    return size is None or _lasting_rejection(replace(place, capacity=size), request) is None


def _lasting_rejection(place: Place, request: PlacementRequest) -> tuple[str, str] | None:
    """Return the filter by which even an empty place rejects a request, and the reason; None if none does."""
    large = find_exceeded(request.claim.need, place.capacity)
    lacking = "too_large", f"it needs more {dimension_words(large)} than a worker has"
    return static_rejection(place, request) or (lacking if large else None)


def unopened_id(pool: str, number: int) -> str:
    """Return the id of the place that a seat without a worker is; a pool is named with its namespace."""
    return f"seat:{pool}/{number}"


def seat_place(row: PoolSnapshot, number: int, room: Amount, usable_at: datetime, *, closed: str = "") -> Place:
    """Return a seat that has no worker as a place: what its template promises, and what others of its image have."""
    return Place(
        id=unopened_id(row.name, number),
        name=f"{row.pool.metadata.name}/{number}",
        capacity=room,
        licensed=None,
        version=row.version,
        node_definitions=row.node_definitions,
        closed=closed,
        usable_at=usable_at,
        seat=True,
        template=row.template.metadata.name,
        usd_hourly=row.usd_hourly,
        **_hosting_fields(row.template.spec.worker, row.pool.spec.lab_track),  # type: ignore[arg-type]  # fields of Place
    )


def _hosting_fields(spec: LabWorkerSpec, track: str | None = None) -> Mapping[str, object]:
    return {
        "region": spec.aws.region,
        "track": spec.lab_track if track is None else track,
        "lab_types": frozenset(spec.lab_types),
        "licence": spec.cml.license_flavour,
        "spot": spec.aws.market == "spot",
    }


def _will_be_licensed(worker: LabWorker, usable: datetime | None, now: datetime) -> bool | None:
    """Return whether a worker has a licence; while it comes up, whether it will, unless it was refused one."""
    refused = worker.status.phase is _P.READY_UNLICENSED and bool(worker.status.failure)
    will = usable is not None and usable > now and worker.spec.cml.license_token is not None and not refused
    return will or worker.status.cml.licensed


def _closed_reason(worker: LabWorker, usable: datetime | None, now: datetime) -> str:
    if usable is not None:
        return "" if usable <= now else BOOTING
    if worker.status.phase is _P.DRAINING or worker.metadata.deletion_timestamp is not None:
        return DRAINING
    if not worker.spec.accepts_sessions:
        return NOT_ADMITTED
    known = find_condition(worker.status.conditions, WorkerCondition.ACCEPTING_LABS)
    reason = known.reason if known is not None and worker.status.phase in HOSTING_PHASES else str(worker.status.phase)
    return "it is wanted stopped" if worker.spec.wanted_state == "stopped" else reason
