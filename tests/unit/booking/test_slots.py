"""Which starts would be accepted: what is offered can be booked at once, what is not says why, and both are bounded."""

import asyncio
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from harness import given
from harness.booking_world import DOZEN, NINE, Office, from_monday, slot
from harness.plane_world import ADA
from lcm.control.booking import slots as looking
from lcm.control.booking.quota import OwnerLimits
from lcm.control.plane.local import LocalPlane
from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.errors import Invalid, NoRoom, Throttled
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.placement import MAX_SLOTS, SlotOffers, SlotRequest
from lcm.model.kinds.pool import Budget, ScalingPolicy
from lcm.placement.limits import PromiseRules
from lcm.placement.request import HeldClaim
from lcm.placement.seat_choice import choose_seat, explain_refusal
from lcm.placement.seats import Seats
from lcm.placement.slot_offers import PoolSurvey
from lcm.sim.time.loop import run
from lcm.system import tasks

MONDAY = given.MONDAY
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
FEW = OwnerLimits(pending=2, live=2, ahead=5, horizon=3 * DAY)


def wish(since: datetime = MONDAY, long: timedelta = DAY, **fields: Any) -> SlotRequest:
    usual: dict[str, Any] = {"definition": "basics", "duration_minutes": 120, "since": since, "until": since + long}
    return SlotRequest(**usual | fields)


async def tried(plane: LocalPlane, start: datetime, minutes: int) -> str:
    """Return why a booking is refused; "" if it would be made."""
    try:
        await plane.create(slot("tried", start, minutes=minutes), dry_run=True)
    except NoRoom as error:
        return error.why
    return ""


async def check_offers(plane: LocalPlane, asked: SlotRequest) -> SlotOffers:
    """See that what is offered would be accepted, and that what is not would be refused for the reason told."""
    found = await plane.slots(asked)
    assert found.slots
    for one in found.slots:
        assert one.why == await tried(plane, one.start, asked.duration_minutes), one
        assert bool(one.reason) == bool(one.remedy) == bool(one.why)
        assert bool(one.pool) != bool(one.why)
    return found


def turns_of(office: Office) -> tasks.CallerTurns:
    promises = office.cores[0].promises
    assert promises is not None
    return promises.survey_turns


POOLS = st.fixed_dictionaries(
    {"max_workers": st.integers(1, 4), "policy": st.sampled_from([ScalingPolicy.SCHEDULED, ScalingPolicy.NONE])},
    optional={
        "price": st.just(Decimal(5)),
        "allowed_hours": st.builds(AllowedHours, st.integers(0, 8), st.integers(9, 24), st.just("Europe/Berlin")),
        "budget": st.builds(
            Budget,
            hourly_usd=st.sampled_from([None, Decimal(4), Decimal(9), Decimal(19)]),
            monthly_usd=st.sampled_from([None, Decimal(30), Decimal(300)]),
        ),
    },
)
BOOKINGS = st.lists(
    st.tuples(st.integers(2, 90), st.integers(1, 16), st.integers(1, DOZEN), st.booleans()), max_size=12
)


@settings(max_examples=25, deadline=None)
@examples(pool=POOLS, bookings=BOOKINGS, minutes=st.sampled_from([30, 120, 480]), step=st.sampled_from([15, 45, 60]))
def test_what_is_offered_is_accepted_and_what_is_not_says_why(
    pool: dict[str, Any], bookings: list[tuple[int, int, int, bool]], minutes: int, step: int
) -> None:
    async def look() -> None:
        async with Office(limits=FEW).open(**pool) as office:
            ada = office.cores[0].plane_for(ADA)
            for number, (start, quarters, count, own) in enumerate(bookings):
                for one in range(1 if own else count):
                    wanted = slot(f"b{number}-{one}", MONDAY + start * 30 * MINUTE, minutes=quarters * 15)
                    try:
                        await (ada if own else office.otto).create(wanted)
                    except NoRoom:
                        break
            await check_offers(ada, wish(MONDAY + 7 * MINUTE, duration_minutes=minutes, step_minutes=step))

    run(look, start=MONDAY)


@from_monday
async def test_a_slot_that_is_taken_is_not_offered_and_the_others_have_their_price() -> None:
    async with Office().open(max_workers=1, price=Decimal(5)) as office:
        for number in range(DOZEN):
            await office.book(f"s{number}", NINE)
        found = await check_offers(office.otto, wish(step_minutes=60))
        by_hour = {one.start.hour: one for one in found.slots}
        assert found.definition == "basics:1.0.0"
        assert [hour for hour, one in by_hour.items() if one.why == "full"] == [7, 8, 9, 10, 11]
        assert by_hour[1].why == ""
        assert by_hour[9].reason.startswith("pool default/ccna: all 1 planned workers are taken")
        # A twelfth of a machine (16 of 192 GB), for 2 h 25 min with the time around the slot, and its disk.
        assert by_hour[14].usd is not None
        assert found.usd == by_hour[14].usd
        assert Decimal("0.80") < by_hour[14].usd < Decimal("1.20")


