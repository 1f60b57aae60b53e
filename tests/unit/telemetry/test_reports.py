"""Measurements: what each source said and when, a day of them, and the limits they are held to."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from harness import given
from harness.plane_world import ANNA, NOW, ROOT, Stage, Standing, service
from harness.suite import for_all
from lcm.control.objects.records import change_ops, find_record
from lcm.control.plane.bodies import CmlMetrics, Ec2Metrics, MetricsReport, metrics_report_of, telemetry_of
from lcm.control.plane.protocol import Ref, ref_of
from lcm.control.telemetry.alert_records import Alerts
from lcm.control.telemetry.reports import CLEAR_AFTER, check_limits
from lcm.model.base.errors import Gone, Invalid
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.settings import MonitoringSettings
from lcm.model.kinds.worker import LabWorker, WorkerPhase, WorkerTelemetry
from lcm.model.telemetry.measurement import UsageThresholds

BY = service(WORKER_CONTROLLER)
W1 = Ref(LabWorker, "w1")
MINUTE = timedelta(minutes=1)
THRESHOLD_PERCENT, CLEAR_PERCENT = 90.0, 80.0
EPOCH = given.moment("00:00", day=-1)


class Site:
    """A worker that is measured."""

    def __init__(self) -> None:
        self.clock = Standing(NOW)
        self.stage = Stage(clock=self.clock)

    async def open(self, **fields: Any) -> "Site":
        await self.stage.put(given.worker(**fields))
        return self

    async def report(self, at: datetime, **fields: Any) -> WorkerTelemetry:
        self.clock.moment = max(self.clock.moment, at)
        return await self.stage[BY].report(W1, given.telemetry(collected_at=at, **fields))

    async def alerts(self) -> list[str]:
        return [one.alert for one in await self.stage[ROOT].alerts()]

    async def told(self, *types: str) -> list[Any]:
        return [msgspec.json.decode(one.data) for one in await self.stage.told() if one.type in types]


async def test_a_source_that_did_not_answer_leaves_what_it_said_with_its_age() -> None:
    site = await Site().open()
    at = [NOW + number * MINUTE for number in range(4)]
    await site.report(at[0], ec2_at=at[0], cloudwatch_at=at[0], cpu_utilization=20.0, network_in_bytes=7)
    labs = {"memory_utilization": 30.0, "active_labs_count": 1, "hosted_lab_ids": ("a",), "running_nodes": 4}
    both = await site.report(at[1], cml_at=at[1], **labs)
    assert (both.collected_at, both.cloudwatch_at, both.cml_at) == (at[1], at[0], at[1])
    assert (both.network_in_bytes, both.memory_utilization, both.hosted_lab_ids) == (7, 30.0, ("a",))
    assert both.cpu_utilization is None, "CML answered, and did not say it"
    none = await site.report(at[2], ec2_at=at[2])
    assert none == msgspec.structs.replace(both, collected_at=at[2], ec2_at=at[2])
    fresh = await site.report(at[3], cml_at=at[3], cpu_utilization=44.0)
    assert (fresh.cpu_utilization, fresh.memory_utilization, fresh.hosted_lab_ids) == (44.0, None, ())
    assert await site.stage[ANNA].telemetry(W1) == fresh


async def test_an_answer_that_is_older_than_the_last_one_of_its_source_is_dropped() -> None:
    site = await Site().open()
    await site.report(NOW, cml_at=NOW, memory_utilization=30.0)
    late = await site.report(NOW + MINUTE, cml_at=NOW - MINUTE, memory_utilization=99.0, ec2_at=NOW)
    assert (late.memory_utilization, late.cml_at, late.ec2_at) == (30.0, NOW, NOW)
    assert await site.alerts() == []


async def test_what_comes_without_an_age_is_as_old_as_its_report() -> None:
    site = await Site().open()
    found = await site.report(NOW, cpu_utilization=1.0, active_labs_count=0)
    assert (found.cloudwatch_at, found.cml_at, found.activity_at, found.ec2_at) == (None, NOW, None, None)
    site = await Site().open()
    found = await site.report(NOW, cpu_utilization=1.0, last_activity_at=NOW)
    assert (found.cloudwatch_at, found.cml_at) == (NOW, None)
    assert (found.activity_at, found.last_activity_at) == (None, NOW), "whether more happened since is not known"


async def test_the_last_activity_never_goes_back() -> None:
    site = await Site().open()
    await site.report(NOW, activity_at=NOW, last_activity_at=given.moment("07:50"))
    for number, last in enumerate((given.moment("07:40"), None), 1):
        at = NOW + number * MINUTE
        found = await site.report(at, activity_at=at, last_activity_at=last)
        assert (found.activity_at, found.last_activity_at) == (at, given.moment("07:50"))


@pytest.mark.parametrize("source", ["ec2_at", "cloudwatch_at", "cml_at", "activity_at"])
async def test_no_source_answers_from_the_future(source: str) -> None:
    site = await Site().open()
    with pytest.raises(Invalid, match=f"{source}: in the future: it is"):
        await site.report(NOW, **{source: NOW + 6 * MINUTE})


async def test_other_labs_than_before_are_told_of() -> None:
    site = await Site().open()
    hosted = [("a",), ("a",), ("b", "a"), ("a", "b"), None, ()]
    for number, ids in enumerate(hosted):
        at = NOW + number * MINUTE
        known = {} if ids is None else {"cml_at": at, "active_labs_count": len(ids), "hosted_lab_ids": ids}
        await site.report(at, ec2_at=at, **known)
    told = await site.told("worker.labs.updated")
    assert [one["hosted_lab_ids"] for one in told] == [["a"], ["b", "a"], []]
    assert told[1] == {
        "worker_id": "uid-w1",
        "worker_name": "w1",
        "collected_at": "2026-11-02T08:02:00Z",
        "active_labs_count": 2,
        "hosted_lab_ids": ["b", "a"],
    }


async def test_a_day_is_kept_minute_by_minute_and_no_longer() -> None:
    site = await Site().open()
    for number in range(0, 26 * 60, 5):
        await site.report(NOW + number * MINUTE, cpu_utilization=float(number % 80), cml_at=NOW + number * MINUTE)
    end = NOW + (26 * 60 - 5) * MINUTE
    kept = await site.stage[ANNA].history(W1, since=EPOCH)
    assert (kept[0].at, kept[-1].at) == (end - timedelta(hours=24), end)
    assert [one.at for one in kept] == sorted(one.at for one in kept)
    assert len(kept) == 24 * 12 + 1
    assert len([key for key in await site.stage.keys() if key.startswith("history/")]) == 25
    half = await site.stage[ANNA].history(W1, since=end - timedelta(minutes=30))
    assert half == kept[-7:]


async def test_what_a_source_did_not_say_now_is_not_plotted() -> None:
    site = await Site().open()
    await site.report(NOW, cml_at=NOW, memory_utilization=30.0)
    await site.report(NOW + MINUTE, cloudwatch_at=NOW + MINUTE, cpu_utilization=5.0)
    first, second = await site.stage[ROOT].history(W1, since=EPOCH)
    assert (first.memory_utilization, first.cpu_utilization) == (30.0, None)
    assert (second.memory_utilization, second.cpu_utilization) == (None, 5.0)


async def test_of_one_minute_the_last_sample_is_kept() -> None:
    site = await Site().open()
    for second in (0, 20, 40, 65):
        await site.report(NOW + timedelta(seconds=second), cml_at=NOW, cpu_utilization=float(second))
    assert [one.cpu_utilization for one in await site.stage[ROOT].history(W1, since=EPOCH)] == [40.0, 65.0]


async def test_a_worker_that_is_not_there_has_no_history() -> None:
    with pytest.raises(Gone):
        await Stage()[ROOT].history(W1, since=EPOCH)


async def test_an_hour_of_samples_is_far_from_the_limits_of_a_value() -> None:
    site = await Site().open()
    for minute in range(60):
        at = NOW + minute * MINUTE
        await site.report(at, cml_at=at, cpu_utilization=12.34, memory_utilization=56.78, storage_utilization=9.87)
    entry = await site.stage.store.get("history/default/w1/2026110208")
    assert entry is not None
    assert len(entry.value) < 16_000


async def test_an_alert_fires_at_once_and_clears_after_five_calm_minutes() -> None:
    site = await Site().open()
    values = [89.9, 90.0, 95.0, 79.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0]
    standing = []
    for number, value in enumerate(values):
        await site.report(NOW + number * MINUTE, cml_at=NOW + number * MINUTE, cpu_utilization=value)
        standing.append(await site.alerts())
    assert standing == [[], *[["HighCpu"]] * 7, [], []]
    raised, cleared = await site.told("alert.raised", "alert.cleared")
    assert raised == {
        "alert": "HighCpu",
        "severity": "warning",
        "reason": "AboveThreshold",
        "message": "CPU at 90.0 %; the limit is 90 %",
        "kind": "LabWorker",
        "name": "w1",
        "namespace": "default",
        "uid": "uid-w1",
        "worker_id": "uid-w1",
        "since": "2026-11-02T08:01:00Z",
    }
    assert cleared == raised | {"cleared_at": "2026-11-02T08:08:00Z"}


async def test_an_oscillating_metric_alerts_once() -> None:
    site = await Site().open()
    for number in range(60):
        at = NOW + number * MINUTE
        await site.report(at, cml_at=at, memory_utilization=95.0 if number % 4 == 0 else 40.0)
    assert [one["alert"] for one in await site.told("alert.raised", "alert.cleared")] == ["HighMemory"]
    assert await site.alerts() == ["HighMemory"]


@pytest.mark.parametrize(
    ("field", "alert"),
    [("cpu_utilization", "HighCpu"), ("memory_utilization", "HighMemory"), ("storage_utilization", "HighDisk")],
)
async def test_each_limit_has_its_alert(field: str, alert: str) -> None:
    site = await Site().open()
    await site.report(NOW, cml_at=NOW, **{field: 90.0})
    assert await site.alerts() == [alert]


async def test_what_is_not_measured_neither_raises_nor_clears() -> None:
    site = await Site().open()
    await site.report(NOW, cml_at=NOW, cpu_utilization=95.0)
    for number in range(1, 20):
        await site.report(NOW + number * MINUTE, ec2_at=NOW)
    assert await site.alerts() == ["HighCpu"]


async def test_a_machine_that_is_stopped_has_no_load() -> None:
    site = await Site().open(phase=WorkerPhase.READY)
    await site.report(NOW, cml_at=NOW, cpu_utilization=95.0, memory_utilization=95.0)
    record = await find_record(site.stage.store, W1)
    assert record is not None
    stopped = given.changed(record.resource, {"status": {"phase": WorkerPhase.STOPPED}})
    await site.stage.store.commit(*change_ops(record, stopped))
    await site.report(NOW + MINUTE, ec2_at=NOW, cloudwatch_at=NOW, cpu_utilization=95.0)
    assert await site.alerts() == []
    assert (await site.stage.types()).count("alert.cleared") == 2


@for_all(st.lists(st.tuples(st.integers(1, 400), st.none() | st.floats(0, 100)), max_size=60))
def test_whatever_is_measured_alerts_are_raised_and_cleared_by_turns(samples: list[tuple[int, float | None]]) -> None:
    alerts, at, worker = Alerts(), NOW, given.worker()
    seen: list[tuple[datetime, float]] = []
    for seconds, value in samples:
        at += timedelta(seconds=seconds)
        before = alerts.find("HighCpu")
        alerts = check_limits(worker, given.telemetry(collected_at=at, cpu_utilization=value), alerts)
        after = alerts.find("HighCpu")
        seen += [] if value is None else [(at, value)]
        if before is None and after is not None:
            assert value is not None
            assert value >= THRESHOLD_PERCENT
        if before is not None and after is None:
            calm = [one for one in seen if one[0] >= at - CLEAR_AFTER]
            assert all(one < CLEAR_PERCENT for _, one in calm)
            assert any(moment <= at - CLEAR_AFTER and one < CLEAR_PERCENT for moment, one in seen)
        assert value is None or value < THRESHOLD_PERCENT or after is not None


async def test_lesson_28_the_memory_of_alerts_survives_a_failover() -> None:
    site = await Site().open()
    await site.report(NOW, cml_at=NOW, cpu_utilization=95.0)
    await site.report(NOW + MINUTE, cml_at=NOW, cpu_utilization=40.0)
    other = Stage(store=site.stage.store, clock=site.clock)
    for number in range(2, 6):
        at = site.clock.moment = NOW + number * MINUTE
        await other[BY].report(W1, given.telemetry(collected_at=at, cml_at=at, cpu_utilization=40.0))
        assert [one.alert for one in await other[ROOT].alerts()] == ["HighCpu"]
    at = site.clock.moment = NOW + 6 * MINUTE
    await other[BY].report(W1, given.telemetry(collected_at=at, cml_at=at, cpu_utilization=40.0))
    raised, cleared = await site.told("alert.raised", "alert.cleared")
    assert cleared == raised | {"cleared_at": "2026-11-02T08:06:00Z"}


async def test_measurements_their_history_and_alerts_go_with_their_worker() -> None:
    site = await Site().open(phase=WorkerPhase.TERMINATED, finalizers=())
    for number in range(0, 200, 10):
        await site.report(NOW + number * MINUTE, cml_at=NOW + number * MINUTE, cpu_utilization=95.0)
    await site.stage[ROOT].delete(W1)
    assert await site.stage.keys() == []
    assert (await site.stage.types())[-2:] == ["alert.cleared", "worker.deleted"]
    again = await site.stage.put(given.worker(uid="uid-other"))
    assert await site.stage[ROOT].history(ref_of(again), since=EPOCH) == []


def test_a_report_over_the_wire_is_the_one_that_was_made() -> None:
    moments = dict.fromkeys(("ec2_at", "cloudwatch_at", "cml_at", "activity_at", "last_activity_at"), NOW)
    figures = ("cpu", "memory", "storage")
    percents = {f"{source}{name}_utilization": 5.0 for name in figures for source in ("", "cml_", "cloudwatch_")}
    counts = dict.fromkeys(
        ("network_in_bytes", "network_out_bytes", "uptime_seconds", "running_nodes", "active_labs_count"), 3
    )
    whole = given.telemetry(**moments, **percents, **counts, hosted_lab_ids=("a",))
    assert all(getattr(whole, name) for name in whole.__struct_fields__), "every field is tried"
    assert telemetry_of(metrics_report_of(whole)) == whole


def test_what_cloudwatch_and_cml_saw_is_kept_apart_and_the_common_figure_is_cmls_if_it_answered() -> None:
    of_cloud = MetricsReport(collected_at=NOW, ec2=Ec2Metrics(cpu_utilization=7.0, memory_utilization=60.0))
    alone = telemetry_of(of_cloud)
    assert (alone.cpu_utilization, alone.memory_utilization, alone.cml_at) == (7.0, 60.0, None)
    both = telemetry_of(msgspec.structs.replace(of_cloud, cml=CmlMetrics(cpu_utilization=0.0, memory_utilization=50.0)))
    assert (both.cpu_utilization, both.cml_cpu_utilization, both.cloudwatch_cpu_utilization) == (0.0, 0.0, 7.0)
    assert (both.memory_utilization, both.cml_memory_utilization) == (50.0, 50.0)
    assert both.cloudwatch_memory_utilization == 60.0


async def test_while_cml_is_silent_cloudwatchs_figures_count_and_raise_alerts() -> None:
    site = await Site().open()
    await site.report(NOW, cml_at=NOW, cml_cpu_utilization=20.0, cml_memory_utilization=30.0)
    at = NOW + MINUTE
    fields = {"cloudwatch_cpu_utilization": 99.0, "cloudwatch_memory_utilization": 97.0}
    found = await site.report(at, cloudwatch_at=at, **fields)
    assert (found.cpu_utilization, found.memory_utilization) == (99.0, 97.0)
    assert (found.cml_cpu_utilization, found.cml_memory_utilization, found.cml_at) == (20.0, 30.0, NOW)
    assert await site.alerts() == ["HighCpu", "HighMemory"]
    quiet = await site.report(at + MINUTE, ec2_at=at)
    assert (quiet.cpu_utilization, quiet.cloudwatch_memory_utilization) == (99.0, 97.0)


async def test_what_is_too_high_is_a_setting() -> None:
    site = await Site().open()
    site.stage.core.thresholds = UsageThresholds(cpu=70.0)
    await site.report(NOW, cml_at=NOW, cpu_utilization=75.0, memory_utilization=75.0)
    assert [one.message for one in await site.stage[ROOT].alerts()] == ["CPU at 75.0 %; the limit is 70 %"]
    await site.stage.put(given.settings(monitoring=MonitoringSettings(cpu_alert_percent=99, memory_alert_percent=60.5)))
    for number in range(1, 8):
        at = NOW + number * MINUTE
        await site.report(at, cml_at=at, cpu_utilization=75.0, memory_utilization=75.0)
    assert [one.message for one in await site.stage[ROOT].alerts()] == ["memory at 75.0 %; the limit is 60.5 %"]
