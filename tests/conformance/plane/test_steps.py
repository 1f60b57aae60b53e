"""The plane's contract: actions, steps, measurements, and what discovery found."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harness import given
from harness.plane_world import NOW, World, either, everywhere
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance
from lcm.control.plane.protocol import Action, Drain, Extend, Pause, Plane, Ref, Resume, Snooze, Terminate, Undrain
from lcm.model.base.errors import Conflict, Forbidden, Gone, IllegalStep, Invalid
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, LabWorkerStatus, WorkerPhase, WorkerTelemetry

P = WorkerPhase
W1 = Ref(LabWorker, "w1")
S1 = Ref(LabletSession, "s1")
TO_READY: tuple[tuple[WorkerPhase, dict[str, Any]], ...] = (
    (P.PROVISIONING_EC2, {"ec2": {"client_token": "t"}}),
    (P.EC2_READY, {"ec2": {"instance_id": "i-1"}}),
    (P.STARTING, {"cml": {"api_url": "https://10.0.0.1", "licensed": False}}),
    (P.READY_UNLICENSED, {"cml": {"version": "2.9.0"}, "capacity": given.machine()}),
    (P.READY, {"cml": {"licensed": True}}),
)


def status(worker: LabWorker, phase: WorkerPhase | None = None, **fields: Any) -> LabWorkerStatus:
    return given.changed(worker.status, {"phase": phase or worker.status.phase, **fields})


async def ready(world: World, name: str = "w1") -> LabWorker:
    """Take a new worker to READY, step by step."""
    worker = await world.root.create(given.worker(name=name))
    controller = world.service(WORKER_CONTROLLER)
    for phase, fields in TO_READY:
        worker = await controller.step(worker, status(worker, phase, **fields), reason=f"now {phase}")
    return worker


async def booked(world: World, plane: Plane) -> LabletSession:
    await world.root.create(given.definition(state="active"))
    return await plane.create(given.session())


async def scheduled(world: World) -> LabletSession:
    session = await booked(world, world.ada)
    placed = given.changed(
        session.status,
        {
            "phase": SessionPhase.SCHEDULED,
            "claim": given.claim(),
            "worker_id": "uid-w1",
            "allocated_ports": {"PC_serial": 2000},
        },
    )
    return await world.service(SCHEDULER).step(session, placed, reason="placed")


@everywhere
async def test_a_step_is_taken_and_told(world: World) -> None:
    worker = await ready(world)
    assert worker.status.phase is P.READY
    assert await world.root.get(W1) == worker
    told = [(line.phase, line.by, line.reason) for line in worker.status.history][-len(TO_READY) :]
    assert told == [(phase, WORKER_CONTROLLER, f"now {phase}") for phase, _ in TO_READY]


@everywhere
async def test_a_step_is_taken_at_exactly_the_revision_that_was_seen(world: World) -> None:
    seen = await world.root.create(given.worker())
    changed = await world.root.patch(W1, {"metadata": {"labels": {"tier": "gold"}}})
    controller = world.service(WORKER_CONTROLLER)
    launching = status(seen, P.PROVISIONING_EC2, ec2={"client_token": "t"})
    with pytest.raises(Conflict) as raised:
        await controller.step(seen, launching)
    wanted, found = seen.metadata.resource_version, changed.metadata.resource_version
    assert (raised.value.key, raised.value.wanted, raised.value.found) == (W1.key, wanted, found)
    assert (await controller.step(changed, launching)).status.phase is P.PROVISIONING_EC2


@everywhere
async def test_a_step_that_is_in_no_table_is_refused_with_the_objects_story(world: World) -> None:
    worker = await ready(world)
    with pytest.raises(IllegalStep) as raised:
        await world.service(WORKER_CONTROLLER).step(worker, status(worker, P.TERMINATED))
    message = str(raised.value)
    assert "READY -> TERMINATED" in message
    assert "its story" in message
    assert "PROVISIONING_EC2 by worker-controller: now PROVISIONING_EC2" in message
    assert await world.root.get(W1) == worker


@either
async def test_a_step_belongs_to_its_actor(world: World) -> None:
    worker = await world.root.create(given.worker())
    launching = status(worker, P.PROVISIONING_EC2, ec2={"client_token": "t"})
    with pytest.raises(Forbidden, match="only worker-controller may"):
        await world.service(SCHEDULER).step(worker, launching)
    for plane in (world.root, world.ada, world.person("anna"), world.service("")):
        with pytest.raises(Forbidden):
            await plane.step(worker, launching)


@either
async def test_a_step_needs_what_the_table_says(world: World) -> None:
    worker = await world.root.create(given.worker())
    with pytest.raises(IllegalStep, match=r"lacks ec2\.client_token"):
        await world.service(WORKER_CONTROLLER).step(worker, status(worker, P.PROVISIONING_EC2))


@everywhere
async def test_facts_can_be_reported_without_a_step(world: World) -> None:
    worker = await ready(world)
    controller = world.service(WORKER_CONTROLLER)
    seen = await controller.step(worker, status(worker, pause_count=2, history=()))
    assert (seen.status.pause_count, seen.status.history) == (2, worker.status.history)
    revision = await world.revision()
    assert await controller.step(seen, seen.status) == seen
    assert await world.revision() == revision


@either
async def test_a_status_of_another_kind_is_refused(world: World) -> None:
    worker = await world.root.create(given.worker())
    with pytest.raises(Invalid):
        await world.service(WORKER_CONTROLLER).step(worker, given.session().status)


@either
async def test_a_step_on_what_is_gone_says_so(world: World) -> None:
    session = await booked(world, world.ada)
    await world.ada.delete(S1)
    with pytest.raises((Gone, Conflict)):
        await world.service(SCHEDULER).step(session, given.changed(session.status, {"retry_count": 1}))


@everywhere
async def test_what_is_to_go_goes_with_its_last_step(world: World) -> None:
    await world.root.create(given.worker())
    marked = await world.root.delete(W1)
    revision = await world.revision()
    last = await world.service(WORKER_CONTROLLER).step(marked, status(marked, P.TERMINATED))
    assert last.status.phase is P.TERMINATED
    assert await world.root.get(W1) is None
    assert await world.revision() == revision + 1


@everywhere
async def test_a_drain_is_asked_for_and_cancelled(world: World) -> None:
    await ready(world)
    drained = await world.root.act(W1, Drain(deadline_minutes=30))
    assert drained.status.phase is P.DRAINING
    assert drained.status.drain_deadline_at is not None
    assert abs(drained.status.drain_deadline_at - NOW - timedelta(minutes=30)) < timedelta(minutes=1)
    back = await world.root.act(W1, Undrain())
    assert (back.status.phase, back.status.drain_deadline_at) == (P.READY, None)


@either
async def test_pausing_and_resuming_change_what_is_wanted(world: World) -> None:
    await ready(world)
    assert (await world.root.act(W1, Pause())).spec.wanted_state == "stopped"
    revision = await world.revision()
    await world.root.act(W1, Pause())
    assert await world.revision() == revision
    assert (await world.person("otto").act(W1, Resume())).spec.wanted_state == "running"
    snoozed = await world.root.act(W1, Snooze(minutes=10))
    assert snoozed.status.idle is not None
    assert snoozed.status.idle.snoozed_until is not None


@everywhere
async def test_an_action_that_its_phase_does_not_have_is_refused_with_the_story(world: World) -> None:
    await world.root.create(given.worker())
    with pytest.raises(IllegalStep, match="PENDING"):
        await world.root.act(W1, Drain())
    marked = await world.root.get(W1)
    assert marked is not None
    with pytest.raises(IllegalStep):
        await world.root.act(W1, Undrain())


@either
async def test_a_dry_run_of_an_action_leaves_nothing(world: World) -> None:
    worker = await ready(world)
    assert (await world.root.act(W1, Drain(), dry_run=True)).status.phase is P.DRAINING
    assert await world.root.get(W1) == worker


@everywhere
async def test_a_repeated_action_is_done_once(world: World) -> None:
    await scheduled(world)
    first = await world.ada.act(S1, Extend(minutes=30), request="more-time")
    again = await world.ada.act(S1, Extend(minutes=30), request="more-time")
    assert first.status.ends_at == again.status.ends_at == given.moment("11:30")
    with pytest.raises(Invalid):
        await world.ada.act(S1, Extend(minutes=60), request="more-time")
    assert (await world.ada.act(S1, Extend(minutes=30))).status.ends_at == given.moment("12:00")


@either
async def test_a_session_is_ended_by_request(world: World) -> None:
    session = await scheduled(world)
    controller = world.service(LABLET_CONTROLLER)
    starting = given.changed(session.status, {"phase": SessionPhase.INSTANTIATING})
    session = await controller.step(session, starting)
    ended = await world.ada.act(S1, Terminate(reason="done early"))
    assert (ended.status.phase, ended.status.outcome) == (SessionPhase.STOPPING, SessionPhase.TERMINATED)
    assert ended.status.outcome_reason == "done early"


@either
async def test_an_action_of_another_kind_is_refused(world: World) -> None:
    await ready(world)
    await booked(world, world.ada)
    actions: tuple[tuple[Ref[Any], Action], ...] = ((W1, Terminate()), (S1, Drain()))
    for ref, action in actions:
        with pytest.raises(Invalid):
            await world.root.act(ref, action)


@either
async def test_nothing_is_done_with_what_is_not_there(world: World) -> None:
    with pytest.raises(Gone):
        await world.root.act(W1, Drain())
    with pytest.raises(Gone):
        await world.ada.act(S1, Extend(minutes=5))
    with pytest.raises(Gone):
        await world.service(WORKER_CONTROLLER).report(W1, given.telemetry())
    assert await world.root.telemetry(W1) is None


@everywhere
async def test_the_newest_measurements_are_kept(world: World) -> None:
    await world.root.create(given.worker())
    assert await world.root.telemetry(W1) is None
    controller = world.service(WORKER_CONTROLLER)
    at = given.moment("08:00")
    first = WorkerTelemetry(
        collected_at=at,
        ec2_at=at,
        cloudwatch_at=at,
        cml_at=at,
        activity_at=at,
        uptime_seconds=600,
        running_nodes=7,
        cpu_utilization=12.5,
        memory_utilization=50.0,
        storage_utilization=1.0,
        cml_cpu_utilization=12.5,
        cml_memory_utilization=50.0,
        cml_storage_utilization=1.0,
        cloudwatch_cpu_utilization=13.0,
        cloudwatch_memory_utilization=51.0,
        cloudwatch_storage_utilization=2.0,
        network_in_bytes=10,
        network_out_bytes=20,
        active_labs_count=2,
        hosted_lab_ids=("a", "b"),
        last_activity_at=given.moment("07:59"),
    )
    assert await controller.report(W1, first) == first
    assert await world.root.telemetry(W1) == first
    assert await controller.report(W1, given.telemetry(collected_at=given.moment("07:00"))) == first
    assert await world.root.telemetry(W1) == first
    with pytest.raises(Invalid):
        await controller.report(W1, given.telemetry(collected_at=given.moment("09:00")))
    newer = msgspec.structs.replace(first, collected_at=given.moment("08:01"))
    assert await controller.report(W1, newer) == newer
    assert await world.person("anna").telemetry(W1) == newer


@either
async def test_measurements_do_not_collide_with_steps(world: World) -> None:
    worker = await world.root.create(given.worker())
    controller = world.service(WORKER_CONTROLLER)
    await controller.report(W1, given.telemetry())
    assert await world.root.get(W1) == worker
    await controller.step(worker, status(worker, retry_count=1))


@either
async def test_measurements_go_with_their_worker(world: World) -> None:
    await world.root.create(given.worker())
    controller = world.service(WORKER_CONTROLLER)
    await controller.report(W1, given.telemetry())
    marked = await world.root.delete(W1)
    await controller.step(marked, status(marked, P.TERMINATED))
    await world.root.create(given.worker())
    assert await world.root.telemetry(W1) is None


@either
async def test_only_services_measure(world: World) -> None:
    await world.root.create(given.worker())
    for plane in (world.root, world.ada):
        with pytest.raises(Forbidden):
            await plane.report(W1, given.telemetry())
    with pytest.raises(Forbidden):
        await world.ada.telemetry(W1)


@everywhere
async def test_discovered_machines_get_a_record_once(world: World) -> None:
    machines = tuple(
        DiscoveredInstance(
            instance_id=f"i-{n}", instance_type="m5zn.metal", state="running", name=f"cml-{n}", ami_id="ami-1"
        )
        for n in range(3)
    )
    scan = BulkImport(discovered_instances=machines[:2], aws_region="us-east-1")
    controller = world.service(WORKER_CONTROLLER)
    first = await controller.import_workers(scan)
    assert (len(first.imported), first.known) == (2, ())
    again = await controller.import_workers(msgspec.structs.replace(scan, discovered_instances=machines))
    assert (len(again.imported), set(again.known)) == (1, {"i-0", "i-1"})
    workers = (await world.root.list(LabWorker)).items
    assert {worker.status.ec2.instance_id for worker in workers} == {"i-0", "i-1", "i-2"}
    for plane in (world.root, world.ada):
        with pytest.raises(Forbidden):
            await plane.import_workers(scan)
