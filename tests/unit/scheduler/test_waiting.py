"""Those who wait: seats opened once, estimates told seldom, the plane's word taken, priorities kept in the store."""

import asyncio
from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest

from harness import given
from harness.booking_world import from_monday, lab, metal
from harness.scheduler_world import HOUR, MINUTE, Room, booting, filled, serving
from lcm.control.booking.step_records import FleetSettings
from lcm.control.plane.protocol import Ref, Terminate, ref_of
from lcm.model.base.errors import NoRoom
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import AmiRequirements, LabletDefinition
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.placement import PreviewRequest
from lcm.model.kinds.pool import Budget, WorkerTemplate
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, Seat, SessionPhase
from lcm.model.kinds.settings import SchedulerSettings, Strategy
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import token_id
from lcm.settings.load import Settings

_P = SessionPhase


async def seats_taken(room: Room) -> dict[int, int]:
    """Count those who wait or are placed by the seat they have."""
    found: dict[int, int] = {}
    for session in await room.sessions():
        if session.status.seat is not None:
            found[session.status.seat.number] = found.get(session.status.seat.number, 0) + 1
    return dict(sorted(found.items()))


@from_monday
async def test_lesson_3_fifty_who_wait_open_as_many_seats_as_they_need_and_no_more_in_any_cycle() -> None:
    async with Room().open() as room:
        pool = await room.pool(max_workers=10)
        await asyncio.gather(*(room.wants(f"s{number:02}") for number in range(50)))
        await room.until("s49", lambda one: one.status.seat is not None)
        wanted = {1: 12, 10: 12, 2: 12, 3: 12, 4: 2}
        assert await seats_taken(room) == dict(sorted(wanted.items()))
        first = {one.metadata.name: one.status.seat for one in await room.sessions()}
        await asyncio.sleep(240)
        assert {one.metadata.name: one.status.seat for one in await room.sessions()} == first
        # The follower has started a worker for each of them, which take longer than anybody thought.
        since = room.clock.now()
        workers = {number: await room.put(booting(f"w{number}", since=since)) for number in wanted}
        seats = tuple(msgspec.structs.replace(filled([one])[0], number=number) for number, one in workers.items())
        await room.change(pool, seats=seats)
        await asyncio.sleep(600)
        assert {one.metadata.name: one.status.seat for one in await room.sessions()} == first
        for one in workers.values():
            await room.put(serving(one.metadata.name))
        await room.reaches("s49", _P.SCHEDULED)
        await asyncio.sleep(60)
        assert {one.status.phase for one in await room.sessions()} == {_P.SCHEDULED}
        assert await seats_taken(room) == dict(sorted(wanted.items()))


@from_monday
async def test_one_for_whom_a_seat_is_opened_is_told_until_when_it_waits_and_why() -> None:
    async with Room().open() as room:
        await room.pool()
        await room.wants("s1")
        found = await room.until("s1", lambda one: one.status.waiting is not None)
        waiting, decision = found.status.waiting, found.status.last_decision
        assert waiting is not None
        assert waiting.queue_position == 1
        assert waiting.basis == "a machine will be started for planned worker ccna/1, which usually takes 20 min"
        assert waiting.estimated_start is not None
        assert abs(waiting.estimated_start - room.clock.now() - 35 * MINUTE) < MINUTE
        assert decision is not None
        assert (decision.action, decision.worker_template) == ("scale_up", "metal")


@from_monday
async def test_those_who_wait_move_up_when_one_leaves_and_are_written_seldom() -> None:
    async with Room().open() as room:
        for number in range(5):
            await room.wants(f"s{number}")
            await asyncio.sleep(0.1)
        found = await room.until("s4", lambda one: one.status.waiting is not None)
        assert found.status.waiting is not None
        assert found.status.waiting.queue_position == 5
        before = await room.revision()
        await asyncio.sleep(300)
        assert await room.revision() - before <= 300 / 5 + 5, "a lease is renewed, and nothing else is written"
        await room.otto.act(Ref(LabletSession, "s0"), Terminate())
        await room.until("s4", lambda one: one.status.waiting is not None and one.status.waiting.queue_position == 4)


