"""A person at work is not paused, however seldom one looks; a snooze outlasts a pause; nothing that ran is unpaid."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from harness import given
from harness.clouds import HERE
from harness.fleet_world import W1, Fleet
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Pause, Resume, Snooze
from lcm.control.telemetry.idleness import IdleCriteria
from lcm.controllers.runtime.lifecycle import Report, Wait
from lcm.controllers.worker.measure import advance_watermark
from lcm.controllers.worker.serving import decide_ready
from lcm.controllers.worker.view import WorkerView
from lcm.model.kinds.worker import IdlePolicy, IdleVerdict, LabWorker, WorkerPhase
from lcm.providers.protocols.labhost import Activity
from lcm.settings.load import Settings
from lcm.sim.time.loop import run

P = WorkerPhase
LAB = 'lab:\n  title: mine\n  version: "0.2.0"\nnodes: []\nlinks: []\n'
MINUTE = timedelta(minutes=1)
NOW = given.moment("10:00")


class Seldom(Fleet):
    """Measures once an hour."""

    glance_seconds = 12

    def control(self) -> ControlPlane:
        core = super().control()
        core.judgement = IdleCriteria(poll_seconds=3600)
        return core


def virtually(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(body, horizon=timedelta(days=2))


async def span(length: timedelta) -> None:
    await asyncio.sleep(length.total_seconds())


async def work_in_cml(fleet: Fleet, worker: LabWorker) -> None:
    host = await fleet.hosts.of(worker)
    lab = await host.ensure("mine", LAB)
    await span(5 * MINUTE / 60)
    await host.remove(lab.lab_id)


async def warned(fleet: Fleet) -> IdleVerdict:
    while not ((idle := (await fleet.worker()).status.idle) and idle.pause_at):
        await asyncio.sleep(1)
    return idle


@pytest.mark.parametrize("interval", [60, 300, 900])
def test_who_answers_the_warning_by_working_is_not_paused(interval: int) -> None:
    async def answered() -> None:
        fleet = Fleet(quick=True, settings=Settings(idle_check_interval=interval))
        await fleet.create()
        async with fleet.controlled():
            worker = await fleet.reaches(P.READY)
            idle = await warned(fleet)
            assert idle.pause_at is not None
            await span(idle.pause_at - fleet.clock.now() - MINUTE / 6)
            await work_in_cml(fleet, worker)
            await fleet.stays(P.READY, 20 * MINUTE)
            await fleet.reaches(P.STOPPED)

    virtually(answered)


def test_a_worker_that_is_hardly_ever_measured_is_not_paused_under_a_person() -> None:
    async def hourly() -> None:
        fleet = Seldom(quick=True, settings=Settings(metrics_poll_interval=3600))
        await fleet.create()
        async with fleet.controlled():
            worker = await fleet.reaches(P.READY)
            for _ in range(12):
                await work_in_cml(fleet, worker)
                await fleet.stays(P.READY, 10 * MINUTE)
            await fleet.reaches(P.STOPPED, within=timedelta(hours=3))

    virtually(hourly)


def test_a_snooze_outlasts_a_pause() -> None:
    async def snoozed() -> None:
        fleet = Fleet(quick=True)
        await fleet.create()
        async with fleet.controlled():
            await fleet.reaches(P.READY)
            await fleet.otto.act(W1, Pause())
            await fleet.reaches(P.STOPPED)
            await fleet.otto.act(W1, Snooze(minutes=90))
            await fleet.otto.act(W1, Resume())
            await fleet.reaches(P.READY)
            await fleet.stays(P.READY, 80 * MINUTE)
            worker = await fleet.reaches(P.STOPPED)
            assert worker.status.idle is None

    virtually(snoozed)


def test_what_ran_while_nobody_looked_is_paid_for() -> None:
    async def unseen() -> None:
        fleet = Fleet(quick=True)
        await fleet.create(idle=IdlePolicy(enabled=False))
        async with fleet.controlled():
            await fleet.reaches(P.PROVISIONING_EC2)
        began = fleet.clock.now()
        await span(180 * MINUTE)
        async with fleet.controlled():
            worker = await fleet.reaches(P.READY)
            await fleet.otto.act(W1, Pause())
            await fleet.reaches(P.STOPPED)
        await span(10 * MINUTE)
        await fleet.cloud.start(HERE, worker.status.ec2.instance_id)
        started = fleet.clock.now()
        await span(300 * MINUTE)
        async with fleet.controlled():
            await fleet.reaches(P.READY)
        now = fleet.clock.now()
        first, stopped, second = await fleet.otto.costs(since=began - MINUTE, until=now + MINUTE)
        assert first.since - began < MINUTE
        assert (first.until, stopped.until) == (stopped.since, started)
        assert (timedelta(0) < second.since - started < MINUTE, second.until) == (True, None), "from when it ran"

    virtually(unseen)


@pytest.mark.parametrize(
    ("judged", "pause", "paused"),
    [("09:55", "10:00", False), ("09:59", "09:59", True), ("10:00", "10:00", True), ("09:56", "09:55", False)],
)
def test_only_a_fresh_verdict_from_after_the_countdown_pauses(judged: str, pause: str, *, paused: bool) -> None:
    verdict = IdleVerdict(
        idle=True, reason="nothing happened", judged_at=given.moment(judged), pause_at=given.moment(pause)
    )
    worker = given.worker(phase=P.READY)
    cml = {"licensed": True, "telemetry": False}
    decision = decide_ready(WorkerView(given.changed(worker, {"status": {"cml": cml, "idle": verdict}}), NOW))
    assert isinstance(decision, Report if paused else Wait)


def test_a_clock_of_cml_that_is_behind_hides_nobody() -> None:
    old = [Activity(category="start_lab", at=NOW - 90 * MINUTE)]
    first = advance_watermark(old, NOW, None)
    assert first.happened_at == NOW - 90 * MINUTE
    assert advance_watermark([], NOW + MINUTE, first).happened_at == first.happened_at
    assert advance_watermark(old, NOW + MINUTE, first).happened_at == first.happened_at
    more = [*old, Activity(category="stop_lab", at=NOW - 59 * MINUTE)]
    again = advance_watermark(more, NOW + 2 * MINUTE, advance_watermark(old, NOW + MINUTE, first))
    assert (again.newest, again.happened_at) == (NOW - 59 * MINUTE, NOW + MINUTE)
    by_itself = [Activity(category="license_info", at=NOW + 3 * MINUTE)]
    assert advance_watermark(by_itself, NOW + 3 * MINUTE, again).happened_at == NOW + MINUTE
