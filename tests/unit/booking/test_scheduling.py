"""What the plane makes of the scheduler's decisions: it believes none of them."""

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from harness import given
from harness.booking_world import (
    HOUR,
    NEED,
    PORTS,
    ROOM,
    Hall,
    assignment,
    booked,
    claim,
    filled,
    hall,
    hall_lab,
    on,
    waiting,
    worker,
)
from harness.plane_world import NOW, OTTO, service
from harness.workers import beside
from lcm.control.booking.guards import pool_guard_key, worker_guard_key
from lcm.control.booking.step_records import FleetSettings
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Extend, Ref, ref_of
from lcm.model.base.capacity import DIMENSIONS
from lcm.model.base.errors import Conflict, Forbidden, IllegalStep, Invalid, NoRoom, Refused
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.placement import Assignment, PortRequest
from lcm.model.kinds.pool import Budget, LabWorkerPool, ScalingPolicy
from lcm.model.kinds.session import (
    CLEAN_UP_TIME,
    LabletSession,
    SchedulingDecision,
    Seat,
    SessionCondition,
    SessionPhase,
    Waiting,
)
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import token_id
from lcm.model.topology.ports import OPEN_PORTS
from lcm.placement.claims import Terms
from lcm.placement.rules import ROOM_FILTERS as FILTERS

_P = SessionPhase
POOL: Ref[LabWorkerPool] = Ref(LabWorkerPool, "ccna")
TOKEN = "env:CML_LICENSE_TOKEN"


async def refused(deed: Any) -> NoRoom:
    with pytest.raises(NoRoom) as raised:
        await deed
    return raised.value


async def pooled(it: Hall, *workers: LabWorker, **overrides: object) -> None:
    for one in workers:
        await it.put(one)
    await it.put(given.template())
    await it.put(filled(*workers, **overrides))


async def test_a_session_gets_claim_worker_and_ports_in_one_commit() -> None:
    async with hall() as it:
        w1, session = await it.put(worker()), await it.put(waiting("s1"))
        decision = SchedulingDecision(action="assign", worker_id=w1.metadata.uid)
        wanted = msgspec.structs.replace(assignment(worker=w1), decision=decision, reason="the fullest")
        made = await it.scheduler().schedule(session, wanted)
        status = made.status
        assert (status.phase, status.claim, status.seat) == (_P.SCHEDULED, claim(), None)
        assert (status.worker_id, status.worker_ref, status.worker_name) == ("uid-w1", "default/w1", "w1")
        assert (status.worker_namespace, status.assigned_at, status.waiting) == ("default", NOW, None)
        assert status.allocated_ports is not None
        assert status.allocated_ports.keys() == set(PORTS)
        assert (status.resource_allocation, status.last_decision) == ({"cpu": "4", "memory": "16384Mi"}, decision)
        told = find_condition(status.conditions, SessionCondition.WORKER_ASSIGNED)
        assert told is not None
        assert told.status is Truth.TRUE
        assert status.history[-1].reason == "the fullest"
        keys = (worker_guard_key("uid-w1"), "on-worker/uid-w1/default/s1", ref_of(made).key)
        entries = [await it.store.get(key) for key in keys]
        assert {entry.revision for entry in entries if entry} == {made.metadata.resource_version}
        assert await it.place(made, worker=w1) == made


@pytest.mark.parametrize("dimension", DIMENSIONS)
async def test_no_dimension_of_a_worker_is_over_committed(dimension: str) -> None:
    room = getattr(NEED, dimension) * 2 - 1
    async with hall() as it:
        w1 = await it.put(worker(capacity=given.changed(ROOM, {dimension: room})))
        await it.put(on(w1, "there", allocated_ports={}))
        session = await it.put(waiting("s1"))
        assert (await refused(it.place(session, worker=w1))).why == FILTERS[dimension]