@from_monday
async def test_a_session_that_ends_makes_room_for_one_who_waits_at_once() -> None:
    async with Room().open(lablets=True) as room:
        await room.pool(await room.worker(), max_workers=1)
        for number in range(12):
            await room.wants(f"s{number:02}", minutes=30)
        await room.reaches("s11", _P.RUNNING, 10 * MINUTE)
        await room.wants("late", minutes=30)
        found = await room.until("late", lambda one: one.status.waiting is not None)
        assert found.status.waiting is not None
        assert "on w1 ends before" in found.status.waiting.basis
        assert found.status.claim is None
        await room.reaches("late", _P.RUNNING, HOUR)
        ends = [one.status.history[-1].at for one in await room.sessions() if one.status.phase is _P.COMPLETED]
        began = next(line.at for line in (await room.session("late")).status.history if line.phase == _P.SCHEDULED)
        assert began - min(ends) < timedelta(seconds=1)


@from_monday
async def test_a_higher_priority_takes_the_seat_that_was_opened_for_another() -> None:
    async with Room().open() as room:
        await room.pool(max_workers=1)
        for number in range(12):
            await room.wants(f"s{number:02}")
        await room.until("s11", lambda one: one.status.seat is not None)
        await room.wants("urgent", priority=100)
        await room.until("urgent", lambda one: one.status.seat == Seat(pool="ccna", number=1))
        found = await room.until("s11", lambda one: one.status.seat is None)
        assert found.status.waiting is not None
        assert found.status.waiting.queue_position == 13


@from_monday
async def test_who_comes_after_a_greedy_owner_is_next_and_not_last() -> None:
    async with Room().open(lablets=True) as room:
        await room.pool(await room.worker(), max_workers=1)
        for number in range(40):
            await room.wants(f"greedy{number:02}", minutes=30, owner="mallory")
        await room.reaches("greedy11", _P.RUNNING, 10 * MINUTE)
        await room.wants("late", minutes=30, owner="ada")
        found = await room.until("late", lambda one: one.status.waiting is not None)
        assert found.status.waiting is not None
        assert found.status.waiting.queue_position == 1, "of twenty-nine who wait"
        await room.reaches("late", _P.RUNNING, HOUR)
        assert (await room.session("greedy24")).status.phase is _P.PENDING


@from_monday
async def test_a_seat_that_the_plane_refuses_is_left_alone_and_the_reason_told() -> None:
    token = token_id("env:CML_LICENSE_TOKEN")
    async with Room(fleet=FleetSettings(seats={token: 0})).open() as room:
        await room.pool(max_workers=10)
        await room.wants("s1")
        found = await room.until("s1", lambda one: one.status.waiting is not None)
        assert found.status.waiting is not None
        assert found.status.waiting.estimated_start is None, found.status.waiting
        assert "licences are in use" in found.status.waiting.basis


@from_monday
async def test_who_needs_nobody_knows_how_much_is_told_so() -> None:
    async with Room().open() as room:
        vague = given.definition(name="vague:1.0.0", uid="uid-vague", state="active", lab_track="ccna")
        await room.put(vague)
        await room.put(given.asap(name="s1", definition="vague:1.0.0", expires_at=given.moment("04:00")))
        found = await room.until("s1", lambda one: one.status.waiting is not None)
        assert found.status.waiting is not None
        assert found.status.waiting.basis == "its definition does not say what it needs"


@from_monday
async def test_the_strategy_may_change_while_it_runs() -> None:
    async with Room(Settings(scheduler_strategy=Strategy.LEAST_LABS)).open() as room:
        await room.pool(await room.worker("w1"), await room.worker("w2"))
        for name in ("a", "b"):
            await room.wants(name)
            await room.reaches(name, _P.SCHEDULED)
        assert {one.status.worker_name for one in await room.sessions()} == {"w1", "w2"}
        await room.put(given.settings(scheduler=SchedulerSettings(strategy=Strategy.BIN_PACK)))
        await asyncio.sleep(1)
        for name in ("c", "d"):
            await room.wants(name)
            await room.reaches(name, _P.SCHEDULED)
        assert (await room.session("c")).status.worker_name == (await room.session("d")).status.worker_name


