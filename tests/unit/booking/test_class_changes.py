"""A class can be moved, extended, resized and given other learners: all of it or none, as it was booked."""

import asyncio
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from harness import given
from harness.booking_world import DOZEN, NINE, Office, from_monday, slot
from harness.plane_world import ADA
from lcm.control.booking.quota import OwnerLimits
from lcm.control.objects.records import change_ops, find_record
from lcm.control.plane.booking_actions import Move, Resize, SetLearners, Skip, Swap
from lcm.control.plane.protocol import Extend, Ref
from lcm.model.base.errors import Conflict, IllegalStep, Invalid, NoRoom, Refused, TooLarge
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.hours import Weekday
from lcm.model.kinds.reservation import Recurrence, Reservation, held_slot, occurrence_of, occurrences
from lcm.model.kinds.session import LabletSession, SessionPhase

CLASS = Ref(Reservation, "class")
HOUR = timedelta(hours=1)
BERLIN = ZoneInfo("Europe/Berlin")
AHEAD = given.moment("09:00", day=1)
PEOPLE = tuple(f"p{number}@example.org" for number in range(1, 4))


def course(count: int = 3, **fields: object) -> Reservation:
    usual = {"timeslot_start": AHEAD, "timeslot_end": AHEAD + 2 * HOUR}
    made = given.reservation(count=count, **usual | fields)
    return msgspec.structs.replace(made, metadata=Metadata(name="class"))


def weekly(weeks: int, **fields: object) -> Recurrence:
    until = (AHEAD + timedelta(weeks=weeks - 1)).date()
    return given.changed(Recurrence(every="week", until=until, time_zone="Europe/Berlin"), fields)


async def read(office: Office) -> Reservation:
    found = await office.otto.get(CLASS)
    assert found is not None
    return found


def slots_of(one: Reservation) -> Sequence[datetime]:
    return [held_slot(one.spec, held)[0] for held in one.status.held]


async def starts(office: Office) -> dict[str, datetime | None]:
    return {one.metadata.name: one.spec.timeslot_start for one in await office.sessions()}


@from_monday
async def test_a_class_moves_by_an_hour_in_one_commit_with_the_sessions_that_exist() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(student_emails=PEOPLE))
        await office.by(SCHEDULER).fulfil(CLASS, 1, 2)
        before = office.store.tried
        moved = await office.otto.act(CLASS, Move(minutes=60))
        assert office.store.tried == before + 1
        assert (moved.spec.timeslot_start, moved.spec.timeslot_end) == (AHEAD + HOUR, AHEAD + 3 * HOUR)
        assert slots_of(moved) == 3 * [AHEAD + HOUR]
        assert moved == await read(office)
        assert await starts(office) == {"class-1": AHEAD + HOUR, "class-2": AHEAD + HOUR}
        one = (await office.sessions())[0]
        assert one.status.ends_at == one.status.expires_at == one.spec.timeslot_end == AHEAD + 3 * HOUR
        assert one.status.claim == moved.status.held[0].claim
        assert (moved.status.starts_at, moved.status.ends_at) == (one.status.claim.start, one.status.claim.end)
        (made,) = await office.by(SCHEDULER).fulfil(CLASS, 3)
        assert (made.spec.timeslot_start, made.spec.student_email) == (AHEAD + HOUR, PEOPLE[2])
        assert sum(map(len, (await office.claims()).values())) == 3
        assert await office.overcommitted() == []


@from_monday
async def test_in_a_full_pool_a_class_may_move_into_its_own_time() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(DOZEN))
        moved = await office.otto.act(CLASS, Move(start=AHEAD - HOUR))
        assert set(slots_of(moved)) == {AHEAD - HOUR}
        assert await office.overcommitted() == []


