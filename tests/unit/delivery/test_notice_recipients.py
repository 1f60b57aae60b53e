"""Notices and the people they are for: nobody gets what is not theirs, and nobody waits for somebody else's mailbox."""

import asyncio

from harness.event_clients import virtual
from harness.notices import (
    ADA,
    BOB,
    NoticeWorld,
    booking,
    school_class,
)
from lcm.model.base.errors import Unreachable
from lcm.providers.protocols.mail import Mail


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
