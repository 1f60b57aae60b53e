"""The made-up cloud: time, shortages, faults, people, and callers that die at every await."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from crash.everywhere import crash_everywhere, pause_everywhere
from harness.clouds import HERE, THERE, launch
from harness.stores import HandClock
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, Throttled, Unreachable
from lcm.providers.protocols.compute import (
    ENDING,
    WORKER_TAG,
    Instance,
    InstanceState,
    Launch,
    NoCapacity,
    QuotaExceeded,
    StatusCheckResult,
    StatusChecks,
    Unauthorized,
)
from lcm.sim.cloud.account import CloudBehaviour, LaunchOrder
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.machines import MachinePace
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import START, VirtualClock, run
from lcm.system.clock import SystemClock

AT_ONCE = timedelta(0)
STEADY = CloudBehaviour(listed_within=AT_ONCE)
LAZY = CloudBehaviour(listed_within=timedelta(minutes=2))
RUNNING, TERMINATED = InstanceState.RUNNING, InstanceState.TERMINATED


class Scene:
    """A cloud with an image, and a clock to set."""

    def __init__(self, nature: CloudBehaviour = STEADY, *, seed: int = 7, calls_per_second: int | None = None) -> None:
        self.clock = HandClock()
        self.cloud = SimCloud(self.clock, Chance(seed), nature=nature, calls_per_second=calls_per_second)
        self.account = self.cloud.account
        self.image = self.account.add_image(HERE, "CML-2.9.1", self.clock.now())

    async def launched(self, uid: str = "uid", **aws: Any) -> str:
        return (await self.cloud.ensure(launch(uid, **aws))).instance_id

    async def running(self, uid: str = "uid") -> str:
        made = await self.launched(uid)
        self.clock.step(minutes=15)
        return made

    async def look(self, instance_id: str) -> Instance:
        found = await self.cloud.find(HERE, instance_id)
        assert found is not None
        return found

    async def state(self, instance_id: str) -> InstanceState:
        return (await self.look(instance_id)).state

    async def checks(self, instance_id: str) -> StatusChecks:
        return (await self.cloud.checks(HERE, [instance_id]))[instance_id]

    async def takes(self, instance_id: str, until: InstanceState) -> timedelta:
        begun = self.clock.now()
        for _ in range(2000):
            if await self.state(instance_id) is until:
                return self.clock.now() - begun
            self.clock.step(seconds=1)
        raise AssertionError(f"never {until}")


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_machine_boots_without_anybody_looking(scene: Scene) -> None:
    made = await scene.launched()
    assert await scene.state(made) is InstanceState.PENDING
    assert (await scene.checks(made)).system is StatusCheckResult.UNKNOWN
    scene.clock.step(minutes=2)
    assert await scene.state(made) is RUNNING
    assert await scene.checks(made) == StatusChecks(
        system=StatusCheckResult.INITIALIZING, instance=StatusCheckResult.INITIALIZING
    )
    scene.clock.step(minutes=13)
    assert await scene.checks(made) == StatusChecks(system=StatusCheckResult.OK, instance=StatusCheckResult.OK)


@pytest.mark.parametrize("speed", [1.0, 60.0])
async def test_every_kind_of_machine_has_its_own_pace_and_speed_divides_it(speed: float) -> None:
    slow = MachinePace(*[timedelta(minutes=20)] * 4)
    scene = Scene(CloudBehaviour(paces={"slow.metal": slow}, listed_within=AT_ONCE, speed=speed))
    order = LaunchOrder(HERE, "slow.metal", scene.image.image_id)
    takes = await scene.takes(scene.account.run(order).instance_id, RUNNING)
    assert 0.8 <= takes * speed / timedelta(minutes=20) <= 1.3
    quick = scene.account.run(order._replace(instance_type="c8i.large")).instance_id
    assert await scene.takes(quick, RUNNING) <= timedelta(seconds=20)


async def test_stopping_and_ending_take_their_time(scene: Scene) -> None:
    made = await scene.running()
    await scene.cloud.stop(HERE, made)
    assert await scene.state(made) is InstanceState.STOPPING
    with pytest.raises(Later, match="still stopping"):
        await scene.cloud.start(HERE, made)
    assert timedelta(minutes=3) <= await scene.takes(made, InstanceState.STOPPED) <= timedelta(minutes=5)
    await scene.cloud.remove(HERE, made)
    assert await scene.state(made) is InstanceState.SHUTTING_DOWN
    assert timedelta(minutes=4) <= await scene.takes(made, TERMINATED) <= timedelta(minutes=8)


async def test_who_boots_cannot_be_stopped_and_can_be_ended(scene: Scene) -> None:
    made = await scene.launched()
    with pytest.raises(Later, match="does not run yet"):
        await scene.cloud.stop(HERE, made)
    await scene.cloud.remove(HERE, made)
    scene.clock.step(minutes=15)
    assert await scene.state(made) is TERMINATED


async def test_an_ended_machine_is_shown_for_an_hour(scene: Scene) -> None:
    made = await scene.running()
    await scene.cloud.remove(HERE, made)
    scene.clock.step(minutes=60)
    assert await scene.state(made) is TERMINATED
    scene.clock.step(minutes=10)
    assert await scene.cloud.find(HERE, made) is None
    assert await scene.cloud.list_owned(HERE) == []


async def test_a_restarted_machine_keeps_its_private_address_and_gets_a_new_public_one(scene: Scene) -> None:
    made = await scene.running()
    before = await scene.look(made)
    await scene.cloud.stop(HERE, made)
    scene.clock.step(minutes=15)
    assert (await scene.look(made)).public_ip is None
    await scene.cloud.start(HERE, made)
    after = await scene.look(made)
    assert after.private_ip == before.private_ip
    assert after.public_ip not in {None, before.public_ip}
    assert after.launched_at > before.launched_at


async def test_a_shortage_of_a_type_ends(scene: Scene) -> None:
    scene.account.add_shortage(HERE, "m5zn.metal", scene.clock.now() + timedelta(hours=1))
    with pytest.raises(NoCapacity, match=r"m5zn\.metal"):
        await scene.launched()
    scene.clock.step(hours=1)
    assert await scene.launched()


async def test_a_shortage_in_a_zone_leaves_the_others_and_hits_a_restart(scene: Scene) -> None:
    nature = CloudBehaviour(subnets={"subnet-a": "us-east-1a", "subnet-b": "us-east-1b"}, listed_within=AT_ONCE)
    scene = Scene(nature)
    made = await scene.launched("a", subnet_ids=("subnet-a",))
    scene.clock.step(minutes=15)
    await scene.cloud.stop(HERE, made)
    scene.clock.step(minutes=15)
    scene.account.add_shortage(HERE, "us-east-1a", scene.clock.now() + timedelta(hours=1))
    for attempt in (scene.launched("other", subnet_ids=("subnet-a",)), scene.cloud.start(HERE, made)):
        with pytest.raises(NoCapacity, match="us-east-1a"):
            await attempt
    other = await scene.look(await scene.launched("other", subnet_ids=("subnet-b",)))
    assert other.zone == "us-east-1b"


async def test_a_refused_launch_does_not_spend_its_token(scene: Scene) -> None:
    scene.account.limit(HERE, 1)
    first = await scene.launched("first")
    with pytest.raises(QuotaExceeded) as caught:
        await scene.launched("second")
    assert caught.value.quota
    await scene.cloud.remove(HERE, first)
    assert await scene.launched("second") != first


async def test_a_cloud_that_is_asked_too_often_says_so(scene: Scene) -> None:
    until = scene.clock.now() + timedelta(seconds=30)
    scene.cloud.faults.throttle(until, HERE)
    with pytest.raises(Throttled) as caught:
        await scene.cloud.list_owned(HERE)
    assert caught.value.after == timedelta(seconds=30)
    assert await scene.cloud.list_owned(THERE) == []
    scene.clock.step(seconds=30)
    assert await scene.cloud.list_owned(HERE) == []


async def test_so_many_calls_a_second_are_answered() -> None:
    scene = Scene(calls_per_second=3)
    answers = await asyncio.gather(*(scene.cloud.list_owned(HERE) for _ in range(5)), return_exceptions=True)
    assert [isinstance(one, Throttled) for one in answers] == [False, False, False, True, True]
    scene.clock.step(seconds=1)
    assert await scene.cloud.list_owned(HERE) == []


async def test_6_a_fresh_machine_is_listed_late_and_is_not_gone() -> None:
    scene = Scene(LAZY)
    made = await scene.cloud.ensure(launch("uid"))
    assert await scene.cloud.list_owned(HERE) == []
    assert await scene.cloud.find(HERE, made.instance_id) is None
    with pytest.raises(Later, match="not listed yet"):
        await scene.cloud.find(HERE, made.instance_id, launched_at=made.launched_at)
    with pytest.raises(Gone):
        await scene.cloud.tag(HERE, made.instance_id, {"a": "b"})
    assert (await scene.cloud.ensure(launch("uid"))).instance_id == made.instance_id
    scene.clock.step(minutes=2)
    assert await scene.state(made.instance_id) is RUNNING
    assert len(scene.account.machines) == 1


async def test_7_a_fresh_machine_that_is_not_listed_is_not_removed_by_asking() -> None:
    scene = Scene(LAZY)
    made = await scene.cloud.ensure(launch("uid"))
    await scene.cloud.remove(HERE, made.instance_id)
    scene.clock.step(minutes=2)
    assert await scene.state(made.instance_id) is RUNNING


async def test_4_a_token_gives_the_same_machine_even_when_that_has_ended(scene: Scene) -> None:
    made = await scene.running()
    await scene.cloud.remove(HERE, made)
    again = await scene.cloud.ensure(launch("uid"))
    assert (again.instance_id, again.state) == (made, InstanceState.SHUTTING_DOWN)
    assert (await scene.cloud.ensure(launch("uid", attempt=2))).instance_id != made


async def test_4_a_newer_image_does_not_make_a_second_machine() -> None:
    scene = Scene(LAZY)
    made = await scene.cloud.ensure(launch("uid"))
    scene.account.add_image(HERE, "CML-2.9.2", scene.clock.now() + timedelta(seconds=1))
    with pytest.raises(Later, match="launched already"):
        await scene.cloud.ensure(launch("uid"))
    scene.clock.step(minutes=2)
    assert (await scene.cloud.ensure(launch("uid"))).instance_id == made.instance_id


async def test_a_machine_may_die_now_or_at_a_moment_to_come(scene: Scene) -> None:
    first, second = await scene.running("first"), await scene.running("second")
    scene.account.die(HERE, first)
    scene.account.die(HERE, second, scene.clock.now() + timedelta(hours=1))
    assert (await scene.state(first), await scene.state(second)) == (TERMINATED, RUNNING)
    await scene.cloud.stop(HERE, second)
    scene.clock.step(hours=1)
    assert await scene.state(second) is TERMINATED
    with pytest.raises(Gone):
        await scene.cloud.start(HERE, second)


async def test_a_machine_tells_why_it_ended_or_stopped(scene: Scene) -> None:
    dead, stopped = await scene.running("dead"), await scene.running("stopped")
    stillborn = await scene.launched("stillborn")
    for died in (dead, stillborn):
        scene.account.die(HERE, died, scene.clock.now() + timedelta(seconds=1))
        assert (await scene.look(died)).reason == ""
    scene.account.stop(HERE, stopped)
    scene.clock.step(minutes=15)
    reasons = [(await scene.look(one)).reason for one in (dead, stillborn, stopped)]
    assert reasons == [
        "Server.InternalError: Internal error",
        "Server.InternalError: Internal error on launch",
        "Client.UserInitiatedShutdown: User initiated shutdown",
    ]


async def test_a_death_after_the_end_changes_nothing(scene: Scene) -> None:
    made = await scene.running()
    scene.account.die(HERE, made, scene.clock.now() + timedelta(minutes=50))
    await scene.cloud.remove(HERE, made)
    scene.clock.step(minutes=70)
    assert await scene.cloud.find(HERE, made) is None


async def test_machines_may_have_a_mean_life() -> None:
    scene = Scene(CloudBehaviour(mean_life=timedelta(hours=10), listed_within=AT_ONCE, shown_for=timedelta(days=9)))
    made = [await scene.launched(f"uid-{n}") for n in range(100)]
    scene.clock.step(hours=10)
    left = sum([await scene.state(one) not in ENDING for one in made])
    assert 20 <= left <= 55, "about 37 in 100 outlive the mean"


async def test_a_reboot_mends_the_instance_and_a_new_start_mends_both(scene: Scene) -> None:
    made = await scene.running()
    scene.account.impair(HERE, made)
    scene.account.impair(HERE, made, "system")
    assert await scene.checks(made) == StatusChecks(
        system=StatusCheckResult.IMPAIRED, instance=StatusCheckResult.IMPAIRED
    )
    scene.clock.step(minutes=1)
    await scene.cloud.reboot(HERE, made)
    assert await scene.checks(made) == StatusChecks(
        system=StatusCheckResult.IMPAIRED, instance=StatusCheckResult.INITIALIZING
    )
    scene.clock.step(minutes=15)
    assert await scene.checks(made) == StatusChecks(system=StatusCheckResult.IMPAIRED, instance=StatusCheckResult.OK)
    await scene.cloud.stop(HERE, made)
    scene.clock.step(minutes=15)
    await scene.cloud.start(HERE, made)
    scene.clock.step(minutes=15)
    assert await scene.checks(made) == StatusChecks(system=StatusCheckResult.OK, instance=StatusCheckResult.OK)


async def test_people_act_at_the_console_whatever_the_network_does(scene: Scene) -> None:
    made = await scene.running()
    scene.cloud.fail_next("stop", Unreachable("no network"))
    scene.account.stop(HERE, made)
    scene.clock.step(minutes=15)
    assert await scene.state(made) is InstanceState.STOPPED
    scene.account.start(HERE, made)
    scene.account.tag(HERE, made, {"colour": "red"})
    scene.account.untag(HERE, made, WORKER_TAG)
    assert (await scene.look(made)).tags["colour"] == "red"
    assert (await scene.cloud.ensure(launch("uid", attempt=2))).instance_id != made
    scene.account.terminate(HERE, made)
    assert await scene.state(made) is InstanceState.SHUTTING_DOWN


VERBS: dict[str, Callable[[Scene, str], object]] = {
    "ensure": lambda scene, _: scene.cloud.ensure(launch("another")),
    "find": lambda scene, made: scene.cloud.find(HERE, made),
    "list_owned": lambda scene, _: scene.cloud.list_owned(HERE),
    "list_by_image": lambda scene, _: scene.cloud.list_by_image(HERE, "*"),
    "newest_image": lambda scene, _: scene.cloud.newest_image(HERE, "*"),
    "start": lambda scene, made: scene.cloud.start(HERE, made),
    "stop": lambda scene, made: scene.cloud.stop(HERE, made),
    "reboot": lambda scene, made: scene.cloud.reboot(HERE, made),
    "remove": lambda scene, made: scene.cloud.remove(HERE, made),
    "tag": lambda scene, made: scene.cloud.tag(HERE, made, {"a": "b"}),
    "console": lambda scene, made: scene.cloud.console(HERE, made),
    "checks": lambda scene, made: scene.cloud.checks(HERE, [made]),
    "metrics": lambda scene, made: scene.cloud.metrics(HERE, [made], since=START, until=START),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_30_any_verb_can_be_made_to_fail_as_often_as_told(scene: Scene, verb: str) -> None:
    made = await scene.running()
    error = Unauthorized("no", action=verb)
    scene.cloud.fail_next(verb, error, times=2)
    for _ in range(2):
        with pytest.raises(Unauthorized):
            await VERBS[verb](scene, made)  # type: ignore[misc]
    await VERBS[verb](scene, made)  # type: ignore[misc]


@pytest.mark.parametrize("verb", VERBS)
async def test_any_verbs_answer_can_be_lost(scene: Scene, verb: str) -> None:
    made = await scene.running()
    scene.cloud.lose_answer_next(verb)
    with pytest.raises(Unreachable):
        await VERBS[verb](scene, made)  # type: ignore[misc]
    await VERBS[verb](scene, made)  # type: ignore[misc]


async def test_4_a_lost_launch_has_happened_and_repeating_it_gives_the_same_machine() -> None:
    scene = Scene(LAZY)
    scene.cloud.lose_answer_next("ensure", times=3)
    for _ in range(3):
        with pytest.raises(Unreachable):
            await scene.cloud.ensure(launch("uid"))
    (made,) = scene.account.machines
    assert (await scene.cloud.ensure(launch("uid"))).instance_id == made


def test_a_verb_that_does_not_exist_cannot_fail(scene: Scene) -> None:
    for wrong in ("terminate", "account", "fail_next"):
        with pytest.raises(AssertionError, match="no verb"):
            scene.cloud.fail_next(wrong, Unreachable("typo"))
        with pytest.raises(AssertionError, match="no verb"):
            scene.cloud.lose_answer_next(wrong)


async def test_7_a_failed_terminate_ends_nothing(scene: Scene) -> None:
    made = await scene.running()
    scene.cloud.fail_next("remove", Unreachable("no network"))
    with pytest.raises(Unreachable):
        await scene.cloud.remove(HERE, made)
    assert await scene.state(made) is RUNNING


async def test_what_runs_on_a_machine_is_found_while_it_runs() -> None:
    clock = HandClock()
    cloud = SimCloud(clock, Chance(7), attach=lambda instance, _: [instance.instance_id])
    made = cloud.account.run(LaunchOrder(HERE, "m5zn.metal", "ami-1")).instance_id
    assert cloud.find_attached(made) is None
    clock.step(minutes=2)
    engine = cloud.find_attached(made)
    assert engine == [made]
    cloud.account.stop(HERE, made)
    assert cloud.find_attached(made) is None
    clock.step(minutes=15)
    cloud.account.start(HERE, made)
    clock.step(minutes=2)
    assert cloud.find_attached(made) is engine
    assert cloud.find_attached("i-unknown") is None


def story(seed: int, clock: Clock) -> list[object]:
    cloud = SimCloud(clock, Chance(seed))
    cloud.account.add_image(HERE, "CML-2.9.1", START)
    machines = [cloud.account.run(LaunchOrder(HERE, kind, "ami-1")) for kind in ("m5zn.metal", "c8i.large")]
    return [(one.instance_id, one.visible_at, one.pace) for one in machines]


def test_a_seed_always_tells_the_same_story() -> None:
    assert story(1, HandClock()) == story(1, HandClock())
    assert story(1, HandClock()) != story(2, HandClock())


def test_it_keeps_virtual_time() -> None:
    async def main() -> list[InstanceState]:
        clock = VirtualClock()
        cloud = SimCloud(clock, Chance(1), latency=timedelta(seconds=1))
        cloud.account.add_image(HERE, "CML-2.9.1", clock.now())
        made = await cloud.ensure(launch("uid"))
        assert clock.now() == START + timedelta(seconds=3)
        seen = [made.state]
        for _ in range(200):
            await asyncio.sleep(5)
            found = await cloud.find(HERE, made.instance_id)
            assert found is not None
            if found.state is not seen[-1]:
                seen.append(found.state)
            if found.state is RUNNING:
                await cloud.remove(HERE, made.instance_id)
            if found.state is TERMINATED:
                break
        return seen

    assert run(main) == [InstanceState.PENDING, RUNNING, InstanceState.SHUTTING_DOWN, TERMINATED]


async def test_it_keeps_real_time_sped_up() -> None:
    cloud = SimCloud(SystemClock(), Chance(1), nature=CloudBehaviour(speed=1000))
    cloud.account.add_image(HERE, "CML-2.9.1", START)
    made = await cloud.ensure(launch("uid"))
    async with asyncio.timeout(60):
        while await cloud.find(HERE, made.instance_id) is None:
            await asyncio.sleep(0.01)
        while (await cloud.checks(HERE, [made.instance_id]))[made.instance_id].system is not StatusCheckResult.OK:
            await asyncio.sleep(0.01)


@dataclass
class LaunchWorld:
    """A cloud, and what a worker's record says, which survives its writer."""

    nature: CloudBehaviour
    lost: int = 0
    intent: Launch | None = None
    instance_id: str = ""
    cloud: SimCloud = field(init=False)

    def __post_init__(self) -> None:
        self.cloud = SimCloud(VirtualClock(), Chance(3), nature=self.nature)
        self.cloud.account.add_image(HERE, "CML-2.9.1", START)
        self.cloud.lose_answer_next("ensure", self.lost)


