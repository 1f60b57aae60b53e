"""Claims that change their seats before anybody is on them."""

from datetime import timedelta

import pytest

from harness import given
from harness.booking_world import HOUR, NEED, Hall, booked, claim, filled, hall, worker
from harness.plane_world import NOW, service
from lcm.control.plane.protocol import Ref
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Conflict, Forbidden, Gone, Invalid, LcmError, NoRoom, TooLarge
from lcm.model.base.machine import SCHEDULER
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation, ReservationClaim, ReservationPhase
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase

POOL: Ref[LabWorkerPool] = Ref(LabWorkerPool, "ccna")
SOON = NOW + HOUR


async def pooled(it: Hall, **overrides: object) -> None:
    """Make a pool each of whose seats bears one session."""
    workers = [await it.put(worker(f"w{number}", capacity=NEED)) for number in (1, 2, 3)]
    await it.put(given.template())
    await it.put(filled(*workers, **overrides))


def reserved(*seats: int, span: Claim | None = None) -> Reservation:
    held = tuple(
        ReservationClaim(number=number, claim=span or claim(SOON, SOON + HOUR), seat=Seat(pool="ccna", number=seat))
        for number, seat in enumerate(seats, start=1)
    )
    return given.reservation(held=held, phase=ReservationPhase.PROMISED)


async def seats(it: Hall, *bookings: LabletSession | Reservation) -> list[int]:
    found: list[Seat | None] = []
    for one in bookings:
        now = await it.read(one)
        found += [now.status.seat] if isinstance(now, LabletSession) else [held.seat for held in now.status.held]
    return [seat.number for seat in found if seat]


async def test_claims_change_their_seats_all_in_one_commit() -> None:
    async with hall() as it:
        await pooled(it)
        first = await it.put(booked("s1", seat=1, phase=SessionPhase.SCHEDULED))
        second, many = await it.put(booked("s2", seat=2)), await it.put(reserved(3, span=claim(SOON, SOON + HOUR)))
        changes = [
            SeatChange(booking="s1", after=2),
            SeatChange(booking="s2", after=3),
            SeatChange(booking="r1", number=1, after=1),
        ]
        await it.follower().reseat(POOL, changes)
        assert await seats(it, first, second, many) == [2, 3, 1]
        after: list[LabletSession | Reservation] = [await it.read(first), await it.read(second), await it.read(many)]
        assert len({one.metadata.resource_version for one in after}) == 1
        await it.follower().reseat(POOL, changes)
        assert [await it.read(first), await it.read(second), await it.read(many)] == after


async def test_several_claims_of_a_reservation_move_together() -> None:
    async with hall() as it:
        await pooled(it)
        many = await it.put(reserved(1, 2))
        changes = [SeatChange(booking="r1", number=1, after=3), SeatChange(booking="r1", number=2, after=1)]
        await it.follower().reseat(POOL, changes)
        assert await seats(it, many) == [3, 1]


async def test_no_seat_gets_more_than_it_bears() -> None:
    async with hall() as it:
        await pooled(it)
        there, other = await it.put(booked("s1", seat=1)), await it.put(booked("s2", seat=2))
        third = await it.put(booked("s3", seat=3, start=NOW + timedelta(hours=5)))
        changes = [SeatChange(booking="s3", after=2), SeatChange(booking="s2", after=1)]
        with pytest.raises(NoRoom) as refused:
            await it.follower().reseat(POOL, changes)
        assert refused.value.why == "full"
        assert await seats(it, there, other, third) == [1, 2, 3]
        await it.follower().reseat(POOL, changes[:1])
        # What was tried and refused is held nowhere.
        await it.follower().reseat(POOL, [SeatChange(booking="s2", after=3), SeatChange(booking="s1", after=2)])
        assert await seats(it, there, other, third) == [2, 3, 2]


async def test_no_claim_comes_onto_a_seat_whose_worker_does_not_suit_it() -> None:
    async with hall() as it:
        abroad = given.changed(worker("w3", capacity=NEED), {"spec": {"aws": {"region": "eu-west-1"}}})
        workers = [await it.put(one) for one in (worker("w1", capacity=NEED), worker("w2", capacity=NEED), abroad)]
        await it.put(given.template())
        await it.put(filled(*workers))
        there = await it.put(booked("s1", seat=1, region_required="us-east-1"))
        with pytest.raises(NoRoom) as refused:
            await it.follower().reseat(POOL, [SeatChange(booking="s1", after=3)])
        assert refused.value.why == "region"
        await it.follower().reseat(POOL, [SeatChange(booking="s1", after=2)])
        assert await seats(it, there) == [2]


async def refusal(it: Hall, *changes: SeatChange) -> type[LcmError]:
    with pytest.raises(LcmError) as raised:
        await it.follower().reseat(POOL, changes)
    return raised.type


async def test_a_claim_that_has_a_worker_or_has_begun_stays() -> None:
    async with hall() as it:
        await pooled(it)
        await it.put(booked("bound", seat=1, phase=SessionPhase.SCHEDULED, worker_id="uid-w1", allocated_ports={}))
        await it.put(booked("begun", seat=2, start=NOW))
        await it.put(reserved(3, span=claim(NOW - HOUR, NOW + HOUR)))
        moves = (
            SeatChange(booking="bound", after=3),
            SeatChange(booking="begun", after=3),
            SeatChange(booking="r1", number=1, after=1),
            SeatChange(booking="r1", number=2, after=1),
            SeatChange(booking="missing", after=1),
        )
        assert [await refusal(it, one) for one in moves] == [Conflict] * 5


async def test_seats_that_are_not_there_and_too_many_changes_are_refused() -> None:
    async with hall() as it:
        await pooled(it)
        await it.put(booked("s1"))
        assert await refusal(it, SeatChange(booking="s1", after=4)) is NoRoom
        assert await refusal(it, *[SeatChange(booking="s1", after=2)] * 2) is Invalid
        assert await refusal(it, *(SeatChange(booking=f"s{n}", after=2) for n in range(61))) is TooLarge
        with pytest.raises(Gone):
            await it.follower().reseat(Ref(LabWorkerPool, "other"), [SeatChange(booking="s1", after=2)])
        with pytest.raises(Forbidden):
            await it.cores[0].plane_for(service(SCHEDULER)).reseat(POOL, [])
