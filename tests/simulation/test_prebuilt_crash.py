"""A process that dies or sleeps anywhere while a prebuilt lab is taken, made or ended leaves no lab with two owners."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import structlog

from crash.everywhere import crash_everywhere, pause_everywhere
from harness.plane_world import OTTO
from harness.scheduler_world import Room
from harness.workers import beside
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Ref
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Taken
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.prebuilt import PrebuiltPolicy
from lcm.model.kinds.session import PREBUILT_OWNER, LabletSession, LabletSessionSpec, SessionPhase
from lcm.placement.claims import Terms, need_of
from lcm.sim.time.host import HOST

_P = SessionPhase
BASICS = Ref(LabletDefinition, "basics:1.0.0")
LEASE = timedelta(seconds=16)
A_NAP = timedelta(seconds=40)


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


async def furnished(ready: int, *, wanted: int) -> Room:
    """Have a machine with some prebuilt labs that run."""
    room = Room()
    async with room.open(scheduled=False):
        worker = await room.worker()
        await room.pool(worker, min_workers=1, max_workers=1)
        known = await room.otto.get(BASICS)
        assert known is not None
        definition = await room.change(known, prebuilt=PrebuiltPolicy(count=wanted))
        need, now = need_of(None, definition), room.clock.now()
        assert need is not None
        for number in range(1, ready + 1):
            claim = Claim(start=now, end=now + timedelta(hours=9), need=need)
            spec: dict[str, Any] = {
                "owner": PREBUILT_OWNER,
                "prebuilt": True,
                "lab_track": "ccna",
                "duration_minutes": 480,
            }
            made = await room.by("scheduler").create(_session(f"prebuilt-basics-{number}", **spec))
            await room.change(
                made,
                phase=_P.RUNNING,
                claim=claim,
                worker_id=worker.metadata.uid,
                worker_name=worker.metadata.name,
                allocated_ports={},
                cml_lab_id=f"lab-{number}",
                ends_at=now + timedelta(hours=8),
            )
    return room


def _session(name: str, **fields: Any) -> LabletSession:
    usual: dict[str, Any] = {"definition": "basics:1.0.0", "duration_minutes": 60}
    spec = LabletSessionSpec(**usual | fields)
    return LabletSession(metadata=Metadata(name=name), spec=spec)


async def one_ready() -> Room:
    return await furnished(1, wanted=1)


async def take(room: Room, name: str) -> None:
    core = ControlPlane(room.store, clock=room.clock, terms=Terms())
    assert core.promises is not None
    following = asyncio.create_task(core.promises.calendar.run())
    await core.plane_for(OTTO).create(_session(name), request=f"lab-for-{name}")
    following.cancel()


async def take_mine(room: Room) -> None:
    await take(room, "mine")


async def take_my_own(room: Room) -> None:
    """Take one for a session of the process's own."""
    host = HOST.get()
    assert host is not None
    await take(room, host.name.replace(" ", "-"))


async def check_taken_once(room: Room) -> None:
    sessions = {one.metadata.name: one for one in await room.sessions()}
    lab = sessions.pop("prebuilt-basics-1")
    takers = [one for one in sessions.values() if one.status.taken_from is not None]
    assert [one.status.phase for one in takers] == [_P.RUNNING]
    assert (takers[0].status.cml_lab_id, lab.status.phase) == ("lab-1", _P.COMPLETED)
    assert all(one.status.phase is _P.PENDING for one in sessions.values() if one not in takers)
    use = await room.otto.prebuilt(BASICS)
    assert (use.taken, use.missed) == (1, len(sessions) - 1), "whoever asked is counted once"


async def check(room: Room) -> None:
    assert room.core.promises is not None
    async with beside(room.core.promises.calendar.run()):
        await check_taken_once(room)


def test_a_process_that_dies_anywhere_in_the_taking_gives_the_lab_once(tell: Callable[[str], None]) -> None:
    assert crash_everywhere("taking a prebuilt lab", one_ready, take_mine, check, report=tell) >= 10


def test_of_two_processes_that_take_at_any_moment_one_has_the_lab(tell: Callable[[str], None]) -> None:
    nap = timedelta(seconds=5)
    assert (
        pause_everywhere(
            "taking a prebuilt lab", one_ready, take_my_own, check, pause_for=nap, excused=(Taken,), report=tell
        )
        >= 10
    )


def _lead_until(done: Callable[[Room], Any]) -> Callable[[Room], Any]:
    """Return a process that runs a scheduler until something is so."""

    async def lead(room: Room) -> None:
        host = HOST.get()
        assert host is not None
        scheduler = room.scheduler(host.name)
        life = asyncio.create_task(scheduler.run())
        async with beside(room.core.promises.calendar.run() if room.core.promises else asyncio.sleep(0)):
            while not life.done() and not await done(room):
                await asyncio.sleep(1)
        if life.done():
            await life

    return lead


async def live(room: Room) -> list[LabletSession]:
    return [one for one in await room.sessions() if one.spec.prebuilt and one.status.outcome is None]


async def two_are_placed(room: Room) -> bool:
    return [one.status.phase for one in await live(room)] == [_P.SCHEDULED] * 2


async def one_is_left(room: Room) -> bool:
    return len(await live(room)) == 1


async def none_ready() -> Room:
    return await furnished(0, wanted=2)


async def two_ready_and_one_wanted() -> Room:
    return await furnished(2, wanted=1)


async def check_two(room: Room) -> None:
    assert await two_are_placed(room)


async def check_one(room: Room) -> None:
    assert await one_is_left(room)
    ending = [one for one in await room.sessions() if one.status.outcome is not None]
    assert [one.status.phase for one in ending] == [_P.COLLECTING]


def test_a_scheduler_that_dies_anywhere_makes_as_many_as_are_wanted(tell: Callable[[str], None]) -> None:
    body = _lead_until(two_are_placed)
    assert crash_everywhere("making prebuilt labs", none_ready, body, check_two, restart_after=LEASE, report=tell) > 10


def test_a_scheduler_that_sleeps_anywhere_makes_as_many_as_are_wanted(tell: Callable[[str], None]) -> None:
    body = _lead_until(two_are_placed)
    assert pause_everywhere("making prebuilt labs", none_ready, body, check_two, pause_for=A_NAP, report=tell) > 10


def test_a_scheduler_that_dies_anywhere_ends_no_more_than_are_too_many(tell: Callable[[str], None]) -> None:
    world, body = two_ready_and_one_wanted, _lead_until(one_is_left)
    assert crash_everywhere("ending prebuilt labs", world, body, check_one, restart_after=LEASE, report=tell) > 5