@from_monday
async def test_an_owners_limits_count_and_staff_have_none() -> None:
    async with Office(limits=FEW).open(max_workers=3) as office:
        ada = office.cores[0].plane_for(ADA)
        for number in range(2):
            await ada.create(slot(f"s{number}", NINE))
        hers = await check_offers(ada, wish(step_minutes=60))
        assert {one.start.hour for one in hers.slots if one.why == "live_limit"} == {8, 9, 10}
        far = await check_offers(ada, wish(MONDAY + 3 * DAY, 2 * HOUR, step_minutes=60))
        assert [one.why for one in far.slots] == ["", "horizon_limit"]
        assert not any(one.why == "live_limit" for one in (await office.otto.slots(wish(step_minutes=60))).slots)


@from_monday
async def test_what_could_never_be_booked_is_refused_as_a_whole() -> None:
    async with Office().open(max_workers=1) as office:
        for fields, path in (
            ({"definition": "nothing"}, "definition"),
            ({"duration_minutes": 600}, "duration_minutes"),
            ({"until": MONDAY}, "until"),
            ({"until": MONDAY + (MAX_SLOTS + 1) * 30 * MINUTE}, "until"),
            ({"since": MONDAY + 900 * DAY, "until": MONDAY + 901 * DAY}, "until"),
        ):
            with pytest.raises(Invalid) as raised:
                await office.otto.slots(wish(**fields))
            assert [one.path for one in raised.value.faults] == [path]
        assert (await office.otto.slots(wish(MONDAY - DAY, DAY))).slots == ()
        with pytest.raises(Invalid, match="only staff may choose the track"):
            await office.cores[0].plane_for(ADA).slots(wish(lab_track="other"))


@from_monday
async def test_without_a_pool_every_start_says_so() -> None:
    async with Office().open() as office:
        found = await check_offers(office.otto, wish(step_minutes=240))
        assert {one.why for one in found.slots} == {"no_pool"}


@from_monday
async def test_a_look_lets_others_run_sees_what_they_book_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start uses up its slice here; meanwhile somebody takes all that is left of the evening."""
    monkeypatch.setattr(tasks, "_TURNS", tasks.LoopTurns(-1.0))
    async with Office().open(max_workers=1) as office:
        evening = [slot(f"s{number}", MONDAY + 18 * HOUR, minutes=300) for number in range(DOZEN)]
        asking = asyncio.create_task(office.otto.slots(wish(step_minutes=5)))
        await asyncio.gather(*(office.otto.create(one) for one in evening))
        before = await asking
        assert {one.why for one in before.slots if one.start == MONDAY + 20 * HOUR} == {"full"}
        monkeypatch.setattr(looking, "_LONGEST_LOOK", -1.0)
        some = await office.otto.slots(wish(step_minutes=60))
        assert (len(some.slots), some.until) == (1, MONDAY + 2 * HOUR)


@from_monday
async def test_many_looks_of_one_caller_delay_no_other_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_TURNS", tasks.LoopTurns(-1.0))
    answered = list[str]()

    async with Office(limits=FEW).open(max_workers=1) as office:

        async def look(who: str, plane: LocalPlane) -> None:
            await plane.slots(wish(step_minutes=240))
            answered.append(who)

        ada = office.cores[0].plane_for(ADA)
        hers = [asyncio.create_task(look("ada", ada)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(Throttled, match="of your questions"):
            await ada.slots(wish())
        monkeypatch.setattr(turns_of(office), "most_callers", 1)
        with pytest.raises(Throttled, match="too many people"):
            await office.otto.slots(wish())
        monkeypatch.setattr(turns_of(office), "most_callers", 2)
        await asyncio.gather(*hers, look("otto", office.otto))
        assert answered == ["ada", "otto", "ada", "ada", "ada"]
        assert len(turns_of(office).locks) == 0


@from_monday
async def test_a_look_that_waited_knows_what_was_booked_meanwhile() -> None:
    async with Office(limits=FEW).open(max_workers=3) as office:
        ada = office.cores[0].plane_for(ADA)
        async with turns_of(office).locks.hold(""):
            asking = asyncio.create_task(ada.slots(wish(step_minutes=60)))
            await asyncio.sleep(1)
            for number in range(2):
                await ada.create(slot(f"s{number}", NINE))
        assert {one.start.hour for one in (await asking).slots if one.why == "live_limit"} == {8, 9, 10}


def test_a_survey_of_a_large_pool_answers_as_if_each_seat_were_asked() -> None:
    chance, seats = Random(3), Seats(given.machine(), 20, lead=25 * MINUTE)
    need = Amount(cpu_millis=16_000, memory_mb=64_000, nodes=5, labs=1)
    for number in range(500):
        start = MONDAY + chance.randrange(96) * 15 * MINUTE
        end = start + chance.randrange(1, 30) * 15 * MINUTE
        seats.hold(chance.randrange(1, 21), HeldClaim(f"h{number}", Claim(start=start, end=end, need=need)))
    rules = PromiseRules(now=MONDAY)
    survey = PoolSurvey(seats, rules)
    starts = [MONDAY + number * 15 * MINUTE for number in range(96)]
    claims = [Claim(start=start, end=start + 2 * HOUR, need=need) for start in starts]
    answers = [survey.ask(one) for one in claims]
    assert [isinstance(one, int) for one in answers] == [choose_seat(seats, one, rules) is not None for one in claims]
    assert {isinstance(one, int) for one in answers} == {True, False}
    refused = [(one, claim) for one, claim in zip(answers, claims, strict=True) if isinstance(one, tuple)]
    assert all(why == explain_refusal(seats, claim, rules)[0] for (why, _), claim in refused)
