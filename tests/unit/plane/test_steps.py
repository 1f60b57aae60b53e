"""Steps that controllers report, and the fences and leases under which they write."""

import asyncio
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from harness import documents, given
from harness.plane_world import ADA, ANNA, NOW, OTTO, ROOT, Stage, active, service
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance
from lcm.control.plane.protocol import Drain, Plane, Ref
from lcm.model.access.identity import Caller
from lcm.model.base.errors import Conflict, Deposed, Forbidden, Gone, IllegalStep, Invalid
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.model.base.resource import PhaseChange
from lcm.model.kinds.definition import Spread
from lcm.model.kinds.pool import LabWorkerPoolStatus, WorkerTemplate
from lcm.model.kinds.worker import Ec2Facts, LabWorker, WorkerPhase
from lcm.store.base import Fence

BY = service(WORKER_CONTROLLER)
W1 = Ref(LabWorker, "w1")


def launching(worker: LabWorker, **more: Any) -> Any:
    facts = Ec2Facts(client_token="uid-1-1")
    return msgspec.structs.replace(worker.status, phase=WorkerPhase.PROVISIONING_EC2, ec2=facts, **more)


async def with_worker() -> tuple[Stage, LabWorker]:
    stage = Stage()
    return stage, await stage[ROOT].create(given.worker())


async def test_a_step_of_the_table_is_taken_and_told() -> None:
    stage, worker = await with_worker()
    after = await stage[BY].step(worker, launching(worker), reason="wanted")
    assert await stage.read(worker) == after
    line = after.status.history[-1]
    assert (line.phase, line.at, line.by, line.reason) == ("PROVISIONING_EC2", NOW, WORKER_CONTROLLER, "wanted")
    assert await stage.types() == ["worker.created", "worker.status.updated"]


async def test_a_step_that_is_not_in_the_table_is_refused_with_the_story() -> None:
    stage, worker = await with_worker()
    with pytest.raises(IllegalStep, match="its story"):
        await stage[BY].step(worker, msgspec.structs.replace(worker.status, phase=WorkerPhase.READY))
    with pytest.raises(IllegalStep, match=r"status lacks ec2\.client_token"):
        await stage[BY].step(worker, msgspec.structs.replace(worker.status, phase=WorkerPhase.PROVISIONING_EC2))
    assert await stage.read(worker) == worker


@pytest.mark.parametrize("actor", ["", "user", "control-plane", SCHEDULER, "stranger"])
async def test_only_who_has_a_part_in_a_life_reports_what_was_seen_of_it(actor: str) -> None:
    stage, worker = await with_worker()
    seen = msgspec.structs.replace(worker.status, observed_generation=1)
    for status in (worker.status, seen, launching(worker)):
        with pytest.raises(Forbidden, match="only worker-controller may"):
            await stage[service(actor)].step(worker, status)
    assert await stage.read(worker) == worker
    assert (await stage[BY].step(worker, seen)).status == seen


async def test_what_has_no_phases_is_reported_on_by_any_of_our_processes() -> None:
    stage = Stage()
    template = await stage[ROOT].create(given.template())
    seen = msgspec.structs.replace(template.status, observed_generation=1)
    with pytest.raises(Forbidden):
        await stage[service("")].step(template, seen)
    assert (await stage[service(SCHEDULER)].step(template, seen)).status == seen


async def test_history_is_the_planes_own() -> None:
    stage, worker = await with_worker()
    forged = (PhaseChange(phase="READY", at=NOW, by="me"),)
    after = await stage[BY].step(worker, launching(worker, history=forged))
    assert [line.phase for line in after.status.history] == ["PENDING", "PROVISIONING_EC2"]
    unchanged = msgspec.structs.replace(after.status, history=())
    assert await stage[BY].step(after, unchanged) == after


async def test_a_step_is_taken_at_exactly_the_revision_that_was_seen() -> None:
    stage, worker = await with_worker()
    newer = await stage[ROOT].patch(W1, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict) as raised:
        await stage[BY].step(worker, launching(worker))
    assert (raised.value.wanted, raised.value.found) == (
        worker.metadata.resource_version,
        newer.metadata.resource_version,
    )
    with pytest.raises(Conflict):
        await stage[BY].step(given.worker(), launching(worker))


async def test_of_several_steps_at_once_one_is_taken() -> None:
    stage, worker = await with_worker()
    steps = (stage[BY].step(worker, launching(worker, last_error=str(number))) for number in range(6))
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    assert sum(isinstance(one, LabWorker) for one in outcomes) == 1
    assert sum(isinstance(one, Conflict) for one in outcomes) == 5


