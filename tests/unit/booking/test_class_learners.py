"""Who has which seat of a class: nobody loses one by a change that is about something else."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harness import given
from harness.booking_world import Office, from_monday, slot
from lcm.cli.booking.roster import read_roster
from lcm.control.booking.quota import OwnerLimits
from lcm.control.objects.records import change_ops, find_record
from lcm.control.plane.booking_actions import Move, Resize, SetLearners, Swap
from lcm.control.plane.protocol import Extend, Ref, Terminate
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.model.access.identity import Caller, Reach, Role
from lcm.model.base.errors import Forbidden, Refused
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.resource import Metadata, PhaseChange
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, SessionPhase

CLASS = Ref(Reservation, "class")
AHEAD = given.moment("09:00", day=1)
ADA, BEN, CARL = "ada@example.org", "ben@example.org", "carl@example.org"


def course(count: int, **fields: object) -> Reservation:
    end = AHEAD + timedelta(hours=2)
    made = given.reservation(count=count, timeslot_start=AHEAD, timeslot_end=end, **fields)
    return msgspec.structs.replace(made, metadata=Metadata(name="class"))


async def change_session(office: Office, name: str, **parts: Any) -> None:
    """Store a session with other fields of its spec and status."""
    record = await find_record(office.store, Ref(LabletSession, name))
    assert record is not None
    one = record.resource
    changed = {part: msgspec.structs.replace(getattr(one, part), **fields) for part, fields in parts.items()}
    await office.store.commit(*change_ops(record, msgspec.structs.replace(one, **changed)))
    await asyncio.sleep(1)


async def begin(office: Office, name: str) -> None:
    status = {"phase": SessionPhase.INSTANTIATING, "worker_id": "uid-w", "allocated_ports": {}}
    await change_session(office, name, status=status)


async def learners(office: Office) -> dict[str, str | None]:
    return {one.metadata.name: one.spec.student_email for one in await office.sessions()}


@pytest.mark.parametrize("people", [(), (ADA, BEN)])
@from_monday
async def test_who_was_named_on_one_session_keeps_it_when_the_class_changes(people: tuple[str, ...]) -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(2, student_emails=people))
        await office.by(SCHEDULER).fulfil(CLASS, 1, 2)
        await change_session(office, "class-1", spec={"student_email": CARL})
        await office.otto.act(CLASS, Move(minutes=60))
        await office.otto.act(CLASS, Extend(minutes=30))
        assert (await learners(office))["class-1"] == CARL
        await office.otto.act(CLASS, SetLearners(student_emails=("dora@example.org", BEN)))
        assert (await learners(office))["class-1"] == "dora@example.org"


@pytest.mark.parametrize(
    "action",
    [
        Swap(learner=ADA, other=BEN),
        Swap(learner=BEN, other=ADA),
    ],
)
@from_monday
async def test_who_already_works_in_one_seat_is_not_given_another_in_the_same_slot(action: Any) -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(2, student_emails=(ADA, BEN)))
        await office.by(SCHEDULER).fulfil(CLASS, 1, 2)
        await begin(office, "class-1")
        with pytest.raises(Refused, match="has begun"):
            await office.otto.act(CLASS, action)
        assert await learners(office) == {"class-1": ADA, "class-2": BEN}


@pytest.mark.parametrize("action", [Swap(learner=ADA, other=CARL), SetLearners(student_emails=(CARL, BEN))])
@from_monday
async def test_learners_of_a_class_that_has_begun_are_not_changed_on_paper_only(action: Any) -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(2, student_emails=(ADA, BEN)))
        await office.by(SCHEDULER).fulfil(CLASS, 1, 2)
        await begin(office, "class-1")
        await begin(office, "class-2")
        with pytest.raises(Refused, match="begun"):
            await office.otto.act(CLASS, action)


@pytest.mark.parametrize("action", [Move(minutes=60), Extend(minutes=30), Resize(seats=3)])
@from_monday
async def test_a_token_that_is_limited_to_tracks_takes_no_room_on_others_by_changing_what_is_booked(
    action: Any,
) -> None:
    async with Office().open(max_workers=1) as office:
        ines = Caller(name="ines", role=Role.INSTRUCTOR)
        limited = msgspec.structs.replace(ines, reach=Reach(tracks=("devnet",)))
        await office.cores[0].plane_for(ines).create(course(2))
        with pytest.raises(Forbidden, match="devnet"):
            await office.cores[0].plane_for(limited).act(CLASS, action)
        await office.cores[0].plane_for(ines).act(CLASS, action)


@pytest.mark.parametrize(
    ("action", "people"),
    [
        (Swap(learner="ADA@example.org", other="Ben@example.org"), (BEN, ADA)),
        (SetLearners(student_emails=("Ben@example.org", CARL)), (CARL, "Ben@example.org")),
        (Resize(seats=3, student_emails=("ADA@example.org", CARL, "Ben@example.org")), (ADA, BEN, CARL)),
    ],
)
@from_monday
async def test_capitals_in_an_address_make_nobody_lose_or_gain_a_seat(action: Any, people: tuple[str, ...]) -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(2, student_emails=(ADA, BEN)))
        made = await office.otto.act(CLASS, action)
        assert made.spec.student_emails == people


@from_monday
async def test_a_class_shows_what_became_of_its_seats_long_after_they_ended() -> None:
    async with Office().open(max_workers=1) as office:
        await office.otto.create(course(2, student_emails=(ADA, BEN)))
        await office.by(SCHEDULER).fulfil(CLASS, 1, 2)
        ended = PhaseChange(phase=SessionPhase.COMPLETED, at=office.clock.now(), by="lablet-controller")
        await change_session(office, "class-1", status={"phase": SessionPhase.COMPLETED, "history": (ended,)})
        await Housekeeping(office.store, clock=office.clock, linger=timedelta()).tidy()
        assert [one.metadata.name for one in await office.sessions()] == ["class-2"], "the other is in the archive"
        found = await office.otto.get(CLASS)
        assert found is not None
        rows = await read_roster(office.otto, found)
        assert [(one.learner, one.state, one.session) for one in rows] == [
            (ADA, "COMPLETED", "class-1"),
            (BEN, "PENDING", "class-2"),
        ]


@from_monday
async def test_a_token_that_is_limited_to_tracks_extends_no_session_on_others() -> None:
    async with Office(limits=OwnerLimits()).open(max_workers=1) as office:
        ines = Caller(name="ines", role=Role.INSTRUCTOR)
        limited = msgspec.structs.replace(ines, reach=Reach(tracks=("devnet",)))
        alone = Ref(LabletSession, "alone")
        await office.cores[0].plane_for(ines).create(slot("alone", AHEAD, owner="ines"))
        for action in (Extend(minutes=30), Move(minutes=60)):
            with pytest.raises(Forbidden, match="devnet"):
                await office.cores[0].plane_for(limited).act(alone, action)
        await office.cores[0].plane_for(ines).act(alone, Extend(minutes=30))
        await office.cores[0].plane_for(limited).act(alone, Terminate())
