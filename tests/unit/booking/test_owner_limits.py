"""Limits per owner: what one may have waiting, at once and ahead; checked in the commit, exact between replicas."""

import asyncio
from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from harness import given
from harness.booking_world import NINE, Office, from_monday, slot
from harness.plane_world import ADA, ANNA, BOB
from lcm.control.booking.quota import BookingWish, Bound, OwnerLimits, Wish, refuse_excess
from lcm.control.booking.usage import UsedPiece, find_busiest
from lcm.control.plane.local import LocalPlane
from lcm.control.plane.protocol import Extend, Ref, ref_of
from lcm.model.access.identity import Caller
from lcm.model.base.errors import NoRoom
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.placement import PreviewRequest
from lcm.model.kinds.reservation import Recurrence, Reservation
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.model.kinds.settings import QuotaSettings, SystemSettings, SystemSettingsSpec
from lcm.placement.timeline import micros

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
FEW = OwnerLimits(pending=2, live=3, ahead=5, horizon=30 * DAY)
NOW = given.MONDAY


def asap(name: str, **fields: Any) -> LabletSession:
    spec = LabletSessionSpec(definition="basics:1.0.0", duration_minutes=60, **fields)
    return LabletSession(metadata=Metadata(name=name), spec=spec)


def group(name: str, **fields: object) -> Reservation:
    return msgspec.structs.replace(given.reservation(**fields), metadata=Metadata(name=name))


def daily(name: str, days: int) -> Reservation:
    until = date(2026, 11, 2) + timedelta(days=days - 1)
    return group(name, count=1, recurrence=Recurrence(every="day", until=until, time_zone="UTC"))


def person(office: Office, caller: Caller = ADA, plane: int = 0) -> LocalPlane:
    return office.cores[plane].plane_for(caller)


async def refused(plane: LocalPlane, booking: LabletSession | Reservation) -> NoRoom:
    with pytest.raises(NoRoom) as raised:
        await plane.create(booking)
    return raised.value


def use(pending: int = 0, *slots: tuple[datetime, datetime]) -> Wish:
    """Return what sessions take that wait for an hour, and those with slots."""
    waiting = [UsedPiece(0, micros(NOW + HOUR) - micros(NOW), 0, 0, floats=True, is_pending=True)] * pending
    pieces = [UsedPiece(micros(start), micros(end), 1, 0) for start, end in slots]
    latest = max([NOW, *(start for start, _ in slots)])
    return Wish.of([BookingWish("ada", ("default", "ccna"), [*waiting, *pieces], latest)])


def refuse(have: Wish, more: Wish) -> None:
    for limit, most in FEW.with_settings(QuotaSettings()).items():
        refuse_excess(Bound(limit, most, "ada", "default", "", "ada", [have.book]), more, NOW)


def hours(first: int, last: int) -> tuple[datetime, datetime]:
    return NOW + first * HOUR, NOW + last * HOUR


@pytest.mark.parametrize(
    ("have", "more", "why", "says"),
    [
        (use(1), use(1), "", ""),
        (use(2), use(1), "pending_limit", "ada has 2 of at most 2 sessions waiting: 0 left, 1 asked for"),
        (use(1), use(2), "pending_limit", "1 left, 2 asked for"),
        (use(0, hours(9, 11), hours(9, 11)), use(0, hours(10, 12)), "", ""),
        (use(0, *3 * [hours(9, 11)]), use(0, hours(11, 12)), "", ""),
        (use(0, *3 * [hours(9, 11)]), use(0, hours(10, 12)), "live_limit", "0 left, 1 asked for"),
        (use(0, hours(9, 11)), use(0, *3 * [hours(10, 12)]), "live_limit", "1 of at most 3 sessions at"),
        (use(0, *9 * [hours(9, 11)]), use(0, hours(15, 16)), "ahead_limit", "ada has 9 of at most 5"),
        (use(0, *9 * [hours(0, 2)]), use(0, hours(15, 16)), "", ""),
        (use(), use(0, (NOW + 31 * DAY, NOW + 31 * DAY + HOUR)), "horizon_limit", "30 days ahead, until 2026-12-02"),
        (use(), use(0, (NOW + 30 * DAY, NOW + 31 * DAY)), "", ""),
    ],
)
def test_what_an_owner_may_still_book(have: Wish, more: Wish, why: str, says: str) -> None:
    if not why:
        refuse(have, more)
        return
    with pytest.raises(NoRoom) as raised:
        refuse(have, more)
    assert raised.value.why == why
    assert says in str(raised.value)
    assert "an operator may grant more: lcm quota set ada --" in str(raised.value)


def test_the_busiest_moment_counts_only_while_what_is_added_lasts() -> None:
    crowd = use(0, *5 * [hours(1, 3)]).book
    new, now = [tuple(map(micros, hours(2, 4))), tuple(map(micros, hours(6, 8)))], micros(NOW)
    added = use(0, hours(2, 4), hours(6, 8)).book
    assert find_busiest([crowd, added], new, 0, now) == (6, micros(NOW + 2 * HOUR))  # type: ignore[arg-type]
    assert find_busiest([crowd, added], new[1:], 0, now) == (1, micros(NOW + 6 * HOUR))  # type: ignore[arg-type]
    assert find_busiest([crowd], [], 0, now) == (0, now)