async def test_lesson_18_the_size_of_the_request_is_looked_at() -> None:
    async with hall() as it:
        large = given.changed(NEED, {"memory_mb": 64 * 1024})
        w1 = await it.put(worker())
        await it.put(given.changed(hall_lab(large), {"metadata": {"name": "large:1.0.0", "uid": "uid-large"}}))
        session = await it.put(waiting("s1", definition="large:1.0.0"))
        error = await refused(it.place(session, worker=w1))
        assert error.why == "memory"
        assert "needs 65536 memory_mb, and of 43008 at most 43008 are free" in str(error)
        limited = await it.put(waiting("s2", resource_limits={"cpu": "1", "memory": "42Gi"}))
        assert (await it.place(limited, worker=w1)).status.resource_allocation == {"cpu": "1", "memory": "43008Mi"}


async def test_labs_of_strangers_take_their_room_too() -> None:
    async with hall() as it:
        w1 = await it.put(worker(foreign={"memory_mb": 30_000}))
        assert (await refused(it.place(await it.put(waiting("s1")), worker=w1))).why == "memory"


async def test_a_lab_that_is_still_there_after_its_time_takes_its_room_now() -> None:
    async with hall() as it:
        w1 = await it.put(worker(capacity=NEED))
        stuck = await it.put(on(w1, "stuck", phase=_P.STOPPING, claim=claim(NOW - HOUR, NOW)))
        session = await it.put(waiting("s1"))
        assert (await refused(it.place(session, worker=w1))).why == "cpu"
        done = given.changed(stuck.status, {"phase": _P.COMPLETED, "outcome": _P.COMPLETED})
        lablet = it.cores[0].plane_for(service(LABLET_CONTROLLER))
        await lablet.step(await lablet.step(stuck, given.changed(stuck.status, {"outcome": _P.COMPLETED})), done)
        assert (await it.place(session, worker=w1)).status.worker_id == "uid-w1"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"phase": WorkerPhase.DRAINING}, "draining"),
        ({"phase": WorkerPhase.STARTING}, "phase"),
        ({"wanted_state": "stopped"}, "phase"),
        ({"conditions": ()}, "phase"),
        ({"licensed": False}, "licensed"),
        ({"lab_track": "ccnp"}, "track"),
        ({"aws": {"region": "eu-west-1"}}, "region"),
        ({"capacity": None}, "unknown_size"),
    ],
)
async def test_a_worker_that_cannot_be_used_is_refused(fields: dict[str, Any], why: str) -> None:
    async with hall() as it:
        w1 = await it.put(worker(**fields))
        session = await it.put(waiting("s1", lab_track="ccna", region_required="us-east-1"))
        assert (await refused(it.place(session, worker=w1))).why == why
        assert (await refused(it.place(session, worker=worker("w9")))).why == "phase"


async def test_a_worker_and_its_seat_are_named_together() -> None:
    async with hall() as it:
        first, second, extra = worker("w1"), worker("w2"), worker("w3")
        await pooled(it, first, second)
        await it.put(extra)
        session = await it.put(waiting("s1"))
        for wrong in ({"worker": first}, {"worker": first, "seat": 2}, {"worker": extra, "seat": 3}):
            assert (await refused(it.place(session, **wrong))).why == "seat"
        made = await it.place(session, worker=second, seat=2)
        assert (made.status.worker_id, made.status.seat) == ("uid-w2", Seat(pool="ccna", number=2))


async def test_a_seat_takes_what_fits_its_worker_and_no_more() -> None:
    async with hall() as it:
        await pooled(it, w1 := worker(capacity=NEED))
        await it.put(booked("next", start=NOW + HOUR))
        session = await it.put(waiting("s1"))
        assert (await refused(it.place(session, worker=w1, seat=1))).why == "full"
        short = await it.put(waiting("s2"))
        made = await it.scheduler().schedule(short, assignment(end=NOW + timedelta(minutes=30), worker=w1, seat=1))
        assert made.status.phase is _P.SCHEDULED


async def test_what_was_promised_is_scheduled_and_bound_whatever_the_pool_allows_by_now() -> None:
    async with hall() as it:
        await pooled(it, w1 := worker(), policy=ScalingPolicy.NONE, budget=Budget(hourly_usd=Decimal(0)))
        session = await it.put(booked("s1"))
        made = await it.place(session, seat=1)
        assert (made.status.phase, made.status.worker_id) == (_P.SCHEDULED, None)
        assert await it.store.get(pool_guard_key(POOL)) is None
        it.clock.moment = NOW + HOUR
        bound = await it.place(made, worker=w1, seat=1)
        assert (bound.status.worker_id, bound.status.claim) == ("uid-w1", session.status.claim)


