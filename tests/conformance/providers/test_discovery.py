"""One scan of two regions, on a made-up cloud and on EC2 as moto plays it."""

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from harness import given
from harness.clouds import HERE, KEYS, SESSION, THERE, CloudWorld, MotoWorld, SimWorld, launch, unique
from harness.plane_world import ROOT, Stage, Standing, service
from harness.servers import MotoServer
from lcm.control.plane.protocol import WorkerRef, ref_of
from lcm.controllers.discovery.orphans import GRACE
from lcm.controllers.discovery.search import RegionSearch
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.providers.aws.clients import AwsClients

BY = service(WORKER_CONTROLLER)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(moto: MotoServer) -> AsyncIterator[AwsClients]:
    opened = AwsClients(session=SESSION, keys=KEYS, endpoint_url=moto.url)
    yield opened
    await opened.close()


@pytest.fixture(params=["simulated", "ec2"])
def cloud(request: pytest.FixtureRequest) -> CloudWorld:
    return SimWorld() if request.param == "simulated" else MotoWorld(request.getfixturevalue("clients"))


async def by_instance(stage: Stage) -> dict[str, LabWorker]:
    found = (await stage[ROOT].list(LabWorker, limit=1000)).items
    return {one.status.ec2.instance_id: one for one in found}


async def test_lessons_4_and_5_strangers_and_orphans_of_two_regions_get_one_record_each(cloud: CloudWorld) -> None:
    name, awaited, lost = unique("CML-scan"), unique("uid"), unique("uid")
    strangers = {await cloud.launch_by_hand(await cloud.add_image(name), {}) for _ in range(6)}
    await cloud.compute.ensure(launch(awaited))
    orphan = await cloud.compute.ensure(launch(lost, region=THERE))
    cloud.settle()
    stage, poked = Stage(clock=Standing(cloud.now() + GRACE)), list[WorkerRef]()
    worker = await stage.put(given.worker(uid=awaited, phase=WorkerPhase.PROVISIONING_EC2))
    search = RegionSearch(stage[BY], cloud.compute, clock=stage.clock, poke=poked.append)
    first = [await search.run(region, name) for region in (HERE, THERE)]
    assert [(one.found, one.known, one.imported, one.orphans) for one in first] == [(7, 1, 6, 0), (1, 0, 1, 1)]
    records = await by_instance(stage)
    assert set(records) == {"", orphan.instance_id, *strangers}
    assert records[orphan.instance_id].metadata.labels["lcm/orphan-of"] == lost
    assert poked == [ref_of(worker)]
    again = [await search.run(region, name) for region in (HERE, THERE)]
    assert [(one.found, one.known, one.imported) for one in again] == [(7, 7, 0), (1, 1, 0)]
    assert await by_instance(stage) == records


async def test_a_machine_that_is_gone_is_neither_imported_nor_written_off(cloud: CloudWorld) -> None:
    name, uid = unique("CML-gone"), unique("uid")
    await cloud.add_image(name)
    ended = await cloud.compute.ensure(launch(uid))
    cloud.settle()
    await cloud.compute.remove(HERE, ended.instance_id)
    cloud.settle()
    stage, poked = Stage(clock=Standing(cloud.now() + GRACE)), list[WorkerRef]()
    worker = await stage.put(given.worker(uid=uid, phase=WorkerPhase.READY, ec2={"instance_id": ended.instance_id}))
    search = RegionSearch(stage[BY], cloud.compute, clock=stage.clock, poke=poked.append)
    found = await search.run(HERE, name)
    assert (found.found, found.imported) == (0, 0)
    assert poked == [ref_of(worker)]
    assert msgspec.to_builtins(await stage.read(worker)) == msgspec.to_builtins(worker)
