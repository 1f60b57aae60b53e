"""Better seats before workers are launched: fewer of them, for the same bookings."""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import structlog

from harness import given
from harness.scheduler_world import HOUR, MINUTE, Pools, names
from lcm.control.plane.protocol import Ref
from lcm.controllers.pool.demand import plan
from lcm.controllers.pool.effects import SeatOptimizer, find_better_seats
from lcm.controllers.pool.index import PoolClaims, SeatClaim
from lcm.controllers.pool.view import PoolView
from lcm.model.base.capacity import Claim
from lcm.model.base.resource import Metadata
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.pool import PoolPhase, ScalingPolicy
from lcm.model.kinds.reservation import Reservation, ReservationSpec
from lcm.model.kinds.session import LabletSession
from lcm.placement.claims import Terms
from lcm.placement.request import HeldClaim
from lcm.sim.time.loop import run

NOW = given.moment("08:00")


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def claimed(number: int, start: str, end: str, holder: str) -> SeatClaim:
    span = Claim(start=given.moment(start), end=given.moment(end), need=given.amount())
    return SeatClaim(number, HeldClaim(f"default/{holder}", span))


def view(*claims: SeatClaim, now: datetime = NOW, **fields: object) -> PoolView:
    pool = given.pool(**{"min_workers": 0, "max_workers": 3, "phase": PoolPhase.READY} | fields)
    return PoolView(pool, given.template(), now, Terms(), PoolClaims(claims))


APART = (claimed(1, "10:00", "12:00", "s1"), claimed(2, "10:00", "12:00", "r1#3"))


def test_claims_of_sessions_and_reservations_move_to_where_fewer_workers_run() -> None:
    assert find_better_seats(view(*APART), {}) == [[SeatChange(booking="r1", after=1, number=3)]]


def test_what_begins_so_soon_that_its_worker_is_started_stays() -> None:
    assert find_better_seats(view(*APART, now=given.moment("09:31")), {}) == []


def test_what_begins_much_later_has_time() -> None:
    assert find_better_seats(view(*APART, now=given.moment("09:00", day=-1)), {}) == []


def test_seats_are_looked_at_shortly_before_a_launch_and_only_when_claims_changed() -> None:
    async def life() -> None:
        world = Pools()
        reseating = SeatOptimizer(world.plane("pool-controller"))
        early = view(claimed(1, "10:00", "12:00", "s1"))
        assert reseating.next_look(early, plan(early)) == given.moment("09:25")
        near = view(claimed(1, "10:00", "12:00", "s1"), now=given.moment("09:26"))
        assert reseating._is_due(near, plan(near), 1)
        assert not reseating._is_due(early, plan(early), 1)
        await reseating.improve(near, plan(near), 1)
        later = view(claimed(1, "10:00", "12:00", "s1"), now=given.moment("09:29"))
        assert not reseating._is_due(later, plan(later), 2)
        later = view(claimed(1, "10:00", "12:00", "s1"), now=given.moment("09:31"))
        assert not reseating._is_due(later, plan(later), 1)
        assert reseating._is_due(later, plan(later), 2)

    run(life)


@pytest.mark.parametrize("fields", [{"policy": ScalingPolicy.NONE}, {"phase": PoolPhase.DRAINING}])
def test_a_pool_that_opens_no_seats_moves_nobody(fields: dict[str, object]) -> None:
    async def life() -> None:
        reseating = SeatOptimizer(Pools().plane("pool-controller"))
        near = view(*APART, now=given.moment("09:26"), **fields)
        assert not reseating._is_due(near, plan(near), 1)

    run(life)


def test_after_a_cancellation_one_worker_is_launched_where_two_were_booked() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(cpu=20)
        start = world.clock.now() + 3 * HOUR
        async with world.following():
            for name in ("s1", "s2"):
                await world.book(name, start)
            spec = ReservationSpec(
                definition="basics:1.0.0", timeslot_start=start, timeslot_end=start + 2 * HOUR, count=1
            )
            group = await world.otto.create(Reservation(metadata=Metadata(name="group"), spec=spec))
            assert [one.seat.number for one in group.status.held if one.seat] == [2]
            await world.otto.delete(Ref(LabletSession, "s2"))
            await asyncio.sleep((3 * HOUR - 39 * MINUTE).total_seconds())
            assert names(await world.workers()) == ["ccna-1"]
            moved = await world.otto.get(Ref(Reservation, "group"))
            assert moved is not None
            assert [one.seat.number for one in moved.status.held if one.seat] == [1]

    run(life)


def test_what_the_plane_refuses_is_left_where_it_is() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(cpu=20)
        async with world.booking():
            await world.book("s1", world.clock.now() + 3 * HOUR)
            reseating = SeatOptimizer(world.plane("pool-controller"))
            now = world.clock.now() + 2 * HOUR + timedelta(minutes=15)
            need = given.amount()
            held = [
                HeldClaim(f"default/{name}", Claim(start=now + HOUR / 2, end=now + 2 * HOUR, need=need))
                for name in ("s1", "gone")
            ]
            claims = [SeatClaim(number, one) for number, one in enumerate(held, start=1)]
            stale = PoolView(await world.pool(), given.template(), now, Terms(), PoolClaims(claims))
            assert not await reseating.improve(stale, plan(stale), 1)
            kept = await world.otto.get(Ref(LabletSession, "s1"))
            assert kept is not None
            assert kept.status.seat is not None
            assert kept.status.seat.number == 1

    run(life)
