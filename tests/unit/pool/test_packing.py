"""Better seats before workers are launched: fewer of them, for the same bookings."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial

import msgspec
import pytest
import structlog

from harness import given
from harness.scheduler_world import HOUR, MINUTE, Pools, names
from harness.suite import here, longest_turn
from harness.workers import beside
from lcm.control.booking import seat_moves
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Ref, ref_of
from lcm.controllers.pool import packing
from lcm.controllers.pool.demand import plan
from lcm.controllers.pool.index import PoolClaims, SeatClaim
from lcm.controllers.pool.packing import (
    CLAIMS_PER_CHANGE,
    HORIZON,
    MANY_CHANGES,
    MOST_CLAIMS,
    SeatPacker,
    _LastPacking,
    _seat_change,
    make_problem,
    pack_here,
)
from lcm.controllers.pool.view import PoolView
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Later
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.pool import LabWorkerPool, PoolPacking, PoolPhase, ScalingPolicy, SmallRun
from lcm.model.kinds.reservation import Reservation, ReservationSpec
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.placement.claims import Terms
from lcm.placement.pack_problem import STEPS_PER_CLAIM, PackAnswer, PackProblem, solve_packing
from lcm.placement.pack_steps import SeatMove
from lcm.placement.request import HeldClaim
from lcm.placement.small_runs import SmallerType
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


def better_seats(seen: PoolView, filled: Mapping[int, LabWorker] | None = None) -> list[list[SeatChange]]:
    """Return what a packer would ask for."""
    problem = run(lambda: make_problem(seen, filled or {}, len(seen.claims)))
    steps = solve_packing(problem).steps if problem else ()
    return [[_seat_change(move) for move in step] for step in steps]


def test_claims_of_sessions_and_reservations_move_to_where_fewer_workers_run() -> None:
    assert better_seats(view(*APART)) == [[SeatChange(booking="r1", after=1, number=3)]]


def test_what_begins_so_soon_that_its_worker_is_started_stays() -> None:
    assert better_seats(view(*APART, now=given.moment("09:31"))) == []


def test_what_begins_much_later_has_time() -> None:
    assert better_seats(view(*APART, now=given.moment("09:00", day=-8))) == []


def test_what_lasts_until_others_begin_that_are_left_for_later_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    later = claimed(1, "11:30", "13:00", "s3")
    assert better_seats(view(*APART, later)) == [[SeatChange(booking="r1", after=1, number=3)]]
    monkeypatch.setattr(packing, "HORIZON", timedelta(hours=3))
    assert better_seats(view(*APART, later)) == []
    assert better_seats(view(*APART, claimed(1, "12:00", "13:00", "s3")))
    monkeypatch.undo()
    monkeypatch.setattr(packing, "MOST_CLAIMS", 2)
    assert better_seats(view(*APART, later)) == []


async def test_a_problem_of_many_claims_is_made_in_turns() -> None:
    span = [(f"{9 + number % 9}:{number % 60:02}", f"{11 + number % 9}:00") for number in range(540)]
    claims = [claimed(1 + number % 900, *span[number % 540], f"s{number}") for number in range(30_000)]
    many = view(*claims, max_workers=1000)
    problem = await make_problem(many, {}, 1)
    assert problem is not None
    assert len(problem.claims) == MOST_CLAIMS
    assert await longest_turn(make_problem(many, {}, 1)) < here(0.05)


def test_what_has_a_worker_stays() -> None:
    first, second = APART
    placed = [SeatClaim(one.number, one.held, worker_id="w") for one in (first, second)]
    assert better_seats(view(*placed)) == []


def test_nothing_comes_onto_a_worker_that_is_smaller_or_has_labs_of_others() -> None:
    small = given.worker(phase=WorkerPhase.ACTIVE, capacity=given.amount(cpu_millis=1))
    whole = given.worker(phase=WorkerPhase.ACTIVE, capacity=given.machine())
    problem = run(lambda: make_problem(view(*APART), {1: small, 3: whole}, 1))
    assert problem is not None
    assert problem.terms.closed == {1}


def test_nothing_comes_onto_a_smaller_machine_and_its_seat_stays_closed_after_it() -> None:
    runs = (SmallRun(number=2, instance_type="m8i.4xlarge", until=given.moment("13:00")),)
    problem = run(lambda: make_problem(view(*APART, small_runs=runs), {}, 1))
    assert problem is not None
    assert problem.terms.closed == {2}
    assert problem.kinds == ()
    small = SmallerType("m8i.4xlarge", given.machine(cpu_millis=16_000), Decimal("0.8"))
    priced = run(lambda: make_problem(replace(view(*APART), smaller=(small,), usd_hourly=Decimal(2)), {}, 1))
    assert priced is not None
    assert [(one.name, one.price, one.capacity.cpu_millis) for one in priced.kinds] == [
        ("", 2_000, 48_000),
        ("m8i.4xlarge", 800, 16_000),
    ]


def test_claims_on_seats_beyond_the_pools_most_stay_there() -> None:
    problem = run(lambda: make_problem(view(*APART, claimed(5, "10:00", "12:00", "s5")), {}, 1))
    assert problem is not None
    assert problem.terms.seats == 5
    assert problem.terms.closed == {4, 5}


def packer(world: Pools) -> SeatPacker:
    plane = world.plane(POOL_CONTROLLER)
    return SeatPacker(plane, Cache(plane), clock=world.clock, chance=world.half, pack=pack_here)


def test_figures_that_were_written_are_those_of_the_pool() -> None:
    now = given.moment("09:00")
    new = PoolPacking(at=now, until=now + HORIZON, claims=2, moved=1, machine_hours=4, least_machine_hours=4)
    written, old = (msgspec.structs.replace(new, at=at, saved_usd=Decimal(5)) for at in (now, now - HOUR))

    async def life() -> None:
        seen = packer(Pools())
        seen._figures["uid-ccna"] = new
        assert seen.figures_of(given.pool()) == new
        assert seen.figures_of(given.pool(packing=old)) == new
        assert seen.figures_of(given.pool(packing=written)) == written, "else it would be written again and again"

    run(life)


def due(packing: SeatPacker, seen: PoolView) -> str:
    """Return when a pool is packed, in hours and minutes; "" if that would change nothing."""
    moment = packing._due_at(seen, plan(seen))
    return f"{moment:%H:%M}" if moment else ""


def test_claims_are_packed_shortly_before_a_launch_and_only_when_they_changed() -> None:
    async def life() -> None:
        packing, uid = packer(Pools()), view().pool.metadata.uid
        packing.consider(view(*APART), plan(view(*APART)))
        assert list(packing._wanted) == [ref_of(view().pool)]
        assert due(packing, view(*APART, now=given.moment("09:31"))) == ""
        more = (*APART, claimed(3, "12:00", "13:00", "s3"))
        for last, expected in (("07:00", "07:30"), ("09:00", "09:25"), ("09:23", "09:28")):
            packing._last[uid] = _LastPacking(given.moment(last), 2)
            assert due(packing, view(*more, now=given.moment("09:24"))) == expected

    run(life)


def test_claims_are_packed_soon_after_many_changes() -> None:
    async def life() -> None:
        packing, uid = packer(Pools()), view().pool.metadata.uid
        many = [claimed(1, "20:00", "21:00", f"s{number}") for number in range(MANY_CHANGES)]
        for known, expected in ((0, "08:05"), (1, "08:30")):
            packing._last[uid] = _LastPacking(NOW, known)
            assert due(packing, view(*many)) == expected

    run(life)


@pytest.mark.parametrize("fields", [{"policy": ScalingPolicy.NONE}, {"phase": PoolPhase.DRAINING}])
def test_a_pool_that_opens_no_seats_moves_nobody(fields: dict[str, object]) -> None:
    async def life() -> None:
        assert due(packer(Pools()), view(*APART, now=given.moment("09:26"), **fields)) == ""

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
            packing, ref = packer(world), Ref(LabWorkerPool, "ccna")
            gone, away = SeatMove("default/gone", 1, 2), SeatMove("default/away", 1, 2)
            assert await packing._take_steps(ref, [[gone, away], [gone, SeatMove("default/s1", 1, 2), away]]) == 1
            kept = await world.otto.get(Ref(LabletSession, "s1"))
            assert kept is not None
            assert kept.status.seat is not None
            assert kept.status.seat.number == 2

    run(life)


def test_a_step_that_is_too_large_for_a_commit_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def life() -> None:
        world = Pools()
        await world.found(cpu=20)
        async with world.booking():
            start = world.clock.now() + 3 * HOUR
            for number in range(5):
                await world.book(f"s{number}", start + 2 * number * HOUR, HOUR)
            step = [SeatMove(f"default/s{number}", 1, number + 2) for number in range(5)]
            monkeypatch.setattr(seat_moves, "MOST_MOVES", 2)
            assert await packer(world)._take_steps(Ref(LabWorkerPool, "ccna"), [step]) == 5
            made = (await world.otto.list(LabletSession)).items
            assert [one.status.seat.number for one in made if one.status.seat] == [2, 3, 4, 5, 6]

    run(life)


def test_a_packing_that_fails_is_tried_again() -> None:
    async def life() -> None:
        tried: list[PackProblem] = []

        async def pack(problem: PackProblem) -> PackAnswer:
            tried.append(problem)
            if len(tried) < 3:
                raise Later("no process can be started")
            return await pack_here(problem)

        world = Pools()
        await world.found(cpu=20)
        async with world.booking(), beside(replace(world.pool_controller(), pack=pack).run()):
            start = world.clock.now() + 3 * HOUR
            for name in ("s1", "s2", "s3", "s4"):
                await world.book(name, start)
            for name in ("s1", "s3"):
                await world.otto.delete(Ref(LabletSession, name))
            await asyncio.sleep((3 * HOUR - 43 * MINUTE).total_seconds())
            assert len(tried) == 3
            left = (await world.otto.list(LabletSession)).items
            assert len({one.status.seat for one in left}) == 1

    run(life)


def test_the_operator_reads_how_well_a_pool_is_packed() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(cpu=20)
        start = world.clock.now() + 3 * HOUR
        async with world.following():
            for name in ("s1", "s2", "s3", "s4"):
                await world.book(name, start)
            await world.otto.delete(Ref(LabletSession, "s1"))
            await asyncio.sleep((3 * HOUR - 45 * MINUTE).total_seconds())
            packing = (await world.pool()).status.packing
            assert packing is not None
            assert (packing.claims, packing.until - packing.at) == (3, HORIZON)
            assert 0 < packing.least_machine_hours <= packing.machine_hours

    run(life)


def test_a_pool_that_packing_saved_money_is_not_written_again_for_that() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(cpu=20)
        start = world.clock.now() + 6 * HOUR
        async with world.following():
            for name in ("s1", "s2", "s3", "s4"):
                await world.book(name, start)
            for name in ("s1", "s3"):
                await world.otto.delete(Ref(LabletSession, name))
            await asyncio.sleep(HOUR.total_seconds())
            before = await world.pool()
            assert before.status.packing is not None
            assert before.status.packing.saved_usd > 0
            await asyncio.sleep(HOUR.total_seconds())
            assert (await world.pool()).metadata.resource_version == before.metadata.resource_version

    run(life)


def test_few_changes_are_worth_few_steps_and_many_no_more_than_all_claims_are() -> None:
    many = view(*(claimed(1, "20:00", "21:00", f"s{number}") for number in range(30)))
    problems = [run(partial(make_problem, many, {}, changes)) for changes in (1, 2, 1_000)]
    steps = [one.steps for one in problems if one]
    assert steps == [CLAIMS_PER_CHANGE * STEPS_PER_CLAIM, 2 * CLAIMS_PER_CHANGE * STEPS_PER_CLAIM, 30 * STEPS_PER_CLAIM]
