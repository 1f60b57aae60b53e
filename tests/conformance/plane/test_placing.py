"""The plane's contract: where sessions go, and what people are told about it, in process and over HTTP alike."""

from decimal import Decimal

import pytest

from harness import given
from harness.booking_world import HOUR, counter_lab, pool, running, wanted, warm
from harness.plane_world import NOW, World, either, on
from lcm.control.objects.records import creation_ops
from lcm.control.plane.booking_actions import Move, Resize, Skip, Swap
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Conflict, Deposed, Forbidden, Gone, Invalid, NoRoom, Refused
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER
from lcm.model.kinds.placement import Assignment, PortRequest, PreviewRequest, SeatChange, Slot
from lcm.model.kinds.pool import Budget, LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase
from lcm.placement.claims import Terms
from lcm.store.base import Fence

promised = on("memory", "memory-http", "sqlite-http", terms=Terms())
everywhere = on("memory", "memory-http", "sqlite", "sqlite-http", "etcd", terms=Terms())
SESSION = Ref(LabletSession, "wanted")
CCNA = Ref(LabWorkerPool, "ccna")
NINE, ELEVEN = given.moment("09:00"), given.moment("11:00")


async def there(world: World, *resources: Resource) -> None:
    for one in resources:
        await world.store.commit(*creation_ops(one))


async def found(plane: Plane, ref: Ref[LabletSession] = SESSION) -> LabletSession:
    session = await plane.get(ref)
    assert session is not None
    return session


def onto(worker: str | None = "uid-w1", seat: int | None = None) -> Assignment:
    place = Seat(pool="ccna", number=seat) if seat else None
    return Assignment(start=NOW, end=NOW + 3 * HOUR, worker_id=worker, seat=place, reason="it fits")


def booking(name: str = "wanted", **more: object) -> LabletSession:
    return given.session(**{"name": name, "uid": "", "timeslot_start": NINE, "timeslot_end": ELEVEN} | more)


@everywhere
async def test_a_session_is_put_onto_a_worker_with_its_ports(world: World) -> None:
    await there(world, counter_lab(), warm(), wanted())
    scheduler = world.service(SCHEDULER)
    before = await found(scheduler)
    made = await scheduler.schedule(before, onto())
    assert (made.status.phase, made.status.worker_id) == (SessionPhase.SCHEDULED, "uid-w1")
    assert made == await found(scheduler)
    assert await world.service(LABLET_CONTROLLER).allocate_ports(SESSION, PortRequest()) == made
    with pytest.raises(Conflict):
        await scheduler.schedule(before, onto())
    told = await world.ada.explain(SESSION)
    assert (told.outcome, told.worker) == ("placed", "w1")


@promised
async def test_only_the_scheduler_places_and_only_what_is_there(world: World) -> None:
    await there(world, counter_lab(), warm(), wanted())
    session = await found(world.root)
    for plane in (world.ada, world.root, world.service(LABLET_CONTROLLER)):
        with pytest.raises(Forbidden):
            await plane.schedule(session, onto())
    with pytest.raises(Deposed):
        await world.service(SCHEDULER).under(Fence("scheduler", 7)).schedule(session, onto())
    with pytest.raises(NoRoom):
        await world.service(SCHEDULER).schedule(session, onto("uid-nobody"))
    gone = given.changed(session, {"metadata": {"name": "nobody"}})
    with pytest.raises(Gone):
        await world.service(SCHEDULER).schedule(gone, onto())
    with pytest.raises(Gone):
        await world.service(SCHEDULER).allocate_ports(Ref(LabletSession, "nobody"), PortRequest())


@promised
async def test_claims_change_their_seats(world: World) -> None:
    await there(world, counter_lab(), given.template(), pool())
    made = await world.ada.create(booking())
    assert made.status.seat == Seat(pool="ccna", number=1)
    controller = world.service(POOL_CONTROLLER)
    await controller.reseat(CCNA, [SeatChange(booking="wanted", after=2)])
    assert (await found(world.ada)).status.seat == Seat(pool="ccna", number=2)
    with pytest.raises(Forbidden):
        await world.root.reseat(CCNA, [SeatChange(booking="wanted", after=1)])
    with pytest.raises(Gone):
        await controller.reseat(Ref(LabWorkerPool, "nobody"), [])


@promised
async def test_a_reservation_s_claim_becomes_a_session_once(world: World) -> None:
    await there(world, counter_lab(), given.template(), pool())
    await world.ada.create(given.reservation(name="class", uid=""))
    scheduler, ref = world.service(SCHEDULER), Ref(Reservation, "class")
    (made,) = await scheduler.fulfil(ref, 1)
    assert (made.status.seat, made.spec.owner) == (Seat(pool="ccna", number=1), "ada")
    assert list(await scheduler.fulfil(ref, 1)) == [made]
    for number in (0, 3):
        with pytest.raises(Invalid) as caught:
            await scheduler.fulfil(ref, number)
        assert [fault.path for fault in caught.value.faults] == ["numbers"]
    with pytest.raises(Forbidden):
        await world.ada.fulfil(ref, 2)
    with pytest.raises(Gone):
        await scheduler.fulfil(Ref(Reservation, "nobody"), 1)


