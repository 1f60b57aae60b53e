"""Monitoring in virtual time: when workers are measured, what is reported, and what an outage changes: nothing."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from harness import clouds, given
from harness.clouds import HERE
from harness.monitoring import SMALL, Watched, minutes, running
from harness.plane_world import ROOT
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import creation_ops, encode_checked, key_of
from lcm.control.plane.protocol import Plane, Ref, WorkerRef
from lcm.controllers.worker.measure import HostView, SessionLabs, with_host
from lcm.controllers.worker.occupants import IdleDetection, Occupants
from lcm.model.access.secret import Secret
from lcm.model.base.capacity import Amount
from lcm.model.base.errors import Deposed, Later, Throttled, Unreachable
from lcm.model.base.resource import Metadata, Truth
from lcm.model.kinds.pool import FilledSeat, LabWorkerPool
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.settings import MonitoringSettings, SystemSettings, SystemSettingsSpec
from lcm.model.kinds.worker import IdleVerdict, LabWorker, WorkerCondition, WorkerPhase
from lcm.model.topology.node_definitions import NodeSize, shipped_nodes
from lcm.providers.protocols.compute import MachineMetrics
from lcm.providers.protocols.labhost import NodeFacts, Stats
from lcm.settings.load import Settings
from lcm.sim.cml.definitions import custom_kind
from lcm.sim.cml.stats import CmlMachine
from lcm.sim.time.loop import run
from lcm.store.base import Fence, Put

Body = Callable[[Watched], Awaitable[None]]
HOUR = 60


def in_virtual_time(body: Body) -> Callable[[], None]:
    def test() -> None:
        async def main() -> None:
            await body(Watched())

        run(main)

    test.__name__ = body.__name__
    return test


@in_virtual_time
async def test_every_worker_is_measured_once_an_interval_at_moments_that_are_spread_evenly(world: Watched) -> None:
    names = [f"w{number}" for number in range(120)]
    await world.add(*names)
    async with world.monitoring():
        await minutes(1)
        world.hosts.asked.clear()
        began = world.clock.now()
        await minutes(3)
    assert {len(world.hosts.moments(name)) for name in names} == {3}
    thirds = [0, 0, 0]
    for _, at in world.hosts.asked:
        thirds[int((at - began).total_seconds() % 60 // 20)] += 1
    assert min(thirds) > 60, thirds


@in_virtual_time
async def test_after_a_failover_a_worker_keeps_its_moment(world: Watched) -> None:
    await world.add("w1")
    for _ in range(2):
        async with world.monitoring():
            await minutes(2.3)
    moments = [at.timestamp() % 60 for at in world.hosts.moments("w1")]
    assert len(moments) >= 4
    assert max(moments) - min(moments) < 0.01


@in_virtual_time
async def test_the_cloud_is_asked_once_a_region_and_interval(world: Watched) -> None:
    await world.add(*(f"w{number}" for number in range(20)))
    async with world.monitoring():
        await minutes(10)
    assert world.cloud.calls["list_owned"] in {10, 11}
    assert world.cloud.calls["find"] == 0


@in_virtual_time
async def test_an_hour_without_cloudwatch_does_not_have_the_region_surveyed_more_often(world: Watched) -> None:
    await world.add("w1", "w2")
    async with world.monitoring():
        await minutes(2)
        world.cloud.fail_next("metrics", Throttled("CloudWatch is busy", after=timedelta(seconds=1)), times=10_000)
        world.cloud.calls.clear()
        await minutes(HOUR)
        assert world.cloud.calls["list_owned"] in {HOUR - 1, HOUR, HOUR + 1}
        found = await world.telemetry()
    assert found.ec2_at is not None
    assert world.clock.now() - found.ec2_at < timedelta(minutes=2), "what answers is heard"


@in_virtual_time
async def test_a_region_that_cannot_be_listed_is_asked_soon_and_then_less_and_less(world: Watched) -> None:
    await world.add("w1")
    async with world.monitoring():
        await minutes(2)
        world.cloud.fail_next("list_owned", Unreachable("EC2 is away", after=timedelta(seconds=1)), times=3)
        await minutes(2)
        found = await world.telemetry()
        assert found.ec2_at is not None
        assert world.clock.now() - found.ec2_at < timedelta(minutes=2), "a short outage is soon over"
        world.cloud.fail_next("list_owned", Unreachable("EC2 is away", after=timedelta(seconds=1)), times=10_000)
        world.cloud.calls.clear()
        await minutes(HOUR)
        assert world.cloud.calls["list_owned"] <= HOUR + 5


@in_virtual_time
async def test_an_imported_machine_without_our_tag_is_looked_up_by_itself(world: Watched) -> None:
    await world.add("w1")
    await world.add("w2", tagged=False)
    async with world.monitoring():
        await minutes(3)
    assert world.cloud.calls["find"] in {3, 4}
    assert (await world.worker("w2")).status.ec2.instance_status == "ok"


@in_virtual_time
async def test_measurements_carry_the_age_of_each_source(world: Watched) -> None:
    await world.add("w1")
    load = MachineMetrics(cpu_percent=7.0, memory_percent=61.0, network_in_bytes=10, network_out_bytes=20)
    world.cloud.account.measure(HERE, await world.machine(), load)
    async with world.monitoring():
        await minutes(2)
        found = await world.telemetry()
    now = world.clock.now()
    assert all(
        at is not None and now - at < timedelta(seconds=130)
        for at in (found.ec2_at, found.cloudwatch_at, found.cml_at, found.activity_at)
    )
    assert (found.network_in_bytes, found.network_out_bytes, found.running_nodes) == (10, 20, 0)
    assert (found.cloudwatch_cpu_utilization, found.cloudwatch_memory_utilization) == (7.0, 61.0)
    assert found.cml_cpu_utilization is not None
    assert found.cml_memory_utilization is not None
    assert (found.cpu_utilization, found.memory_utilization) == (
        found.cml_cpu_utilization,
        found.cml_memory_utilization,
    )
    assert found.uptime_seconds is not None
    assert (found.active_labs_count, found.hosted_lab_ids) == (0, ())


@in_virtual_time
async def test_labs_that_run_activity_and_strangers_ports_are_seen(world: Watched) -> None:
    await world.add("w1")
    cml = await world.cml()
    lab, _ = cml.import_lab(
        clouds.text(clouds.node("R1", tags=["serial:5001", "pat:tcp:5002:22"])), cml.users.administrator
    )
    async with world.monitoring():
        await minutes(2)
        idle = await world.telemetry()
        cml.labs.start(lab)
        started = world.clock.now()
        await minutes(5)
        busy = await world.telemetry()
    assert (idle.active_labs_count, idle.hosted_lab_ids) == (0, (lab.id,))
    assert (busy.active_labs_count, busy.running_nodes) == (1, 1)
    assert busy.last_activity_at is not None
    assert busy.last_activity_at >= started
    assert (await world.worker()).status.foreign_ports == (5001, 5002)


@in_virtual_time
async def test_a_port_that_somebody_put_onto_a_lab_of_ours_is_not_free_though_not_observed(
    world: Watched,
) -> None:
    await world.add("w1")
    cml = await world.cml()
    tags = ["serial:5001", "vnc:7777"]
    lab, _ = cml.import_lab(clouds.text(clouds.node("R1", tags=tags)), cml.users.administrator)
    ours = {"worker_id": "uid-w1", "cml_lab_id": lab.id, "allocated_ports": {"R1_serial": 5001}}
    await world.store.commit(*creation_ops(given.session(phase=SessionPhase.RUNNING, **ours)))
    async with world.monitoring():
        await minutes(2)
        assert (await world.worker()).status.foreign_ports == (7777,)


@in_virtual_time
async def test_what_strangers_labs_take_of_the_machine_is_known(world: Watched) -> None:
    await world.add("w1")
    cml = await world.cml()
    nodes = [clouds.node("R1", cpus=2, ram=2048, tags=["serial:5001"]), clouds.node("R2", cpus=1, ram=512)]
    lab, _ = cml.import_lab(clouds.text(*nodes), cml.users.administrator)
    cml.import_lab(clouds.text(clouds.node("R3", cpus=4)), cml.users.administrator)
    async with world.monitoring():
        await minutes(11)
        assert (await world.worker()).status.foreign == Amount(ports=1), "what does not run takes its ports only"
        cml.labs.start(lab)
        await minutes(5)
        busy = await world.worker()
        await minutes(10)
        assert await world.worker() == busy, "what did not change is not written"
        cml.labs.stop(lab)
        await minutes(5)
    found = busy.status.foreign
    assert (found.cpu_millis, found.memory_mb, found.nodes, found.ports, found.labs) == (3000, 2560, 2, 1, 1)
    assert (await world.worker()).status.foreign == Amount(ports=1)


@in_virtual_time
async def test_while_cml_is_silent_strangers_labs_stay_known(world: Watched) -> None:
    await world.add("w1")
    cml = await world.cml()
    lab, _ = cml.import_lab(clouds.text(clouds.node("R1", cpus=2, ram=2048)), cml.users.administrator)
    cml.labs.start(lab)
    async with world.monitoring():
        await minutes(5)
        known = (await world.worker()).status.foreign
        assert known.cpu_millis == 2000
        (await world.host()).fail_next("all_nodes", Unreachable("no answer"), times=10)
        cml.labs.stop(lab)
        await minutes(5)
        assert (await world.worker()).status.foreign == known


@in_virtual_time
async def test_a_lab_of_ours_is_no_strangers_also_while_its_id_is_not_known_yet(world: Watched) -> None:
    await world.add("w1")
    cml = await world.cml()
    lab, _ = cml.import_lab(clouds.text(clouds.node("R1", tags=["serial:5001"])), cml.users.administrator)
    cml.labs.start(lab)
    ports = {"R1_serial": 5001}
    coming = given.session(phase=SessionPhase.INSTANTIATING, worker_id="uid-w1", allocated_ports=ports)
    await world.store.commit(*creation_ops(coming))
    async with world.monitoring():
        await minutes(5)
        assert (await world.worker()).status.foreign == Amount()
        running = given.changed(coming, {"status": {"phase": SessionPhase.RUNNING, "cml_lab_id": lab.id}})
        await world.store.commit(Put(key_of(coming), encode_checked(running)))
        await minutes(3)
        assert (await world.worker()).status.foreign == Amount()
        copy, _ = cml.import_lab(clouds.text(clouds.node("R1", tags=["serial:5001"])), cml.users.administrator)
        cml.labs.start(copy)
        await minutes(3)
        assert (await world.worker()).status.foreign.labs == 1, "who took our port is a stranger all the same"


@pytest.mark.parametrize(
    ("state", "size", "millis", "storage_mb"),
    [
        ("BOOTED", {"cpus": 0.5, "disk_gb": 1.5}, 500, 1536),
        ("QUEUED", {}, 1000, 0),
        ("STARTED", {"cpus": 2.0}, 2000, 0),
        ("STOPPED", {"cpus": 2.0, "disk_gb": 8.0}, 0, 0),
        ("DEFINED_ON_CORE", {}, 0, 0),
    ],
)
def test_a_node_of_a_stranger_counts_while_it_runs_or_is_about_to(
    state: str, size: dict[str, Any], millis: int, storage_mb: int
) -> None:
    node = NodeFacts(node_id="n", label="R1", node_definition="iosv", state=state, **size)
    host = HostView(given.moment("09:00"), nodes={"lab": [node]})
    found = with_host(given.worker(phase=WorkerPhase.READY), host, SessionLabs(), host.at).foreign
    assert (found.cpu_millis, found.storage_mb) == (millis, storage_mb)
    assert found.nodes == found.labs == (millis > 0)


def test_a_worker_holds_what_its_machine_has_now_and_no_more() -> None:
    had = Amount(cpu_millis=48_000, memory_mb=196_608, storage_mb=102_400, nodes=200, ports=6_000, labs=20)
    worker, at = given.worker(phase=WorkerPhase.READY, capacity=had), given.moment("09:00")
    said = Stats(
        cpu_count=24,
        cpu_percent=3.0,
        memory_total_mb=98_304,
        memory_used_mb=2_600,
        disk_total_mb=102_400,
        disk_used_mb=30_000,
        running_nodes=0,
        total_nodes=0,
        allocated_cpus=0.0,
        allocated_memory_mb=0,
    )
    less = with_host(worker, HostView(at, stats=said), SessionLabs(), at).capacity
    assert less == msgspec.structs.replace(had, cpu_millis=24_000, memory_mb=98_304)
    unsaid = msgspec.structs.replace(said, cpu_count=0, memory_total_mb=0, disk_total_mb=0)
    assert with_host(worker, HostView(at, stats=unsaid), SessionLabs(), at).capacity == had, (
        "nothing said is nothing known"
    )


@in_virtual_time
async def test_a_machine_stopped_by_hand_is_noticed_within_an_interval(world: Watched) -> None:
    await world.add("w1")
    async with world.monitoring():
        await minutes(1.5)
        world.cloud.account.stop(HERE, await world.machine())
        await minutes(1.2)
        assert (await world.worker()).status.ec2.state in {"stopping", "stopped"}
        await minutes(1)
    worker = await world.worker()
    assert worker.status.ec2.state == "stopped"
    assert worker.status.phase is WorkerPhase.READY, "phases are the lifecycle's"


@in_virtual_time
async def test_a_machine_terminated_by_hand_is_noticed_also_when_it_is_listed_no_more(world: Watched) -> None:
    await world.add("w1")
    world.cloud.account.terminate(HERE, await world.machine())
    await minutes(120)
    async with world.monitoring():
        await minutes(1)
    assert (await world.worker()).status.ec2.state == "terminated"


@in_virtual_time
async def test_lesson_30_a_failed_list_changes_nothing(world: Watched) -> None:
    await world.add("w1")
    async with world.monitoring():
        await minutes(11)
        before = await world.worker()
        world.cloud.fail_next("list_owned", Unreachable("EC2 is away"), times=10_000)
        world.cloud.fail_next("find", Unreachable("EC2 is away"), times=10_000)
        measured = (await world.telemetry()).ec2_at
        await minutes(HOUR)
        assert await world.worker() == before
        found = await world.telemetry()
    assert found.ec2_at is not None
    assert measured is not None
    assert found.ec2_at - measured < timedelta(minutes=2), "what EC2 said last, with its age"
    assert found.cml_at is not None
    assert world.clock.now() - found.cml_at < timedelta(minutes=2)


@in_virtual_time
async def test_an_hour_without_cml_is_one_change_and_no_loss(world: Watched) -> None:
    await world.add("w1")
    async with world.monitoring():
        await minutes(3)
        before, host = await world.telemetry(), await world.host()
        for verb in ("stats", "health", "all_nodes", "activity"):
            host.fail_next(verb, Unreachable("no answer"), times=60)
        await minutes(5)
        silent = await world.worker()
        await minutes(50)
        assert await world.worker() == silent
        kept = await world.telemetry()
        assert (await world.condition(WorkerCondition.REACHABLE)).status is Truth.FALSE
        await minutes(10)
        assert (await world.condition(WorkerCondition.REACHABLE)).status is Truth.TRUE
    assert silent.status.unhealthy_since is None
    assert silent.status.cml.healthy is True
    assert kept.cml_at is not None
    assert before.cml_at is not None
    assert kept.cml_at - before.cml_at < timedelta(minutes=2)
    assert kept.memory_utilization == before.memory_utilization


@in_virtual_time
async def test_what_an_answer_leaves_open_is_not_reported_as_zero(world: Watched) -> None:
    await world.add("w1")
    host = await world.host()
    host.fail_next("all_nodes", Throttled("later"), times=10)
    async with world.monitoring():
        await minutes(2)
        found = await world.telemetry()
    assert (found.active_labs_count, found.running_nodes, found.cml_at) == (None, None, None)


@in_virtual_time
async def test_cml_that_says_it_is_unhealthy_is_so_since_then_and_until_it_says_otherwise(world: Watched) -> None:
    await world.add("w1")
    cml = await world.cml()
    async with world.monitoring():
        await minutes(2)
        assert (await world.condition(WorkerCondition.HEALTH_CHECK_PASSED)).status is Truth.TRUE
        cml.ailments.append("libvirt")
        await minutes(1.1)
        ill = await world.worker()
        said = await world.condition(WorkerCondition.HEALTH_CHECK_PASSED)
        await minutes(5)
        assert (await world.worker()).status.unhealthy_since == ill.status.unhealthy_since
        cml.ailments.clear()
        await minutes(1.1)
    assert ill.status.unhealthy_since is not None
    assert said.status is Truth.FALSE
    assert "libvirt" in said.message
    assert (await world.worker()).status.unhealthy_since is None


@in_virtual_time
async def test_a_failed_status_check_is_unhealthy_too(world: Watched) -> None:
    await world.add("w1")
    async with world.monitoring():
        await minutes(2)
        world.cloud.account.impair(HERE, await world.machine())
        await minutes(1.1)
        worker = await world.worker()
    assert worker.status.ec2.instance_status == "impaired"
    assert worker.status.unhealthy_since is not None
    assert (await world.condition(WorkerCondition.HEALTH_CHECK_PASSED)).reason == "StatusCheckFailed"


@in_virtual_time
async def test_a_licence_registered_and_given_back_by_hand_is_noticed(world: Watched) -> None:
    await world.add("w1")
    host = await world.host()
    async with world.monitoring():
        await minutes(2)
        await host.register(product="CML_Enterprise", token=Secret("a-token"))
        await minutes(2)
        licensed = (await world.worker()).status.cml
        await host.deregister()
        await minutes(2)
    assert (licensed.licensed, licensed.license_status) == (True, "IN_COMPLIANCE")
    assert (await world.worker()).status.cml.licensed is False


@in_virtual_time
async def test_one_slow_host_delays_nobody(world: Watched) -> None:
    await world.add("w1", "w2", "w3")
    world.hosts.slow = "w1"
    async with world.monitoring():
        await minutes(5)
    assert len(world.hosts.moments("w1")) >= 4
    assert len(world.hosts.moments("w2")) in {4, 5}
    assert (await world.condition(WorkerCondition.REACHABLE)).status is Truth.FALSE
    assert (await world.condition(WorkerCondition.REACHABLE, "w2")).status is Truth.TRUE


@in_virtual_time
async def test_settings_count_within_an_interval(world: Watched) -> None:
    await world.add("w1")
    system = SystemSettings(metadata=Metadata(name="system"))
    root = world.core.plane_for(ROOT)
    async with world.monitoring():
        await minutes(2)
        made = await root.create(_monitoring(system, metrics_poll_interval_seconds=10))
        await minutes(1)
        world.hosts.asked.clear()
        await minutes(1)
        assert len(world.hosts.asked) in {5, 6, 7}
        made = await root.replace(_monitoring(made, enabled=False))
        await minutes(1)
        world.hosts.asked.clear()
        await minutes(5)
        assert not world.hosts.asked
        await root.replace(_monitoring(made, enabled=True))
        await minutes(2.1)
        assert len(world.hosts.asked) == 2


def _monitoring(system: SystemSettings, **fields: object) -> SystemSettings:
    spec = SystemSettingsSpec(monitoring=MonitoringSettings(**fields))  # type: ignore[arg-type]
    return msgspec.structs.replace(system, spec=spec)


@in_virtual_time
async def test_a_paused_worker_is_watched_but_its_cml_is_not_asked(world: Watched) -> None:
    await world.add("w1", unhealthy_since=world.clock.now(), phase=WorkerPhase.STOPPED)
    world.cloud.account.stop(HERE, await world.machine())
    await minutes(1)
    async with world.monitoring():
        await minutes(2)
        assert (await world.worker()).status.ec2.state == "stopped"
        world.cloud.account.start(HERE, await world.machine())
        await minutes(1.1)
    status = (await world.worker()).status
    assert status.ec2.state == "running"
    assert status.unhealthy_since is None
    assert not world.hosts.asked


@in_virtual_time
async def test_nothing_is_written_while_nothing_changes(world: Watched) -> None:
    await world.add("w1", "w2")
    async with world.monitoring():
        await minutes(15)
        before = [await world.worker(name) for name in ("w1", "w2")]
        await minutes(HOUR)
        assert [await world.worker(name) for name in ("w1", "w2")] == before


def _disk(size_gb: int) -> CmlMachine:
    """Return a machine of which CML itself uses 30 GB of disk."""
    return replace(SMALL, disk_gb=size_gb)


@in_virtual_time
async def test_a_metric_that_oscillates_alerts_once_and_is_logged_once_per_crossing(world: Watched) -> None:
    await world.add("w1")
    cml = await world.cml()
    async with world.monitoring():
        for _ in range(6):
            cml.machine = _disk(33)
            await minutes(1)
            cml.machine = _disk(35)
            await minutes(1)
        alerts = await world.plane.alerts()
    assert [one.alert for one in alerts] == ["HighDisk"]


@in_virtual_time
async def test_the_logs_say_what_operators_grep_for(world: Watched) -> None:
    await world.add("w1")
    with capture_logs() as logs:
        cml = await world.cml()
        cml.machine = _disk(33)
        async with world.monitoring():
            await minutes(3)
            (await world.host()).fail_next("stats", Later("busy"), times=3)
            await minutes(4)
            world.cloud.account.terminate(HERE, await world.machine())
    said = [line["event"] for line in logs if line["log_level"] != "debug"]
    for message in ("Starting worker monitoring", "Started monitoring worker", "HIGH DISK", "Threshold Violation"):
        assert said.count(message) == 1, message
    assert said.count("Collected metrics for worker") == 2, "at first, and after the failure"
    assert said.count("Failed to collect metrics for worker") == 1


@in_virtual_time
async def test_a_deposed_leader_stops_measuring(world: Watched) -> None:
    await world.add("w1")
    lease = await world.plane.acquire("worker-controller", "a", ttl_seconds=15)
    assert lease is not None
    fenced = world.plane.under(Fence(lease.name, lease.term))
    await world.plane.release(lease)
    with pytest.raises(Deposed):
        async with world.monitoring(fenced):
            await minutes(2)


@in_virtual_time
async def test_a_worker_that_goes_is_let_go_of(world: Watched) -> None:
    await world.add("w1")
    async with world.monitoring():
        await minutes(2)
        worker = await world.worker()
        gone = msgspec.structs.replace(worker.status.ec2, gone_at=world.clock.now(), state="terminated")
        status = msgspec.structs.replace(worker.status, phase=WorkerPhase.TERMINATED, ec2=gone)
        await world.plane.step(worker, status)
        await asyncio.sleep(1)
        world.hosts.asked.clear()
        await minutes(3)
    assert not world.hosts.asked
    assert await world.plane.telemetry(Ref(LabWorker, "w1")) is not None


@in_virtual_time
async def test_the_node_definitions_of_a_cml_are_kept_and_read_again_now_and_then(world: Watched) -> None:
    await world.add("w1")
    labs = (await world.cml()).labs
    async with world.monitoring():
        await minutes(2)
        known = (await world.worker()).status.cml
        assert known.node_definitions == tuple(sorted(shipped_nodes()))
        assert known.node_sizes == {}
        labs.kinds["gitlab"] = custom_kind("gitlab")
        del labs.kinds["asav"]
        await minutes(11)
    after = await world.worker()
    assert set(after.status.cml.node_definitions or ()) == shipped_nodes().keys() - {"asav"} | {"gitlab"}
    assert after.status.cml.node_sizes == {"gitlab": NodeSize(cpus=1, ram_mb=1024, boot_disk_gb=16)}


@in_virtual_time
async def test_a_worker_that_its_pool_always_keeps_is_seldom_judged(world: Watched) -> None:
    await world.add("kept", "other")
    seats = (FilledSeat(number=1, worker_id="uid-kept", worker_name="kept"),)
    pool = given.pool(min_workers=1, seats=seats)
    await world.store.commit(*creation_ops(pool))
    judged = Counter[str]()

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.plane, name)

        async def detect_idle(self, ref: WorkerRef) -> IdleVerdict:
            judged[ref.name] += 1
            return await world.plane.detect_idle(ref)

    cache = Cache(world.plane, LabWorker, LabletSession, SystemSettings, LabWorkerPool)
    detection = IdleDetection(cast("Plane", Counting()), cache, Occupants(), settings=Settings)
    async with running(cache.run()), running(detection.run()):
        await minutes(30)
    assert judged["other"] >= 29
    assert 3 <= judged["kept"] <= 6
