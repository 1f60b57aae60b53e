"""A pool controller that dies or sleeps anywhere while it launches a smaller machine breaks no promise.

People book and cancel meanwhile. Every commit is checked as it is made: once there is a worker with a smaller machine,
all that is claimed of its seat until its run ends fits that machine.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count

import pytest
import structlog

from crash.everywhere import crash_everywhere, pause_everywhere
from harness.plane_world import OTTO, service
from harness.scheduler_world import HOUR, MINUTE, Pools
from lcm.control.objects.records import CODEC, ref_of_key
from lcm.control.plane.protocol import Plane, ref_of
from lcm.controllers.pool.view import SMALL_LABEL, seat_number
from lcm.model.base.capacity import Profile
from lcm.model.base.errors import Later, Refused
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.model.kinds.worker import AwsSpec, LabWorker
from lcm.model.money.prices import declared_capacity
from lcm.placement.places import claims_of_booking
from lcm.settings.load import Settings
from lcm.sim.time.host import HOST
from lcm.store.base import Delete, Op, Put
from lcm.store.memory import MemoryStore

LEASE, A_NAP = timedelta(seconds=15), timedelta(seconds=40)
SMALL = "m8i.4xlarge"
AWS = AwsSpec(instance_type="m8i.12xlarge", nested_virtualization=True, ami_name_pattern="CML-*")
LAUNCHED: list[str] = []
"""What became of the runs."""
_KINDS = {LabletSession, LabWorker, LabWorkerPool}


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    LAUNCHED.clear()
    with structlog.testing.capture_logs():
        yield


class CheckedStore(MemoryStore):
    """Has every commit checked in the moment it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, object] = {}
        self.wrong: list[str] = []
        self.has_been_small = False

    def _write(self, ops: Sequence[Op]) -> int:
        revision = super()._write(ops)
        for op in ops:
            ref = ref_of_key(op.key)
            if isinstance(op, Put) and ref is not None and ref.kind in _KINDS:
                self.objects[op.key] = CODEC.decode(op.value, ref.kind)
            elif isinstance(op, Delete):
                self.objects.pop(op.key, None)
        self.has_been_small = self.has_been_small or bool(self.small_workers())
        self.wrong += [one for worker in self.small_workers() if (one := self._find_overload(worker))]
        return revision

    def small_workers(self) -> list[LabWorker]:
        workers = [one for one in self.objects.values() if isinstance(one, LabWorker)]
        alive = [one for one in workers if one.metadata.deletion_timestamp is None]
        return [one for one in alive if SMALL_LABEL in one.metadata.labels]

    def _find_overload(self, worker: LabWorker) -> str:
        pools = [one for one in self.objects.values() if isinstance(one, LabWorkerPool)]
        number, room = seat_number(worker), declared_capacity(worker.spec)
        runs = [run for pool in pools for run in pool.status.small_runs if run.number == number]
        assert room is not None
        if not runs:
            return f"{worker.metadata.name} has a smaller machine that nobody was told of"
        bookings = [one for one in self.objects.values() if isinstance(one, LabletSession)]
        held = [held.claim for one in bookings for _, at, held in claims_of_booking(one) if at == number]
        here = [one for one in held if one.start < runs[0].until]
        late = any(one.end > runs[0].until for one in here)
        over = late or Profile.of(here).find_overcommitted(room)
        return f"{worker.metadata.name} has too much: {here}" if over else ""


@dataclass
class Launches(Pools):
    """A pool with one booking whose machine is due."""

    store: CheckedStore = field(default_factory=CheckedStore)
    settings: Settings = field(default_factory=Settings)
    numbers: Iterator[int] = field(default_factory=count)

    async def keep_booking(self, plane: Plane) -> None:
        """Book and cancel every few moments; a smaller machine does not hold this beside the first booking."""
        start = self.clock.now() + HOUR
        spec = LabletSessionSpec(definition="basics:1.0.0", timeslot_start=start, timeslot_end=start + HOUR)
        for number in self.numbers:
            with suppress(Refused, Later):
                made = await plane.create(LabletSession(metadata=Metadata(name=f"s{number}"), spec=spec))
                await asyncio.sleep(0.7)
                await plane.delete(ref_of(made))
            await asyncio.sleep(0.9)


async def due_launch() -> Launches:
    world = Launches()
    await world.found(cpu=9, template={"aws": AWS}, smaller=(SMALL,), max_workers=2)
    async with world.booking():
        await world.book("first", world.clock.now() + 41 * MINUTE, 2 * HOUR)
    await asyncio.sleep(90)
    return world


async def body(world: Launches) -> None:
    """Be a process of its own: a control plane with its calendar, a pool controller, and somebody who books."""
    host, core = HOST.get(), world.control()
    assert host is not None
    assert core.promises is not None
    leading = replace(world.pool_controller(holder=host.name), plane=core.plane_for(service(POOL_CONTROLLER)))
    lives = [core.promises.calendar.run(), leading.run(), world.keep_booking(core.plane_for(OTTO))]
    tasks = [asyncio.create_task(one) for one in lives]
    while not await world.workers():
        await asyncio.sleep(2)
        for task in tasks:
            if task.done():
                await task
    for task in tasks:
        task.cancel()


async def check(world: Launches) -> None:
    assert world.store.wrong == []
    LAUNCHED.append("small" if world.store.has_been_small else "large")
    seats = [seat_number(one) for one in await world.workers()]
    assert len(seats) == len(set(seats)), "each planned worker has one machine"
    assert 1 in seats


def test_a_controller_that_dies_anywhere_in_a_launch_breaks_no_promise(tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere("launch of a smaller machine", due_launch, body, check, restart_after=LEASE, report=tell)
    assert awaits >= 50
    assert set(LAUNCHED) == {"small", "large"}, "some were launched small, and some booked in time to prevent it"


def test_a_controller_that_sleeps_anywhere_in_a_launch_breaks_no_promise(tell: Callable[[str], None]) -> None:
    awaits = pause_everywhere("launch of a smaller machine", due_launch, body, check, pause_for=A_NAP, report=tell)
    assert awaits >= 50
    assert set(LAUNCHED) == {"small", "large"}, "some were launched small, and some booked in time to prevent it"
