"""Whoever may not act any more changes nothing outside, through any provider; looking goes on."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from harness import ec2_answers
from harness.clouds import HERE, KEYS, SESSION, CloudWorld, MotoWorld, SimWorld, launch, unique
from harness.ec2_answers import ID, AwsAnswers, Refusal, ec2_at
from harness.lab_hosts import LAB, World, in_process, node, started, until_converged
from harness.servers import MotoServer
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Deposed
from lcm.providers.aws.clients import AwsClients
from lcm.providers.protocols.compute import Compute, InstanceState
from lcm.providers.protocols.labhost import LabHost, LabState
from lcm.providers.protocols.permit import check_permit, permit_scope
from lcm.sim.time.loop import VirtualClock

TOKEN = Secret("a-good-token")
in_time = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Term:
    """A permit that a test withdraws, after so many effects."""

    effects: int = 0
    asked: int = field(default=0, init=False)

    def check(self) -> None:
        self.asked += 1
        if self.asked > self.effects:
            raise Deposed("the term is over")


def verbs(protocol: type) -> set[str]:
    return {name for name, one in vars(protocol).items() if callable(one) and not name.startswith("_")}


def test_people_and_tools_need_no_permit() -> None:
    check_permit()


def test_a_permit_holds_inside_only_and_the_innermost_counts() -> None:
    with permit_scope(Term().check):
        with pytest.raises(Deposed):
            check_permit()
        with permit_scope(Term(effects=1).check):
            check_permit()
        with pytest.raises(Deposed):
            check_permit()
    check_permit()


CLOUD_LOOKS: Mapping[str, Callable[[Compute, str], Awaitable[object]]] = {
    "find": lambda cloud, one: cloud.find(HERE, one),
    "list_owned": lambda cloud, _: cloud.list_owned(HERE),
    "list_by_image": lambda cloud, _: cloud.list_by_image(HERE, "CML-2.*"),
    "newest_image": lambda cloud, _: cloud.newest_image(HERE, "CML-2.*"),
    "console": lambda cloud, one: cloud.console(HERE, one),
    "checks": lambda cloud, one: cloud.checks(HERE, [one]),
    "list_reclaimed": lambda cloud, _: cloud.list_reclaimed(HERE),
    "machine_types": lambda cloud, _: cloud.machine_types(HERE, ["m5zn.metal"]),
    "vcpu_quota": lambda cloud, _: cloud.vcpu_quota(HERE, "m5zn.metal", spot=False),
}
CLOUD_EFFECTS: Mapping[str, tuple[bool, Callable[[Compute, str], Awaitable[object]]]] = {
    "ensure": (True, lambda cloud, _: cloud.ensure(launch(unique("uid")))),
    "start": (False, lambda cloud, one: cloud.start(HERE, one)),
    "stop": (True, lambda cloud, one: cloud.stop(HERE, one)),
    "reboot": (True, lambda cloud, one: cloud.reboot(HERE, one)),
    "remove": (True, lambda cloud, one: cloud.remove(HERE, one)),
    "tag": (True, lambda cloud, one: cloud.tag(HERE, one, {"team": "other"})),
}
"""Each with whether the machine runs before."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(moto: MotoServer) -> AsyncIterator[AwsClients]:
    opened = AwsClients(session=SESSION, keys=KEYS, endpoint_url=moto.url)
    yield opened
    await opened.close()


@pytest.fixture(params=["simulated", "ec2"])
def cloud(request: pytest.FixtureRequest) -> CloudWorld:
    return SimWorld() if request.param == "simulated" else MotoWorld(request.getfixturevalue("clients"))


async def machine(cloud: CloudWorld, *, running: bool) -> str:
    made = await cloud.compute.ensure(launch(unique("uid")))
    cloud.settle()
    if not running:
        await cloud.compute.stop(HERE, made.instance_id)
        cloud.settle()
    return made.instance_id