async def persisted() -> None:
    await asyncio.sleep(0)


async def launch_once(world: LaunchWorld) -> None:
    """Write the intent, launch, write what came of it; come back to it after whatever went wrong."""
    if world.intent is None:
        await persisted()
        world.intent = launch("uid")
    for _ in range(60):
        try:
            made = await world.cloud.ensure(world.intent)
            break
        except Later:
            await asyncio.sleep(10)
    else:
        raise AssertionError("never launched")
    await persisted()
    world.instance_id = made.instance_id


async def launch_from_a_newer_image_each_time(world: LaunchWorld) -> None:
    newest = await world.cloud.newest_image(HERE, "CML-2.*")
    assert newest is not None
    world.cloud.account.add_image(HERE, "CML-2.9.2", newest.created_at + timedelta(seconds=1))
    await launch_once(world)


def one_machine(world: LaunchWorld) -> None:
    assert list(world.cloud.account.machines) == [world.instance_id]


@pytest.mark.parametrize(
    ("nature", "lost", "body"),
    [
        (STEADY, 0, launch_once),
        (LAZY, 0, launch_once),
        (LAZY, 2, launch_once),
        (LAZY, 1, launch_from_a_newer_image_each_time),
    ],
)
def test_4_a_caller_that_dies_anywhere_leaves_one_machine(
    nature: CloudBehaviour,
    lost: int,
    body: Callable[[LaunchWorld], Coroutine[None, None, None]],
    tell: Callable[[str], None],
) -> None:
    name = f"launch, {lost} answers lost, {body.__name__}"
    awaits = crash_everywhere(name, lambda: LaunchWorld(nature, lost), body, one_machine, report=tell)
    assert awaits >= 6


def test_4_a_caller_that_sleeps_anywhere_leaves_one_machine(tell: Callable[[str], None]) -> None:
    sleep = timedelta(minutes=30)
    awaits = pause_everywhere(
        "launch", lambda: LaunchWorld(LAZY), launch_once, one_machine, pause_for=sleep, report=tell
    )
    assert awaits >= 6


def test_4_two_callers_at_once_get_one_machine() -> None:
    async def main() -> int:
        world = LaunchWorld(LAZY)
        both = await asyncio.gather(*(world.cloud.ensure(launch("uid")) for _ in range(2)))
        assert both[0] == both[1]
        return len(world.cloud.account.machines)

    assert run(main) == 1