async def test_of_more_than_a_small_worker_bears_those_are_bound_that_fit() -> None:
    async with hall() as it:
        await pooled(it, w1 := worker(capacity=NEED))
        first, second = await it.put(booked("s1")), await it.put(booked("s2"))
        it.clock.moment = NOW + HOUR
        assert (await it.place(first, worker=w1, seat=1)).status.worker_id == "uid-w1"
        assert (await refused(it.place(second, worker=w1, seat=1))).why == "cpu"


async def test_who_waits_keeps_a_seat_until_it_is_given_up() -> None:
    async with hall() as it:
        await pooled(it)
        session = await it.put(waiting("s1"))
        start = NOW + timedelta(minutes=25)
        told = Waiting(queue_position=1, estimated_start=start, basis="a worker boots")
        wanted = msgspec.structs.replace(assignment(start, start + HOUR, seat=2), waiting=told)
        kept = await it.scheduler().schedule(session, wanted)
        assert (kept.status.phase, kept.status.seat, kept.status.waiting) == (
            _P.PENDING,
            Seat(pool="ccna", number=2),
            told,
        )
        assert await it.store.get(pool_guard_key(POOL)) is not None
        left = await it.scheduler().schedule(kept, assignment())
        assert (left.status.phase, left.status.claim, left.status.seat) == (_P.PENDING, None, None)
        assert await it.scheduler().schedule(left, assignment()) == left
        with pytest.raises(IllegalStep, match="keeps its promise"):
            await it.place(await it.put(booked("s2")))


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        ({"policy": ScalingPolicy.CAPACITY_BASED}, "no_worker"),
        ({"allowed_hours": AllowedHours(start_hour=8, end_hour=9)}, "hours"),
        ({"budget": Budget(hourly_usd=Decimal("0.01"))}, "hourly_budget"),
        ({"max_workers": 1}, "no_pool"),
        ({}, "too_soon"),
        ({"deletion_timestamp": NOW}, "no_pool"),
    ],
)
async def test_who_waits_opens_no_seat_against_the_rules(pool: dict[str, object], why: str) -> None:
    async with hall() as it:
        await it.put(given.template(price_per_hour_usd=Decimal(4)))
        await it.put(filled(**pool))
        session, start = await it.put(waiting("s1")), NOW + timedelta(minutes=25 if why != "too_soon" else 10)
        deed = it.scheduler().schedule(session, assignment(start, start + HOUR, seat=2))
        assert (await refused(deed)).why == why


async def test_licences_are_counted_for_who_waits() -> None:
    async with hall(fleet=FleetSettings(seats={token_id(TOKEN): 1})) as it:
        await it.put(given.template(worker={"cml": {"license_token": TOKEN}}))
        await it.put(filled())
        first, second = await it.put(waiting("s1")), await it.put(waiting("s2"))
        start = NOW + timedelta(minutes=25)
        await it.scheduler().schedule(first, assignment(start, start + HOUR, seat=1))
        error = await refused(it.scheduler().schedule(second, assignment(start, start + HOUR, seat=2)))
        assert error.why == "licences"


async def test_a_session_moves_within_what_it_has() -> None:
    async with hall() as it:
        await pooled(it, w1 := worker(capacity=NEED))
        start = NOW + timedelta(minutes=25)
        kept = await it.scheduler().schedule(await it.put(waiting("s1")), assignment(start, start + HOUR, seat=1))
        made = await it.scheduler().schedule(kept, assignment(NOW, NOW + HOUR, worker=w1, seat=1))
        assert (made.status.claim, made.status.phase) == (claim(NOW, NOW + HOUR), _P.SCHEDULED)


@pytest.mark.parametrize("phase", [_P.INSTANTIATING, _P.RUNNING, _P.STOPPING, _P.COMPLETED, _P.TERMINATED])
async def test_only_what_waits_is_placed(phase: SessionPhase) -> None:
    async with hall() as it:
        w1 = await it.put(worker())
        with pytest.raises(IllegalStep, match=phase):
            await it.place(await it.put(waiting("s1", phase=phase)), worker=w1)
        with pytest.raises(Refused, match="being deleted"):
            await it.place(await it.put(waiting("s2", deletion_timestamp=NOW, finalizers=("x",))), worker=w1)


