"""A worker goes into a pool's seat and a session onto it at the same moment: no seat has somebody it does not know."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest

from harness import given
from harness.booking_world import CountingStore, Hall, filled, hall_lab, waiting, worker
from harness.workers import beside
from lcm.model.base.errors import Conflict, NoRoom
from lcm.model.kinds.pool import FilledSeat, LabWorkerPool, ScalingPolicy
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker


@dataclass
class Race:
    """A hall with a worker outside of its pool, and a session that waits."""

    store: CountingStore
    hall: Hall
    worker: LabWorker
    pool: LabWorkerPool
    session: LabletSession

    async def adopt(self) -> None:
        seat = FilledSeat(number=1, worker_id=self.worker.metadata.uid, worker_name="w1")
        await self.hall.follower().step(self.pool, msgspec.structs.replace(self.pool.status, seats=(seat,)))

    async def place(self) -> None:
        await self.hall.place(self.session, worker=self.worker)


@asynccontextmanager
async def race() -> AsyncIterator[Race]:
    store = CountingStore()
    hall = Hall(store=store)
    desk = hall.cores[0].promises
    assert desk is not None
    async with beside(desk.calendar.run()):
        await hall.put(hall_lab())
        await hall.put(given.template())
        yield Race(
            store,
            hall,
            worker=await hall.put(worker("w1", lab_track="ccna")),
            pool=await hall.put(filled(policy=ScalingPolicy.NONE, lab_track="ccna")),
            session=await hall.put(waiting("s1", lab_track="ccna")),
        )


async def test_who_goes_onto_a_worker_that_fills_a_seat_meanwhile_is_decided_about_anew() -> None:
    async with race() as it:
        it.store.before_next = it.adopt
        with pytest.raises(NoRoom, match="is planned worker 1 of pool ccna"):
            await it.place()
        assert (await it.hall.read(it.session)).status.worker_id is None


async def test_a_worker_that_somebody_goes_onto_meanwhile_fills_no_seat() -> None:
    async with race() as it:
        it.store.before_next = it.place
        with pytest.raises(Conflict, match="is on worker uid-w1"):
            await it.adopt()
        assert (await it.hall.read(it.pool)).status.seats == ()
        assert (await it.hall.read(it.session)).status.phase is SessionPhase.SCHEDULED


async def test_a_worker_comes_back_to_the_seat_that_its_sessions_hold() -> None:
    async with race() as it:
        await it.adopt()
        await it.hall.place(it.session, worker=it.worker, seat=1)
        left = await it.hall.read(it.pool)
        it.pool = await it.hall.follower().step(left, msgspec.structs.replace(left.status, seats=()))
        await it.adopt()
        assert [one.worker_name for one in (await it.hall.read(it.pool)).status.seats] == ["w1"]