@promised
async def test_people_are_told_what_becomes_of_their_bookings(world: World) -> None:
    await there(world, counter_lab(cores=48), given.template(), pool(max_workers=1))
    wish = PreviewRequest(definition="basics", timeslot_start=NINE, timeslot_end=ELEVEN)
    would = await world.ada.preview(wish)
    assert (would.outcome, would.seat) == ("promise", Seat(pool="ccna", number=1))
    await world.bob.create(booking("of-bob"))
    refused = await world.ada.preview(wish)
    assert (refused.outcome, refused.why) == ("refuse", "full")
    assert refused.nearest[0] == Slot(start=given.moment("11:30"), end=given.moment("13:30"))
    with pytest.raises(NoRoom) as caught:
        await world.ada.create(booking("of-ada"))
    assert (caught.value.why, caught.value.nearest) == (
        refused.why,
        tuple((near.start, near.end) for near in refused.nearest),
    )
    told = await world.bob.explain(Ref(LabletSession, "of-bob"))
    assert (told.outcome, told.seat, told.slot) == ("promise", Seat(pool="ccna", number=1), would.slot)
    with pytest.raises(Gone):
        await world.ada.explain(Ref(LabletSession, "of-bob"))
    with pytest.raises(Gone):
        await world.ada.explain(Ref(LabletSession, "../workers"))
    with pytest.raises(Invalid) as wrong:
        await world.ada.preview(PreviewRequest(definition="basics"))
    assert [fault.path for fault in wrong.value.faults] == ["duration_minutes"]


@promised
async def test_the_calendar_names_ones_own_bookings_only(world: World) -> None:
    worker = warm("stray")
    await there(world, counter_lab(), given.template(), pool(max_workers=1), worker, running("on-stray", worker))
    await world.ada.create(booking())
    view = await world.ada.calendar(since=NOW, until=NOW + HOUR)
    seat, stray = view.rows
    assert [(one.name, one.owner) for one in seat.booked] == [("wanted", "ada")]
    assert (stray.worker, [one.name for one in stray.booked]) == ("stray", [""])
    assert (await world.ada.calendar(since=NOW, until=NOW + HOUR, namespace="elsewhere")).rows == ()
    everything = await world.root.calendar(since=NOW, until=NOW + HOUR, namespace="default")
    assert [one.name for row in everything.rows for one in row.booked] == ["wanted", "on-stray"]
    for until in (NOW, NOW + 24 * 63 * HOUR):
        with pytest.raises(Invalid):
            await world.ada.calendar(since=NOW, until=until)


@promised
async def test_budgets_are_listed_with_what_is_spent_and_promised(world: World) -> None:
    limited = pool(budget=Budget(monthly_usd=Decimal(20)))
    await there(world, counter_lab(), given.template(price_per_hour_usd=Decimal("6.0007")), limited)
    await world.ada.create(booking())
    (told,) = await world.root.budgets()
    assert (told.kind, told.name) == ("pool", "ccna")
    assert (told.limit_usd, told.warn_usd) == (Decimal(20), Decimal(16))
    assert told.spent_usd == 0
    assert told.month_usd > 2 * 6
    assert told.month_usd == round(told.month_usd, 6), "as all amounts"
    with pytest.raises(Forbidden):
        await world.ada.budgets()


@either
async def test_where_nothing_is_promised_nothing_is_told(world: World) -> None:
    await there(world, counter_lab(), wanted())
    with pytest.raises(Refused, match="without terms"):
        await world.ada.explain(SESSION)
    with pytest.raises(Refused, match="without terms"):
        await world.ada.preview(PreviewRequest(definition="basics", duration_minutes=30))
    with pytest.raises(Refused, match="without terms"):
        await world.ada.calendar(since=NOW, until=NOW + HOUR)
    with pytest.raises(Gone):
        await world.bob.explain(SESSION)


@promised
async def test_a_class_is_changed_as_a_whole_or_refused_with_slots_that_would_do(world: World) -> None:
    await there(world, counter_lab(), given.template(), pool(max_workers=1))
    ref = Ref(Reservation, "class")
    booked = given.reservation(name="class", uid="", count=2, student_emails=("a@b.org", "c@d.org"))
    made = await world.ada.create(booked)
    moved = await world.ada.act(ref, Move(minutes=60), at=made.metadata.resource_version, request="m1")
    assert moved.spec.timeslot_start == NINE + HOUR
    assert await world.ada.act(ref, Move(minutes=60), request="m1") == moved
    with pytest.raises(Conflict):
        await world.ada.act(ref, Move(minutes=60), at=made.metadata.resource_version)
    with pytest.raises(NoRoom):
        await world.ada.act(ref, Resize(seats=300, student_emails=tuple(f"p{n}@b.org" for n in range(300))))
    swapped = await world.ada.act(ref, Swap(learner="a@b.org", other="c@d.org"), dry_run=True)
    assert swapped.spec.student_emails == ("c@d.org", "a@b.org")
    assert await world.ada.get(ref) == moved
    with pytest.raises(Refused, match="nothing of class would be left"):
        await world.ada.act(ref, Skip(occurrence=1))
    alone = await world.ada.create(booking(timeslot_start=NINE + 5 * HOUR, timeslot_end=NINE + 6 * HOUR))
    later = await world.ada.act(Ref(LabletSession, alone.metadata.name), Move(start=NINE + 6 * HOUR))
    assert later.status.ends_at == NINE + 7 * HOUR
