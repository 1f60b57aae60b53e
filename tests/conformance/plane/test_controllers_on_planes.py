"""The parts of controllers on both planes: a controller cannot tell whether its plane is in process or over HTTP."""

import asyncio

import pytest

from harness.plane_world import World, either, template
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref
from lcm.controllers.runtime.election import Election
from lcm.model.base.errors import Deposed
from lcm.model.kinds.pool import WorkerTemplate
from lcm.providers.protocols.permit import check_permit
from lcm.sim.time.loop import VirtualStopwatch
from lcm.system.tasks import cancel_and_wait

TTL = 15
METAL = Ref(WorkerTemplate, "metal")


def label(value: str) -> dict[str, object]:
    return {"metadata": {"labels": {"value": value}}}


@either
async def test_a_cache_holds_what_is_there_what_comes_and_what_we_write(world: World) -> None:
    await world.root.create(template())
    plane = world.service("worker-controller")
    cache = Cache(plane, WorkerTemplate)
    running = asyncio.create_task(cache.run())
    await cache.ready()
    written = await plane.patch(METAL, label("ours"))
    await cache.wait_for_revision(written.metadata.resource_version)
    assert cache.get(METAL) == written
    newer = await plane.patch(METAL, label("newer"))
    cache.accept(newer)
    assert cache.get(METAL) == newer
    gone = await world.root.delete(METAL)
    await cache.wait_for_revision(gone.metadata.resource_version)
    await asyncio.sleep(1)
    assert cache.all(WorkerTemplate) == []
    await cancel_and_wait([running])


@either
async def test_a_leader_writes_until_its_lease_is_taken_away(world: World) -> None:
    await world.root.create(template())
    plane = world.service("worker-controller")
    planes: list[Plane] = []

    async def lead(fenced: Plane) -> None:
        check_permit()
        await fenced.patch(METAL, label("led"))
        lease = await plane.lease("leading")
        assert lease is not None
        planes.append(fenced)
        await plane.release(lease)
        await asyncio.sleep(1e6)

    election = Election(plane, "leading", "one", ttl_seconds=TTL, stopwatch=VirtualStopwatch(), chance=lambda: 0.5)
    running = asyncio.create_task(election.run(lead))
    await asyncio.sleep(3 * TTL + 1)
    assert len(planes) > 1, "it stood again after it was deposed"
    with pytest.raises(Deposed):
        await planes[0].patch(METAL, label("deposed"))
    await cancel_and_wait([running])
    assert await plane.lease("leading") is None
    metal = await plane.get(METAL)
    assert metal is not None
    assert metal.metadata.labels["value"] == "led"


@either
async def test_who_waits_for_a_lease_hears_of_its_release_and_of_its_end(world: World) -> None:
    plane = world.service("worker-controller")
    await plane.wait_until_vacant("leading")
    for gone in ("released", "run out"):
        lease = await plane.acquire("leading", "one", ttl_seconds=TTL)
        assert lease is not None
        other = await plane.acquire("leading-too", "one", ttl_seconds=TTL)
        waiting = asyncio.create_task(plane.wait_until_vacant("leading"))
        await asyncio.sleep(1)
        if other is not None:
            await plane.release(other)
        await asyncio.sleep(TTL / 2)
        assert not waiting.done()
        if gone == "released":
            await plane.release(lease)
        async with asyncio.timeout(TTL):
            await waiting
        assert await plane.lease("leading") is None
