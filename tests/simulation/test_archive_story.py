"""Sessions that ended move to the archive while others run, and no controller takes that for a loss."""

import asyncio
from collections.abc import Iterator

import pytest
import structlog

from harness import given
from harness.booking_world import from_monday
from harness.scheduler_world import Room
from harness.session_world import HOUR, MINUTE, Lablets
from harness.workers import beside
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Ref
from lcm.control.upkeep import housekeeping
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.model.base.resource import Owner
from lcm.model.kinds.reservation import Reservation, ReservationClaim, ReservationPhase
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker
from lcm.sim.time.loop import run
from lcm.store.base import Entry
from lcm.store.memory import MemoryStore

_P = SessionPhase
S1, S2 = Ref(LabletSession, "s1"), Ref(LabletSession, "s2")
R1 = Ref(Reservation, "r1")


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def test_a_session_goes_to_the_archive_while_its_neighbour_runs_on() -> None:
    async def life() -> None:
        world = Lablets()
        await world.define()
        keeping = Housekeeping(world.store, clock=world.clock, linger=HOUR)
        cache = Cache(world.otto, LabletSession, LabWorker)
        async with world.everybody(), beside(keeping.run()), beside(cache.run()):
            await world.open_pool()
            await world.wants("s1", minutes=30)
            await world.wants("s2", minutes=240)
            over = await world.comes_to(_P.COMPLETED, within=2 * HOUR)
            await asyncio.sleep((HOUR + 20 * MINUTE).total_seconds())
            assert [one.metadata.name for one in cache.all(LabletSession)] == ["s2"]
            found, neighbour = await world.otto.get(S1), await world.otto.get(S2)
            assert found is not None
            assert neighbour is not None
            assert found.status == over.status
            assert found.status.cost_usd == over.status.cost_usd
            assert (neighbour.status.phase, neighbour.status.retry_count) == (_P.RUNNING, 0)
            (worker,) = cache.all(LabWorker)
            assert len(list(world.machine(worker).labs)) == 1
            assert b"hostname PC" in await world.otto.download(S1, "lab.yaml")
            assert not await world.otto.alerts()
            again = await world.wants("s1", minutes=30)
            await world.comes_to(_P.RUNNING, within=HOUR)
            assert again.metadata.uid != over.metadata.uid

    run(life)


class Asked(MemoryStore):
    """Counts how often it was asked for what may be in the archive."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def get(self, key: str) -> Entry | None:
        self.asked += key.startswith("uids/r1-")
        return await super().get(key)


@from_monday
async def test_sessions_that_are_archived_count_as_ended_and_are_asked_for_once() -> None:
    store = Asked()
    async with Room(store=store).open(scheduled=False) as room:
        owner = Owner(kind="Reservation", name="r1", uid="uid-r1")
        later = given.claim("20:00", "22:10")
        held = [ReservationClaim(number=number, claim=later, session=f"r1-{number}") for number in (1, 2, 3)]
        await room.put(given.reservation(phase=ReservationPhase.ACTIVE, held=tuple(held), ends_at=later.end))
        for number in (1, 2, 3):
            story = given.history("PENDING", "COMPLETED")
            made = given.session(name=f"r1-{number}", uid=f"uid-r1-{number}", history=story, phase=_P.COMPLETED)
            live = given.changed(made, {"status": {"phase": _P.PENDING}})
            await room.put(given.changed(live if number == 3 else made, {"metadata": {"owner": owner}}))
        assert await housekeeping.archive_ended(store, room.clock.now(), later.start) == 2
        store.asked = 0
        async with beside(room.scheduler().run()):
            await asyncio.sleep(HOUR.total_seconds())
        found = await room.otto.get(R1)
        assert found is not None
        assert (found.status.phase, found.status.sessions_ended) == (ReservationPhase.ACTIVE, 2)
        assert store.asked <= 4, "once for each, among the live ones and in the archive"
