"""What every cloud must do, on one made up by us and on EC2 as moto plays it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from harness.clouds import HERE, KEYS, SESSION, THERE, CloudWorld, MotoWorld, SimWorld, launch, unique
from harness.servers import MotoServer
from lcm.model.base.errors import Gone, Later, Stuck
from lcm.providers.aws.clients import AwsClients
from lcm.providers.protocols.compute import (
    ENDING,
    OWNER_TAG,
    VISIBLE_WITHIN,
    WORKER_TAG,
    Compute,
    InstanceState,
    MachineMetrics,
    StatusCheckResult,
    StatusChecks,
)

UNKNOWN = "i-0123456789abcdef0"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(moto: MotoServer) -> AsyncIterator[AwsClients]:
    """Share what is slow to make: a client has a method for everything that AWS can do."""
    opened = AwsClients(session=SESSION, keys=KEYS, endpoint_url=moto.url)
    yield opened
    await opened.close()


@pytest.fixture(params=["simulated", "ec2"])
def cloud(request: pytest.FixtureRequest) -> CloudWorld:
    return SimWorld() if request.param == "simulated" else MotoWorld(request.getfixturevalue("clients"))


async def running(cloud: CloudWorld, region: str = HERE) -> str:
    found = await cloud.compute.ensure(launch(unique("uid"), region=region))
    cloud.settle()
    return found.instance_id


async def state(compute: Compute, instance_id: str, region: str = HERE) -> InstanceState:
    found = await compute.find(region, instance_id)
    assert found is not None
    return found.state


async def reason(compute: Compute, instance_id: str) -> str:
    found = await compute.find(HERE, instance_id)
    assert found is not None
    return found.reason


async def test_a_launched_machine_is_what_was_asked_for(cloud: CloudWorld) -> None:
    uid = unique("uid")
    asked_for = launch(uid, tags={"team": "ccna"})
    made = await cloud.compute.ensure(asked_for)
    assert made.state in {InstanceState.PENDING, InstanceState.RUNNING}
    cloud.settle()
    found = await cloud.compute.find(HERE, made.instance_id)
    newest = await cloud.compute.newest_image(HERE, "CML-2.*")
    assert found is not None
    assert newest is not None
    assert (found.region, found.state) == (HERE, InstanceState.RUNNING)
    assert (found.instance_type, found.image_id) == ("m5zn.metal", newest.image_id)
    assert found.zone.startswith(HERE)
    assert found.private_ip
    assert found.public_ip
    assert found.launched_at.utcoffset() == timedelta(0)
    assert abs(found.launched_at - cloud.now()) < timedelta(hours=1)
    assert found.tags == {"Name": asked_for.worker_name, OWNER_TAG: cloud.owner, WORKER_TAG: uid, "team": "ccna"}


async def test_a_spot_machine_is_launched_as_one_and_nobody_takes_it_away_without_notice(cloud: CloudWorld) -> None:
    made = await cloud.compute.ensure(launch(unique("uid"), market="spot"))
    bought = await cloud.compute.ensure(launch(unique("uid")))
    cloud.settle()
    found = [await cloud.compute.find(HERE, one.instance_id) for one in (made, bought)]
    assert [one.spot for one in found if one] == [True, False]
    assert not {made.instance_id, bought.instance_id} & (await cloud.compute.list_reclaimed(HERE)).keys()


async def test_types_are_described_as_far_as_the_region_offers_them(cloud: CloudWorld) -> None:
    found = await cloud.compute.machine_types(HERE, ["m5zn.metal", "m5.metal", "m5zn.moon"])
    assert found.keys() == {"m5zn.metal", "m5.metal"}
    metal = found["m5zn.metal"]
    assert (metal.vcpus, metal.memory_mb, metal.metal, metal.nested) == (48, 196_608, True, False)
    assert await cloud.compute.vcpu_quota(HERE, "m5zn.metal", spot=True) is None, "nobody says"


async def test_4_a_repeated_launch_gives_the_same_instance_also_to_another_process(cloud: CloudWorld) -> None:
    asked_for = launch(unique("uid"))
    first = await cloud.compute.ensure(asked_for)
    assert (await cloud.compute.ensure(asked_for)).instance_id == first.instance_id
    assert (await cloud.another().ensure(asked_for)).instance_id == first.instance_id
    assert len(await cloud.compute.list_owned(HERE)) == 1


async def test_a_stopped_machine_is_adopted_too(cloud: CloudWorld) -> None:
    uid = unique("uid")
    first = await cloud.compute.ensure(launch(uid))
    cloud.settle()
    await cloud.compute.stop(HERE, first.instance_id)
    cloud.settle()
    assert (await cloud.compute.ensure(launch(uid, attempt=2))).instance_id == first.instance_id


async def test_a_new_attempt_follows_an_instance_that_has_ended(cloud: CloudWorld) -> None:
    uid = unique("uid")
    first = await cloud.compute.ensure(launch(uid))
    await cloud.compute.remove(HERE, first.instance_id)
    cloud.settle()
    second = await cloud.compute.ensure(launch(uid, attempt=2))
    assert second.instance_id != first.instance_id
    assert second.state not in ENDING


async def test_workers_do_not_adopt_each_others_machines(cloud: CloudWorld) -> None:
    first, second = [await cloud.compute.ensure(launch(unique("uid"))) for _ in range(2)]
    assert first.instance_id != second.instance_id


async def test_nobodys_own_tags_replace_ours(cloud: CloudWorld) -> None:
    uid = unique("uid")
    made = await cloud.compute.ensure(launch(uid, tags={WORKER_TAG: "another", OWNER_TAG: "another"}))
    assert (made.tags[WORKER_TAG], made.tags[OWNER_TAG]) == (uid, cloud.owner)


async def test_a_machine_may_have_no_public_address(cloud: CloudWorld) -> None:
    made = await cloud.compute.ensure(launch(unique("uid"), public_ip=False))
    assert made.public_ip is None
    assert made.private_ip


async def test_26_the_newest_image_is_the_one_created_last_by_somebody_we_trust(cloud: CloudWorld) -> None:
    newest = await cloud.compute.newest_image(HERE, "CML-2.9*")
    assert newest is not None
    assert newest.name == "CML-2.9.1"
    older = await cloud.compute.newest_image(HERE, "CML-2.8.?")
    assert older is not None
    assert older.name == "CML-2.8.1"
    assert older.created_at < newest.created_at
    assert await cloud.compute.newest_image(HERE, "CML-3*") is None


@pytest.mark.parametrize(
    "image",
    [
        {"ami_name_pattern": "CML-3*"},
        {"ami_id": "ami-0123456789abcdef0"},
        {"ami_name_pattern": None},
    ],
)
async def test_a_launch_from_an_image_that_does_not_exist_wants_a_person(
    cloud: CloudWorld, image: dict[str, Any]
) -> None:
    with pytest.raises(Stuck) as caught:
        await cloud.compute.ensure(launch(unique("uid"), **image))
    assert caught.value.reason == "ImageMissing"
    assert await cloud.compute.list_owned(HERE) == []


async def test_a_vpc_without_a_subnet_wants_a_person_and_not_the_default_network(cloud: CloudWorld) -> None:
    with pytest.raises(Stuck) as caught:
        await cloud.compute.ensure(launch(unique("uid"), vpc_id="vpc-0123456789abcdef0"))
    assert caught.value.reason == "SubnetMissing"
    assert await cloud.compute.list_owned(HERE) == []


async def test_an_image_may_be_named_by_its_id(cloud: CloudWorld) -> None:
    image_id = await cloud.add_image(unique("mine"))
    assert (await cloud.compute.ensure(launch(unique("uid"), ami_id=image_id))).image_id == image_id


async def test_6_a_fresh_instance_that_is_not_listed_is_not_gone(cloud: CloudWorld) -> None:
    with pytest.raises(Later, match="not listed yet"):
        await cloud.compute.find(HERE, UNKNOWN, launched_at=cloud.now() - timedelta(seconds=30))


async def test_an_instance_that_the_cloud_does_not_know_is_gone(cloud: CloudWorld) -> None:
    assert await cloud.compute.find(HERE, UNKNOWN) is None
    assert await cloud.compute.find(HERE, UNKNOWN, launched_at=cloud.now() - VISIBLE_WITHIN) is None


async def test_26_every_machine_of_ours_is_listed_however_many_pages_it_takes(cloud: CloudWorld) -> None:
    made = {(await cloud.compute.ensure(launch(unique("uid")))).instance_id for _ in range(12)}
    await cloud.launch_by_hand(await cloud.add_image(unique("other")), {OWNER_TAG: "another installation"})
    ended = made.pop()
    await cloud.compute.remove(HERE, ended)
    cloud.settle()
    listed = {one.instance_id: one.state for one in await cloud.compute.list_owned(HERE)}
    assert listed == {ended: InstanceState.TERMINATED, **dict.fromkeys(made, InstanceState.RUNNING)}


async def test_strangers_are_found_by_their_image(cloud: CloudWorld) -> None:
    name = unique("theirs")
    image_id = await cloud.add_image(name)
    theirs = {await cloud.launch_by_hand(image_id, {}) for _ in range(7)}
    await running(cloud)
    found = await cloud.compute.list_by_image(HERE, name.replace("theirs", "the*s"))
    assert {one.instance_id for one in found} == theirs
    assert all(one.tags == {} for one in found)
    assert await cloud.compute.list_by_image(HERE, unique("nobodys")) == []


async def test_27_a_stranger_that_still_boots_is_listed_as_what_it_is(cloud: CloudWorld) -> None:
    name = unique("theirs")
    made = await cloud.launch_by_hand(await cloud.add_image(name), {"Name": "handmade"})
    (found,) = await cloud.compute.list_by_image(HERE, name)
    assert (found.instance_id, found.tags) == (made, {"Name": "handmade"})
    assert found.state in {InstanceState.PENDING, InstanceState.RUNNING}


async def test_stopping_and_starting_may_be_repeated(cloud: CloudWorld) -> None:
    made = await running(cloud)
    for _ in range(2):
        await cloud.compute.stop(HERE, made)
    cloud.settle()
    await cloud.compute.stop(HERE, made)
    assert await state(cloud.compute, made) is InstanceState.STOPPED
    for _ in range(2):
        await cloud.compute.start(HERE, made)
    cloud.settle()
    await cloud.compute.start(HERE, made)
    assert await state(cloud.compute, made) is InstanceState.RUNNING


async def test_why_a_machine_does_not_run_is_told_until_it_runs_again(cloud: CloudWorld) -> None:
    made = await running(cloud)
    assert await reason(cloud.compute, made) == ""
    await cloud.compute.stop(HERE, made)
    cloud.settle()
    assert "User initiated" in await reason(cloud.compute, made)
    await cloud.compute.start(HERE, made)
    cloud.settle()
    assert await reason(cloud.compute, made) == ""
    await cloud.compute.remove(HERE, made)
    cloud.settle()
    assert "User initiated" in await reason(cloud.compute, made)


async def test_only_a_running_machine_reboots(cloud: CloudWorld) -> None:
    made = await running(cloud)
    await cloud.compute.reboot(HERE, made)
    assert await state(cloud.compute, made) is InstanceState.RUNNING
    await cloud.compute.stop(HERE, made)
    with pytest.raises(Later):
        await cloud.compute.reboot(HERE, made)


async def test_removing_may_be_repeated_and_what_is_gone_is_removed(cloud: CloudWorld) -> None:
    made = await running(cloud)
    for _ in range(2):
        await cloud.compute.remove(HERE, made)
    cloud.settle()
    await cloud.compute.remove(HERE, made)
    await cloud.compute.remove(HERE, UNKNOWN)
    assert await state(cloud.compute, made) is InstanceState.TERMINATED


@pytest.mark.parametrize("verb", ["start", "stop", "reboot", "tag"])
async def test_what_has_ended_and_what_never_was_are_gone(cloud: CloudWorld, verb: str) -> None:
    ended = await running(cloud)
    await cloud.compute.remove(HERE, ended)
    arguments = ({"key": "value"},) if verb == "tag" else ()
    for instance_id in (ended, UNKNOWN):
        with pytest.raises(Gone):
            await getattr(cloud.compute, verb)(HERE, instance_id, *arguments)


async def test_5_a_verb_reaches_the_region_it_names_and_no_other(cloud: CloudWorld) -> None:
    here, there = await running(cloud, HERE), await running(cloud, THERE)
    assert await cloud.compute.find(THERE, here) is None
    with pytest.raises(Gone):
        await cloud.compute.stop(HERE, there)
    await cloud.compute.stop(THERE, there)
    cloud.settle()
    assert await state(cloud.compute, here, HERE) is InstanceState.RUNNING
    assert await state(cloud.compute, there, THERE) is InstanceState.STOPPED
    assert [one.instance_id for one in await cloud.compute.list_owned(HERE)] == [here]
    assert [one.instance_id for one in await cloud.compute.list_owned(THERE)] == [there]


async def test_tags_are_added_and_replaced_and_others_stay(cloud: CloudWorld) -> None:
    made = await running(cloud)
    await cloud.compute.tag(HERE, made, {"lcm:phase": "draining", "colour": "red"})
    await cloud.compute.tag(HERE, made, {"colour": "blue"})
    found = await cloud.compute.find(HERE, made)
    assert found is not None
    assert found.tags[OWNER_TAG] == cloud.owner
    assert (found.tags["lcm:phase"], found.tags["colour"]) == ("draining", "blue")


async def test_the_console_tells_of_the_boot(cloud: CloudWorld) -> None:
    assert await cloud.compute.console(HERE, await running(cloud))
    with pytest.raises(Gone):
        await cloud.compute.console(HERE, UNKNOWN)


async def test_checks_of_many_are_read_at_once_and_the_unknown_are_left_out(cloud: CloudWorld) -> None:
    up, down = await running(cloud), await running(cloud)
    await cloud.compute.stop(HERE, down)
    cloud.settle()
    found = await cloud.compute.checks(HERE, [up, UNKNOWN, down])
    assert found == {
        up: StatusChecks(system=StatusCheckResult.OK, instance=StatusCheckResult.OK),
        down: StatusChecks(system=StatusCheckResult.UNKNOWN, instance=StatusCheckResult.UNKNOWN),
    }
    assert await cloud.compute.checks(HERE, [UNKNOWN]) == {}
    assert await cloud.compute.checks(HERE, []) == {}


async def test_metrics_are_percentages_and_bytes_and_none_where_nothing_was_published(cloud: CloudWorld) -> None:
    busy, bare, silent = await running(cloud), await running(cloud), await running(cloud)
    load = MachineMetrics(
        cpu_percent=25.0,
        memory_percent=50.0,
        disk_percent=75.0,
        network_in_bytes=1000,
        network_out_bytes=2000,
    )
    await cloud.measure(busy, load)
    await cloud.measure(bare, MachineMetrics(cpu_percent=100.0))
    since, until = cloud.now() - timedelta(minutes=10), cloud.now() + timedelta(minutes=1)
    found = await cloud.compute.metrics(HERE, [busy, bare, silent, UNKNOWN], since=since, until=until)
    values = {one: [getattr(metrics, name) for name in load.__struct_fields__[:5]] for one, metrics in found.items()}
    assert values == {
        busy: [25.0, 50.0, 75.0, 1000, 2000],
        bare: [100.0, None, None, None, None],
        silent: [None] * 5,
        UNKNOWN: [None] * 5,
    }
    measured_at = found[busy].measured_at
    assert measured_at is not None
    assert since <= measured_at <= until
    assert found[silent].measured_at is None
    assert await cloud.compute.metrics(HERE, [], since=since, until=until) == {}


async def test_many_verbs_at_once_do_not_disturb_each_other(cloud: CloudWorld) -> None:
    async with asyncio.timeout(60):
        made = await asyncio.gather(*(cloud.compute.ensure(launch(unique("uid"))) for _ in range(5)))
        found = await asyncio.gather(*(cloud.compute.find(HERE, one.instance_id) for one in made))
    assert [one.instance_id for one in found if one] == [one.instance_id for one in made]


async def test_closing_may_be_repeated(cloud: CloudWorld) -> None:
    await running(cloud)
    for _ in range(2):
        await cloud.compute.close()