@from_monday
async def test_a_move_that_does_not_fit_is_refused_with_slots_that_do_and_nothing_changes() -> None:
    async with Office().open(max_workers=1) as office:
        made = await office.otto.create(course(DOZEN))
        await office.book("other", AHEAD + 4 * HOUR)
        revision = await office.revision()
        with pytest.raises(NoRoom) as raised:
            await office.otto.act(CLASS, Move(minutes=180))
        assert (raised.value.why, await office.revision(), await read(office)) == ("full", revision, made)
        assert raised.value.nearest
        for start, _ in raised.value.nearest:
            await office.otto.act(CLASS, Move(start=start), dry_run=True)
        assert await read(office) == made
        assert sum(map(len, (await office.claims()).values())) == DOZEN + 1


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Move(minutes=60), [10, 10, 10, 10]),
        (Move(minutes=60, occurrence=2), [9, 10, 9, 9]),
        (Move(minutes=-60, occurrence=3, onward=True), [9, 9, 8, 8]),
    ],
)
@from_monday
async def test_a_series_moves_by_the_clock_on_the_wall(action: Move, expected: list[int]) -> None:
    async with Office().open(max_workers=1) as office:
        first = datetime(2027, 3, 16, 9, tzinfo=BERLIN)
        series = Recurrence(every="week", until=date(2027, 4, 6), time_zone="Europe/Berlin")
        await office.otto.create(course(2, timeslot_start=first, timeslot_end=first + 2 * HOUR, recurrence=series))
        moved = await office.otto.act(CLASS, action)
        hours = [one.astimezone(BERLIN).hour for one in slots_of(moved)]
        assert hours == [hour for hour in expected for _ in range(2)], "summer time begins on 28 March"
        assert {end - start for start, end in (held_slot(moved.spec, one) for one in moved.status.held)} == {2 * HOUR}
        by_rule = [start.astimezone(BERLIN).hour for start, _ in occurrences(moved.spec)]
        assert by_rule == (expected if action.occurrence is None else 4 * [9])


@from_monday
async def test_a_series_that_moves_to_another_day_keeps_its_rhythm() -> None:
    async with Office().open(max_workers=1) as office:
        series = weekly(3, weekdays=(Weekday.TUE, Weekday.THU))
        before = await office.otto.create(course(1, recurrence=series))
        moved = await office.otto.act(CLASS, Move(minutes=24 * 60))
        assert slots_of(moved) == [one + timedelta(days=1) for one in slots_of(before)]
        assert moved.spec.recurrence is not None
        assert moved.spec.recurrence.weekdays == (Weekday.WED, Weekday.FRI)
        assert [start for start, _ in occurrences(moved.spec)] == slots_of(moved)


@from_monday
async def test_a_series_that_no_rule_describes_any_more_keeps_its_rule_and_moves_all_the_same() -> None:
    async with Office().open(max_workers=1) as office:
        series = weekly(5, interval=2, weekdays=(Weekday.TUE, Weekday.SAT))
        before = await office.otto.create(course(1, recurrence=series))
        moved = await office.otto.act(CLASS, Move(minutes=2 * 24 * 60))
        assert slots_of(moved) == [one + timedelta(days=2) for one in slots_of(before)]
        assert moved.spec == before.spec


@from_monday
async def test_what_has_begun_is_not_moved_and_the_refusal_says_so() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(2, recurrence=weekly(3)))
        (session, _) = await office.by(SCHEDULER).fulfil(CLASS, 1, 2)
        await begin(office, session)
        with pytest.raises(Refused, match=r"occurrence 1 of class, .* has begun and is not changed: occurrence 2 is"):
            await office.otto.act(CLASS, Move(minutes=60, occurrence=1))
        moved = await office.otto.act(CLASS, Move(minutes=60))
        later = [timedelta(0), timedelta(weeks=1, hours=1), timedelta(weeks=2, hours=1)]
        assert [one - AHEAD for one in slots_of(moved)] == [one for one in later for _ in range(2)]
        assert set((await starts(office)).values()) == {AHEAD}
        with pytest.raises(Refused, match="class-1 is INSTANTIATING: what has begun is not moved"):
            await office.otto.act(Ref(LabletSession, "class-1"), Move(minutes=60))


