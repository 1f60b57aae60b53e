"""The desk in virtual time: what is booked is promised up to capacity and no further, whoever books at once."""

import asyncio
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from random import Random

import pytest

from harness import given
from harness.booking_world import CCNA, DOZEN, NINE, Office, from_monday, slot
from harness.plane_world import ADA, OTTO
from harness.workers import beside
from lcm.control.accounts.spending import KEPT_FOR
from lcm.control.booking.calendar import CATCH_UP_TIMEOUT
from lcm.control.booking.step_records import FleetSettings
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Extend, Ref, ref_of
from lcm.model.base.errors import Conflict, Later, NoRoom
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.pool import Budget, ScalingPolicy
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase
from lcm.model.money.licences import token_id
from lcm.placement.claims import Terms
from lcm.placement.promise import SHIFT_STEP

Slot = tuple[datetime, datetime]


async def tried(office: Office, name: str, start: datetime = NINE) -> LabletSession | NoRoom:
    try:
        return await office.book(name, start)
    except NoRoom as error:
        return error


async def works(office: Office, start: datetime) -> bool:
    try:
        await office.otto.create(slot("trial", start), dry_run=True)
    except NoRoom:
        return False
    return True


async def refused(office: Office, name: str = "late", start: datetime = NINE) -> NoRoom:
    revision = await office.revision()
    with pytest.raises(NoRoom) as raised:
        await office.book(name, start)
    assert await office.revision() == revision
    return raised.value


@from_monday
async def test_lesson_20_five_hundred_bookings_for_nine_are_promised_up_to_capacity_and_the_rest_get_correct_nearest_slots() -> (  # noqa: E501 - the lesson is a sentence
    None
):
    async with Office().open(max_workers=10) as office:
        before = office.store.tried
        answers = await asyncio.gather(*(tried(office, f"s{number}") for number in range(500)))
        promised = [one for one in answers if isinstance(one, LabletSession)]
        rest = [one for one in answers if isinstance(one, NoRoom)]
        assert (len(promised), len(rest)) == (10 * DOZEN, 500 - 10 * DOZEN)
        assert (office.store.tried - before, office.store.conflicts) == (len(promised), 0), "one attempt each"
        assert {(one.why, one.nearest) for one in rest} == {("full", rest[0].nearest)}
        assert await office.overcommitted() == []
        assert all(one.status.claim and one.status.seat for one in promised)
        await nearest_are_right(office, rest[0].nearest)
        for number, (start, _) in enumerate(rest[0].nearest):
            assert isinstance(await tried(office, f"moved{number}", start), LabletSession)


