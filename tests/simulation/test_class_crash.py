"""A process that dies or sleeps anywhere while it moves a class leaves all of it where it was, or all of it moved."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from crash.everywhere import crash_everywhere, pause_everywhere
from harness import given
from harness.booking_world import DOZEN, a_pool, lab, metal
from harness.plane_world import OTTO, service
from harness.workers import beside
from lcm.control.plane.booking_actions import Move
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Ref
from lcm.model.base.capacity import Profile
from lcm.model.base.machine import SCHEDULER
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.money.prices import declared_capacity
from lcm.placement.claims import Terms
from lcm.placement.places import claims_of_booking
from lcm.sim.time.loop import START, VirtualClock
from lcm.store.memory import MemoryStore

BEGIN = START + timedelta(days=2)
HOUR = timedelta(hours=1)


@dataclass
class School:
    """A store with a full pool: a class of a dozen, half of which have sessions."""

    store: MemoryStore = field(default_factory=MemoryStore)

    def core(self) -> ControlPlane:
        return ControlPlane(self.store, clock=VirtualClock(), terms=Terms())


async def booked() -> School:
    school = School()
    core = school.core()
    assert core.promises is not None
    async with beside(core.promises.calendar.run()):
        otto = core.plane_for(OTTO)
        for one in (lab(), metal(), a_pool(max_workers=1)):
            await otto.create(one)
        spec = given.reservation(count=DOZEN, timeslot_start=BEGIN, timeslot_end=BEGIN + 2 * HOUR)
        await otto.create(spec)
        await core.plane_for(service(SCHEDULER)).fulfil(Ref(Reservation, "r1"), *range(1, 7))
    return school


async def body(school: School) -> None:
    core = school.core()
    assert core.promises is not None
    following = asyncio.create_task(core.promises.calendar.run())
    await core.plane_for(OTTO).act(Ref(Reservation, "r1"), Move(minutes=60), request="by-an-hour")
    following.cancel()


async def check(school: School) -> None:
    otto = school.core().plane_for(OTTO)
    whole = await otto.get(Ref(Reservation, "r1"))
    assert whole is not None
    sessions = (await otto.list(LabletSession)).items
    assert whole.spec.timeslot_start == BEGIN + HOUR, "once, however often it was asked"
    assert {one.spec.timeslot_start for one in sessions} == {BEGIN + HOUR}
    bookings: list[LabletSession | Reservation] = [whole, *sessions]
    held = [held.claim for one in bookings for _, _, held in claims_of_booking(one)]
    assert (len(held), len(set(map(str, held)))) == (DOZEN, 1)
    room = declared_capacity(metal().spec.worker)
    assert room is not None
    assert not Profile.of(held).find_overcommitted(room)


def test_a_process_that_dies_anywhere_in_a_move_moves_all_or_nothing(tell: Callable[[str], None]) -> None:
    assert crash_everywhere("move of a class", booked, body, check, report=tell) >= 5


def test_a_process_that_sleeps_anywhere_in_a_move_moves_it_once(tell: Callable[[str], None]) -> None:
    assert pause_everywhere("move of a class", booked, body, check, pause_for=timedelta(seconds=5), report=tell) >= 5
