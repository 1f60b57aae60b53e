"""What becomes of sessions whose labs, files, hosts or machines fail them, on one simulated machine."""

import asyncio
from collections.abc import Iterator

import pytest
import structlog

from harness.session_world import HOUR, MINUTE, PORTS, Lablets, phases, prepared, told
from lcm.control.plane.protocol import Ref
from lcm.controllers.session.lifecycle import LAB_NOT_REMOVED, LAB_STOPPED
from lcm.controllers.session.progress import StepName, prepared_uri
from lcm.model.base.errors import Stuck, TooLarge, Unreachable
from lcm.model.kinds.definition import Topology
from lcm.model.kinds.session import LabletSession, Progress, SessionPhase
from lcm.model.kinds.worker import WorkerPhase
from lcm.providers.protocols.labhost import CmlLabCreationError
from lcm.sim.cml.parts import NodeState
from lcm.sim.time.loop import run

_P = SessionPhase
S1 = Ref(LabletSession, "s1")


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def test_lesson_15_a_file_that_cannot_be_rewritten_fails_loudly_and_is_not_tried_again() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_session(worker, allocated_ports={"PC_serial": 6001})
        async with world.attended():
            session = await world.comes_to(_P.FAILED)
        assert phases(session) == ["SCHEDULED", "INSTANTIATING", "STOPPING", "FAILED"]
        assert "PC_vnc" in session.status.last_error
        assert session.status.retry_count == 0
        assert await world.labs(worker) == []

    run(life)


def test_a_file_that_is_not_the_one_published_fails_loudly() -> None:
    async def life() -> None:
        world = Lablets(quick=True)
        other = await world.artifacts.put(b"something else")
        await world.define(topology=Topology(uri="file:///labs/x.yaml", digest=other.digest))
        worker = await world.serving()
        await world.given_session(worker)
        async with world.attended():
            session = await world.comes_to(_P.FAILED)
        assert "may not be read" in session.status.last_error
        found = await world.define(name="second:1.0.0")
        world.artifacts.damage(found.spec.topology.uri)
        await world.given_session(worker, name="s2", spec={"definition": "second:1.0.0"})
        async with world.attended():
            session = await world.comes_to(_P.FAILED, "s2")
        assert "digest" in session.status.last_error

    run(life)


def test_lesson_25_a_lab_lost_while_running_is_told_and_tried_again() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, slot=HOUR)
        async with world.attended():
            await asyncio.sleep(30)
            world.machine(worker).labs.lose_lab(world.lab_of(worker, session))
            session = await world.comes_to(_P.PENDING, within=MINUTE)
        assert [line.reason for line in session.status.history][1:] == [
            "its lab is gone from w1",
            "tried again: its lab is gone from w1",
        ]
        assert (session.status.retry_count, session.status.worker_id, session.status.claim is None) == (1, None, False)

    run(life)


def test_lesson_25_a_lab_lost_near_its_end_is_not_begun_again() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, slot=9 * MINUTE)
        world.machine(worker).labs.lose_lab(world.lab_of(worker, session))
        async with world.attended():
            session = await world.comes_to(_P.FAILED, within=MINUTE)
        assert session.status.last_error == "its lab is gone from w1"

    run(life)


def test_lesson_25_sessions_on_a_machine_that_is_gone_are_tried_again_elsewhere() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, slot=HOUR)
        async with world.attended():
            await asyncio.sleep(30)
            world.cloud.account.terminate("us-east-1", worker.status.ec2.instance_id)
            await asyncio.sleep(MINUTE.total_seconds())
            assert (await world.session()).status.phase is _P.RUNNING, "silence is no answer"
            await world.change_worker(worker, phase=WorkerPhase.TERMINATED)
            session = await world.comes_to(_P.PENDING, within=MINUTE)
        assert session.status.retry_count == 1
        assert await world.temporary() == []

    run(life)


def test_a_lab_stopped_by_hand_is_started_again_three_times_and_told_of() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, slot=2 * HOUR)
        lab = world.lab_of(worker, session)
        labs = world.machine(worker).labs
        async with world.attended():
            for count in range(1, 4):
                labs.stop(lab)
                await asyncio.sleep(2 * MINUTE.total_seconds())
                assert lab.state(world.machine(worker).pace.age()) is NodeState.STARTED, count
            (alert,) = await world.otto.alerts()
            assert (alert.alert, alert.severity) == (LAB_STOPPED, "warning")
            labs.stop(lab)
            await asyncio.sleep(2 * MINUTE.total_seconds())
            (alert,) = await world.otto.alerts()
            assert (alert.alert, alert.severity) == (LAB_STOPPED, "critical")
            await world.comes_to(_P.COMPLETED)
            assert await world.otto.alerts() == []

    run(life)


