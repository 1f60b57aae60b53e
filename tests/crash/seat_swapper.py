"""A process that books, extends, cancels and moves claims at random until it is killed: `ENGINE ADDRESS NAME`.

It is a replica of the control plane with people and a pool controller before it. It says what it is about to cancel,
and what else it did only after it had an answer. It follows the store first and then waits for a line, so that whoever
starts it can have the next one ready.
"""

import asyncio
import os
import sys
from datetime import datetime, timedelta
from functools import partial
from random import Random

from msgspec.structs import replace

from crash.busy_leader import open_store
from harness.plane_world import OTTO, service
from lcm.control.booking.calendar import Calendar
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Extend, Ref
from lcm.controllers.pool.packing import _seat_change
from lcm.model.base.errors import LcmError
from lcm.model.base.machine import POOL_CONTROLLER, SCHEDULER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation, ReservationPhase, ReservationSpec
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.placement import pack
from lcm.placement.claims import Terms
from lcm.placement.pack_board import PackTerms
from lcm.placement.pack_problem import PackProblem, SeatedClaim, solve_packing
from lcm.placement.pack_steps import SeatMove, order_moves
from lcm.placement.request import HeldClaim
from lcm.system import log
from lcm.system.clock import SystemClock, new_id
from simulation.random_bookings import LABS, QUARTER, ROOM, SEATS, TRACK

PEOPLE = 3
ENOUGH, PLENTY = 30, 60
"""With fewer bookings nobody cancels, and with more nobody books."""
MOST_REST_SECONDS = 0.3
PACK_STEPS = 5_000
MOST_MOVES = 8
"""A plan is reached in several steps, so that bookings come between them."""
POOL = Ref(LabWorkerPool, TRACK)


def say(*words: object) -> None:
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


