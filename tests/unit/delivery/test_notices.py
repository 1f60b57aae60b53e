"""Notices in virtual time: who is told what, when, how often, and with which calendar entry."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
from icalendar import Calendar

from harness import given
from harness.event_clients import virtual
from harness.notices import (
    ADA,
    BOB,
    TUTOR,
    NoticeWorld,
    at,
    booking,
    ended,
    promised,
    running,
    school_class,
    with_sessions,
    with_status,
)
from lcm.control.delivery import sinks
from lcm.control.delivery.sinks import MAIL_SINK
from lcm.control.notices.delivery import MAILS_PER_DAY
from lcm.control.notices.notice_records import TOLD
from lcm.control.objects.records import ALERTS, CODEC
from lcm.control.telemetry.alerts import list_alerts
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.model.base.errors import Refused, Stuck, Unreachable
from lcm.model.base.resource import Condition, Truth
from lcm.model.kinds.reservation import Recurrence, ReservationPhase
from lcm.model.kinds.rules import NOTICES_ANNOTATION
from lcm.model.kinds.session import LabletSession, RiskReason, Seat, SessionPhase
from lcm.providers.protocols.mail import Mail
from lcm.sim.time.loop import VirtualClock
from lcm.store.base import Put, scan_all


def entry(mail: Mail, place: int = 0) -> Any:
    return Calendar.from_ical(mail.entries[place])


@virtual
async def test_a_booking_is_told_once_moved_and_cancelled_with_one_entry_that_grows() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        session = booking()
        await world.put(session)
        await asyncio.sleep(60)
        await world.put(with_status(session, retry_count=1))
        await asyncio.sleep(3600)
        assert world.kinds() == ["Booked"]
        first = entry(world.last()).events[0]
        await world.put(booking(start=25))
        await asyncio.sleep(60)
        second = entry(world.last()).events[0]
        await world.put(ended(booking(start=25), SessionPhase.TERMINATED, reason="the room is closed"))
        await asyncio.sleep(60)
    assert world.kinds() == ["Booked", "Changed", "Cancelled"]
    last = entry(world.last())
    assert [one["UID"] for one in (first, second, last.events[0])] == ["uid-s1@lcm"] * 3
    assert [one["SEQUENCE"] for one in (first, second, last.events[0])] == [0, 1, 2]
    assert (first["DTSTART"].dt, second["DTEND"].dt) == (at(24), at(27))
    assert (str(last["METHOD"]), str(last.events[0]["STATUS"])) == ("CANCEL", "CANCELLED")
    assert "the room is closed" in world.last().text
    assert "https://lcm.test/sessions/s1" in world.last().text


@virtual
async def test_a_running_lab_is_told_with_its_addresses_and_ten_minutes_before_its_end() -> None:
    world, session = NoticeWorld(), booking(start=0, hours=2)
    async with world.process():
        await asyncio.sleep(2)
        await world.put(running(session))
        await asyncio.sleep(60)
        assert world.kinds() == ["Ready"]
        assert "telnet://192.0.2.7:2001" in world.last().text
        await asyncio.sleep(timedelta(hours=1, minutes=48).total_seconds())
        assert world.kinds() == ["Ready"]
        await asyncio.sleep(90)
        assert world.kinds() == ["Ready", "Ends in 10 minutes"]
    assert (at(2) - world.mailbox.received[-1].at) <= timedelta(minutes=10)


@virtual
async def test_an_extension_cancels_the_warning_and_another_process_gives_the_new_one_on_time() -> None:
    world, session = NoticeWorld(), booking(start=0, hours=2)
    async with world.process("first"):
        await asyncio.sleep(2)
        await world.put(running(session))
        await asyncio.sleep(3600)
        longer = running(session, ends_at=at(3), history=())
        await world.put(longer)
        await asyncio.sleep(60)
        assert world.kinds() == ["Ready", "Changed"]
    async with world.process("second"):
        await asyncio.sleep((at(2.5) - at(1)).total_seconds())
        assert world.kinds() == ["Ready", "Changed"]
        await asyncio.sleep(3600)
    assert world.kinds() == ["Ready", "Changed", "Ends in 10 minutes"]


@virtual
async def test_a_crash_between_mail_and_record_repeats_the_same_mail_and_nothing_else() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
    world.mailbox.lost_answer = lambda _: Unreachable("the answer was lost")
    await world.put(booking())
    async with world.process("first"):
        await asyncio.sleep(0.5)
    world.mailbox.lost_answer = lambda _: None
    async with world.process("second"):
        await asyncio.sleep(3600)
    async with world.process("third"):
        await asyncio.sleep(3600)
    ids = [one.mail.id for one in world.mailbox.received]
    assert len(set(ids)) == 1
    assert len({str(one.message["Message-ID"]) for one in world.mailbox.received}) == 1
    assert len(ids) == 2


@virtual
async def test_two_processes_send_each_notice_once() -> None:
    world = NoticeWorld()
    async with world.process("first"), world.process("second"):
        await asyncio.sleep(2)
        await world.put(*(booking(f"s{number}", owner=f"p{number}@example.org") for number in range(20)))
        await asyncio.sleep(60)
    assert sorted(one.mail.recipient for one in world.mailbox.received) == sorted(
        f"p{number}@example.org" for number in range(20)
    )


@virtual
async def test_bookings_from_before_the_first_notice_are_not_announced_but_their_changes_are() -> None:
    world = NoticeWorld()
    await world.put(booking(created_at=at(-1)))
    async with world.process():
        await asyncio.sleep(60)
        assert world.subjects() == []
        await world.put(booking(start=30, created_at=at(-1)))
        await asyncio.sleep(60)
    assert world.kinds() == ["Changed"]


@virtual
async def test_a_deleted_booking_is_cancelled_and_its_name_can_be_used_again() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        await world.put(booking())
        await asyncio.sleep(5)
        await world.remove(booking())
        await asyncio.sleep(5)
        assert world.kinds() == ["Booked", "Cancelled"]
        await world.put(booking(uid="another"))
        await asyncio.sleep(5)
    assert world.kinds() == ["Booked", "Cancelled", "Booked"]
    assert entry(world.last()).events[0]["UID"] == "another@lcm"


@virtual
async def test_a_class_is_announced_once_to_each_learner_and_to_its_owner() -> None:
    world, people = NoticeWorld(mails_per_minute=120), [f"p{number}@example.org" for number in range(200)]
    whole = school_class(*people)
    async with world.process():
        await asyncio.sleep(2)
        await world.put(whole)
        await asyncio.sleep(50)
        assert 80 <= len(world.mailbox.received) <= 110, "mail is paced"
        await asyncio.sleep(100)
        assert len(world.mailbox.received) == 201
        active, several = with_sessions(whole)
        await world.put(*several[:100])
        await world.put(*several[100:], active)
        await asyncio.sleep(3600)
        assert len(world.mailbox.received) == 201, "its sessions are not announced again"
        moved = school_class(*people, start=25)
        await world.put(moved)
        await world.remove(*several[:100])
        await world.remove(*several[100:])
        await asyncio.sleep(600)
    assert all(world.kinds(one) == ["Booked", "Changed"] for one in (*people, TUTOR))
    assert "For: p0@example.org, p1@example.org" in world.mailbox.of(TUTOR)[0].text


@virtual
async def test_what_happens_to_one_lab_of_a_class_is_told_to_its_learner_alone() -> None:
    world = NoticeWorld()
    whole, several = with_sessions(school_class(ADA, BOB, start=0.01))
    async with world.process():
        await asyncio.sleep(2)
        await world.put(whole, *several)
        await asyncio.sleep(60)
        await world.put(*map(running, several))
        await asyncio.sleep(60)
        ends = ended(ended(running(several[0]), SessionPhase.COLLECTING, by=ADA), SessionPhase.TERMINATED)
        await world.put(ends)
        await asyncio.sleep(60)
        await world.remove(ends)
        await asyncio.sleep(7200)
    assert world.kinds(ADA) == ["Booked", "Ready"]
    assert world.kinds(BOB) == ["Booked", "Ready", "Ends in 10 minutes"]
    assert world.kinds(TUTOR) == ["Booked"]


@virtual
async def test_a_learner_who_is_swapped_is_told_and_so_is_the_one_who_comes() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        await world.put(school_class(ADA))
        await asyncio.sleep(5)
        await world.put(school_class(BOB))
        await asyncio.sleep(5)
    assert (world.kinds(ADA), world.kinds(BOB)) == (["Booked", "Cancelled"], ["Booked"])
    assert world.kinds(TUTOR) == ["Booked"]


@virtual
async def test_a_series_is_one_entry_in_its_time_zone_across_a_change_of_the_clocks() -> None:
    world = NoticeWorld()
    rule = Recurrence(every="week", until=(at(24) + timedelta(days=400)).date(), time_zone="Europe/Berlin", interval=4)
    whole = school_class(ADA, recurrence=rule)
    async with world.process():
        await asyncio.sleep(2)
        await world.put(whole)
        await asyncio.sleep(5)
    calendar = entry(world.last())
    (event,) = calendar.events
    assert event["DTSTART"].params["TZID"] == "Europe/Berlin"
    assert event["RRULE"]["INTERVAL"] == [4]
    assert [str(one["TZID"]) for one in calendar.timezones] == ["Europe/Berlin"]
    hours = {one.claim.start.hour for one in whole.status.held}
    assert len(hours) == 2, "the clocks change within it"


@virtual
async def test_a_cancelled_class_is_cancelled_for_all() -> None:
    world, whole = NoticeWorld(), school_class(ADA, BOB)
    async with world.process():
        await asyncio.sleep(2)
        await world.put(whole)
        await asyncio.sleep(5)
        status = msgspec.structs.replace(promised(whole), phase=ReservationPhase.CANCELLED)
        await world.put(msgspec.structs.replace(whole, status=status))
        await asyncio.sleep(5)
    assert [world.kinds(one) for one in (ADA, BOB, TUTOR)] == [["Booked", "Cancelled"]] * 3


def at_risk(name: str, owner: str = TUTOR, student: str | None = None) -> LabletSession:
    risk = Condition(
        type="AtRisk",
        status=Truth.TRUE,
        last_transition_at=at(0),
        reason=RiskReason.NO_WORKER,
        message=f"no worker of {name} is ready",
    )
    return with_status(booking(name, owner=owner, student_email=student, timeslot_start=None), conditions=(risk,))


@virtual
async def test_a_storm_of_troubles_is_one_mail_and_the_next_comes_ten_minutes_later() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        for number in range(10):
            await world.put(at_risk(f"a{number}"))
            await asyncio.sleep(1)
        await asyncio.sleep(30)
        (mail,) = world.mailbox.of(TUTOR)
        assert mail.subject == "10 of your labs are in trouble"
        assert all(f"no worker of a{number} is ready" in mail.text for number in range(10))
        for number in range(10):
            await world.put(at_risk(f"b{number}"))
        await asyncio.sleep(300)
        assert len(world.mailbox.of(TUTOR)) == 1
        await asyncio.sleep(400)
        assert len(world.mailbox.of(TUTOR)) == 2
        await asyncio.sleep(3600)
    assert len(world.mailbox.of(TUTOR)) == 2


@virtual
async def test_who_owns_a_lab_of_somebody_else_hears_of_its_troubles_only() -> None:
    world, session = NoticeWorld(), booking(owner=TUTOR, student_email=ADA)
    async with world.process():
        await asyncio.sleep(2)
        await world.put(session)
        await asyncio.sleep(60)
        await world.put(ended(session, SessionPhase.FAILED, reason="its lab does not start"))
        await asyncio.sleep(60)
    assert (world.kinds(ADA), world.kinds(TUTOR)) == (["Booked", "Could not take place"], ["Could not take place"])
    assert "its lab does not start" in world.last(TUTOR).text


@virtual
async def test_who_ends_their_own_lab_is_not_told_so() -> None:
    world, session = NoticeWorld(), booking(start=0)
    async with world.process():
        await asyncio.sleep(2)
        live = running(session)
        await world.put(live)
        await asyncio.sleep(60)
        await world.put(ended(ended(live, SessionPhase.COLLECTING, by=ADA), SessionPhase.TERMINATED))
        await asyncio.sleep(60)
    assert world.kinds() == ["Ready"]


@virtual
async def test_a_silent_pool_class_or_session_sends_nothing_and_floods_nobody_later() -> None:
    world = NoticeWorld()
    off, on = {NOTICES_ANNOTATION: "off"}, {NOTICES_ANNOTATION: "on"}
    seat = Seat(pool="quiet", number=0)
    async with world.process():
        await asyncio.sleep(2)
        await world.put(given.pool(name="quiet", annotations=off))
        await world.put(booking("s1", annotations=off), booking("s2", seat=seat))
        await world.put(school_class(ADA, annotations=off))
        await asyncio.sleep(60)
        assert world.mailbox.received == []
        await world.put(booking("s1", annotations=on), school_class(ADA, annotations=on))
        await asyncio.sleep(60)
        assert world.mailbox.received == []
        await world.put(booking("s1", annotations=on, start=30))
        await asyncio.sleep(60)
    assert world.kinds() == ["Changed"]


@virtual
async def test_while_no_mail_can_be_sent_it_is_tried_again_told_by_an_alert_and_sent_in_the_end() -> None:
    world = NoticeWorld()
    world.mailbox.trouble = lambda _: Unreachable("mail.example.org: no route")
    async with world.process():
        await asyncio.sleep(2)
        await world.put(booking())
        await asyncio.sleep(120)
        assert await list_alerts(world.store) == []
        await asyncio.sleep(1200)
        (alert,) = await list_alerts(world.store)
        assert (alert.alert, alert.reason) == ("MailNotSent", "Unreachable")
        status = (await sinks.read_statuses(world.store))[MAIL_SINK]
        assert status.failures > 5
        assert world.mailbox.asked < 30, "it backs off"
        world.mailbox.trouble = lambda _: None
        await asyncio.sleep(400)
    assert world.kinds() == ["Booked"]
    assert await list_alerts(world.store) == []
    assert await world.store.get(f"{ALERTS}mail") is None


@virtual
async def test_wrong_settings_raise_the_alert_at_once() -> None:
    world = NoticeWorld()
    world.mailbox.trouble = lambda _: Stuck("MailSignInRefused", "the password is wrong")
    async with world.process():
        await asyncio.sleep(2)
        await world.put(booking())
        await asyncio.sleep(5)
        (alert,) = await list_alerts(world.store)
    assert alert.reason == "MailSignInRefused"


@virtual
async def test_a_mail_that_is_refused_becomes_a_dead_letter_that_can_be_replayed() -> None:
    world = NoticeWorld()
    world.mailbox.trouble = lambda mail: Refused("no such user") if mail.recipient == ADA else None
    async with world.process():
        await asyncio.sleep(2)
        await world.put(booking("s1"), booking("s2", owner=BOB))
        await asyncio.sleep(60)
        assert (world.kinds(ADA), world.kinds(BOB)) == ([], ["Booked"])
        (letter,) = await sinks.list_dead_letters(world.store, MAIL_SINK)
        assert (letter.event.type, letter.last_error) == ("notice.booked", "no such user")
        world.mailbox.trouble = lambda _: None
        key = sinks.dead_letter_key(MAIL_SINK, letter.event_id)
        await world.store.commit(Put(key, CODEC.encode(msgspec.structs.replace(letter, replay=True))))
        await asyncio.sleep(60)
        assert await sinks.list_dead_letters(world.store, MAIL_SINK) == []
    assert world.kinds(ADA) == ["Booked"]


@virtual
async def test_nobody_gets_more_than_a_number_of_mails_a_day() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        for first in range(0, MAILS_PER_DAY + 50, 50):
            await world.put(*(booking(f"s{number}") for number in range(first, first + 50)))
        await asyncio.sleep(3600)
        assert len(world.mailbox.received) == MAILS_PER_DAY
        await asyncio.sleep(86_400)
        await world.put(booking("s1", start=50))
        await asyncio.sleep(60)
    assert len(world.mailbox.received) == MAILS_PER_DAY + 1


@virtual
async def test_a_name_that_is_no_address_gets_no_mail() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        await world.put(booking("s1", owner="ada"), booking("s2", owner="x", student_email='"a b"@example.org'))
        await asyncio.sleep(60)
    assert world.mailbox.received == []


@virtual
async def test_records_of_what_is_over_are_swept_and_nothing_is_told_again() -> None:
    world, session = NoticeWorld(), booking()
    async with world.process():
        await asyncio.sleep(2)
        await world.put(session, booking("s2", start=200))
        await asyncio.sleep(60)
        failed = ended(session, SessionPhase.FAILED, reason="no room")
        await world.put(failed)
        await asyncio.sleep(60)
    await asyncio.sleep(3 * 86_400)
    assert len((await scan_all(world.store, TOLD)).entries) == 2
    await Housekeeping(world.store, clock=VirtualClock(), linger=timedelta(days=100)).tidy()
    assert len((await scan_all(world.store, TOLD)).entries) == 1
    async with world.process("later"):
        await asyncio.sleep(3600)
    assert world.kinds() == ["Booked", "Booked", "Could not take place"]