async def test_a_step_changes_the_status_and_nothing_else() -> None:
    stage, worker = await with_worker()
    dreamt = given.changed(worker, {"spec": {"lab_track": "dreamt"}, "metadata": {"labels": {"a": "b"}}})
    after = await stage[BY].step(dreamt, launching(worker))
    assert (after.spec, after.metadata.labels) == (worker.spec, {})
    assert after.metadata.generation == worker.metadata.generation


async def test_a_status_without_a_difference_spends_no_revision() -> None:
    stage, worker = await with_worker()
    revision = await stage.revision()
    assert await stage[BY].step(worker, worker.status, reason="again") == worker
    assert await stage.revision() == revision


async def test_a_status_may_change_within_a_phase_and_for_kinds_without_phases() -> None:
    stage, worker = await with_worker()
    after = await stage[BY].step(worker, msgspec.structs.replace(worker.status, retry_count=1))
    assert (after.status.retry_count, len(after.status.history)) == (1, 1)
    lab = await stage.put(active())
    learned = msgspec.structs.replace(
        lab.status, observed_sessions=3, cpu_cores=Spread(avg=1, p50=1, p95=2, max=2, latest=1)
    )
    assert (await stage[service(LABLET_CONTROLLER)].step(lab, learned)).status == learned


async def test_a_status_of_another_kind_or_beyond_its_limits_is_refused() -> None:
    stage, worker = await with_worker()
    with pytest.raises(Invalid):
        await stage[BY].step(worker, LabWorkerPoolStatus())
    with pytest.raises(Invalid) as raised:
        await stage[BY].step(worker, msgspec.structs.replace(worker.status, last_error=2001 * "x"))
    assert [fault.path for fault in raised.value.faults] == ["status.last_error"]
    with pytest.raises(Invalid):
        await stage[BY].step(worker, launching(worker), reason=2001 * "x")


async def test_only_services_report_and_only_of_what_is_there() -> None:
    stage, worker = await with_worker()
    for caller in (ADA, ANNA, OTTO, ROOT):
        with pytest.raises(Forbidden):
            await stage[caller].step(worker, launching(worker))
    with pytest.raises(Gone):
        await stage[BY].step(given.worker(name="w2"), worker.status)


async def test_every_write_is_bound_to_the_fence() -> None:
    stage, worker = await with_worker()
    await stage[ROOT].create(given.template())
    plane = stage[BY]
    lease = await plane.acquire("worker-controller", "me", ttl_seconds=15)
    assert lease is not None
    fenced = plane.under(lease.fence())
    worker = await fenced.step(worker, launching(worker))
    await plane.release(lease)
    revision = await stage.revision()
    for write in writes(fenced, worker):
        with pytest.raises(Deposed):
            await write
    assert await stage.revision() == revision


def writes(plane: Plane, worker: LabWorker) -> list[Any]:
    template = Ref(WorkerTemplate, "metal")
    found = BulkImport(discovered_instances=(DiscoveredInstance(instance_id="i-1"),), aws_region="us-east-1")
    return [
        plane.create(given.worker(name="w2")),
        plane.replace(given.template(price_per_hour_usd=Decimal(4))),
        plane.patch(template, {"metadata": {"labels": {"a": "b"}}}),
        plane.delete(template),
        plane.delete(W1),
        plane.apply([documents.document("WorkerTemplate", name_prefix="other")]),
        plane.step(worker, msgspec.structs.replace(worker.status, retry_count=5)),
        plane.report(W1, given.telemetry()),
        plane.import_workers(found),
    ]


async def test_actions_are_fenced_too_and_a_fence_is_for_services_only() -> None:
    stage, _ = await with_worker()
    await stage.put(given.worker(name="w2", uid="u2", phase=WorkerPhase.READY))
    plane = stage[OTTO].under(Fence("worker-controller", 1))
    with pytest.raises(Forbidden):
        await plane.act(Ref(LabWorker, "w2"), Drain())
    with pytest.raises(Forbidden):
        await plane.create(given.template())


@pytest.mark.parametrize("caller", [ADA, ANNA, OTTO, ROOT])
async def test_leases_and_imports_are_for_services(caller: Caller) -> None:
    plane = Stage()[caller]
    found = BulkImport(discovered_instances=(), aws_region="us-east-1")
    for call in (plane.acquire("x", "me", ttl_seconds=15), plane.lease("x"), plane.import_workers(found)):
        with pytest.raises(Forbidden):
            await call


async def test_a_lease_is_taken_renewed_and_given_back() -> None:
    plane = Stage()[BY]
    lease = await plane.acquire("x", "me", ttl_seconds=15)
    assert lease is not None
    assert await plane.lease("x") == lease
    assert await plane.acquire("x", "you", ttl_seconds=15) is None
    await plane.renew(lease)
    await plane.release(lease)
    assert await plane.lease("x") is None
    with pytest.raises(Deposed):
        await plane.renew(lease)