def test_what_waits_counts_as_if_it_began_now() -> None:
    book, now = use(1).book, micros(NOW)
    assert (book.pending, book.level_at(now, now), book.count_ahead(now)) == (1, (1, 0), 0)
    later = micros(NOW + 5 * HOUR)
    assert book.level_at(later, later) == (1, 0)
    assert book.level_at(later, now) == (0, 0)


@from_monday
async def test_one_user_does_not_take_a_pool_for_four_hundred_days() -> None:
    async with Office(limits=OwnerLimits()).open(max_workers=3) as office:
        answers = await asyncio.gather(
            *(person(office).create(daily(f"grab{number}", 400)) for number in range(36)), return_exceptions=True
        )
        assert {type(one) for one in answers} == {NoRoom}
        assert await office.claims() == {}
        assert (await refused(person(office), daily("month", 60))).why == "ahead_limit"
        await person(office).create(daily("weeks", 50))
        assert (await refused(person(office), slot("more", NINE + 60 * DAY))).why == "ahead_limit"
        assert (await person(office, BOB).create(slot("bobs"))).status.seat is not None


@from_monday
async def test_of_two_replicas_only_one_lets_the_last_one_in() -> None:
    async with Office(planes=3, limits=FEW).open(max_workers=3) as office:
        for plane in range(3):
            await person(office, BOB, plane).preview(PreviewRequest(definition="basics", duration_minutes=60))
        await person(office).create(asap("first"))
        wishes = [person(office, plane=n % 3).create(asap(f"s{n}")) for n in range(9)]
        answers = await asyncio.gather(*wishes, return_exceptions=True)
        refusals = [one for one in answers if isinstance(one, BaseException)]
        assert [one.why for one in refusals if isinstance(one, NoRoom)] == 8 * ["pending_limit"]
        assert len(await office.sessions()) == 2
        assert office.store.conflicts, "they did race"
        slots = [person(office, BOB, n % 3).create(slot(f"b{n}")) for n in range(9)]
        answers = await asyncio.gather(*slots, return_exceptions=True)
        assert sum(isinstance(one, LabletSession) for one in answers) == 3


@from_monday
async def test_staff_book_more_for_an_owner_and_that_counts_as_the_owners() -> None:
    async with Office(limits=FEW).open(max_workers=3) as office:
        for number in range(5):
            await office.book(f"s{number}", owner="ada")
        found = await refused(person(office), slot("own"))
        assert found.why == "live_limit"
        assert "ada has 5 of at most 3 sessions at 2026-11-02 09:00Z: 0 left, 1 asked for" in str(found)
        await person(office, ANNA).create(slot("annas"))


@from_monday
async def test_an_apply_above_a_limit_writes_nothing() -> None:
    async with Office(limits=FEW).open(max_workers=3) as office:
        documents = [
            {"api_version": "lcm/v1", "kind": "LabletSession", "metadata": {"name": f"s{number}"}}
            | {"spec": {"definition": "basics:1.0.0", "duration_minutes": 60}}
            for number in range(3)
        ]
        with pytest.raises(NoRoom, match="2 sessions waiting: 2 left, 3 asked for"):
            await person(office).apply(documents)
        assert not await office.sessions()
        await person(office).apply(documents[:2])
        assert len(await office.sessions()) == 2


@from_monday
async def test_what_ends_makes_room_and_what_a_reservation_hands_over_does_not() -> None:
    async with Office(limits=FEW).open(max_workers=3) as office:
        await person(office).create(group("class", count=3))
        made = await office.by(SCHEDULER).fulfil(Ref(Reservation, "class"), 1, 2)
        assert len(made) == 2
        assert (await refused(person(office), slot("fourth"))).why == "live_limit"
        await person(office).delete(ref_of(made[0]))
        await asyncio.sleep(1)
        await person(office).create(slot("fourth"))
        assert (await refused(person(office), slot("fifth"))).why == "live_limit"


@from_monday
async def test_an_extension_counts_for_the_time_that_it_adds() -> None:
    async with Office(limits=FEW).open(max_workers=3) as office:
        for number in range(3):
            await person(office).create(slot(f"early{number}"))
        for number in range(2):
            await person(office).create(slot(f"late{number}", NINE + 2 * HOUR))
        early = [Ref(LabletSession, f"early{number}") for number in range(2)]
        await person(office).act(early[0], Extend(minutes=30))
        with pytest.raises(NoRoom, match="3 of at most 3 sessions at 2026-11-02 11:00Z"):
            await person(office).act(early[1], Extend(minutes=30))


@from_monday
async def test_the_settings_object_changes_the_limits_at_once_and_a_preview_says_the_same() -> None:
    async with Office(limits=FEW).open(max_workers=3) as office:
        ada, wish = person(office), PreviewRequest(definition="basics", duration_minutes=60)
        none = SystemSettingsSpec(quotas=QuotaSettings(max_pending=0))
        await office.otto.create(SystemSettings(metadata=Metadata(name="system"), spec=none))
        await asyncio.sleep(1)
        found = await refused(ada, asap("none"))
        told = await ada.preview(wish)
        assert (told.outcome, told.why) == ("refuse", found.why)
        assert f"{told.reason}; {told.remedy}" == str(found)
        assert (await office.otto.preview(wish)).outcome != "refuse"


@from_monday
async def test_nobody_waits_longer_than_one_may_book_ahead() -> None:
    async with Office(limits=FEW).open(max_workers=3) as office:
        found = await refused(person(office), asap("patient", give_up_at=NOW + 400 * DAY))
        assert found.why == "horizon_limit"
