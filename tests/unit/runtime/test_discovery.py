"""Discovery: strangers become workers, region by region, by settings that may change at any time."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from crash.everywhere import crash_everywhere, pause_everywhere
from harness import given
from harness.clouds import HERE, THERE
from harness.monitoring import BY, Seeking, running
from harness.plane_world import ROOT
from lcm.control.plane.protocol import Ref
from lcm.controllers.runtime.lifecycle import Report
from lcm.controllers.worker.launching import decide_pending
from lcm.controllers.worker.view import WorkerView
from lcm.model.base.errors import Deposed, Unreachable
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import WorkerPhase
from lcm.providers.protocols.compute import OWNER_TAG, InstanceState, Unauthorized
from lcm.settings.load import Settings
from lcm.sim.time.loop import run

SYSTEM = Ref(SystemSettings, "system")


def test_strangers_of_a_matching_image_become_workers() -> None:
    async def main() -> None:
        world = Seeking()
        mine, there = world.launch(tags={"Name": "Lab 1"}), world.launch(THERE)
        world.launch(image="other")
        found = (await world.scan()).last_results
        workers = await world.workers()
        assert set(workers) == {mine, there}
        assert workers[mine].metadata.name == "lab-1"
        assert workers[mine].metadata.labels == {"lcm/source": "worker-controller-discovery"}
        assert (workers[there].spec.aws.region, workers[there].spec.aws.instance_type) == (THERE, "m8i.large")
        assert [(one.found, one.imported, one.known) for one in found.values()] == [(1, 1, 0), (1, 1, 0)]

    run(main)


def test_a_second_scan_makes_nothing_new() -> None:
    async def main() -> None:
        world = Seeking()
        world.launch()
        await world.scan()
        revision = await world.stage.revision()
        found = (await world.scan()).last_results
        assert await world.stage.revision() == revision
        assert (found[HERE].found, found[HERE].imported, found[HERE].known) == (1, 0, 1)

    run(main)


def test_lesson_5_each_region_is_asked_itself() -> None:
    async def main() -> None:
        world = Seeking()
        machines = {region: world.launch(region) for region in (HERE, THERE)}
        world.cloud.faults.throttle(world.stage.clock.now() + timedelta(minutes=1), HERE)
        await world.scan()
        assert set(await world.workers()) == {machines[THERE]}
        await asyncio.sleep(60)
        await world.scan()
        workers = await world.workers()
        assert {workers[one].spec.aws.region: one for one in workers} == machines

    run(main)


@pytest.mark.parametrize("verb", ["list_by_image", "list_owned"])
@pytest.mark.parametrize("error", [Unreachable("no answer"), Unauthorized("no", action="ec2:DescribeInstances")])
def test_lesson_30_a_region_that_does_not_answer_changes_nothing(verb: str, error: Any) -> None:
    async def main() -> None:
        world = Seeking(said=Settings(worker_discovery_regions=(HERE,)))
        known = world.launch()
        await world.scan()
        later, revision = world.launch(), await world.stage.revision()
        world.cloud.fail_next(verb, error)
        with capture_logs() as logs:
            found = (await world.scan()).last_results
        assert found[HERE].error == type(error).__name__
        assert [line["event"] for line in logs] == ["Discovery scan failed"]
        assert await world.stage.revision() == revision
        assert world.poked == []
        await world.scan()
        assert set(await world.workers()) == {known, later}

    run(main)


def test_lesson_26_more_machines_than_a_page_are_all_imported() -> None:
    async def main() -> None:
        world = Seeking()
        machines = {world.launch() for _ in range(520)}
        found = (await world.scan()).last_results
        assert found[HERE].imported == 520
        assert set(await world.workers()) == machines
        assert (await world.scan()).last_results[HERE].known == 520

    run(main)


def test_lesson_27_a_machine_that_is_still_pending_is_imported_to_be_adopted() -> None:
    async def main() -> None:
        world = Seeking()
        machine = world.launch()
        await world.scan()
        (made,) = (await world.workers()).values()
        facts = made.status.ec2
        assert (made.status.phase, facts.state) == (WorkerPhase.PENDING, "pending")
        assert (facts.instance_id, facts.client_token, facts.launch_attempt) == (machine, "", 0)
        assert made.spec.wanted_state == "running"
        for state, phase in (
            (InstanceState.PENDING, WorkerPhase.PENDING),
            (InstanceState.RUNNING, WorkerPhase.EC2_READY),
        ):
            seen = await world.cloud.find(HERE, machine)
            assert seen is not None
            assert seen.state is state
            decision = decide_pending(WorkerView(made, world.stage.clock.now(), instance=seen))
            assert isinstance(decision, Report)
            assert decision.status.phase is phase
            await asyncio.sleep(1800)
        await world.scan()
        assert len(await world.workers()) == 1

    run(main)


def test_machines_of_another_installation_are_left_to_it() -> None:
    async def main() -> None:
        world = Seeking()
        world.launch(tags={OWNER_TAG: "somebody-else"})
        found = (await world.scan()).last_results
        assert await world.names() == []
        assert (found[HERE].found, found[HERE].imported, found[HERE].known) == (1, 0, 0)

    run(main)


def test_terminated_machines_are_ignored() -> None:
    async def main() -> None:
        world = Seeking()
        world.cloud.account.terminate(HERE, world.launch())
        await asyncio.sleep(600)
        await world.scan()
        assert await world.names() == []

    run(main)


def test_a_leader_scans_at_once_and_then_every_interval() -> None:
    async def main() -> None:
        world = Seeking()
        first = world.launch()
        async with world.cached() as cache, running(world.discovery(cache).run()):
            await asyncio.sleep(1)
            assert set(await world.workers()) == {first}
            second = world.launch()
            await asyncio.sleep(298)
            assert set(await world.workers()) == {first}
            await asyncio.sleep(2)
            assert set(await world.workers()) == {first, second}
            third = world.launch()
            await asyncio.sleep(300)
            assert set(await world.workers()) == {first, second, third}

    run(main)


def test_settings_that_change_count_at_once() -> None:
    async def main() -> None:
        world = Seeking(said=Settings(worker_discovery_regions=(HERE,)))
        there, other = world.launch(THERE), world.launch(image="other")
        async with world.cached() as cache, running(world.discovery(cache).run()):
            await asyncio.sleep(1)
            assert await world.names() == []
            await world.stage[ROOT].create(given.settings(discovery={"regions": (HERE, THERE)}))
            await asyncio.sleep(1)
            assert set(await world.workers()) == {there}
            await world.stage[ROOT].patch(SYSTEM, {"spec": {"discovery": {"ami_name_pattern": "oth*"}}})
            await asyncio.sleep(1)
            assert set(await world.workers()) == {there, other}
            await world.stage[ROOT].patch(SYSTEM, {"spec": {"discovery": {"scan_interval_seconds": 60}}})
            await asyncio.sleep(1)
            late = world.launch(image="other")
            await asyncio.sleep(60)
            assert set(await world.workers()) == {there, other, late}

    run(main)


def test_discovery_can_be_switched_off_and_on_again() -> None:
    async def main() -> None:
        world = Seeking()
        await world.stage[ROOT].create(given.settings(discovery={"enabled": False}))
        machine = world.launch()
        async with world.cached() as cache, running(world.discovery(cache).run()):
            await asyncio.sleep(3600)
            assert await world.names() == []
            await world.stage[ROOT].patch(SYSTEM, {"spec": {"discovery": {"enabled": True}}})
            await asyncio.sleep(1)
            assert set(await world.workers()) == {machine}

    run(main)


def test_other_settings_cause_no_scan() -> None:
    async def main() -> None:
        world = Seeking()
        await world.stage[ROOT].create(given.settings())
        async with world.cached() as cache, running(world.discovery(cache).run()):
            await asyncio.sleep(1)
            world.launch()
            await world.stage[ROOT].patch(SYSTEM, {"spec": {"idle": {"threshold_minutes": 10}}})
            await asyncio.sleep(60)
            assert await world.names() == []

    run(main)


def test_a_throttled_region_catches_up_and_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        world = Seeking()
        here, there = world.launch(), world.launch(THERE)
        world.cloud.faults.throttle(world.stage.clock.now() + timedelta(hours=1), HERE)
        async with world.cached() as cache, running(world.discovery(cache).run()):
            await asyncio.sleep(1)
            assert set(await world.workers()) == {there}
            await asyncio.sleep(3900)
            assert set(await world.workers()) == {here, there}

    run(main)


def test_the_settings_object_says_how_the_last_scan_went() -> None:
    async def said(world: Seeking) -> tuple[Truth, str, str]:
        settings = await world.stage[ROOT].get(SYSTEM)
        assert settings is not None
        found = find_condition(settings.status.conditions, "DiscoverySucceeded")
        assert found is not None
        return found.status, found.reason, found.message

    async def main() -> None:
        world = Seeking()
        await world.stage[ROOT].create(given.settings())
        world.launch()
        await world.scan()
        assert await said(world) == (Truth.TRUE, "Scanned", f"{HERE}: 1 found; {THERE}: 0 found")
        revision = await world.stage.revision()
        await world.scan()
        assert await world.stage.revision() == revision
        world.cloud.faults.throttle(world.stage.clock.now() + timedelta(minutes=1), THERE)
        await world.scan()
        assert await said(world) == (Truth.FALSE, "RegionFailed", f"{HERE}: 1 found; {THERE}: Throttled")
        await asyncio.sleep(60)
        await world.stage[ROOT].patch(SYSTEM, {"spec": {"discovery": {"enabled": False}}})
        await world.scan()
        assert await said(world) == (Truth.UNKNOWN, "Disabled", f"{HERE}: 0 found; {THERE}: 0 found")

    run(main)


def test_each_scan_leaves_one_line_in_the_log() -> None:
    async def main() -> None:
        world = Seeking(said=Settings(worker_discovery_regions=(HERE,)))
        world.launch()
        with capture_logs() as logs:
            await world.scan()
        (line,) = logs
        assert line["event"] == "Discovery scan finished"
        assert {name: line[name] for name in ("region", "found", "imported", "known", "orphans")} == {
            "region": HERE,
            "found": 1,
            "imported": 1,
            "known": 0,
            "orphans": 0,
        }
        assert line["seconds"] >= 0

    run(main)


def test_a_deposed_leader_ends_its_term() -> None:
    async def main() -> None:
        world = Seeking()
        world.launch()
        world.launch(THERE)
        lease = await world.stage[BY].acquire("worker-controller", "me", ttl_seconds=15)
        assert lease is not None
        await world.stage[BY].release(lease)
        async with world.cached() as cache:
            with pytest.raises(Deposed):
                await world.discovery(cache, plane=world.stage[BY].under(lease.fence())).run()
        assert await world.names() == []

    run(main)


async def crowded() -> Seeking:
    world = Seeking()
    for region in (HERE, THERE):
        for _ in range(3):
            world.launch(region, tags={"Name": "lab"})
    return world


async def scan(world: Seeking) -> None:
    await world.scan()


async def one_record_each(world: Seeking) -> None:
    assert set(await world.workers()) == set(world.cloud.account.machines)
    assert (await world.stage.types()).count("worker.imported") == len(world.cloud.account.machines)


def test_a_scan_survives_a_crash_anywhere(tell: Callable[[str], None]) -> None:
    assert crash_everywhere("discovery scan", crowded, scan, one_record_each, report=tell) > 10


def test_two_who_scan_at_the_same_time_make_one_record_each(tell: Callable[[str], None]) -> None:
    span = timedelta(minutes=1)
    assert pause_everywhere("discovery scan", crowded, scan, one_record_each, pause_for=span, report=tell) > 10