async def test_a_decision_is_the_schedulers_and_of_the_newest_state() -> None:
    async with hall() as it:
        w1, session = await it.put(worker()), await it.put(waiting("s1"))
        for actor in (service(LABLET_CONTROLLER), OTTO):
            with pytest.raises(Forbidden):
                await it.cores[0].plane_for(actor).schedule(session, assignment(worker=w1))
        with pytest.raises(Invalid):
            await it.scheduler().schedule(session, assignment(NOW, NOW, worker=w1))
        await it.place(session, worker=w1)
        with pytest.raises(Conflict):
            await it.place(session, worker=w1)
        late = await it.put(waiting("s2"))
        assert (await refused(it.scheduler().schedule(late, assignment(NOW - HOUR, NOW, worker=w1)))).why == "too_soon"


async def outcomes(*deeds: Any) -> list[LabletSession]:
    """Do things at the same time; gives the sessions of those that worked, the others had no room."""
    found = await asyncio.gather(*deeds, return_exceptions=True)
    failed = [one for one in found if isinstance(one, BaseException)]
    assert all(isinstance(one, NoRoom) for one in failed), failed
    return [one for one in found if isinstance(one, LabletSession)]


async def test_of_two_planes_one_gets_the_last_room_of_a_worker() -> None:
    async with hall(planes=2) as it:
        w1 = await it.put(worker(capacity=NEED))
        sessions = [await it.put(waiting(f"s{number}")) for number in range(2)]
        made = await outcomes(*(it.place(one, worker=w1, plane=plane) for plane, one in enumerate(sessions)))
        assert len(made) == 1


async def test_of_two_planes_one_gets_the_last_room_of_a_seat() -> None:
    async with hall(planes=2) as it:
        await pooled(it, worker(capacity=NEED))
        sessions = [await it.put(waiting(f"s{number}")) for number in range(2)]
        made = await outcomes(*(it.place(one, seat=1, plane=plane) for plane, one in enumerate(sessions)))
        assert len(made) == 1


async def test_a_plane_that_is_behind_does_not_decide_by_what_it_knows() -> None:
    async with hall() as it:
        w1 = await it.put(worker(capacity=NEED))
        sessions = [await it.put(waiting(f"s{number}")) for number in range(2)]
        behind = ControlPlane(it.store, clock=it.clock, terms=Terms())
        assert behind.promises is not None
        calendar = behind.promises.calendar
        async with beside(calendar.run()):
            await calendar.ready()
        await it.place(sessions[0], worker=w1)
        late = behind.plane_for(service(SCHEDULER)).schedule(sessions[1], assignment(worker=w1))
        task = asyncio.create_task(late)
        await asyncio.sleep(0.05)
        assert not task.done()
        async with beside(calendar.run()):
            assert (await refused(task)).why == "cpu"


async def test_lesson_19_ten_decisions_by_one_view_take_only_what_a_worker_has() -> None:
    async with hall(planes=2) as it:
        w1 = await it.put(worker())
        sessions = [await it.put(waiting(f"s{number}")) for number in range(10)]
        made = await outcomes(*(it.place(one, worker=w1, plane=place % 2) for place, one in enumerate(sessions)))
        assert len(made) == 2
        ports = [port for one in made for port in (one.status.allocated_ports or {}).values()]
        assert len(set(ports)) == len(ports) == 2 * len(PORTS)


async def test_lesson_16_ports_that_are_short_turn_a_session_away() -> None:
    taken = tuple(port for port in OPEN_PORTS if port not in {2001, 4000, 7999})
    async with hall(planes=2) as it:
        w1 = await it.put(worker(foreign_ports=taken))
        sessions = [await it.put(waiting(f"s{number}")) for number in range(2)]
        made = await outcomes(*(it.place(one, worker=w1, plane=plane) for plane, one in enumerate(sessions)))
        assert [set((one.status.allocated_ports or {}).values()) for one in made] == [{2001, 4000, 7999}]
        (other,) = [one for one in sessions if one.metadata.name != made[0].metadata.name]
        error = await refused(it.place(other, worker=w1))
        assert (error.why, "needs 3 ports, and 0 are free" in str(error)) == ("ports", True)