async def everything(cloud: CloudWorld) -> list[tuple[str, InstanceState, dict[str, str]]]:
    owned = await cloud.compute.list_owned(HERE)
    return sorted((one.instance_id, one.state, dict(one.tags)) for one in owned)


def test_every_verb_of_a_cloud_either_looks_or_acts() -> None:
    assert verbs(Compute) == {*CLOUD_LOOKS, *CLOUD_EFFECTS, "metrics", "close"}


@in_time
@pytest.mark.parametrize("verb", CLOUD_EFFECTS)
async def test_a_cloud_does_nothing_for_whoever_is_deposed(cloud: CloudWorld, verb: str) -> None:
    running, act = CLOUD_EFFECTS[verb]
    instance_id = await machine(cloud, running=running)
    before, term = await everything(cloud), Term()
    with permit_scope(term.check), pytest.raises(Deposed):
        await act(cloud.compute, instance_id)
    cloud.settle()
    assert await everything(cloud) == before
    assert term.asked == 1


@in_time
@pytest.mark.parametrize("verb", CLOUD_EFFECTS)
async def test_a_cloud_asks_for_the_permit_once_for_each_effect(cloud: CloudWorld, verb: str) -> None:
    running, act = CLOUD_EFFECTS[verb]
    instance_id = await machine(cloud, running=running)
    term = Term(effects=1)
    with permit_scope(term.check):
        await act(cloud.compute, instance_id)
    assert term.asked == 1


@in_time
async def test_a_cloud_is_looked_at_without_a_permit(cloud: CloudWorld) -> None:
    instance_id = await machine(cloud, running=True)
    term = Term()
    with permit_scope(term.check):
        for look in CLOUD_LOOKS.values():
            await look(cloud.compute, instance_id)
        since = cloud.now() - timedelta(minutes=10)
        await cloud.compute.metrics(HERE, [instance_id], since=since, until=cloud.now())
    assert term.asked == 0


@in_time
async def test_the_aws_librarys_own_repetition_needs_a_permit_too() -> None:
    async with AwsAnswers() as aws, ec2_at(aws.url, attempts=3) as ec2:
        aws.say("DescribeInstances", ec2_answers.instances(ec2_answers.instance("running")))
        aws.say("StopInstances", Refusal("InternalError", status=500), ec2_answers.changed("StopInstances", "stopping"))
        term = Term(effects=1)  # it ends while the library waits before its second attempt
        with permit_scope(term.check), pytest.raises(Deposed):
            await ec2.stop(HERE, ID)
        assert term.asked == 2
        assert len(aws.asked("StopInstances")) == 1


HOST_LOOKS: Mapping[str, Callable[[LabHost, str], Awaitable[object]]] = {
    "sign_in": lambda host, _: host.sign_in(),
    "system": lambda host, _: host.system(),
    "health": lambda host, _: host.health(),
    "stats": lambda host, _: host.stats(),
    "maintenance": lambda host, _: host.maintenance(),
    "licence": lambda host, _: host.licence(),
    "labs": lambda host, _: host.labs(),
    "find": lambda host, _: host.find("lab"),
    "look": lambda host, lab: host.look(lab),
    "converged": lambda host, lab: host.converged(lab),
    "elements": lambda host, lab: host.elements(lab),
    "nodes": lambda host, lab: host.nodes(lab),
    "all_nodes": lambda host, _: host.all_nodes(),
    "simulation_stats": lambda host, lab: host.simulation_stats(lab),
    "topology": lambda host, lab: host.topology(lab),
    "pools": lambda host, _: host.pools(),
    "node_definitions": lambda host, _: host.node_definitions(),
}
HOST_EFFECTS = {"register", "deregister", "ensure", "start", "stop", "remove", "set_tags", "set_telemetry"}


async def tag(host: LabHost, lab_id: str) -> None:
    await host.set_tags(lab_id, (await node(host, lab_id, "R1")).node_id, ["serial:9999"])