def test_a_node_that_never_boots_costs_the_attempt_and_leaves_nothing() -> None:
    async def life() -> None:
        world, worker = await prepared()
        world.machine(worker).labs.never_boot("PC", times=1)
        await world.given_session(worker, slot=2 * HOUR)
        async with world.attended():
            session = await world.comes_to(_P.PENDING, within=20 * MINUTE)
        assert "did not run within 15 minutes (at converge)" in session.status.history[-1].reason
        assert await world.labs(worker) == []
        assert await world.temporary() == []

    run(life)


def test_a_slot_that_is_over_before_its_lab_runs_has_expired() -> None:
    async def life() -> None:
        world, worker = await prepared()
        world.machine(worker).labs.never_boot("PC", times=1)
        await world.given_session(worker, slot=5 * MINUTE)
        async with world.attended():
            session = await world.comes_to(_P.EXPIRED, within=20 * MINUTE)
        assert session.status.last_error == "its slot ended before it ran"
        assert await world.labs(worker) == []

    run(life)


def test_what_is_refused_is_tried_for_two_minutes() -> None:
    async def life() -> None:
        world, worker = await prepared()
        (await world.host(worker)).fail_next("ensure", CmlLabCreationError("no such image"), times=5)
        await world.given_session(worker, slot=HOUR)
        async with world.attended():
            session = await world.comes_to(_P.RUNNING, within=5 * MINUTE)
        assert session.status.last_error == ""
        assert session.status.history[-1].reason.endswith(", late: no such image"), "its slot has begun before"
        (await world.host(worker)).fail_next("ensure", CmlLabCreationError("no such image"), times=50)
        await world.given_session(worker, slot=HOUR, name="s2", allocated_ports={n: p + 100 for n, p in PORTS.items()})
        async with world.attended():
            session = await world.comes_to(_P.PENDING, "s2", within=5 * MINUTE)
        assert "CmlLabCreationError: no such image" in session.status.last_error

    run(life)


def test_an_answer_that_was_lost_makes_no_second_lab() -> None:
    async def life() -> None:
        world, worker = await prepared()
        host = await world.host(worker)
        for verb in ("ensure", "start", "converged"):
            host.fail_next(verb, Unreachable("cut"), after_effect=True)
        world.artifacts.fail_next("put_temporary", Unreachable("cut"), after_effect=True)
        await world.given_session(worker)
        async with world.attended():
            await world.comes_to(_P.RUNNING, within=5 * MINUTE)
        assert len(await world.labs(worker)) == 1

    run(life)


def test_what_cannot_be_saved_is_removed_all_the_same() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, ends_at=world.clock.now() + MINUTE)
        (await world.host(worker)).fail_next("nodes", Unreachable("cut"), times=100)
        world.artifacts.fail_next("put_temporary", Stuck("AccessDenied", "not yours"), times=1000)
        async with world.attended():
            session = await world.comes_to(_P.COMPLETED, within=HOUR)
        assert session.status.artifacts == ()
        assert session.status.history[-2].reason == "not all could be saved in time: not yours"
        assert await world.labs(worker) == []

    run(life)


def test_where_files_are_kept_may_be_silent_and_keeps_nobodys_room() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, ends_at=world.clock.now() + MINUTE)
        world.artifacts.fail_next("put_temporary", TooLarge("9 MB"))
        world.artifacts.fail_next("remove", Unreachable("cut"), times=3)
        async with world.attended():
            session = await world.comes_to(_P.COMPLETED, within=3 * MINUTE)
            assert (session.status.artifacts, session.status.history[-2].reason) == ((), "it could not be saved: 9 MB")
            assert await world.temporary() == [prepared_uri(session)]
            await asyncio.sleep(6 * HOUR.total_seconds())
            assert await world.temporary() == []

    run(life)


def test_a_lab_that_is_not_seen_gone_keeps_its_ports_and_is_complained_of() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, ends_at=world.clock.now() + MINUTE)
        cml = world.machine(worker)
        async with world.attended():
            cml.machine, up = type(cml.machine)(boot_seconds=1e9, silent_seconds=1e9), cml.machine
            await asyncio.sleep((20 * MINUTE).total_seconds())
            session = await world.session()
            assert (session.status.phase, session.status.allocated_ports) == (_P.STOPPING, PORTS), told(session)
            (alert,) = await world.otto.alerts()
            assert alert.alert == LAB_NOT_REMOVED
            cml.machine = up
            await world.comes_to(_P.COMPLETED, within=10 * MINUTE)
            assert await world.otto.alerts() == []

    run(life)


def test_a_file_that_was_prepared_and_is_gone_is_prepared_again() -> None:
    async def life() -> None:
        world, worker = await prepared()
        progress = Progress(step=StepName.IMPORT, percent=10, message="", at=world.clock.now())
        await world.given_session(worker, _P.INSTANTIATING, progress=progress)
        async with world.attended():
            await world.comes_to(_P.RUNNING, within=5 * MINUTE)

    run(life)