class Replica:
    """People and a pool controller at one control plane."""

    def __init__(self, core: ControlPlane, calendar: Calendar, name: str) -> None:
        self._core = core
        self._calendar = calendar
        self._name = name
        self._serial = 0
        self._chance = Random(name)
        self._first = SystemClock().now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=6)

    async def trade(self) -> None:
        """Do one thing after the other; what is refused is nothing to wonder at."""
        while True:
            live = len(self._calendar.cache.all(LabletSession))
            book, cancel = (6 if live < PLENTY else 0), (4 if live > ENOUGH else 0)
            deeds = (self._book, self._reserve, self._extend, self._cancel, self._disband)
            deed = self._chance.choices(deeds, (book, 1, 3, cancel, 1))[0]
            try:
                await deed()
            except LcmError as error:
                say("refused", type(error).__name__, deed.__name__)
            await asyncio.sleep(self._chance.uniform(0, MOST_REST_SECONDS))

    async def swap(self) -> None:
        """Reach one plan after the other: each would like to have all claims on other machines than the one before."""
        while True:
            for step in self._better_plan():
                if not await self._is_taken(step):
                    break
                await asyncio.sleep(0.01)
            self._compare_seats()
            await self._is_taken(self._exchange())
            await asyncio.sleep(0.05)

    async def _is_taken(self, step: list[SeatChange]) -> bool:
        try:
            await self._core.plane_for(service(POOL_CONTROLLER)).reseat(POOL, step)
        except LcmError as error:
            say("stayed", type(error).__name__)
            return False
        say("moved", len(step))
        return True

    def _compare_seats(self) -> None:
        """Return which claims the seats that promises are checked against have otherwise than their bookings."""
        row = self._calendar.pool(POOL)
        seats = self._calendar.seats(row) if row else None
        assert seats is not None
        there = {(number, held) for number in range(1, len(seats) + 1) for held in seats[number].held.values()}
        for number, held in there ^ set(self._claims()):
            say("confused", number, held.holder)

    def _better_plan(self) -> list[list[SeatChange]]:
        standing = frozenset(self._chance.sample(range(1, SEATS + 1), SEATS // 2))
        claims = [SeatedClaim(held.holder, held.claim, number, fixed=False) for number, held in self._claims()]
        terms = PackTerms(ROOM, SEATS, timedelta(minutes=25), standing=standing)
        answer = solve_packing(PackProblem(terms, claims, PACK_STEPS, self._chance.randrange(1000)))
        return [[_seat_change(move) for move in step] for step in answer.steps]

    def _exchange(self) -> list[SeatChange]:
        """Return a few claims that change their seats with one another, whether or not there is room."""
        some = self._chance.sample(self._claims(), min(len(self._claims()), self._chance.randrange(1, 5)))
        seats = [number for number, _ in some]
        turned = [*seats[1:], seats[0]] if len(seats) > 1 else [self._chance.randrange(1, SEATS + 1) for _ in seats]
        pairs = zip(some, turned, strict=True)
        return [_seat_change(SeatMove(held.holder, number, after)) for (number, held), after in pairs]

    def _claims(self) -> list[tuple[int, HeldClaim]]:
        return list(self._calendar.claims(POOL))

    async def _book(self) -> None:
        start = self._start()
        end = start + self._chance.choice((2, 4, 6)) * QUARTER
        lab = self._chance.choices(list(LABS), (3, 3, 2, 1))[0]
        wanted = LabletSessionSpec(definition=lab, timeslot_start=start, timeslot_end=end)
        made = await self._core.plane_for(OTTO).create(LabletSession(metadata=self._new_name("s"), spec=wanted))
        assert made.status.claim is not None
        say("booked", made.metadata.name, made.status.claim.end.isoformat())

    async def _reserve(self) -> None:
        start = self._start()
        count = self._chance.randrange(2, 5)
        wanted = ReservationSpec(
            definition="small:1.0.0", timeslot_start=start, timeslot_end=start + 4 * QUARTER, count=count
        )
        made = await self._core.plane_for(OTTO).create(Reservation(metadata=self._new_name("r"), spec=wanted))
        say("reserved", made.metadata.name, len(made.status.held))

    async def _extend(self) -> None:
        sessions = self._calendar.cache.all(LabletSession)
        if sessions:
            ref = Ref(LabletSession, self._chance.choice(sessions).metadata.name)
            longer = await self._core.plane_for(OTTO).act(ref, Extend(minutes=15))
            assert longer.status.claim is not None
            say("extended", ref.name, longer.status.claim.end.isoformat())

    async def _cancel(self) -> None:
        name = self._chance.choice(self._calendar.cache.all(LabletSession)).metadata.name
        say("cancel", name)
        await self._core.plane_for(OTTO).delete(Ref(LabletSession, name))
        say("cancelled", name)

    async def _disband(self) -> None:
        groups = self._calendar.cache.all(Reservation)
        if groups:
            name = self._chance.choice(groups).metadata.name
            say("cancel", name)
            leaving = await self._core.plane_for(OTTO).delete(Ref(Reservation, name))
            over = replace(leaving.status, phase=ReservationPhase.CANCELLED)
            await self._core.plane_for(service(SCHEDULER)).step(leaving, over)
            say("cancelled", name)

    def _start(self) -> datetime:
        return self._first + self._chance.randrange(16) * QUARTER

    def _new_name(self, letter: str) -> Metadata:
        self._serial += 1
        return Metadata(name=f"{letter}-{self._name}-{self._serial}")


async def main(engine: str, address: str, name: str) -> None:
    store = await open_store(engine, address)
    core = ControlPlane(store, clock=SystemClock(), ids=new_id, terms=Terms(), chance=Random(name).random)
    assert core.promises is not None
    calendar = core.promises.calendar
    async with asyncio.TaskGroup() as group:
        group.create_task(calendar.run())
        await calendar.ready()
        say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        replica = Replica(core, calendar, name)
        group.create_task(replica.swap())
        for _ in range(PEOPLE):
            group.create_task(replica.trade())


if __name__ == "__main__":
    log.configure_logging("ERROR")
    vars(pack)["order_moves"] = partial(order_moves, most=MOST_MOVES)
    asyncio.run(main(*sys.argv[1:]))