async def state(host: LabHost) -> tuple[object, ...]:
    """Return all that a leader could have changed."""
    labs = [(lab.title, lab.state, lab.node_count) for lab in await host.labs()]
    tags = sorted((one.label, tuple(one.tags)) for nodes in (await host.all_nodes()).values() for one in nodes)
    return labs, tags, await host.licence()


async def refused(world: World, act: Callable[[], Awaitable[object]], *, after: int = 0) -> None:
    """See that somebody who may do so much and no more stops there."""
    term = Term(effects=after)
    before = await state(world.host)
    with permit_scope(term.check), pytest.raises(Deposed):
        await act()
    await world.pass_time(600)
    assert term.asked > after
    if not after:
        assert await state(world.host) == before


def test_every_verb_of_a_host_either_looks_or_acts() -> None:
    assert verbs(LabHost) == {*HOST_LOOKS, *HOST_EFFECTS, "activity", "close"}


@in_process
async def test_a_host_does_nothing_for_whoever_is_deposed(world: World) -> None:
    host = world.host
    await refused(world, lambda: host.ensure("lab", LAB))
    lab = (await host.ensure("lab", LAB)).lab_id
    await refused(world, lambda: tag(host, lab))
    await refused(world, lambda: host.start(lab))
    await refused(world, lambda: host.remove(lab))
    await host.start(lab)
    await until_converged(world, lab)
    await refused(world, lambda: host.stop(lab))
    await refused(world, lambda: host.remove(lab))
    await refused(world, lambda: host.topology(lab))  # which has running nodes write down their configurations
    await host.stop(lab)
    await world.pass_time(600)
    await refused(world, lambda: host.remove(lab))
    await refused(world, lambda: host.register(product="CML_Enterprise", token=TOKEN))
    await host.register(product="CML_Enterprise", token=TOKEN)
    await refused(world, lambda: host.register(product="CML_Enterprise", token=TOKEN, expansion_nodes=10))
    await refused(world, lambda: host.register(product="CML_Personal", token=TOKEN))
    await refused(world, host.deregister)
    told = world.cml.telemetry.opt_in
    await refused(world, lambda: host.set_telemetry(enabled=not told))
    assert world.cml.telemetry.opt_in is told


@in_process
async def test_whoever_is_deposed_half_way_through_a_removal_stops_there(world: World) -> None:
    lab = await started(world, "lab")
    await refused(world, lambda: world.host.remove(lab.lab_id), after=1)
    left = await world.host.look(lab.lab_id)
    assert left is not None
    assert left.state is LabState.STOPPED


@in_process
async def test_a_host_is_looked_at_without_a_permit(world: World) -> None:
    lab = await world.host.ensure("lab", LAB)
    term = Term()
    with permit_scope(term.check):
        for look in HOST_LOOKS.values():
            await look(world.host, lab.lab_id)
        await world.host.activity(since=VirtualClock().now() - timedelta(hours=1))
    assert term.asked == 0


@in_process
async def test_what_is_done_already_needs_no_permit(world: World) -> None:
    lab = await world.host.ensure("lab", LAB)
    registered = await world.host.register(product="CML_Enterprise", token=TOKEN)
    term = Term()
    with permit_scope(term.check):
        assert await world.host.ensure("lab", LAB) == lab
        assert await world.host.register(product="CML_Enterprise", token=TOKEN) == registered
        await world.host.remove("00000000-0000-4000-8000-000000000000")
    await world.host.deregister()
    with permit_scope(term.check):
        await world.host.deregister()
    assert term.asked == 0


@in_process
async def test_the_permit_of_one_task_does_not_hold_back_another(world: World) -> None:
    with permit_scope(Term().check):
        deposed: Any = partial(world.host.ensure, "lab", LAB)
        with pytest.raises(Deposed):
            await deposed()
    await world.host.ensure("lab", LAB)
    assert await world.host.find("lab") is not None