async def begin(office: Office, session: LabletSession) -> LabletSession:
    """Let a session have something on a worker, as far as the store says."""
    fields: dict[str, Any] = {"phase": SessionPhase.INSTANTIATING, "worker_id": "uid-w", "allocated_ports": {}}
    record = await find_record(office.store, Ref(LabletSession, session.metadata.name))
    assert record is not None
    after = msgspec.structs.replace(record.resource, status=msgspec.structs.replace(record.resource.status, **fields))
    await office.store.commit(*change_ops(record, after))
    await asyncio.sleep(1)
    return after


@from_monday
async def test_a_class_gets_longer_also_while_it_runs() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(2))
        (session, _) = await office.by(SCHEDULER).fulfil(CLASS, 1, 2)
        running = await begin(office, session)
        longer = await office.otto.act(CLASS, Extend(minutes=30))
        assert longer.spec.timeslot_end == AHEAD + 2.5 * HOUR
        for one in await office.sessions():
            assert one.status.ends_at == AHEAD + 2.5 * HOUR
        assert (await office.otto.get(Ref(LabletSession, "class-1"))).status.worker_id == running.status.worker_id  # type: ignore[union-attr]
        assert await office.overcommitted() == []


@from_monday
async def test_a_class_is_not_extended_into_the_time_of_others() -> None:
    async with Office().open(max_workers=1) as office:
        made = await office.otto.create(course(DOZEN))
        await office.book("next", AHEAD + 2.75 * HOUR)
        with pytest.raises(NoRoom, match="planned worker 1 is short of cpu"):
            await office.otto.act(CLASS, Extend(minutes=60))
        assert await read(office) == made
        with pytest.raises(Refused, match="longer than the 480 minutes"):
            await office.cores[0].plane_for(ADA).act(await adas_class(office), Extend(minutes=600))


async def adas_class(office: Office) -> Ref[Reservation]:
    later = AHEAD + timedelta(days=3)
    made = given.reservation(count=1, timeslot_start=later, timeslot_end=later + HOUR)
    made = msgspec.structs.replace(made, metadata=Metadata(name="adas"))
    await office.cores[0].plane_for(ADA).create(made)
    return Ref(Reservation, "adas")


@from_monday
async def test_a_skipped_week_is_released_and_the_last_one_left_is_not() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(DOZEN, recurrence=weekly(2)))
        await office.by(SCHEDULER).fulfil(CLASS, 1, 2)
        skipped = await office.otto.act(CLASS, Skip(occurrence=1))
        assert {occurrence_of(skipped.spec, one) for one in skipped.status.held} == {2}
        assert {one.status.phase for one in await office.sessions()} == {SessionPhase.TERMINATED}
        await office.book("instead", AHEAD)
        with pytest.raises(Refused, match="nothing of class would be left: cancel it instead"):
            await office.otto.act(CLASS, Skip(occurrence=2))
        with pytest.raises(Invalid, match="there is no occurrence 1; use one of 2"):
            await office.otto.act(CLASS, Skip(occurrence=1))
        assert len(await office.by(SCHEDULER).fulfil(CLASS, *range(13, 25))) == DOZEN


@from_monday
async def test_seats_are_added_to_every_slot_that_is_left_or_to_none() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(10, recurrence=weekly(2)))
        grown = await office.otto.act(CLASS, Resize(seats=DOZEN))
        assert (grown.spec.count, len(grown.status.held)) == (DOZEN, 2 * DOZEN)
        assert sorted(slots_of(grown)) == sorted(start for start, _ in occurrences(grown.spec) for _ in range(DOZEN))
        with pytest.raises(NoRoom) as raised:
            await office.otto.act(CLASS, Resize(seats=DOZEN + 1))
        assert raised.value.nearest == (), "seats are added where the class is"
        assert await read(office) == grown
        with pytest.raises(Invalid, match="402 sessions in all; book at most 400 at once"):
            await office.otto.act(CLASS, Resize(seats=201))
        smaller = await office.otto.act(CLASS, Resize(seats=4))
        assert len(smaller.status.held) == 8
        assert sum(map(len, (await office.claims()).values())) == 8
        await office.otto.act(CLASS, Move(minutes=60))
        assert await office.overcommitted() == []