@from_monday
async def test_a_session_goes_only_to_what_is_in_its_own_namespace() -> None:
    async with Room().open() as room:
        await room.worker("elsewhere", namespace="others", lab_track="")
        await room.wants("s1")
        await room.until("s1", lambda one: one.status.waiting is not None)
        assert (await room.session("s1")).status.worker_id is None


@from_monday
async def test_foreign_labs_and_smaller_machines_count() -> None:
    async with Room().open() as room:
        foreign = given.amount(cpu_millis=46_000, memory_mb=0, storage_mb=0, nodes=0, ports=0)
        await room.pool(await room.worker("w1", foreign=foreign), max_workers=1)
        await room.wants("s1")
        found = await room.until("s1", lambda one: one.status.waiting is not None)
        assert found.status.last_decision is not None
        assert {one.filter for one in found.status.last_decision.rejections} == {"cpu"}
        await room.change(serving("w1"), foreign=given.amount(cpu_millis=0))
        await room.reaches("s1", _P.SCHEDULED)


@from_monday
async def test_a_worker_that_is_paused_is_a_seat_that_can_be_opened_again() -> None:
    async with Room().open() as room:
        worker = await room.worker("w1", phase=WorkerPhase.STOPPED, wanted_state="stopped")
        await room.pool(worker, max_workers=1)
        await room.wants("s1")
        await room.until("s1", lambda one: one.status.seat == Seat(pool="ccna", number=1))


@from_monday
async def test_who_waits_for_a_pools_hours_is_told_so_once_and_not_every_minute() -> None:
    async with Room().open() as room:
        await room.pool(allowed_hours=AllowedHours(start_hour=1, end_hour=18))
        await room.wants("s1", give_up_at=given.moment("12:00"))
        found = await room.until("s1", lambda one: "hours" in str(one.status.waiting))
        assert found.status.waiting is not None
        assert found.status.waiting.basis.startswith("no worker, present or planned, can take it now; 3 of 3")
        await asyncio.sleep(HOUR.total_seconds() / 2)
        assert (await room.session("s1")).metadata.resource_version == found.metadata.resource_version
        await room.until("s1", lambda one: one.status.seat is not None, HOUR)
        assert room.clock.now() - given.moment("01:00") < 2 * MINUTE


@from_monday
async def test_nobody_who_waits_is_sent_to_a_pool_that_is_being_deleted() -> None:
    async with Room().open() as room:
        await room.pool(await room.worker(), deletion_timestamp=room.clock.now())
        await room.wants("s1")
        found = await room.until("s1", lambda one: one.status.waiting is not None)
        assert found.status.waiting is not None
        assert found.status.waiting.basis.endswith("w1: it takes no sessions: its pool is being deleted")
        said = await room.otto.explain(Ref(LabletSession, "s1"))
        assert (said.outcome, said.why) == ("wait", "phase")
        assert "it takes no sessions: its pool is being deleted (1 more for the same reason)" in said.reason


@from_monday
async def test_a_short_session_does_not_wait_behind_long_ones_that_the_pools_hours_turn_away() -> None:
    async with Room().open() as room:
        await room.pool(await room.worker(), max_workers=1, allowed_hours=AllowedHours(start_hour=0, end_hour=2))
        await asyncio.sleep(120)
        await asyncio.gather(*(room.wants(f"long{number:02}", minutes=180) for number in range(12)))
        await asyncio.sleep(60)
        await room.wants("short", minutes=30)
        await room.until("short", lambda one: one.status.worker_name == "w1", 2 * MINUTE)
        said = await room.otto.explain(Ref(LabletSession, "long00"))
        assert (said.outcome, said.why) == ("wait", "hours")


