"""Prebuilt labs: kept where there is room, taken at once, out of everybody's way, renewed and ended in time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from harness.booking_world import from_monday
from harness.plane_world import ADA
from harness.scheduler_world import HOUR, MINUTE, Room
from harness.workers import beside
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Forbidden
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import DefinitionState, LabletDefinition
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.prebuilt import PrebuiltPolicy
from lcm.model.kinds.session import PREBUILT_OWNER, LabletSession, LabletSessionSpec, SessionPhase
from lcm.model.kinds.worker import LabWorker

_P = SessionPhase
BASICS = Ref(LabletDefinition, "basics:1.0.0")


@asynccontextmanager
async def opened(workers: int = 1, *, count: int = 2, **fields: Any) -> AsyncIterator[Room]:
    """Open a room with machines that run anyway, and a lab of which some are to be prebuilt."""
    room = Room()
    async with room.open(lablets=True):
        made = [await room.worker(f"w{number}") for number in range(1, workers + 1)]
        await room.pool(*made, min_workers=workers, max_workers=workers)
        await want(room, count=count, **fields)
        yield room


async def want(room: Room, **fields: Any) -> None:
    known = await room.otto.get(BASICS)
    assert known is not None
    await room.change(known, prebuilt=PrebuiltPolicy(**fields))


async def prebuilt(room: Room, *phases: SessionPhase) -> Sequence[LabletSession]:
    wanted = phases or (_P.RUNNING,)
    return [one for one in await room.sessions() if one.spec.prebuilt and one.status.phase in wanted]


async def ready(room: Room, number: int, within_minutes: int = 20) -> Sequence[LabletSession]:
    """Wait until so many are ready."""
    for _ in range(within_minutes * 6):
        if len(found := await prebuilt(room)) == number:
            return found
        await asyncio.sleep(10)
    raise AssertionError(f"{number} wanted: {[(one.metadata.name, one.status.phase) for one in await room.sessions()]}")


@from_monday
async def test_as_many_are_kept_as_the_definition_wants_and_nobody_owns_them() -> None:
    async with opened() as room:
        for one in await ready(room, 2):
            assert one.spec.owner == PREBUILT_OWNER
            assert one.status.seat is None, "it holds no time of a planned worker"
        await asyncio.sleep(3600)
        assert len(await ready(room, 2)) == 2


@from_monday
async def test_whoever_wants_a_lab_now_has_a_prebuilt_one_in_the_answer() -> None:
    async with opened() as room:
        before = {one.metadata.name: one for one in await ready(room, 2)}
        taker = await room.wants("mine")
        assert taker.status.phase is _P.RUNNING
        assert taker.status.ends_at == room.clock.now() + HOUR
        assert taker.status.taken_from is not None
        left = await room.session(taker.status.taken_from.name)
        was = before[left.metadata.name].status
        assert (left.status.phase, left.status.outcome) == (_P.COMPLETED, _P.COMPLETED)
        same = ("worker_id", "allocated_ports", "cml_lab_id", "worker_name")
        assert [getattr(taker.status, name) for name in same] == [getattr(was, name) for name in same]
        assert taker.status.seat is not None, "unlike a prebuilt one it has its time on the planned worker"
        assert {one.metadata.name for one in await ready(room, 2)} - before.keys(), "another is made in its place"
        await room.reaches("mine", _P.COMPLETED, 2 * HOUR)


@from_monday
async def test_it_runs_within_the_same_second_while_a_hundred_others_run() -> None:
    async with opened(workers=10, count=5) as room:
        others = await asyncio.gather(*(room.wants(f"s{number}", minutes=400) for number in range(100)))
        for one in others:
            await room.reaches(one.metadata.name, _P.RUNNING, HOUR)
        await ready(room, 5)
        for number in range(5):
            asked = room.clock.now()
            made = await room.wants(f"now-{number}")
            assert made.status.phase is _P.RUNNING
            assert made.status.history[-1].at - asked < timedelta(seconds=1)


@from_monday
async def test_two_who_want_one_at_the_same_moment_get_two_and_the_third_waits_as_usual() -> None:
    async with opened() as room:
        await ready(room, 2)
        made = await asyncio.gather(*(room.wants(f"s{number}") for number in range(3)))
        taken = [one.status.taken_from.uid for one in made if one.status.taken_from is not None]
        assert (len(taken), len(set(taken))) == (2, 2)
        assert sorted(one.status.phase for one in made) == [_P.PENDING, _P.RUNNING, _P.RUNNING]
        last = next(one for one in made if one.status.taken_from is None)
        await room.reaches(last.metadata.name, _P.RUNNING, HOUR)
        use = await room.otto.prebuilt(BASICS)
        assert (use.taken, use.missed) == (2, 1)


@from_monday
async def test_they_are_in_the_way_of_no_booking_and_gone_when_its_time_comes() -> None:
    async with opened(count=4) as room:
        await ready(room, 4)
        start = room.clock.now() + 2 * HOUR
        for number in range(12):
            booked = await room.books(f"b{number}", start)
            assert booked.status.seat is not None
        await asyncio.sleep(6600)
        assert not await prebuilt(room, _P.PENDING, _P.SCHEDULED, _P.INSTANTIATING, _P.RUNNING, _P.STOPPING)
        for number in range(12):
            session = await room.reaches(f"b{number}", _P.RUNNING, 30 * MINUTE)
            assert session.status.history[-1].at <= start
            assert not session.status.conditions or session.status.conditions[-1].type != "AtRisk"


@from_monday
async def test_a_booking_at_short_notice_starts_in_time_although_they_fill_the_machine() -> None:
    async with opened(count=12) as room:
        await ready(room, 12, 60)
        start = room.clock.now() + 20 * MINUTE
        await room.books("soon", start)
        session = await room.reaches("soon", _P.RUNNING, 30 * MINUTE)
        assert session.status.history[-1].at <= start


@from_monday
async def test_somebody_who_waits_gets_their_room_and_no_other_machine_is_started_for_it() -> None:
    async with opened(count=12) as room:
        await ready(room, 12, 60)
        known = await room.otto.get(BASICS)
        assert known is not None
        other = LabletDefinition(
            metadata=Metadata(name="other:1.0.0"),
            spec=type(known.spec)(
                **{name: getattr(known.spec, name) for name in known.spec.__struct_fields__ if name != "prebuilt"}
            ),
        )
        await room.otto.create(other)
        spec = LabletSessionSpec(definition="other:1.0.0", duration_minutes=60)
        await room.otto.create(LabletSession(metadata=Metadata(name="mine"), spec=spec))
        session = await room.reaches("mine", _P.RUNNING, 20 * MINUTE)
        assert session.status.worker_name == "w1"
        assert len(await prebuilt(room)) >= 10, "no more of them ended than had to"


@from_monday
async def test_one_that_is_old_is_replaced_before_it_ends() -> None:
    async with opened(count=1, max_age_minutes=60) as room:
        (first,) = await ready(room, 1)
        await asyncio.sleep(3500)
        assert {one.metadata.name for one in await prebuilt(room)} >= {first.metadata.name}
        await asyncio.sleep(600)
        assert first.metadata.name not in {one.metadata.name for one in await ready(room, 1)}


@from_monday
async def test_they_end_with_their_hours_with_a_smaller_number_and_with_their_definition() -> None:
    hours = AllowedHours(start_hour=0, end_hour=2)
    async with opened(count=3, hours=hours) as room:
        await ready(room, 3, 60)
        await want(room, count=1, hours=hours)
        await ready(room, 1)
        await asyncio.sleep(7200)
        await ready(room, 0)
        await want(room, count=2)
        await ready(room, 2)
        known = await room.otto.get(BASICS)
        assert known is not None
        await room.change(known, state=DefinitionState.DEPRECATED)
        await ready(room, 0)


@from_monday
async def test_a_definition_that_needs_more_than_before_gets_new_ones() -> None:
    async with opened() as room:
        old = {one.metadata.uid for one in await ready(room, 2)}
        known = await room.otto.get(BASICS)
        assert known is not None
        await room.change(known, node_count=7)
        assert (await room.wants("mine")).status.taken_from is None, "those are of the lab as it was"
        await asyncio.sleep(1800)
        assert not old & {one.metadata.uid for one in await ready(room, 2)}


@from_monday
async def test_on_a_worker_that_drains_they_end_and_on_one_that_nobody_needs_they_do_not_stay() -> None:
    async with opened(workers=2) as room:
        mine = await ready(room, 2)
        worker = await room.otto.get(Ref(LabWorker, mine[0].status.worker_name or ""))
        assert worker is not None
        await room.change(worker, wanted_state="stopped")
        others = await ready(room, 0, 2) or await ready(room, 2)
        assert {one.status.worker_id for one in others} == {"uid-w1", "uid-w2"} - {worker.metadata.uid}


@from_monday
async def test_no_machine_is_started_for_them() -> None:
    room = Room()
    async with room.open(lablets=True):
        await room.pool(max_workers=3)
        await want(room, count=2)
        await asyncio.sleep(1800)
        assert not await room.sessions()


@from_monday
async def test_what_asks_for_more_or_for_something_else_takes_none() -> None:
    async with opened() as room:
        await ready(room, 2)
        larger = await room.wants("larger", resource_limits={"cpu": "8", "memory": "32Gi"})
        elsewhere = await room.wants("elsewhere", lab_track="ccnp")
        assert [one.status.taken_from for one in (larger, elsewhere)] == [None, None]
        smaller = await room.wants("smaller", resource_limits={"cpu": "1", "memory": "1Gi"})
        assert smaller.status.phase is _P.RUNNING


@from_monday
async def test_only_the_scheduler_makes_them_and_nobody_but_staff_sees_them() -> None:
    async with opened() as room:
        await ready(room, 2)
        ada = room.core.plane_for(ADA)
        assert not (await ada.list(LabletSession)).items
        with pytest.raises(Forbidden):
            await room.wants("own", prebuilt=True)
        with pytest.raises(Forbidden):
            await ada.prebuilt(BASICS)


@from_monday
async def test_another_leader_goes_on_with_those_that_are_there() -> None:
    room = Room()
    async with room.open(scheduled=False), beside(room.lablets().run()):
        await room.pool(await room.worker())
        await want(room, count=2)
        async with beside(room.scheduler("first").run()):
            before = {one.metadata.uid for one in await ready(room, 2)}
        async with beside(room.scheduler("second").run()):
            await asyncio.sleep(600)
            assert {one.metadata.uid for one in await ready(room, 2)} == before