@from_monday
async def test_whoever_leaves_gives_the_seat_to_somebody_new_and_all_others_keep_theirs() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(student_emails=PEOPLE))
        await office.by(SCHEDULER).fulfil(CLASS, 1, 2, 3)
        named = await office.otto.act(CLASS, SetLearners(student_emails=("new@example.org", PEOPLE[2], PEOPLE[0])))
        assert named.spec.student_emails == (PEOPLE[0], "new@example.org", PEOPLE[2])
        assert await learners(office) == {"class-1": PEOPLE[0], "class-2": "new@example.org", "class-3": PEOPLE[2]}
        fewer = await office.otto.act(CLASS, Resize(seats=2, student_emails=(PEOPLE[2], "new@example.org")))
        assert fewer.spec.student_emails == ("new@example.org", PEOPLE[2])
        assert await learners(office) == {"class-1": None, "class-2": "new@example.org", "class-3": PEOPLE[2]}
        more = await office.otto.act(CLASS, Resize(seats=3, student_emails=(*fewer.spec.student_emails, "x@y.org")))
        (made,) = await office.by(SCHEDULER).fulfil(CLASS, *[one.number for one in more.status.held if not one.session])
        assert made.spec.student_email == "x@y.org"


async def learners(office: Office) -> dict[str, str | None]:
    """Return whose each live session is; None for one that has ended."""
    return {
        one.metadata.name: None if one.status.phase is SessionPhase.TERMINATED else one.spec.student_email
        for one in await office.sessions()
    }


@from_monday
async def test_two_learners_swap_their_seats_and_one_gives_it_to_somebody_else() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(student_emails=PEOPLE))
        await office.by(SCHEDULER).fulfil(CLASS, 1)
        await office.otto.act(CLASS, Swap(learner=PEOPLE[0], other=PEOPLE[1]))
        assert await learners(office) == {"class-1": PEOPLE[1]}
        swapped = await office.otto.act(CLASS, Swap(learner=PEOPLE[0], other="bob@example.org"))
        assert swapped.spec.student_emails == (PEOPLE[1], "bob@example.org", PEOPLE[2])
        with pytest.raises(Invalid, match=r"p1@example.org is no learner of class"):
            await office.otto.act(CLASS, Swap(learner=PEOPLE[0], other=PEOPLE[1]))


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (Move(), "neither or both of start and minutes"),
        (Move(start=AHEAD, minutes=5), "neither or both of start and minutes"),
        (Move(minutes=5, occurrence=9), "there is no occurrence 9"),
        (Move(minutes=5, onward=True), "from which occurrence"),
        (Move(minutes=5, time_zone="Mars/Base"), "no time zone"),
        (SetLearners(student_emails=PEOPLE[:2]), "2 for 3 seats"),
        (SetLearners(student_emails=(PEOPLE[0], PEOPLE[1], PEOPLE[0].upper())), "named twice"),
        (Resize(seats=4), "0 named for 4 seats"),
        (Swap(learner=PEOPLE[0], other=PEOPLE[0]), "the same as learner"),
    ],
)
@from_monday
async def test_a_wrong_wish_is_refused_with_what_is_wrong_with_it(action: Any, problem: str) -> None:
    async with Office().open(max_workers=1) as office:
        made = await office.otto.create(course(student_emails=PEOPLE))
        with pytest.raises(Invalid, match=problem):
            await office.otto.act(CLASS, action)
        assert await read(office) == made


@from_monday
async def test_a_class_is_not_moved_into_the_past() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course())
        with pytest.raises(NoRoom, match="in the past"):
            await office.otto.act(CLASS, Move(minutes=-48 * 60))


@from_monday
async def test_what_is_cancelled_is_not_changed() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course())
        await office.by(SCHEDULER).fulfil(CLASS, 1)
        await office.otto.delete(CLASS)
        with pytest.raises((IllegalStep, Refused), match=r"CANCELLING|being deleted"):
            await office.otto.act(CLASS, Move(minutes=60))


