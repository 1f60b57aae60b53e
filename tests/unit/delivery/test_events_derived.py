"""What each change of an object means to the outside."""

from typing import Any

import msgspec
import pytest

from harness import given
from harness.plane_world import ADA, NOW, ROOT, Stage, active, service
from lcm.control.delivery.events import IMPORTED, derive_events, metrics_event
from lcm.control.objects.steps import take_plane_step
from lcm.control.plane.protocol import ref_of
from lcm.model.base.event import Event
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.base.resource import Condition, Truth
from lcm.model.kinds.pool import PoolPhase, ScalingDecision
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import ReservationPhase
from lcm.model.kinds.session import Progress, SessionPhase
from lcm.model.kinds.worker import WorkerPhase

NOUNS = {
    "LabWorker": "worker",
    "LabWorkerPool": "pool",
    "WorkerTemplate": "template",
    "LabletDefinition": "definition",
    "LabletSession": "lablet.session",
    "Reservation": "reservation",
    "SystemSettings": "settings",
}
KINDS = pytest.mark.parametrize(
    "resource", [one for one in given.every() if one.kind != "Sink"], ids=lambda one: one.kind
)


def data(event: Event) -> dict[str, Any]:
    loaded: dict[str, Any] = msgspec.json.decode(event.data)
    return loaded


def one(before: Resource | None, after: Resource, **more: Any) -> Event:
    (event,) = derive_events(before, after, now=NOW, **more)
    return event


def test_nothing_is_told_of_sinks() -> None:
    sink = given.sink()
    assert not derive_events(None, sink, now=NOW)
    assert not derive_events(sink, given.sink(enabled=False), now=NOW)
    assert not derive_events(sink, sink, now=NOW, removed=True)


@KINDS
def test_making_and_removing_an_object_is_told(resource: Resource) -> None:
    made, gone = one(None, resource), one(resource, resource, removed=True)
    noun = NOUNS[resource.kind]
    assert (made.type, gone.type) == (f"{noun}.created", f"{noun}.deleted")
    assert (made.kind, made.name, made.namespace) == (resource.kind, resource.metadata.name, "default")
    assert made.time == NOW


@KINDS
def test_a_new_spec_new_labels_and_a_mark_are_told(resource: Resource) -> None:
    for change in ({"generation": 2}, {"labels": {"a": "b"}}, {"annotations": {"a": "b"}}, {"deletion_timestamp": NOW}):
        after = given.changed(resource, {"metadata": change})
        event = one(resource, after)
        assert event.type == f"{NOUNS[resource.kind]}.updated"
        assert data(event)["uid"] == resource.metadata.uid


@KINDS
def test_no_difference_means_nothing(resource: Resource) -> None:
    newer = given.changed(resource, {"metadata": {"resource_version": 9}})
    assert derive_events(resource, newer, now=NOW) == []


@KINDS
def test_a_condition_is_told(resource: Resource) -> None:
    said = Condition(type="Reachable", status=Truth.FALSE, last_transition_at=NOW)
    assert one(resource, given.changed(resource, {"status": {"conditions": (said,)}})).type.endswith(".updated")


def test_what_an_outsider_cannot_see_is_not_told() -> None:
    worker = given.worker()
    assert derive_events(worker, given.changed(worker, {"status": {"retry_count": 3}}), now=NOW) == []
    session = given.session()
    assert derive_events(session, given.changed(session, {"status": {"observation_count": 3}}), now=NOW) == []


def test_progress_and_ports_of_a_session_are_told() -> None:
    session = given.session()
    progress = Progress(step="import", percent=40, message="importing", at=NOW)
    for change in ({"progress": progress}, {"allocated_ports": {"PC_serial": 2000}}, {"ends_at": NOW}):
        assert one(session, given.changed(session, {"status": change})).type == "lablet.session.updated"


def test_a_worker_tells_old_and_new_phase_and_the_older_words_for_them() -> None:
    before = given.worker(phase=WorkerPhase.READY)
    after = take_plane_step(before, WorkerPhase.DRAINING, author="otto", now=NOW, reason="drain", drain_deadline_at=NOW)
    event = one(before, after)
    assert event.type == "worker.status.updated"
    assert event.worker_id == "uid-w1"
    assert data(event) == {
        "worker_id": "uid-w1",
        "worker_name": "w1",
        "old_phase": "READY",
        "new_phase": "DRAINING",
        "old_status": "RUNNING",
        "new_status": "RUNNING",
        "reason": "drain",
        "timestamp": "2026-11-02T08:00:00Z",
    }