@from_monday
async def test_where_no_other_worker_may_run_a_seat_is_taken_whose_worker_comes_anyway() -> None:
    async with Room().open() as room:
        worker = await room.worker("w2")
        second = (msgspec.structs.replace(filled([worker])[0], number=2),)
        await room.otto.patch(Ref(WorkerTemplate, "metal"), {"spec": {"price_per_hour_usd": "4"}})
        await room.pool(max_workers=2, seats=second, budget=Budget(hourly_usd=Decimal(4)))
        booked = await room.books("booked", room.clock.now() + 2 * HOUR)
        assert booked.status.seat == Seat(pool="ccna", number=1)
        await room.wants("s1", minutes=120)
        found = await room.until("s1", lambda one: one.status.seat is not None, 2 * MINUTE)
        assert (found.status.seat, found.status.worker_name) == (booked.status.seat, None)


FUTURE = lab(name="future:1.0.0", ami_requirements=AmiRequirements(cml_version_min="3.1"))


async def wants_future(room: Room, name: str) -> LabletSession:
    """Ask for a lab as soon as possible that no machine of the pool could host, before anybody can know that."""
    spec = LabletSessionSpec(definition="future:1.0.0", duration_minutes=240)
    return await room.otto.create(LabletSession(metadata=Metadata(name=name), spec=spec))


def serves_2_9(name: str) -> LabWorker:
    template = metal().spec.worker
    return given.changed(serving(name), {"spec": {"aws": template.aws}, "status": {"cml": {"version": "2.9.0"}}})


@from_monday
async def test_lesson_40_a_session_that_nobody_can_host_closes_no_place_for_others() -> None:
    async with Room().open() as room:
        await room.otto.create(FUTURE)
        pool = await room.pool(max_workers=5)
        await wants_future(room, "impossible")
        await room.change(pool, seats=filled([await room.put(serves_2_9("w1"))]))
        await room.until("impossible", lambda one: one.status.seat is None)
        await asyncio.gather(*(room.wants(f"s{number:02}") for number in range(14)))
        await asyncio.sleep(10)
        assert await seats_taken(room) == {1: 12, 2: 2}, "two need another machine, and get it at once"
        others = [one for one in await room.sessions() if one.metadata.name != "impossible"]
        assert "3.1" not in str([one.status.last_decision for one in others])
        waiting = (await room.session("impossible")).status.waiting
        assert waiting is not None
        reason = "its CML is 2.9.0, the lab asks for at least 3.1"
        assert waiting.basis == f"no worker, present or planned, can ever take it; 5 of 5 such as ccna/2: {reason}"


@from_monday
async def test_lesson_40_what_a_pools_limits_refuse_to_one_is_given_to_another_at_once() -> None:
    async with Room().open() as room:
        await room.pool(max_workers=2, allowed_hours=AllowedHours(start_hour=0, end_hour=3))
        await room.wants("long", minutes=240, priority=100)
        found = await room.until("long", lambda one: "hours" in str(one.status.waiting))
        await room.wants("short", minutes=30)
        await room.until("short", lambda one: one.status.seat is not None, timedelta(seconds=2))
        assert (await room.session("long")).status.seat is None
        assert found.status.last_decision is not None
        assert [one.filter for one in found.status.last_decision.rejections] == ["hours"]


@from_monday
async def test_what_no_pool_could_ever_host_is_refused_at_booking_and_the_reason_is_told() -> None:
    async with Room().open(scheduled=False) as room:
        await room.otto.create(FUTURE)
        await wants_future(room, "without-a-pool")
        pool = await room.pool(await room.put(serves_2_9("w1")), max_workers=5)
        with pytest.raises(NoRoom, match=r"nobody can ever host it: pool default/ccna: its CML is 2\.9\.0") as refused:
            await wants_future(room, "future")
        assert refused.value.why == "cml_version"
        asked = {"definition": "future:1.0.0", "duration_minutes": 60}
        document = {"api_version": "lcm/v1", "kind": "LabletSession", "metadata": {"name": "s1"}, "spec": asked}
        with pytest.raises(NoRoom, match=r"documents\[0\]: nobody can ever host it"):
            await room.otto.apply([document])
        wish = PreviewRequest(definition="future:1.0.0", duration_minutes=60)
        assert (await room.otto.preview(wish)).outcome == "refuse"
        newer = {"ami_name_pattern": "CML-3.1*"}
        await room.otto.patch(Ref(WorkerTemplate, "metal"), {"spec": {"worker": {"aws": newer}}})
        await wants_future(room, "for-the-new-image")  # the old machine says nothing about the next one
        await room.remove(pool)
        await wants_future(room, "after-the-pool")  # a worker may come at any time


