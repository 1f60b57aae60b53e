"""Notices and the people they are for: nobody gets what is not theirs, and nobody waits for somebody else's mailbox."""

import asyncio
from typing import Any

import msgspec
from icalendar import Calendar

from harness.event_clients import virtual
from harness.notices import (
    ADA,
    BOB,
    TUTOR,
    NoticeWorld,
    booking,
    ended,
    running,
    school_class,
    with_sessions,
)
from lcm.control.notices.delivery import MAILS_PER_DAY
from lcm.control.telemetry.alerts import list_alerts
from lcm.model.base.errors import Unreachable
from lcm.model.kinds.session import SessionPhase
from lcm.providers.protocols.mail import Mail, RecipientBusy

CARL = "carl@example.org"


def down(_mail: Mail) -> Unreachable:
    return Unreachable("mail.example.org: no route")


@virtual
async def test_whoever_was_taken_out_of_a_class_before_mail_could_be_sent_hears_nothing_of_it() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        world.mailbox.trouble = down
        await world.put(school_class(ADA))
        await asyncio.sleep(2)
        await world.put(school_class(BOB))
        await asyncio.sleep(60)
        world.mailbox.trouble = lambda _: None
        await asyncio.sleep(600)
    assert (world.kinds(ADA), world.kinds(BOB)) == ([], ["Booked"])


@virtual
async def test_a_booking_that_is_removed_before_mail_could_be_sent_is_not_told() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        world.mailbox.trouble = down
        await world.put(booking())
        await asyncio.sleep(2)
        await world.remove(booking())
        await asyncio.sleep(60)
        world.mailbox.trouble = lambda _: None
        await asyncio.sleep(600)
    assert world.kinds() == []


@virtual
async def test_a_mailbox_that_is_full_delays_nobody_elses_mail_and_raises_no_alert() -> None:
    world = NoticeWorld()
    world.mailbox.trouble = lambda mail: RecipientBusy("mailbox full") if mail.recipient == ADA else None
    async with world.process():
        await asyncio.sleep(2)
        await world.put(booking("s1"))
        await asyncio.sleep(60)
        await world.put(booking("s2", owner=BOB))
        await asyncio.sleep(5)
        assert world.kinds(BOB) == ["Booked"]
        await asyncio.sleep(3600)
        assert world.mailbox.asked < 20, "it is not tried all the time"
        assert await list_alerts(world.store) == []
        world.mailbox.trouble = lambda _: None
        await asyncio.sleep(600)
    assert world.kinds(ADA) == ["Booked"]


@virtual
async def test_when_no_mailbox_at_all_takes_mail_an_alert_says_so() -> None:
    world = NoticeWorld()
    world.mailbox.trouble = lambda _: RecipientBusy("try again later")
    async with world.process():
        await asyncio.sleep(2)
        await world.put(*(booking(f"s{number}", owner=f"p{number}@example.org") for number in range(30)))
        await asyncio.sleep(3600)
        assert [one.alert for one in await list_alerts(world.store)] == ["MailNotSent"]
        assert world.mailbox.asked < 400, "it backs off"


@virtual
async def test_capitals_in_an_address_are_no_other_person() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        await world.put(school_class("Ada@example.org"))
        await asyncio.sleep(5)
        await world.put(school_class(ADA))
        await asyncio.sleep(5)
        assert world.kinds() == ["Booked"]
        spelt = ["ada@example.org", "Ada@example.org", "ADA@example.org"]
        await world.put(
            *(booking(f"s{number}", owner=spelt[number % 3]) for number in range(MAILS_PER_DAY)),
        )
        await asyncio.sleep(3600)
    to_ada = [one for one in world.mailbox.received if one.mail.recipient.lower() == ADA]
    assert len(to_ada) == MAILS_PER_DAY


@virtual
async def test_one_lab_that_fails_does_not_take_the_class_out_of_its_owners_calendar() -> None:
    world = NoticeWorld()
    whole, several = with_sessions(school_class(ADA, BOB, start=0.01))
    async with world.process():
        await asyncio.sleep(2)
        await world.put(whole, *several)
        await asyncio.sleep(60)
        await world.put(ended(running(several[0]), SessionPhase.FAILED, reason="its lab does not start"))
        await asyncio.sleep(60)
    assert (world.kinds(ADA)[-1], world.kinds(TUTOR)) == ("Could not take place", ["Booked", "Could not take place"])
    assert methods(world.last(ADA)) == ["CANCEL"]
    assert methods(world.last(TUTOR)) == []


@virtual
async def test_a_mail_with_other_times_is_another_mail_to_every_mail_server() -> None:
    world = NoticeWorld()
    async with world.process("first"):
        await asyncio.sleep(2)
        await world.put(booking())
        await asyncio.sleep(5)
    world.mailbox.lost_answer = down
    await world.put(booking(start=25))
    async with world.process("second"):
        await asyncio.sleep(0.5)
    world.mailbox.lost_answer = lambda _: None
    await world.put(booking(start=26))
    async with world.process("third"):
        await asyncio.sleep(600)
    assert world.kinds() == ["Booked", "Changed", "Changed"]
    assert len({one.id for one in world.mailbox.of(ADA)}) == len(world.kinds())


@virtual
async def test_a_learner_who_is_swapped_back_is_told_with_an_entry_that_supersedes_the_cancelled_one() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        for person in (ADA, BOB, ADA):
            await world.put(school_class(person))
            await asyncio.sleep(5)
        await world.put(school_class(ADA, start=25))
        await asyncio.sleep(5)
        await world.put(school_class(BOB, start=25))
        await asyncio.sleep(5)
    assert world.kinds(ADA) == ["Booked", "Cancelled", "Booked", "Changed", "Cancelled"]
    entries = [Calendar.from_ical(one.entries[0]).events[0] for one in world.mailbox.of(ADA)]
    assert [one["SEQUENCE"] for one in entries] == [0, 1, 2, 3, 4]


@virtual
async def test_a_seat_that_is_given_away_on_its_session_is_told_to_both() -> None:
    world = NoticeWorld()
    whole, (first, second) = with_sessions(school_class(ADA, BOB))
    carls = msgspec.structs.replace(first, spec=msgspec.structs.replace(first.spec, student_email=CARL))
    async with world.process():
        await asyncio.sleep(2)
        await world.put(whole, first, second)
        await asyncio.sleep(5)
        await world.put(carls)
        await asyncio.sleep(5)
        await world.put(running(carls))
        await asyncio.sleep(5)
    assert world.kinds(ADA) == ["Booked", "Cancelled"]
    assert world.kinds(CARL) == ["Booked", "Ready"]
    assert (world.kinds(BOB), world.kinds(TUTOR)) == (["Booked"], ["Booked"])


def methods(mail: Mail) -> list[Any]:
    return [str(Calendar.from_ical(one)["METHOD"]) for one in mail.entries]