def test_the_end_of_a_worker_is_told_besides() -> None:
    before = given.worker(phase=WorkerPhase.STOPPED)
    after = given.worker(phase=WorkerPhase.TERMINATED, history=given.history("TERMINATED"))
    assert [event.type for event in derive_events(before, after, now=NOW)] == [
        "worker.status.updated",
        "worker.terminated",
    ]
    told = derive_events(before, after, now=NOW, removed=True)
    assert [event.type for event in told][-1] == "worker.deleted"


def test_a_worker_that_was_found_is_imported_not_created() -> None:
    event = one(None, given.worker(ec2={"instance_id": "i-1", "instance_type": "m8i.large"}), origin=IMPORTED)
    assert event.type == "worker.imported"
    assert (data(event)["instance_id"], data(event)["instance_type"]) == ("i-1", "m8i.large")


def test_a_session_tells_what_older_clients_look_for() -> None:
    before = given.session(phase=SessionPhase.RUNNING, owner="ada", worker_id="uid-w1", allocated_ports={"PC": 2000})
    after = take_plane_step(
        before, SessionPhase.COLLECTING, author="ada", now=NOW, reason="enough", outcome="TERMINATED"
    )
    event = one(before, after)
    assert event.type == "lablet.session.status.changed"
    assert (event.session_id, event.worker_id, event.definition_id) == ("uid-s1", "uid-w1", "basics:1.0.0")
    assert (event.owner, event.public) == ("ada", False)
    assert data(event) == {
        "session_id": "uid-s1",
        "instance_id": "uid-s1",
        "session_name": "s1",
        "previous_state": "RUNNING",
        "new_state": "COLLECTING",
        "worker_id": "uid-w1",
        "allocated_ports": {"PC": 2000},
        "reason": "enough",
        "timestamp": "2026-11-02T08:00:00Z",
    }


def test_pools_and_reservations_tell_their_phase() -> None:
    pool = take_plane_step(given.pool(), PoolPhase.DRAINING, author="otto", now=NOW, reason="")
    assert (one(given.pool(), pool).type, data(one(given.pool(), pool))["phase"]) == ("pool.status.changed", "DRAINING")
    booked = given.reservation(phase=ReservationPhase.PROMISED)
    cancelled = take_plane_step(booked, ReservationPhase.CANCELLING, author="ada", now=NOW, reason="")
    assert one(booked, cancelled).type == "reservation.status.changed"


def test_definitions_are_told_to_everybody_and_bookings_to_their_owner() -> None:
    assert [event.public for event in (one(None, given.definition()), one(None, given.worker()))] == [True, False]
    assert one(None, given.definition()).definition_id == "basics:1.0.0"
    assert one(None, given.reservation(owner="ada")).owner == "ada"
    assert one(None, given.worker()).owner is None


def test_a_measurement_is_told() -> None:
    event = metrics_event(given.worker(), given.telemetry(cpu_utilization=12.5), now=NOW)
    assert (event.type, event.worker_id, data(event)["cpu_utilization"]) == ("worker.metrics.updated", "uid-w1", 12.5)


async def test_events_are_committed_with_what_they_tell_of() -> None:
    stage = Stage()
    made = await stage[ROOT].create(given.worker())
    async with stage.store.events(after=made.metadata.resource_version - 1) as reader:
        happened = await anext(reader)
    assert (happened.revision, len(happened.events)) == (made.metadata.resource_version, 1)


async def test_a_whole_life_is_told_in_order() -> None:
    stage = Stage()
    await stage.put(active())
    session = await stage[ADA].create(given.session())
    worker = await stage[ROOT].create(given.worker())
    await stage[ADA].delete(ref_of(session))
    await stage[ROOT].delete(ref_of(worker))
    marked = await stage.read(worker)
    assert marked is not None
    status = msgspec.structs.replace(marked.status, phase=WorkerPhase.TERMINATED)
    await stage[service(WORKER_CONTROLLER)].step(marked, status)
    assert await stage.types() == [
        "lablet.session.created",
        "worker.created",
        "lablet.session.status.changed",
        "lablet.session.deleted",
        "worker.updated",
        "worker.status.updated",
        "worker.terminated",
        "worker.deleted",
    ]


def test_a_pool_that_starts_or_lets_go_workers_is_told_once_and_that_nothing_was_to_be_done_is_not() -> None:
    before = given.pool(phase=PoolPhase.READY)
    decisions = [
        ScalingDecision(at=NOW, action=action, reason="seat 1 is claimed", workers_before=0, workers_after=1)
        for action in ("none", "scale_up")
    ]
    status = msgspec.structs.replace(before.status, decisions=tuple(decisions))
    after = msgspec.structs.replace(before, status=status)
    told = derive_events(before, after, now=NOW)
    assert [event.type for event in told] == ["pool.updated", "pool.scaled"]
    assert data(told[1]) | {"action": "scale_up", "workers_after": 1} == data(told[1])
    assert derive_events(after, after, now=NOW) == []