@from_monday
async def test_what_an_image_has_is_known_from_any_machine_of_it_with_a_seat_or_without() -> None:
    async with Room().open() as room:
        await room.otto.create(FUTURE)
        pool = await room.pool(max_workers=5)
        await wants_future(room, "early")
        first = given.changed(booting("w1", since=room.clock.now()), {"spec": {"aws": metal().spec.worker.aws}})
        await room.change(pool, seats=filled([await room.put(first)]))
        await room.put(given.changed(first, {"status": {"cml": {"version": "2.9.0"}}}))
        await room.until("early", lambda one: one.status.seat is None)
        await asyncio.sleep(60)
        assert (await room.session("early")).status.seat is None, "no other machine is started for it"
        await room.change(pool, seats=())
        await asyncio.sleep(60)
        assert (await room.session("early")).status.seat is None, "the machine without a seat still tells"
        with pytest.raises(NoRoom, match=r"its CML is 2\.9\.0"):
            await wants_future(room, "late")
        second = msgspec.structs.replace(first, metadata=booting("w2", since=room.clock.now()).metadata)
        await room.change(pool, seats=filled([await room.put(second)]))
        soon = room.clock.now() + 3 * HOUR
        spec = LabletSessionSpec(definition="future:1.0.0", timeslot_start=soon, timeslot_end=soon + HOUR)
        with pytest.raises(NoRoom, match=r"its CML is 2\.9\.0"):
            await room.otto.create(LabletSession(metadata=Metadata(name="slot"), spec=spec))


@from_monday
async def test_a_machine_that_was_imported_gets_no_session_before_a_person_says_so() -> None:
    async with Room().open() as room:
        worker = given.changed(serving("found", lab_track=""), {"spec": {"accepts_sessions": False}})
        await room.put(worker)
        await room.wants("s1")
        found = await room.until("s1", lambda one: one.status.waiting is not None)
        assert found.status.waiting is not None
        assert "nobody has said that it takes sessions" in found.status.waiting.basis
        await asyncio.sleep(300)
        assert (await room.session("s1")).status.worker_id is None
        await room.otto.patch(ref_of(worker), {"spec": {"accepts_sessions": True}})
        await room.until("s1", lambda one: one.status.worker_name == "found")


@from_monday
async def test_a_lab_goes_only_where_its_node_definitions_are_and_opens_no_machine_that_lacks_them() -> None:
    async with Room().open() as room:
        await room.otto.patch(
            Ref(LabletDefinition, "basics:1.0.0"), {"spec": {"ami_requirements": {"node_definitions": ["asav"]}}}
        )
        ours = given.changed(serving(), {"spec": {"aws": metal().spec.worker.aws}})
        lacks = given.changed(ours, {"status": {"cml": {"node_definitions": ("iosv",)}}})
        await room.wants("s1")  # before it is known what CML lacks: later it would be refused
        await room.pool(await room.put(lacks))
        await asyncio.sleep(120)
        found = await room.session("s1")
        assert (found.status.phase, found.status.seat) == (_P.PENDING, None)
        decision = (await room.session("s1")).status.last_decision
        assert decision is not None
        assert [one.filter for one in decision.rejections] == ["node_definitions"]
        await room.put(given.changed(lacks, {"status": {"cml": {"node_definitions": ("asav", "iosv")}}}))
        assert (await room.reaches("s1", _P.SCHEDULED)).status.worker_name == "w1"
