"""A pool controller that dies or sleeps anywhere while it moves claims breaks no promise, and its successor goes on.

Every commit is checked as it is made: each booking that was acknowledged has one seat for each of its claims, with the
same time and need as before, and no seat has more than it holds.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import pytest
import structlog

from crash.everywhere import crash_everywhere, pause_everywhere
from harness.plane_world import OTTO, service
from harness.scheduler_world import HOUR, MINUTE, Pools
from lcm.control.objects.records import CODEC, ref_of_key
from lcm.control.plane.protocol import Ref
from lcm.model.base.capacity import Amount, Claim, Profile
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.reservation import Reservation, ReservationSpec
from lcm.model.kinds.session import LabletSession
from lcm.model.money.prices import declared_capacity
from lcm.placement import pack
from lcm.placement.pack_steps import order_moves
from lcm.placement.places import claims_of_booking
from lcm.settings.load import Settings
from lcm.sim.time.host import HOST
from lcm.store.base import Delete, Op, Put
from lcm.store.memory import MemoryStore

LEASE, A_NAP = timedelta(seconds=15), timedelta(seconds=40)
PAIRS, GROUP = 7, 4
"""Labs of which two fit on a machine: so many pairs of which one half is cancelled, and a group."""
FEWEST = 6
"""Machines for what is left: of each pair one, and the group, by twos."""
MOST_MOVES = 1


@pytest.fixture(autouse=True)
def small_steps_without_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pack, "order_moves", partial(order_moves, most=MOST_MOVES))
    with structlog.testing.capture_logs():
        yield


@dataclass
class SeatBooks:
    """The bookings as commits left them, and what was wrong with any commit."""

    room: Amount
    bookings: dict[str, LabletSession | Reservation] = field(default_factory=dict)
    promised: dict[str, Claim] | None = None
    """By holder: what must stay promised, once it is known."""
    wrong: list[str] = field(default_factory=list)
    moves: int = 0

    def note(self, ops: Sequence[Op]) -> None:
        before = self.seats()
        for op in ops:
            ref = ref_of_key(op.key)
            if isinstance(op, Put) and ref is not None and ref.kind in {LabletSession, Reservation}:
                self.bookings[op.key] = CODEC.decode(op.value, ref.kind)
            elif isinstance(op, Delete):
                self.bookings.pop(op.key, None)
        self.moves += bool(self.promised) and self.seats() != before
        self._check()

    def seats(self) -> dict[str, int]:
        return {held.holder: number for one in self.bookings.values() for _, number, held in claims_of_booking(one)}

    def _check(self) -> None:
        found = [(number, held) for one in self.bookings.values() for _, number, held in claims_of_booking(one)]
        for seat in {number for number, _ in found}:
            there = [held.claim for number, held in found if number == seat]
            self.wrong += [f"seat {seat} has too much"] if Profile.of(there).find_overcommitted(self.room) else []
        held = {one.holder: one.claim for _, one in found}
        if self.promised is not None and (held != self.promised or len(found) != len(held)):
            self.wrong.append(f"{self.promised} was promised, and {held} is")


class CheckedStore(MemoryStore):
    """Has every commit checked in the moment it is made."""

    books: SeatBooks | None = None

    def _write(self, ops: Sequence[Op]) -> int:
        revision = super()._write(ops)
        if self.books is not None:
            self.books.note(ops)
        return revision


@dataclass
class Swaps(Pools):
    """A pool whose claims lie on twice as many seats as they need."""

    store: CheckedStore = field(default_factory=CheckedStore)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        super().__post_init__()
        room = declared_capacity(self.spec())
        assert room is not None
        self.books = self.store.books = SeatBooks(room)

    async def scatter(self) -> None:
        """Book, and cancel half of it, so that most machines would run for one lab."""
        start = self.clock.now() + HOUR
        group = ReservationSpec(definition="basics:1.0.0", timeslot_start=start, timeslot_end=start + HOUR, count=GROUP)
        async with self.booking():
            for number in range(PAIRS):
                for half in "ab":
                    await self.book(f"s{number}{half}", start, HOUR)
            await self.otto.create(Reservation(metadata=Metadata(name="group"), spec=group))
            for number in range(PAIRS):
                await self.core.plane_for(OTTO).delete(Ref(LabletSession, f"s{number}b"))
        assert len(set(self.books.seats().values())) == PAIRS + GROUP // 2

    def keep_promises(self) -> None:
        held = [held for one in self.books.bookings.values() for _, _, held in claims_of_booking(one)]
        self.books.promised = {one.holder: one.claim for one in held}


async def scattered() -> Swaps:
    world = Swaps()
    await world.found(cpu=20)
    await world.scatter()
    world.keep_promises()
    await asyncio.sleep((11 * MINUTE).total_seconds())
    return world


async def body(world: Swaps) -> None:
    """Be a process of its own: a control plane with its calendar, and a pool controller."""
    host, core = HOST.get(), world.control()
    assert host is not None
    assert core.promises is not None
    following = asyncio.create_task(core.promises.calendar.run())
    leading = replace(world.pool_controller(holder=host.name), plane=core.plane_for(service(POOL_CONTROLLER)))
    life = asyncio.create_task(leading.run())
    while not (life.done() or following.done() or is_packed(world)):
        await asyncio.sleep(5)
    for task in (life, following):
        if task.done():
            await task


def is_packed(world: Swaps) -> bool:
    return len(set(world.books.seats().values())) == FEWEST


async def check(world: Swaps) -> None:
    assert world.books.wrong == []
    assert is_packed(world)
    assert not await world.workers(), "it was packed before machines started"
    assert world.books.moves >= PAIRS + GROUP // 2 - FEWEST


def test_a_controller_that_dies_anywhere_in_a_swap_breaks_no_promise(tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere("swap of seats", scattered, body, check, restart_after=LEASE, report=tell)
    assert awaits >= 50


def test_a_controller_that_sleeps_anywhere_in_a_swap_breaks_no_promise(tell: Callable[[str], None]) -> None:
    awaits = pause_everywhere("swap of seats", scattered, body, check, pause_for=A_NAP, report=tell)
    assert awaits >= 50
