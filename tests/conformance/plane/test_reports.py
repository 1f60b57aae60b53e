"""Measurements, idleness and alerts: the same through every door."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harness import given
from harness.plane_world import NOW, World, either, everywhere
from lcm.control.objects.records import change_ops, find_record
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Deposed, Forbidden, Gone, Invalid
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.base.resource import Truth
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, WorkerPhase, WorkerTelemetry
from lcm.model.telemetry.alert import AlertFinding, Severity

W1 = Ref(LabWorker, "w1")
ILL = AlertFinding(
    alert="CmlIll", severity=Severity.CRITICAL, reason="NoAnswer", message="CML has not answered for 10 min"
)
MINUTE = timedelta(minutes=1)
EVER = given.moment("00:00", day=-3)


def seen(minutes: float, **fields: Any) -> WorkerTelemetry:
    """Return measurements of so many minutes after the beginning."""
    at = NOW + minutes * MINUTE
    return given.telemetry(**{"collected_at": at, "cml_at": at, "activity_at": at, "active_labs_count": 0} | fields)


def controller(world: World) -> Plane:
    return world.service(WORKER_CONTROLLER)


async def serving(world: World) -> LabWorker:
    """Make a worker that serves, by the way behind the plane."""
    worker = await world.root.create(given.worker())
    record = await find_record(world.store, W1)
    assert record is not None
    ready = given.changed(worker, {"status": {"phase": WorkerPhase.READY, "ready_at": NOW}})
    await world.store.commit(*change_ops(record, ready))
    found = await world.root.get(W1)
    assert found is not None
    return found


@everywhere
async def test_each_source_keeps_what_it_said_and_when(world: World) -> None:
    await world.root.create(given.worker())
    await controller(world).report(W1, given.telemetry(cloudwatch_at=NOW, cpu_utilization=5.0, network_in_bytes=9))
    await world.pass_time(60)
    merged = await controller(world).report(W1, seen(1, memory_utilization=30.0, cpu_utilization=6.0))
    assert (merged.cloudwatch_at, merged.network_in_bytes) == (NOW, 9)
    assert (merged.cml_at, merged.memory_utilization, merged.cpu_utilization) == (NOW + MINUTE, 30.0, 6.0)
    assert await world.root.telemetry(W1) == merged


@everywhere
async def test_history_is_read_from_a_moment_on(world: World) -> None:
    await world.root.create(given.worker())
    for minute in range(0, 90, 15):
        await controller(world).report(W1, seen(minute, cpu_utilization=float(minute)))
        await world.pass_time(15 * 60)
    whole = await world.person("anna").history(W1, since=EVER)
    assert [one.cpu_utilization for one in whole] == [0.0, 15.0, 30.0, 45.0, 60.0, 75.0]
    assert await world.root.history(W1, since=NOW + 45 * MINUTE) == whole[3:]
    with pytest.raises(Forbidden):
        await world.ada.history(W1, since=EVER)
    with pytest.raises(Gone):
        await world.root.history(Ref(LabWorker, "w2"), since=EVER)


@everywhere
async def test_alerts_are_raised_and_cleared(world: World) -> None:
    await world.root.create(given.worker())
    await controller(world).report(W1, seen(0, storage_utilization=95.0))
    for _ in range(2):
        await controller(world).raise_alert(W1, ILL)
    alerts = await world.root.alerts()
    assert {one.alert for one in alerts} == {"HighDisk", "CmlIll"}
    assert await world.person("otto").alerts() == alerts
    for _ in range(2):
        await controller(world).clear_alert(W1, "CmlIll")
    assert [one.alert for one in await world.root.alerts()] == ["HighDisk"]


@either
async def test_who_may_raise_and_read_alerts(world: World) -> None:
    await world.root.create(given.worker())
    for plane in (world.root, world.ada):
        for call in (plane.raise_alert(W1, ILL), plane.clear_alert(W1, "CmlIll"), plane.detect_idle(W1)):
            with pytest.raises(Forbidden):
                await call
    for name in ("ada", "anna"):
        with pytest.raises(Forbidden):
            await world.person(name).alerts()


@either
async def test_nothing_is_said_of_what_is_not_there(world: World) -> None:
    plane = controller(world)
    refs: tuple[Ref[Any], ...] = (W1, Ref(LabletSession, "s1"), Ref(LabWorker, "../w1"))
    for ref in refs:
        for call in (plane.raise_alert(ref, ILL), plane.clear_alert(ref, "CmlIll")):
            with pytest.raises(Gone):
                await call
    with pytest.raises(Gone):
        await plane.detect_idle(W1)
    await world.root.create(given.worker())
    with pytest.raises(Invalid):
        await plane.raise_alert(W1, msgspec.structs.replace(ILL, alert="not one word"))


@everywhere
async def test_a_worker_is_judged_and_the_verdict_kept(world: World) -> None:
    await serving(world)
    assert (await controller(world).detect_idle(W1)).idle is False
    await world.pass_time(25 * 60)
    await controller(world).report(W1, seen(25))
    warned = await controller(world).detect_idle(W1)
    assert (warned.idle, {one.active for one in warned.signals}) == (False, {Truth.TRUE, Truth.FALSE})
    assert warned.pause_at is not None
    assert NOW + 30 * MINUTE <= warned.pause_at < NOW + 31 * MINUTE, "a report may wait a moment for others"
    await world.pass_time(6 * 60)
    await controller(world).report(W1, seen(31))
    idle = await controller(world).detect_idle(W1)
    worker = await world.root.get(W1)
    assert worker is not None
    assert (idle.idle, worker.status.idle) == (True, idle)


@either
async def test_nothing_is_reported_once_the_term_is_over(world: World) -> None:
    await serving(world)
    plane = controller(world)
    await plane.raise_alert(W1, msgspec.structs.replace(ILL, alert="Standing"))
    lease = await plane.acquire("worker-controller", "a", ttl_seconds=15)
    assert lease is not None
    ghost = plane.under(lease.fence())
    await plane.release(lease)
    revision = await world.revision()
    for call in (
        ghost.report(W1, seen(0)),
        ghost.raise_alert(W1, ILL),
        ghost.clear_alert(W1, "Standing"),
        ghost.detect_idle(W1),
    ):
        with pytest.raises(Deposed):
            await call
    assert await world.revision() == revision