async def test_ports_that_drifted_or_were_left_are_avoided_and_ones_own_are_kept() -> None:
    async with hall() as it:
        first, second = await it.put(worker("w1")), await it.put(worker("w2", foreign_ports=(2000,)))
        made = await it.place(await it.put(waiting("s1")), worker=first)
        ports = made.status.allocated_ports
        assert ports is not None
        drifted = {"a": ports["PC_vnc"]}
        await it.put(on(second, "other", observed_ports=drifted, allocated_ports={}))
        moved = await it.place(made, worker=second)
        assert moved.status.allocated_ports is not None
        assert {name for name in PORTS if moved.status.allocated_ports[name] != ports[name]} == {"PC_vnc"}
        assert not (await it.store.scan("on-worker/uid-w1/")).entries


async def test_ports_are_allocated_once_for_who_has_a_worker() -> None:
    async with hall(planes=2) as it:
        w1 = await it.put(worker())
        there = [await it.put(on(w1, f"s{number}", phase=_P.SCHEDULED)) for number in range(4)]
        wish = PortRequest(preferred={"web": 5000})
        made = await asyncio.gather(
            *(it.scheduler(place % 2).allocate_ports(ref_of(one), wish) for place, one in enumerate(there))
        )
        ports = [port for one in made for port in (one.status.allocated_ports or {}).values()]
        assert len(set(ports)) == 4 * len(PORTS)
        assert 5000 in ports
        assert await it.scheduler().allocate_ports(ref_of(made[0]), PortRequest()) == made[0]
        with pytest.raises(IllegalStep, match="no worker"):
            await it.scheduler().allocate_ports(ref_of(await it.put(waiting("s9"))), wish)


async def test_a_session_on_an_extra_worker_stays_longer_only_if_nobody_comes() -> None:
    async with hall() as it:
        w1 = await it.put(worker(capacity=NEED))
        running = await it.put(on(w1, "s1", ends_at=NOW + 2 * HOUR, allocated_ports={}))
        later = await it.put(waiting("s2"))
        comes = Assignment(start=NOW + 3 * HOUR, end=NOW + 4 * HOUR, worker_id="uid-w1")
        await it.scheduler().schedule(later, comes)
        otto = it.cores[0].plane_for(OTTO)
        assert (await refused(otto.act(ref_of(running), Extend(minutes=90)))).why == "cpu"
        made = await otto.act(ref_of(running), Extend(minutes=60))
        assert made.status.claim == claim(NOW, NOW + 3 * HOUR)
        guard = await it.store.get(worker_guard_key("uid-w1"))
        assert guard is not None
        assert guard.revision == made.metadata.resource_version


async def test_no_session_begins_to_run_for_longer_than_it_has_its_worker() -> None:
    async with hall() as it:
        w1 = await it.put(worker())
        ready = await it.put(on(w1, "s1", phase=_P.INSTANTIATING))
        lablets, latest = it.cores[0].plane_for(service(LABLET_CONTROLLER)), NOW + 2 * HOUR - CLEAN_UP_TIME
        late = {"phase": _P.RUNNING, "cml_lab_id": "lab", "ends_at": latest + timedelta(seconds=1)}
        with pytest.raises(IllegalStep, match="until 2026-11-02 09:50:00Z at the latest"):
            await lablets.step(ready, msgspec.structs.replace(ready.status, **late))
        runs = await lablets.step(ready, msgspec.structs.replace(ready.status, **late | {"ends_at": latest}))
        with pytest.raises(IllegalStep, match="at the latest"):
            await lablets.step(runs, msgspec.structs.replace(runs.status, ends_at=latest + HOUR))


async def test_what_runs_too_long_already_can_end() -> None:
    async with hall() as it:
        w1 = await it.put(worker())
        late = await it.put(on(w1, "s1", ends_at=NOW + 3 * HOUR))
        ends = msgspec.structs.replace(late.status, phase=_P.COLLECTING, outcome=_P.COMPLETED)
        made = await it.cores[0].plane_for(service(LABLET_CONTROLLER)).step(late, ends)
        assert made.status.phase is _P.COLLECTING
