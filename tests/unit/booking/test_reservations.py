"""Reservations: slots of a series by the wall clock, claims all or none, and sessions that take them over."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st

from harness import given
from harness.booking_world import DOZEN, ELEVEN, NINE, Office, from_monday, lab, slot
from harness.plane_world import ADA, OTTO
from lcm.control.booking.guards import pool_guard_key
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Forbidden, Gone, IllegalStep, Invalid, NoRoom, Refused
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER
from lcm.model.base.resource import Metadata, Owner
from lcm.model.kinds.definition import Requirements
from lcm.model.kinds.hours import Weekday
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import (
    OCCURRENCES_LIMIT,
    Recurrence,
    Reservation,
    ReservationPhase,
    ReservationSpec,
    occurrences,
)
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase
from lcm.model.kinds.validate import check_rules

ZURICH = ZoneInfo("Europe/Zurich")
CLASS = Ref(Reservation, "class")
_ZONES = ("Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC")
_days = st.integers(0, 700).map(lambda days: date(2026, 1, 1) + timedelta(days=days))


def reserved(count: int = 2, **fields: object) -> Reservation:
    made = given.reservation(count=count, **fields)
    return msgspec.structs.replace(made, metadata=Metadata(name="class"))


def weekly(start: datetime, until: date, **fields: object) -> ReservationSpec:
    series = given.changed(Recurrence(every="week", until=until, time_zone="Europe/Zurich"), fields)
    end = start + timedelta(hours=2)
    return given.reservation(timeslot_start=start, timeslot_end=end, recurrence=series).spec


def at_home(spec: ReservationSpec) -> list[tuple[str, str]]:
    return [(f"{one:%a %d.%m.}", f"{one:%H:%M}") for one in (s.astimezone(ZURICH) for s, _ in occurrences(spec))]


@pytest.mark.parametrize("change", [date(2026, 3, 29), date(2026, 10, 25)])
def test_a_weekly_series_keeps_its_wall_clock_time_across_a_daylight_saving_change(change: date) -> None:
    first = datetime.combine(change - timedelta(days=13), time(9), ZURICH)
    slots = occurrences(weekly(first, change + timedelta(days=20)))
    assert [start.astimezone(ZURICH).time() for start, _ in slots] == 5 * [time(9)]
    assert len({start.astimezone(UTC).time() for start, _ in slots}) == 2, "by the sun's time it moved"
    assert {end - start for start, end in slots} == {timedelta(hours=2)}


def test_a_slot_in_the_hour_that_is_skipped_begins_as_much_later() -> None:
    first = datetime(2026, 3, 22, 2, 30, tzinfo=ZURICH)
    assert at_home(weekly(first, date(2026, 4, 5))) == [
        ("Sun 22.03.", "02:30"),
        ("Sun 29.03.", "03:30"),
        ("Sun 05.04.", "02:30"),
    ]


def test_in_the_hour_that_comes_twice_the_first_slot_is_the_one_that_was_booked() -> None:
    second = datetime(2026, 10, 25, 2, 30, tzinfo=ZURICH, fold=1)
    slots = occurrences(weekly(second, date(2026, 11, 1)))
    assert [start for start, _ in slots] == [
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
        datetime(2026, 11, 1, 1, 30, tzinfo=UTC),
    ]


def test_a_series_may_leave_out_weeks_and_name_its_weekdays() -> None:
    first = datetime(2026, 11, 4, 9, tzinfo=ZURICH)
    spec = weekly(first, date(2026, 11, 21), interval=2, weekdays=(Weekday.FRI, Weekday.MON, Weekday.WED))
    days = [day for day, _ in at_home(spec)]
    assert days == ["Wed 04.11.", "Fri 06.11.", "Mon 16.11.", "Wed 18.11.", "Fri 20.11."]


def naive(spec: ReservationSpec) -> Sequence[tuple[datetime, datetime]]:
    """Look at every day, by the calendar on the wall."""
    series = spec.recurrence
    assert series is not None
    zone = ZoneInfo(series.time_zone)
    first, found = spec.timeslot_start.astimezone(zone), list[tuple[datetime, datetime]]()
    for number in range((series.until - first.date()).days + 1):
        day = first.date() + timedelta(days=number)
        if series.every == "day":
            on = number % series.interval == 0
        else:
            monday, begun = (one.isocalendar() for one in (day, first.date()))
            weeks = (date.fromisocalendar(*monday[:2], 1) - date.fromisocalendar(*begun[:2], 1)).days // 7
            names = [str(one) for one in series.weekdays] or [f"{first:%a}".lower()]
            on = weeks % series.interval == 0 and f"{day:%a}".lower() in names
        if on:
            start = datetime(day.year, day.month, day.day, first.hour, first.minute, tzinfo=zone).astimezone(UTC)
            found.append((start, start + (spec.timeslot_end - spec.timeslot_start)))
    return found


@for_any(
    first=_days,
    hour=st.integers(0, 23),
    length=st.integers(0, 120),
    zone=st.sampled_from(_ZONES),
    every=st.sampled_from(("day", "week")),
    interval=st.integers(1, 5),
    weekdays=st.lists(st.sampled_from(Weekday), unique=True).map(tuple),
)
@settings(max_examples=150, deadline=None)
def test_the_slots_of_any_series_are_those_that_a_look_at_every_day_finds(
    *, first: date, hour: int, length: int, zone: str, every: str, interval: int, weekdays: tuple[Weekday, ...]
) -> None:
    start = datetime.combine(first, time(hour, 30), ZoneInfo(zone)).astimezone(UTC)
    series: dict[str, Any] = {
        "every": every,
        "until": first + timedelta(days=length),
        "time_zone": zone,
        "interval": interval,
        "weekdays": weekdays if every == "week" else (),
    }
    spec = msgspec.structs.replace(
        weekly(start, date(2030, 1, 1)), timeslot_end=start + timedelta(hours=1), recurrence=Recurrence(**series)
    )
    found = occurrences(spec)
    assert list(found) == list(naive(spec))
    assert all(before < after for (before, _), (after, _) in pairwise(found))


@from_monday
async def test_four_hundred_sessions_are_promised_in_one_commit_and_one_more_is_too_many() -> None:
    async with Office().open(max_workers=34) as office:
        before = office.store.tried
        made = await office.otto.create(reserved(OCCURRENCES_LIMIT))
        assert office.store.tried == before + 1
        assert made.status.phase is ReservationPhase.PROMISED
        assert [one.number for one in made.status.held] == list(range(1, OCCURRENCES_LIMIT + 1))
        assert sum(map(len, (await office.claims()).values())) == OCCURRENCES_LIMIT
        assert await office.overcommitted() == []
        daily = Recurrence(every="day", until=date(2026, 11, 2) + timedelta(days=OCCURRENCES_LIMIT), time_zone="UTC")
        with pytest.raises(Invalid, match=r"spec.recurrence: more than 400 sessions; book at most 400 at once"):
            await office.otto.create(reserved(1, recurrence=daily))


def test_exactly_as_many_sessions_as_are_allowed_may_be_booked_whatever_day_the_series_begins() -> None:
    work = (Weekday.MON, Weekday.TUE, Weekday.WED, Weekday.THU, Weekday.FRI)
    thursday = datetime(2026, 11, 5, 9, tzinfo=ZURICH)
    spec = weekly(thursday, date(2028, 5, 17), weekdays=work)
    assert len(occurrences(spec)) == OCCURRENCES_LIMIT
    whole = msgspec.structs.replace(reserved(), spec=msgspec.structs.replace(spec, count=1))
    check_rules(whole)
    longer = given.changed(whole, {"spec": {"recurrence": {"until": date(2028, 5, 18)}}})
    with pytest.raises(Invalid, match="more than 400"):
        check_rules(longer)


@from_monday
async def test_what_does_not_fit_as_a_whole_is_refused_as_a_whole() -> None:
    async with Office().open(max_workers=2) as office:
        await office.book("s1")
        revision = await office.revision()
        with pytest.raises(NoRoom) as raised:
            await office.otto.create(reserved(2 * DOZEN))
        assert (raised.value.why, await office.revision()) == ("full", revision)
        for start, end in raised.value.nearest:
            await office.otto.create(reserved(2 * DOZEN, timeslot_start=start, timeslot_end=end), dry_run=True)
        assert (await office.otto.create(reserved(2 * DOZEN - 1))).status.phase is ReservationPhase.PROMISED
        assert await office.overcommitted() == []


@from_monday
async def test_a_series_is_promised_from_its_first_claim_to_its_last() -> None:
    async with Office().open(max_workers=2) as office:
        series = Recurrence(every="week", until=date(2027, 4, 5), time_zone="Europe/Zurich", weekdays=(Weekday.MON,))
        made = await office.otto.create(reserved(2, recurrence=series))
        assert made.status.starts_at == given.moment("08:45")
        assert made.status.ends_at == given.moment("10:10", day=154), "summer time, and its clean-up"
        assert len(made.status.held) == 2 * 23
        assert {one.seat for one in made.status.held} == {Seat(pool="ccna", number=1)}


@from_monday
async def test_a_session_takes_its_claim_over_and_the_room_stays_as_it_was() -> None:
    async with Office().open(max_workers=1) as office:
        people = tuple(f"p{number}@example.org" for number in range(2))
        series = Recurrence(every="day", until=date(2026, 11, 3), time_zone="UTC")
        made = await office.otto.create(reserved(2, student_emails=people, recurrence=series, priority=5))
        before, scheduler = await office.claims(), office.by(SCHEDULER)
        (session,) = await scheduler.fulfil(CLASS, 4)
        assert await office.claims() == before, "not counted twice, and not lost"
        assert session.metadata.name == "class-4"
        assert session.metadata.owner == Owner(kind="Reservation", name="class", uid=made.metadata.uid)
        assert (session.spec.student_email, session.spec.owner, session.spec.priority) == ("p1@example.org", "otto", 5)
        assert session.spec.timeslot_start == given.moment("09:00", day=1)
        assert session.spec.timeslot_end == session.status.ends_at == session.status.expires_at
        assert (session.status.claim, session.status.seat) == (made.status.held[3].claim, made.status.held[3].seat)
        assert [line.phase for line in session.status.history] == [SessionPhase.PENDING]
        assert session == await office.otto.get(Ref(LabletSession, "class-4"))
        after = await office.otto.get(CLASS)
        assert after is not None
        assert (after.status.phase, after.status.sessions_made) == (ReservationPhase.ACTIVE, 1)
        assert [one.session for one in after.status.held] == [None, None, None, "class-4"]


@from_monday
async def test_the_whole_room_of_a_seat_is_taken_over_one_by_one_while_others_try_to_get_in() -> None:
    async with Office(planes=2).open(max_workers=1) as office:
        await office.otto.create(reserved(DOZEN))

        async def intrude(number: int) -> bool:
            try:
                await office.cores[number % 2].plane_for(OTTO).create(slot(f"s{number}"))
            except NoRoom:
                return False
            return True

        takeovers = (office.by(SCHEDULER).fulfil(CLASS, number) for number in range(1, DOZEN + 1))
        *intruders, _ = await asyncio.gather(*map(intrude, range(30)), asyncio.gather(*takeovers))
        assert not any(intruders)
        assert len(await office.sessions()) == DOZEN
        assert await office.overcommitted() == []


@from_monday
async def test_a_takeover_is_known_to_whoever_is_about_to_promise() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(reserved())
        (made,) = await office.by(SCHEDULER).fulfil(CLASS, 1)
        guard = await office.store.get(pool_guard_key(Ref(LabWorkerPool, "ccna")))
        assert guard is not None
        assert guard.revision == made.metadata.resource_version


@from_monday
async def test_a_takeover_leaves_the_other_claims_as_they_are_held() -> None:
    async with Office().open(max_workers=1) as office:
        desk = office.cores[0].promises
        assert desk is not None
        calendar, pool = desk.calendar, Ref(LabWorkerPool, "ccna")
        await office.otto.create(reserved(3))
        await asyncio.sleep(1)
        before = {held.holder: held for _, held in calendar.claims(pool)}
        (made,) = await office.by(SCHEDULER).fulfil(CLASS, 2)
        await calendar.wait_for_revision(made.metadata.resource_version)
        after = {held.holder: held for _, held in calendar.claims(pool)}
        assert after.keys() == {"default/class#1", "default/class-2", "default/class#3"}
        assert all(after[name] is before[name] for name in ("default/class#1", "default/class#3")), "not held anew"


@from_monday
async def test_asked_again_the_same_sessions_are_given() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(reserved())
        scheduler = office.by(SCHEDULER)
        first, *others = await asyncio.gather(*(scheduler.fulfil(CLASS, 1) for _ in range(5)))
        assert others == 4 * [first]
        assert [one.metadata.name for one in await scheduler.fulfil(CLASS, 2, 1, 2)] == ["class-1", "class-2"]
        made = await office.otto.get(CLASS)
        assert made is not None
        assert made.status.sessions_made == 2
        with pytest.raises(Invalid, match="class has 2 claims"):
            await scheduler.fulfil(CLASS, 3)
        with pytest.raises(Invalid, match="31 at once"):
            await scheduler.fulfil(CLASS, *range(1, 32))


@from_monday
async def test_a_stranger_with_its_name_keeps_no_session_from_being_made() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(reserved())
        await office.cores[0].plane_for(ADA).create(slot("class-1"))
        (made,) = await office.by(SCHEDULER).fulfil(CLASS, 1)
        assert made.metadata.name.startswith("class-1-")
        assert made.spec.owner == "otto"
        assert await office.by(SCHEDULER).fulfil(CLASS, 1) == [made]
        assert sum(map(len, (await office.claims()).values())) == 3


@from_monday
async def test_a_cancelled_reservation_makes_no_sessions_and_keeps_its_room_until_it_is_over() -> None:
    async with Office().open(max_workers=1) as office:
        made = await office.otto.create(reserved(DOZEN))
        await office.by(SCHEDULER).fulfil(CLASS, 1)
        cancelled = await office.otto.delete(CLASS)
        assert cancelled.status.phase is ReservationPhase.CANCELLING
        with pytest.raises(IllegalStep, match="Reservation class is CANCELLING"):
            await office.by(SCHEDULER).fulfil(CLASS, 2)
        (again,) = await office.by(SCHEDULER).fulfil(CLASS, 1)
        assert again.metadata.name == "class-1", "it was made before"
        with pytest.raises(NoRoom):
            await office.book("s1")
        await office.otto.delete(Ref(LabletSession, "class-1"))
        over = msgspec.structs.replace(cancelled.status, phase=ReservationPhase.CANCELLED)
        await office.by(SCHEDULER).step(cancelled, over)
        assert await office.otto.get(CLASS) is None
        assert await office.claims() == {}
        assert (await office.otto.create(reserved(DOZEN))).metadata.uid != made.metadata.uid


@from_monday
async def test_a_session_that_was_deleted_by_itself_is_not_made_anew_and_its_room_is_free() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(reserved(DOZEN))
        scheduler = office.by(SCHEDULER)
        await scheduler.fulfil(CLASS, 1)
        await office.otto.delete(Ref(LabletSession, "class-1"))
        assert await scheduler.fulfil(CLASS, 1) == []
        assert (await office.book("class-1")).status.seat is not None
        assert [one.metadata.name for one in await scheduler.fulfil(CLASS, 1, 2, 3)] == ["class-2", "class-3"]


@from_monday
async def test_no_change_of_the_definition_breaks_the_promise() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(reserved())
        definition = Ref(type(lab()), "basics:1.0.0")
        await office.otto.patch(definition, {"spec": {"state": "deprecated", "max_duration_minutes": 10}})
        await office.otto.patch(definition, {"spec": {"ami_requirements": {"cml_version_min": "99"}}})
        with pytest.raises(Refused, match="is used by Reservation class"):
            await office.otto.delete(definition)
        (made,) = await office.by(SCHEDULER).fulfil(CLASS, 2)
        assert (made.spec.timeslot_start, made.spec.timeslot_end) == (NINE, ELEVEN)
        assert made.status.requirements == Requirements()


@from_monday
async def test_a_series_is_offered_only_slots_that_it_would_get_as_a_series() -> None:
    tuesday, wednesday = (given.moment("00:00", day=day) for day in (1, 2))
    daily = Recurrence(every="day", until=wednesday.date(), time_zone="UTC")

    def series(start: datetime) -> Reservation:
        end = start + timedelta(hours=1)
        return reserved(DOZEN, timeslot_start=start, timeslot_end=end, recurrence=daily)

    def taken(name: str, start: datetime, hours: int) -> Reservation:
        return given.reservation(
            name=name, uid="", count=DOZEN, timeslot_start=start, timeslot_end=start + timedelta(hours=hours)
        )

    async with Office().open(max_workers=1) as office:
        await office.otto.create(taken("night", tuesday, 1))
        # What begins on Monday evening has a third slot on Wednesday evening, when all is taken.
        await office.otto.create(taken("evening", wednesday + timedelta(hours=20), 4))
        with pytest.raises(NoRoom) as refused:
            await office.otto.create(series(tuesday + timedelta(minutes=30)))
        assert refused.value.nearest
        for start, _ in refused.value.nearest:
            await office.otto.create(series(start), dry_run=True)


@from_monday
async def test_only_the_scheduler_makes_the_sessions_of_reservations() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(reserved())
        for plane in (office.otto, office.by(LABLET_CONTROLLER)):
            with pytest.raises(Forbidden):
                await plane.fulfil(CLASS, 1)
        with pytest.raises(Gone):
            await office.by(SCHEDULER).fulfil(Ref(Reservation, "other"), 1)