async def nearest_are_right(office: Office, nearest: tuple[Slot, ...]) -> None:
    """Try each slot that was offered, and on both sides every one that would be nearer."""
    assert len(nearest) == 3
    for start, end in nearest:
        assert end - start == timedelta(hours=2)
        assert await works(office, start), start
    shifts = [(start - NINE) // SHIFT_STEP for start, _ in nearest]
    assert (min(shifts), max(shifts)) == (-11, 10)
    later, earlier = min(one for one in shifts if one > 0), max(one for one in shifts if one < 0)
    for steps in range(earlier + 1, later):
        assert not await works(office, NINE + steps * SHIFT_STEP), steps


@from_monday
async def test_an_extension_is_refused_when_the_next_booking_needs_the_room_and_granted_otherwise() -> None:
    async with Office().open(max_workers=1) as office:
        for number in range(DOZEN):
            await office.book(f"first{number}")
            await office.book(f"next{number}", given.moment("11:30"))
        ref = Ref(LabletSession, "first0")
        with pytest.raises(NoRoom, match="cannot be extended: all 1 planned workers are taken") as raised:
            await office.otto.act(ref, Extend(minutes=6))
        assert raised.value.why == "full"
        longer = await office.otto.act(ref, Extend(minutes=5))
        assert longer.status.claim is not None
        assert longer.status.claim.end == given.moment("11:15"), "the next claim begins at that moment"
        await office.otto.delete(Ref(LabletSession, "next0"))
        assert (await office.otto.act(ref, Extend(minutes=60))).status.ends_at == given.moment("12:05")
        assert await office.overcommitted() == []


@from_monday
async def test_what_is_given_up_can_be_booked_again() -> None:
    async with Office().open(max_workers=1) as office:
        for number in range(DOZEN):
            await office.book(f"s{number}")
        await refused(office)
        await office.otto.delete(Ref(LabletSession, "s3"))
        assert (await office.book("late")).status.phase is SessionPhase.PENDING


@from_monday
async def test_a_budget_by_the_hour_refuses_another_machine_and_not_another_lab() -> None:
    budget = Budget(hourly_usd=Decimal(4))
    async with Office().open(max_workers=10, budget=budget, price=Decimal(4)) as office:
        for number in range(DOZEN):
            await office.book(f"s{number}")
        error = await refused(office)
        assert (error.why, len(error.nearest)) == ("hourly_budget", 3)
        assert "2 workers at 4 USD an hour" in str(error)
        for start, _ in error.nearest:
            assert await works(office, start)


@from_monday
async def test_a_budget_by_the_month_counts_what_is_promised() -> None:
    budget = Budget(monthly_usd=Decimal(20))
    async with Office().open(max_workers=10, budget=budget, price=Decimal(6)) as office:
        await office.book("s1")
        error = await refused(office, start=given.moment("09:00", day=1))
        assert error.why == "monthly_budget"
        assert "November 2026 would cost 34.00 USD, more than the 20 USD" in str(error)
        assert await works(office, NINE), "it costs nothing more on the machine that runs anyway"
        assert await works(office, given.moment("09:00", day=30)), "December has a budget of its own"


@from_monday
async def test_a_group_that_only_money_is_in_the_way_of_is_told_so() -> None:
    async with Office().open(max_workers=3, price=Decimal(4), budget=Budget(hourly_usd=Decimal(4))) as office:
        group = given.reservation(name="class", uid="", count=DOZEN + 1)
        with pytest.raises(NoRoom, match="12 of 13 fit then: it would take 2 workers") as no:
            await office.otto.create(group)
        assert "; book 12 then and the others at another time, or raise the pool's hourly budget" in str(no.value)
        assert no.value.why == "hourly_budget"
        await office.otto.patch(CCNA, {"spec": {"budget": {"hourly_usd": "8"}}})
        assert len((await office.otto.create(group)).status.held) == DOZEN + 1


@from_monday
async def test_outside_of_a_pools_hours_nothing_is_promised() -> None:
    hours = AllowedHours(start_hour=8, end_hour=18, time_zone="Europe/Zurich")
    async with Office().open(max_workers=10, allowed_hours=hours) as office:
        error = await refused(office, start=given.moment("19:00"))
        assert (error.why, len(error.nearest)) == ("hours", 3)
        for start, _ in error.nearest:
            assert await works(office, start)
        assert (await office.book("s1")).status.seat == Seat(pool="ccna", number=1)


@from_monday
async def test_there_are_never_more_machines_promised_than_licences() -> None:
    fleet = FleetSettings(seats={token_id("env:CML_LICENSE_TOKEN"): 2})
    async with Office(fleet=fleet).open(max_workers=10) as office:
        answers = await asyncio.gather(*(tried(office, f"s{number}") for number in range(3 * DOZEN)))
        assert sum(isinstance(one, LabletSession) for one in answers) == 2 * DOZEN
        assert {one.why for one in answers if isinstance(one, NoRoom)} == {"licences"}


@from_monday
async def test_where_there_is_no_pool_nothing_is_promised_and_who_can_wait_is_taken() -> None:
    async with Office().open() as office:
        assert (await refused(office)).why == "no_pool"
        made = await office.otto.create(given.asap())
        assert (made.status.claim, made.status.seat) == (None, None)


@from_monday
async def test_a_pool_that_opens_no_seats_promises_only_what_has_a_worker() -> None:
    async with Office().open(max_workers=10, policy=ScalingPolicy.NONE) as office:
        assert (await refused(office)).why == "no_worker"


@from_monday
async def test_a_slot_before_any_machine_could_be_up_is_refused_with_later_ones() -> None:
    async with Office().open(max_workers=1) as office:
        error = await refused(office, start=given.moment("00:30"))
        assert error.why == "too_soon"
        assert error.nearest[0][0] == given.moment("00:45")
        assert await works(office, given.moment("00:45"))
        assert not await works(office, given.moment("00:35"))


@from_monday
async def test_two_planes_that_race_for_two_hundred_bookings_never_over_commit() -> None:
    async with Office(planes=2).open(max_workers=3) as office:
        chance = Random(20)

        async def race(number: int) -> bool:
            plane = office.cores[number % 2].plane_for(OTTO)
            start = NINE + chance.randrange(8) * SHIFT_STEP
            try:
                await plane.create(slot(f"s{number}", start, minutes=chance.choice((30, 60, 120))))
            except NoRoom:
                return False
            return True

        made = await asyncio.gather(*map(race, range(200)))
        assert await office.overcommitted() == []
        assert office.store.conflicts, "they did race"
        assert 3 * DOZEN <= sum(made) == len(await office.sessions()) < 200


@from_monday
async def test_a_smaller_pool_keeps_its_promises_and_makes_no_new_ones_on_seats_beyond() -> None:
    async with Office().open(max_workers=2) as office:
        booked = [await office.book(f"s{number}") for number in range(2 * DOZEN)]
        beyond = next(one for one in booked if one.status.seat == Seat(pool="ccna", number=2))
        await office.otto.patch(CCNA, {"spec": {"max_workers": 1}})
        assert {one.metadata.name: one.status.seat for one in await office.sessions()} == {
            one.metadata.name: one.status.seat for one in booked
        }
        await office.otto.delete(Ref(LabletSession, beyond.metadata.name))
        assert (await refused(office)).why == "full"
        other = next(one for one in booked if one.status.seat == beyond.status.seat and one is not beyond)
        with pytest.raises(NoRoom):
            await office.otto.act(Ref(LabletSession, other.metadata.name), Extend(minutes=1))
        assert (await office.book("noon", given.moment("12:00"))).status.seat == Seat(pool="ccna", number=1)


@from_monday
async def test_a_dry_run_promises_nothing_and_refuses_the_same() -> None:
    async with Office().open(max_workers=1) as office:
        for _ in range(2 * DOZEN):
            assert await works(office, NINE)
        for number in range(DOZEN):
            await office.book(f"s{number}")
        assert not await works(office, NINE)


@from_monday
async def test_a_learner_books_as_everybody_else_does() -> None:
    async with Office().open(max_workers=1) as office:
        made = await office.cores[0].plane_for(ADA).create(slot("hers"))
        assert (made.spec.owner, made.status.seat) == ("ada", Seat(pool="ccna", number=1))


@from_monday
async def test_who_asks_while_the_calendar_cannot_follow_is_told_to_come_again() -> None:
    async with Office().open(max_workers=1) as office:
        numbers = count(100)
        core = ControlPlane(office.store, clock=office.clock, ids=lambda: f"uid-{next(numbers)}", terms=Terms())
        assert core.promises is not None
        otto, first = core.plane_for(OTTO), Ref(LabletSession, "first")
        async with beside(core.promises.calendar.run()):
            await core.promises.calendar.ready()
        await office.book("first")
        began = office.clock.now()
        bookings = [otto.create(slot(f"s{number}")) for number in range(5)]
        others = [otto.act(first, Extend(minutes=5)), otto.explain(first)]
        answers = await asyncio.gather(*bookings, *others, return_exceptions=True)
        assert {type(one) for one in answers} == {Later}
        assert office.clock.now() - began < CATCH_UP_TIMEOUT + timedelta(seconds=1), "not one after another"
        async with beside(core.promises.calendar.run()):
            await asyncio.sleep(1)
            assert (await otto.create(slot("late"))).status.seat == Seat(pool="ccna", number=1)


@from_monday
async def test_nothing_is_kept_of_pools_and_workers_that_nobody_asks_about() -> None:
    async with Office().open(max_workers=1) as office:
        desk = office.cores[0].promises
        assert desk is not None
        await asyncio.gather(*(office.book(f"s{number}") for number in range(5)))
        assert len(desk._guard_locks) == 0
        for one in await office.sessions():
            await office.otto.delete(ref_of(one))
        await asyncio.sleep(1)
        assert (desk.calendar._claims, desk.calendar._sessions_by_worker) == ({}, {})


@from_monday
async def test_an_extension_follows_a_session_that_is_moved_meanwhile() -> None:
    budget = Budget(monthly_usd=Decimal(1000))
    async with Office().open(max_workers=2, budget=budget, price=Decimal(4)) as office:
        await office.book("s")

        async def move() -> None:
            await office.by(POOL_CONTROLLER).reseat(CCNA, [SeatChange(booking="s", after=2)])
            await asyncio.sleep(0.1)

        await office.otto.act(Ref(LabletSession, "s"), Extend(minutes=5), dry_run=True)
        await asyncio.sleep(60 + KEPT_FOR.total_seconds())  # what was read for that is read again
        office.store.before_costs = move
        longer = await office.otto.act(Ref(LabletSession, "s"), Extend(minutes=30))
        assert (longer.status.seat, longer.status.ends_at) == (Seat(pool="ccna", number=2), given.moment("11:30"))
        assert office.store.before_costs is None, "it was moved while the costs were read"


@from_monday
async def test_what_is_extended_while_its_move_is_checked_keeps_its_time() -> None:
    budget = Budget(monthly_usd=Decimal(100_000))
    async with Office().open(max_workers=2, budget=budget, price=Decimal(4)) as office:
        await office.book("s")

        async def extend() -> None:
            await office.otto.act(Ref(LabletSession, "s"), Extend(minutes=60))
            await asyncio.sleep(0.1)

        await office.otto.act(Ref(LabletSession, "s"), Extend(minutes=5), dry_run=True)
        await asyncio.sleep(60 + KEPT_FOR.total_seconds())  # what was read for that is read again
        office.store.before_costs = extend
        with pytest.raises(Conflict, match="changed meanwhile"):
            await office.by(POOL_CONTROLLER).reseat(CCNA, [SeatChange(booking="s", after=2)])
        others = [slot(f"t{number}", given.moment("11:40")) for number in range(2 * DOZEN)]
        made = await asyncio.gather(*map(office.otto.create, others), return_exceptions=True)
        assert [type(one) for one in made if isinstance(one, BaseException)] == [NoRoom]
        assert await office.overcommitted() == []


@from_monday
async def test_a_pool_that_is_being_deleted_extends_nothing() -> None:
    async with Office().open(max_workers=1) as office:
        await office.book("s")
        await office.otto.delete(CCNA)
        with pytest.raises(NoRoom, match="ccna is gone or being deleted") as raised:
            await office.otto.act(Ref(LabletSession, "s"), Extend(minutes=30))
        assert raised.value.why == "no_pool"


@from_monday
async def test_beyond_a_pools_size_nothing_is_extended_until_it_is_larger_again() -> None:
    async with Office().open(max_workers=2) as office:
        several = [await office.book(f"s{number}") for number in range(DOZEN + 1)]
        last = ref_of(several[-1])
        await office.otto.patch(CCNA, {"spec": {"max_workers": 1}})
        with pytest.raises(
            NoRoom, match=r"planned worker 2 is beyond the pool's size by now.*raise the pool's max_workers"
        ) as no:
            await office.otto.act(last, Extend(minutes=30))
        assert no.value.why == "full"
        await office.otto.patch(CCNA, {"spec": {"max_workers": 2}})
        assert (await office.otto.act(last, Extend(minutes=30))).status.ends_at == given.moment("11:30")


@from_monday
async def test_an_extension_is_decided_anew_when_the_pool_changes_at_that_moment() -> None:
    async with Office().open(max_workers=1) as office:
        await office.book("s")

        async def delete() -> None:
            await office.otto.delete(CCNA)

        office.store.before_next = delete
        with pytest.raises(NoRoom, match="being deleted"):
            await office.otto.act(Ref(LabletSession, "s"), Extend(minutes=30))
