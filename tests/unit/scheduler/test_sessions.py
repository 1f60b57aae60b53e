"""The scheduler's steps of a session's life, by the real scheduler on a real plane in virtual time."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from harness import given
from harness.booking_world import from_monday
from harness.scheduler_world import HOUR, MINUTE, Room, filled
from lcm.control.plane.protocol import Ref
from lcm.model.base.machine import LABLET_CONTROLLER
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, Seat, SessionCondition, SessionPhase
from lcm.model.kinds.worker import WorkerPhase
from lcm.settings.load import Settings

_P = SessionPhase
ONE = given.moment("01:00")


@from_monday
async def test_a_session_that_is_wanted_now_is_on_a_warm_worker_within_milliseconds() -> None:
    async with Room().open() as room:
        await room.pool(await room.worker())
        await asyncio.sleep(1)
        began = room.clock.now()
        made = await room.wants("s1")
        found = await room.reaches(made.metadata.name, _P.SCHEDULED)
        assert room.clock.now() - began < timedelta(milliseconds=50)
        assert found.status.worker_name == "w1"
        assert found.status.seat == Seat(pool="ccna", number=1)
        assert found.status.last_decision is not None
        assert found.status.last_decision.action == "assign"
        assert found.status.waiting is None


@from_monday
async def test_a_worker_outside_of_pools_serves_as_well() -> None:
    async with Room().open() as room:
        await room.worker("extra", lab_track="")
        await room.wants("s1")
        found = await room.reaches("s1", _P.SCHEDULED)
        assert (found.status.worker_name, found.status.seat) == ("extra", None)


@from_monday
async def test_a_promised_slot_is_scheduled_at_once_and_bound_at_its_time_and_not_before() -> None:
    async with Room().open() as room:
        await room.pool(await room.worker())
        await room.books("s1", ONE)
        found = await room.reaches("s1", _P.SCHEDULED)
        assert found.status.worker_id is None
        await asyncio.sleep((ONE - room.clock.now() - 16 * MINUTE).total_seconds())
        assert (await room.session("s1")).status.worker_id is None
        found = await room.until("s1", lambda one: one.status.worker_id is not None, 2 * MINUTE)
        assert ONE - 15 * MINUTE <= room.clock.now() <= ONE - 14 * MINUTE
        assert found.status.allocated_ports is not None


@from_monday
async def test_what_was_promised_goes_to_its_worker_whatever_its_definition_asks_for_since() -> None:
    async with Room().open() as room:
        await room.pool(await room.worker())
        await room.books("s1", ONE)
        newer = {"license_affinity": "enterprise", "ami_requirements": {"cml_version_min": "99"}}
        await room.otto.patch(Ref(LabletDefinition, "basics:1.0.0"), {"spec": newer})
        await room.until("s1", lambda one: one.status.worker_name == "w1", HOUR)
        await room.wants("s2")
        found = await room.until("s2", lambda one: one.status.waiting is not None)
        assert found.status.worker_name is None, "who was promised nothing gets what is asked for now"


@from_monday
async def test_lesson_21_a_missed_slot_expires() -> None:
    async with Room().open() as room:
        await room.pool()
        await room.books("s1", ONE)
        await room.reaches("s1", _P.SCHEDULED)
        await room.reaches("s1", _P.EXPIRED, 3 * HOUR)
        assert ONE + HOUR <= room.clock.now() <= ONE + HOUR + MINUTE


@from_monday
async def test_lesson_21_a_slot_that_was_never_placed_expires_too() -> None:
    async with Room().open(scheduled=False) as room:
        await room.put(given.session(name="s1", expires_at=given.moment("11:00"), ends_at=given.moment("11:00")))
        await asyncio.sleep((12 * HOUR).total_seconds())
        task = asyncio.create_task(room.scheduler().run())
        found = await room.reaches("s1", _P.EXPIRED)
        assert found.status.history[-1].reason == "its slot ended before it ran"
        task.cancel()


@from_monday
async def test_one_who_waits_gives_up_when_its_patience_ends() -> None:
    async with Room().open() as room:
        await room.wants("s1", give_up_at=room.clock.now() + HOUR)
        await asyncio.sleep(3500)
        assert (await room.session("s1")).status.phase is _P.PENDING
        await room.reaches("s1", _P.EXPIRED, 5 * MINUTE)


@from_monday
async def test_lesson_22_whoever_looks_late_or_again_takes_the_same_step() -> None:
    async with Room().open(scheduled=False) as room:
        await room.pool(await room.worker())
        await room.books("s1", ONE)
        first = asyncio.create_task(room.scheduler("first").run())
        await room.reaches("s1", _P.SCHEDULED)
        first.cancel()
        await asyncio.wait([first])
        # Nobody was there when its time came, twenty minutes ago.
        await asyncio.sleep((ONE - room.clock.now() + 5 * MINUTE).total_seconds())
        second = asyncio.create_task(room.scheduler("second").run())
        await room.until("s1", lambda one: one.status.worker_id is not None)
        second.cancel()


@from_monday
async def test_a_slot_whose_seat_gets_its_worker_late_is_bound_then() -> None:
    async with Room().open() as room:
        pool = await room.pool()
        await room.books("s1", ONE)
        await asyncio.sleep((ONE - room.clock.now() - 12 * MINUTE).total_seconds())
        assert (await room.session("s1")).status.worker_id is None
        worker = await room.worker()
        await room.change(pool, seats=filled([worker]))
        await room.until("s1", lambda one: one.status.worker_id is not None)


@from_monday
async def test_a_session_on_a_worker_that_fails_is_placed_elsewhere() -> None:
    async with Room().open() as room:
        first, second = await room.worker("w1"), await room.worker("w2")
        await room.pool(first, second)
        await room.wants("s1")
        found = await room.reaches("s1", _P.SCHEDULED)
        lost = first if found.status.worker_name == "w1" else second
        await room.change(lost, phase=WorkerPhase.FAILED)
        found = await room.until("s1", lambda one: one.status.worker_name not in (None, lost.metadata.name))
        assert [line.phase for line in found.status.history][-3:] == ["SCHEDULED", "PENDING", "SCHEDULED"]


@from_monday
async def test_a_slot_on_a_worker_that_vanishes_keeps_its_seat() -> None:
    async with Room().open() as room:
        worker = await room.worker()
        pool = await room.pool(worker)
        await room.books("s1", ONE)
        await room.until("s1", lambda one: one.status.worker_id is not None, 2 * HOUR)
        await room.change(pool, seats=())
        await room.change(worker, phase=WorkerPhase.TERMINATED)
        found = await room.until("s1", lambda one: one.status.worker_id is None)
        found = await room.reaches("s1", _P.SCHEDULED)
        assert found.status.seat == Seat(pool="ccna", number=1)
        assert found.status.allocated_ports is None
        known = find_condition(found.status.conditions, SessionCondition.WORKER_ASSIGNED)
        assert known is not None
        assert known.reason == "WorkerLost"


@from_monday
async def test_a_session_that_was_retried_too_often_fails() -> None:
    async with Room().open() as room:
        await room.put(given.asap(name="s1", retry_count=5, last_error="the lab did not start"))
        found = await room.reaches("s1", _P.FAILED)
        assert found.status.last_error == "it was tried 5 times: the lab did not start"


@from_monday
async def test_a_session_whose_definition_is_gone_fails() -> None:
    async with Room().open() as room:
        await room.put(given.asap(name="s1", definition="lost:1.0.0"))
        found = await room.reaches("s1", _P.FAILED)
        assert found.status.last_error == "its definition lost:1.0.0 is gone"


@from_monday
async def test_where_sessions_are_not_to_be_placed_nothing_is_done() -> None:
    async with Room(Settings(scheduler_enabled=False)).open() as room:
        await room.pool(await room.worker())
        await room.wants("s1")
        await asyncio.sleep(600)
        assert (await room.session("s1")).status.phase is _P.PENDING
        assert await room.by("scheduler").lease("scheduler") is None


@from_monday
async def test_the_time_of_a_session_wanted_at_once_counts_from_when_it_runs() -> None:
    async with Room().open() as room:
        await room.pool(await room.worker(), max_workers=1)
        made = await start_late(room, "s1")
        assert made.status.ends_at == room.clock.now() + MINUTE
        assert made.status.claim is not None
        assert made.status.claim.end == made.status.ends_at + CLEAN_UP_TIME, "nobody else is promised that time"
        assert find_condition(made.status.conditions, SessionCondition.TIME_SHORTENED) is None


@from_monday
async def test_a_session_that_comes_up_late_and_is_in_the_way_of_a_promise_is_told_what_it_gets() -> None:
    async with Room().open() as room:
        await room.pool(await room.worker(capacity=given.machine(cpu_millis=4_000)), max_workers=1)
        await room.wants("s1", minutes=1)
        await room.reaches("s1", _P.SCHEDULED)
        await room.books("s2", given.moment("00:41") + timedelta(seconds=20))
        made = await start_late(room, "s1")
        assert made.status.ends_at is not None
        left = made.status.ends_at - room.clock.now()
        assert left == timedelta(seconds=12)
        told = find_condition(made.status.conditions, SessionCondition.TIME_SHORTENED)
        assert told is not None
        assert (told.status, told.reason) == (Truth.TRUE, "StartedLate")
        assert told.message.startswith(
            "it started late and gets 12 of the 60 seconds it asked for: it cannot be extended"
        )


async def start_late(room: Room, name: str) -> LabletSession:
    """Run a session of one minute twelve seconds before its claim ends, and step as its controller does."""
    if not [one for one in await room.sessions() if one.metadata.name == name]:
        await room.wants(name, minutes=1)
    session, by = await room.reaches(name, _P.SCHEDULED), room.by(LABLET_CONTROLLER)
    session = await by.step(session, msgspec.structs.replace(session.status, phase=_P.INSTANTIATING))
    assert session.status.claim is not None
    end = session.status.claim.end - CLEAN_UP_TIME
    await asyncio.sleep((end - room.clock.now() - timedelta(seconds=12)).total_seconds())
    session = await room.session(name)
    runs: dict[str, Any] = {"phase": _P.RUNNING, "cml_lab_id": "lab", "ends_at": end}
    return await by.step(session, msgspec.structs.replace(session.status, **runs))
