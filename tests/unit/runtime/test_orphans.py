"""Machines of ours and the records that know them: awaited ones, orphans, strays, and those a list does not show."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from crash.everywhere import crash_everywhere
from harness import given
from harness.clouds import HERE, THERE, launch
from harness.monitoring import BY, Seeking
from harness.plane_world import NOW, ROOT, Stage
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance
from lcm.control.plane.protocol import Ref, ref_of
from lcm.controllers.discovery.orphans import GRACE, Findings, InstanceSorter
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.providers.protocols.compute import OWNER_TAG, WORKER_TAG, Instance, InstanceState
from lcm.settings.load import Settings
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import run

ORPHAN = Ref(LabWorker, "worker-uid-lost")
RUNNING = InstanceState.RUNNING


def machine(name: str, *, state: InstanceState = RUNNING, age: timedelta = GRACE, **tags: str) -> Instance:
    return Instance(
        instance_id=name,
        region=HERE,
        state=state,
        instance_type="m5zn.metal",
        image_id="ami-1",
        launched_at=NOW - age,
        tags={one.replace("_", ":").replace("worker:uid", "worker-uid"): text for one, text in tags.items()},
    )


def ours(name: str, uid: str = "uid-w1", **more: Any) -> Instance:
    return machine(name, lcm_owner="lcm", lcm_worker_uid=uid, **more)


def knowing(instance_id: str = "", phase: WorkerPhase = WorkerPhase.READY) -> LabWorker:
    return given.worker(phase=phase, ec2={"instance_id": instance_id})


def judged(
    *workers: LabWorker, owned: Sequence[Instance] = (), matching: Sequence[Instance] = (), region: str = HERE
) -> Mapping[str, Sequence[str]]:
    found: Findings = asyncio.run(InstanceSorter(region, NOW).sort(workers, owned, matching))
    lists = {
        "known": [one.instance_id for one in found.known],
        "strangers": [one.instance_id for one in found.unmanaged],
        "orphans": [one.instance_id for one in found.orphans],
        "fresh": [one.instance_id for one in found.fresh],
        "others": [one.instance_id for one in found.others],
        "strays": [one.instance.instance_id for one in found.strays],
        "look_at": [one.name for one in found.to_reconcile],
    }
    assert found.total == sum(len(one) for name, one in lists.items() if name != "look_at")
    return {name: one for name, one in lists.items() if one}


def test_a_machine_is_known_by_its_id_or_by_its_workers_uid() -> None:
    assert judged(knowing("i-1"), owned=[ours("i-1")]) == {"known": ["i-1"]}
    assert judged(knowing("i-1"), matching=[machine("i-1")]) == {"known": ["i-1"]}
    assert judged(knowing(), owned=[ours("i-1")]) == {"known": ["i-1"], "look_at": ["w1"]}


def test_a_machine_in_both_lists_counts_once() -> None:
    assert judged(owned=[ours("i-1")], matching=[ours("i-1")]) == {"orphans": ["i-1"]}


def test_a_machine_of_ours_without_a_record_is_an_orphan_after_a_while() -> None:
    assert judged(owned=[ours("i-1")]) == {"orphans": ["i-1"]}
    assert judged(owned=[ours("i-1", age=GRACE - timedelta(seconds=1))]) == {"fresh": ["i-1"]}
    assert judged(owned=[ours("i-1", age=-timedelta(hours=1))]) == {"fresh": ["i-1"]}
    assert judged(owned=[machine("i-1", lcm_owner="lcm")]) == {"orphans": ["i-1"]}


def test_a_machine_of_another_installation_is_neither_orphan_nor_stranger() -> None:
    assert judged(matching=[machine("i-1", lcm_owner="other")]) == {"others": ["i-1"]}
    assert judged(matching=[machine("i-1")]) == {"strangers": ["i-1"]}


@pytest.mark.parametrize("state", [InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED])
def test_what_ends_is_no_orphan_and_its_worker_is_looked_at(state: InstanceState) -> None:
    assert judged(owned=[ours("i-1", state=state)]) == {}
    assert judged(knowing("i-1"), owned=[ours("i-1", state=state)]) == {"look_at": ["w1"]}


def test_a_second_machine_of_a_worker_is_a_stray() -> None:
    assert judged(knowing("i-1"), owned=[ours("i-1"), ours("i-2")]) == {"known": ["i-1"], "strays": ["i-2"]}


def test_a_machine_that_outlives_its_record_is_a_stray() -> None:
    assert judged(knowing("i-1", WorkerPhase.TERMINATED), owned=[ours("i-1")]) == {"strays": ["i-1"]}
    assert judged(knowing("", WorkerPhase.TERMINATED), owned=[ours("i-1")]) == {"strays": ["i-1"]}


def test_of_what_is_not_listed_only_its_own_controller_is_told() -> None:
    assert judged(knowing("i-1")) == {"look_at": ["w1"]}
    assert judged(knowing("i-1", WorkerPhase.TERMINATED)) == {}
    assert judged(knowing("i-1"), region=THERE) == {}
    assert judged(knowing()) == {}


async def lost(world: Seeking) -> str:
    """Launch a machine for a worker of which there is no record."""
    return (await world.cloud.ensure(launch("uid-lost"))).instance_id


async def after_grace(world: Seeking) -> str:
    instance_id = await lost(world)
    await asyncio.sleep(GRACE.total_seconds())
    return instance_id


def test_an_orphan_is_imported_with_a_label_and_an_alert() -> None:
    async def main() -> None:
        world = Seeking()
        instance_id = await after_grace(world)
        found = (await world.scan()).last_results
        made = (await world.workers())[instance_id]
        assert made.metadata.name == ORPHAN.name
        assert made.metadata.labels == {"lcm/source": "worker-controller-orphan", "lcm/orphan-of": "uid-lost"}
        assert made.status.phase is WorkerPhase.PENDING
        assert not {OWNER_TAG, WORKER_TAG} & set(made.spec.aws.tags)
        assert (found[HERE].orphans, found[HERE].imported) == (1, 1)
        assert await world.alerts() == [("OrphanedInstance", ORPHAN.name, "NoRecord")]
        assert world.cloud.account.machine(HERE, instance_id).state(world.stage.clock.now()) is RUNNING

    run(main)


def test_lesson_6_a_fresh_machine_of_ours_is_left_alone() -> None:
    async def main() -> None:
        world = Seeking()
        instance_id = await lost(world)
        await asyncio.sleep(GRACE.total_seconds() - 1)
        await world.scan()
        assert (await world.names(), await world.alerts(), world.poked) == ([], [], [])
        await asyncio.sleep(1)
        await world.scan()
        assert set(await world.workers()) == {instance_id}

    run(main)


def test_lesson_6_a_worker_whose_machine_is_not_listed_yet_is_only_looked_at() -> None:
    async def main() -> None:
        world = Seeking()
        worker = await world.stage.put(given.worker(phase=WorkerPhase.PROVISIONING_EC2, ec2={"instance_id": "i-new"}))
        revision = await world.stage.revision()
        await world.scan()
        assert await world.stage.revision() == revision
        assert world.poked == [ref_of(worker)]

    run(main)


def test_lesson_4_a_machine_whose_record_has_not_learned_of_it_is_no_stranger() -> None:
    async def main() -> None:
        world = Seeking()
        worker = await world.stage.put(
            given.worker(phase=WorkerPhase.PROVISIONING_EC2, ec2={"client_token": "uid-w1-1", "launch_attempt": 1})
        )
        await world.cloud.ensure(launch("uid-w1"))
        for _ in range(2):
            await world.scan()
            await asyncio.sleep(3600)
        assert await world.names() == ["w1"]
        assert world.poked == [ref_of(worker)] * 2

    run(main)


async def test_lesson_4_an_import_knows_a_worker_by_the_uid_on_its_machine() -> None:
    stage = Stage()
    await stage.put(given.worker(phase=WorkerPhase.PROVISIONING_EC2))
    found = DiscoveredInstance(instance_id="i-1", ami_id="ami-1", tags={WORKER_TAG: "uid-w1"})
    answer = await stage[BY].import_workers(BulkImport(discovered_instances=(found,), aws_region=HERE))
    assert (answer.imported, answer.known) == ((), ("i-1",))


def test_lesson_30_a_record_made_while_the_cloud_was_listed_is_seen() -> None:
    class Slow(SimCloud):
        """Takes so long to answer that a worker is made, and its machine recorded, meanwhile."""

        async def list_by_image(self, region: str, name_pattern: str) -> Sequence[Instance]:
            found = await super().list_by_image(region, name_pattern)
            if region == HERE:
                await world.stage.put(given.worker(uid="uid-lost", phase=WorkerPhase.READY))
            return found

    world = Seeking()

    async def main() -> None:
        slow = Slow(world.stage.clock, Chance(2))
        slow.account = world.cloud.account
        await after_grace(world)
        await world.scan(slow)
        assert await world.names() == ["w1"]

    run(main)


def test_a_machine_that_ends_after_it_was_listed_is_no_orphan() -> None:
    class Late(SimCloud):
        """Tells what was, a moment ago."""

        async def list_owned(self, region: str) -> Sequence[Instance]:
            found = await super().list_owned(region)
            for one in found:
                self.account.terminate(region, one.instance_id)
            return found

    async def main() -> None:
        world = Seeking()
        late = Late(world.stage.clock, Chance(2))
        late.account = world.cloud.account
        await after_grace(world)
        await world.scan(late)
        assert (await world.names(), await world.alerts()) == ([], [])

    run(main)


def test_the_alert_goes_when_somebody_takes_the_orphan_over() -> None:
    async def main() -> None:
        world = Seeking()
        await after_grace(world)
        for _ in range(2):
            await world.scan()
        await world.stage[ROOT].patch(ORPHAN, {"metadata": {"labels": {"lcm/orphan-of": None}}})
        await world.scan()
        assert await world.alerts() == []
        assert [one for one in await world.stage.types() if one.startswith("alert.")] == [
            "alert.raised",
            "alert.cleared",
        ]

    run(main)


def test_the_alert_goes_when_somebody_deletes_the_orphan() -> None:
    async def main() -> None:
        world = Seeking()
        await after_grace(world)
        await world.scan()
        await world.stage[ROOT].delete(ORPHAN)
        await world.scan()
        assert await world.alerts() == []

    run(main)


def test_an_alert_stays_while_its_region_does_not_answer() -> None:
    async def main() -> None:
        world = Seeking()
        await after_grace(world)
        await world.scan()
        await world.stage[ROOT].patch(ORPHAN, {"metadata": {"labels": {"lcm/orphan-of": None}}})
        world.cloud.faults.throttle(world.stage.clock.now() + timedelta(minutes=1), HERE)
        await world.scan()
        assert len(await world.alerts()) == 1

    run(main)


ELSEWHERE = Settings(worker_discovery_regions=(HERE,))
OFF = Settings(worker_discovery_regions=(HERE,), worker_discovery_enabled=False)


@pytest.mark.parametrize("said", [ELSEWHERE, OFF], ids=["another region is searched", "discovery is off"])
@pytest.mark.parametrize(
    "known", [given.worker(aws={"region": THERE}), given.template(worker={"aws": {"region": THERE}})]
)
def test_an_orphan_is_found_wherever_we_may_have_launched_it(said: Settings, known: Resource) -> None:
    async def main() -> None:
        world = Seeking(said=said)
        await world.stage.put(known)
        stranger, orphan = world.launch(THERE), (await world.cloud.ensure(launch("uid-lost", region=THERE))).instance_id
        await asyncio.sleep(GRACE.total_seconds())
        await world.scan()
        workers = await world.workers()
        assert orphan in workers
        assert stranger not in workers
        assert await world.alerts() == [("OrphanedInstance", ORPHAN.name, "NoRecord")]

    run(main)


def test_an_orphan_is_found_when_the_only_record_of_its_region_is_the_one_that_was_lost() -> None:
    async def main() -> None:
        world = Seeking(said=ELSEWHERE)
        kept = given.worker(phase=WorkerPhase.TERMINATED, finalizers=(), aws={"region": THERE})
        await world.stage.put(kept)
        async with world.cached() as cache:
            discovery = world.discovery(cache)
            await discovery.scan()
            await world.stage[ROOT].delete(ref_of(kept))
            orphan = (await world.cloud.ensure(launch("uid-lost", region=THERE))).instance_id
            await asyncio.sleep(GRACE.total_seconds())
            await discovery.scan()
        assert orphan in await world.workers()

    run(main)


def test_the_region_of_workers_that_do_not_say_is_always_looked_at() -> None:
    async def main() -> None:
        world = Seeking(said=Settings(worker_discovery_regions=(THERE,), aws_region=HERE))
        orphan = await after_grace(world)
        stranger = world.launch()
        await world.scan()
        assert orphan in await world.workers()
        assert stranger not in await world.workers()

    run(main)


def test_an_alert_of_a_region_that_is_no_longer_searched_is_still_settled() -> None:
    async def main() -> None:
        world = Seeking()
        await world.cloud.ensure(launch("uid-lost", region=THERE))
        await asyncio.sleep(GRACE.total_seconds())
        await world.scan()
        world.said = OFF
        await world.scan()
        assert await world.alerts() == [("OrphanedInstance", ORPHAN.name, "NoRecord")]
        await world.stage[ROOT].patch(ORPHAN, {"metadata": {"labels": {"lcm/orphan-of": None}}})
        await world.scan()
        assert await world.alerts() == []

    run(main)


def test_an_orphan_whose_uid_tag_was_removed_is_one_all_the_same() -> None:
    async def main() -> None:
        world = Seeking()
        instance_id = await after_grace(world)
        world.cloud.account.untag(HERE, instance_id, WORKER_TAG)
        await world.scan()
        assert (await world.workers())[instance_id].metadata.labels["lcm/orphan-of"] == "unknown"
        assert len(await world.alerts()) == 1

    run(main)


def test_a_second_machine_of_a_worker_is_told_about_until_it_is_gone() -> None:
    async def main() -> None:
        world = Seeking()
        second = (await world.cloud.ensure(launch("uid-w1"))).instance_id
        await world.stage.put(given.worker(phase=WorkerPhase.READY, ec2={"instance_id": "i-first"}))
        await world.scan()
        assert await world.alerts() == [("StrayInstance", "w1", "SecondInstance")]
        assert await world.names() == ["w1"]
        world.cloud.account.terminate(HERE, second)
        await world.scan()
        assert await world.alerts() == []

    run(main)


def test_a_machine_that_outlives_its_record_is_told_about_and_then_imported() -> None:
    async def main() -> None:
        world = Seeking()
        instance_id = (await world.cloud.ensure(launch("uid-w1"))).instance_id
        await asyncio.sleep(GRACE.total_seconds())
        over = given.worker(phase=WorkerPhase.TERMINATED, finalizers=(), ec2={"instance_id": instance_id})
        await world.stage.put(over)
        await world.scan()
        assert await world.alerts() == [("StrayInstance", "w1", "RecordedAsTerminated")]
        await world.stage[ROOT].delete(ref_of(over))
        await world.scan()
        assert (await world.workers())[instance_id].metadata.labels["lcm/orphan-of"] == "uid-w1"

    run(main)


async def with_everything() -> Seeking:
    world = Seeking()
    await after_grace(world)
    await world.stage.put(given.worker(phase=WorkerPhase.PROVISIONING_EC2))
    await world.cloud.ensure(launch("uid-w1"))
    world.launch()
    return world


async def scan(world: Seeking) -> None:
    await world.scan()


async def settled(world: Seeking) -> None:
    assert len(await world.names()) == len(world.cloud.account.machines) == 3
    assert await world.alerts() == [("OrphanedInstance", ORPHAN.name, "NoRecord")]
    assert ref_of(given.worker()) in world.poked


def test_sorting_out_survives_a_crash_anywhere(tell: Callable[[str], None]) -> None:
    assert crash_everywhere("orphans", with_everything, scan, settled, report=tell) > 10