@from_monday
async def test_a_session_may_move_by_itself_and_its_class_moves_it_on() -> None:
    async with Office().open(max_workers=1) as office:
        await office.book("alone", AHEAD)
        moved = await office.otto.act(Ref(LabletSession, "alone"), Move(start=AHEAD + HOUR))
        assert (moved.spec.timeslot_start, moved.status.ends_at) == (AHEAD + HOUR, AHEAD + 3 * HOUR)
        await office.otto.create(course(2))
        await office.by(SCHEDULER).fulfil(CLASS, 1, 2)
        await office.otto.act(Ref(LabletSession, "class-2"), Move(minutes=30))
        await office.otto.act(CLASS, Move(minutes=60))
        assert await starts(office) == {
            "alone": AHEAD + HOUR,
            "class-1": AHEAD + HOUR,
            "class-2": AHEAD + 1.5 * HOUR,
        }
        with pytest.raises(Invalid, match="a session has no occurrences"):
            await office.otto.act(Ref(LabletSession, "alone"), Move(minutes=5, occurrence=1))


@from_monday
async def test_a_change_is_made_once_and_only_at_the_revision_that_was_seen() -> None:
    async with Office().open(max_workers=1) as office:
        seen = await office.otto.create(course())
        first = await office.otto.act(CLASS, Move(minutes=60), request="r1")
        again = await office.otto.act(CLASS, Move(minutes=60), request="r1")
        assert again == first
        with pytest.raises(Conflict):
            await office.otto.act(CLASS, Move(minutes=60), at=seen.metadata.resource_version)
        assert (await office.otto.act(CLASS, Move(minutes=60), at=first.metadata.resource_version)).spec != first.spec


@from_monday
async def test_of_two_moves_into_the_same_room_one_is_refused() -> None:
    async with Office(planes=2).open(max_workers=1) as office:
        await office.otto.create(course(DOZEN))
        later = AHEAD + timedelta(days=1)
        await office.otto.create(
            msgspec.structs.replace(
                course(DOZEN, timeslot_start=later, timeslot_end=later + HOUR), metadata=Metadata(name="other")
            )
        )
        goal = Move(start=AHEAD + timedelta(days=2))
        one, other = (core.plane_for(office.otto.caller) for core in office.cores)
        done = await asyncio.gather(
            one.act(CLASS, goal), other.act(Ref(Reservation, "other"), goal), return_exceptions=True
        )
        assert sorted(type(one).__name__ for one in done) == ["NoRoom", "Reservation"]
        assert await office.overcommitted() == []


@from_monday
async def test_a_moved_class_counts_once_towards_its_owners_quota() -> None:
    limits = OwnerLimits(live=3, ahead=3, hours_ahead=6)
    async with Office(limits=limits).open(max_workers=1) as office:
        ada = office.cores[0].plane_for(ADA)
        await ada.create(course(3))
        await ada.act(CLASS, Move(minutes=60))
        with pytest.raises(NoRoom, match="ada has"):
            await ada.act(CLASS, Extend(minutes=15))
        with pytest.raises(NoRoom, match="ada has"):
            await ada.act(CLASS, Resize(seats=4))
        await ada.act(CLASS, Resize(seats=2))
        with pytest.raises(NoRoom, match="days ahead"):
            await ada.act(CLASS, Move(minutes=100 * 24 * 60))
        await ada.act(CLASS, Extend(minutes=60))
        with pytest.raises(NoRoom):
            await ada.create(slot("more", NINE + timedelta(days=4)))


@from_monday
async def test_more_sessions_than_one_commit_holds_are_not_moved_together() -> None:
    async with Office().open(max_workers=12) as office:
        await office.otto.create(course(130))
        for first in range(1, 131, 30):
            await office.by(SCHEDULER).fulfil(CLASS, *range(first, min(first + 30, 131)))
        made = await read(office)
        with pytest.raises(TooLarge, match="130 of its sessions exist already"):
            await office.otto.act(CLASS, Move(minutes=60))
        assert await read(office) == made


@from_monday
async def test_four_hundred_that_no_session_has_taken_over_move_in_one_commit() -> None:
    async with Office().open(max_workers=34) as office:
        await office.otto.create(course(400))
        before = office.store.tried
        moved = await office.otto.act(CLASS, Move(minutes=60))
        assert (office.store.tried, len(moved.status.held)) == (before + 1, 400)
        assert await office.overcommitted() == []
