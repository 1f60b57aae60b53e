"""The plane's contract: leases, and writes bound to a lease's term."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from harness import given
from harness.plane_world import World, either, everywhere, on, on_any_wire
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Deposed, Forbidden, Invalid
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.worker import LabWorker
from lcm.store.base import Fence, Lease

NAME = "worker-controller"
TTL = 15
W1 = Ref(LabWorker, "w1")


async def taken(plane: Plane, holder: str = "a", name: str = NAME) -> Lease:
    lease = await plane.acquire(name, holder, ttl_seconds=TTL)
    assert lease is not None
    return lease


def controller(world: World) -> Plane:
    return world.service(WORKER_CONTROLLER)


@everywhere
async def test_a_lease_is_held_by_one(world: World) -> None:
    plane = controller(world)
    assert await plane.lease(NAME) is None
    lease = await taken(plane)
    assert (lease.name, lease.holder, lease.ttl_seconds) == (NAME, "a", TTL)
    assert await plane.acquire(NAME, "b", ttl_seconds=TTL) is None
    assert await plane.acquire(NAME, "a", ttl_seconds=TTL) is None
    assert await plane.lease(NAME) == lease
    await taken(plane, "b", "scheduler")
    await plane.release(lease)
    await plane.release(lease)
    assert await plane.lease(NAME) is None
    second = await taken(plane, "b")
    assert second.term > lease.term
    await plane.release(lease)
    assert await plane.lease(NAME) == second


@on_any_wire
async def test_of_many_campaigners_one_wins(world: World) -> None:
    plane = controller(world)
    leases = await asyncio.gather(*(plane.acquire(NAME, str(n), ttl_seconds=TTL) for n in range(8)))
    assert sum(lease is not None for lease in leases) == 1


@on("memory", "memory-http", "sqlite", "sqlite-http")
async def test_a_lease_runs_out_unless_renewed(world: World) -> None:
    plane = controller(world)
    lease = await taken(plane)
    for _ in range(3):
        await world.pass_time(TTL * 0.7)
        await plane.renew(lease)
        assert await plane.lease(NAME) == lease
    await world.pass_time(TTL * 1.1)
    assert await plane.lease(NAME) is None
    with pytest.raises(Deposed):
        await plane.renew(lease)
    with pytest.raises(Deposed):
        await plane.under(lease.fence()).create(given.worker())
    second = await taken(plane, "b")
    with pytest.raises(Deposed):
        await plane.renew(lease)
    await plane.renew(second)


@everywhere
async def test_a_leader_writes_under_its_term(world: World) -> None:
    plane = controller(world)
    lease = await taken(plane)
    leading = plane.under(lease.fence())
    assert leading.caller == plane.caller
    worker = await leading.create(given.worker())
    worker = await leading.step(worker, given.changed(worker.status, {"retry_count": 1}))
    assert await leading.get(W1) == await plane.get(W1) == worker


def writes(worker: LabWorker) -> dict[str, Callable[[Plane], Awaitable[object]]]:
    found = BulkImport(discovered_instances=(DiscoveredInstance(instance_id="i-9"),), aws_region="us-east-1")
    return {
        "create": lambda plane: plane.create(given.worker(name="w2")),
        "replace": lambda plane: plane.replace(given.worker(lab_track="ccna")),
        "patch": lambda plane: plane.patch(W1, {"spec": {"lab_track": "ccna"}}),
        "delete": lambda plane: plane.delete(W1),
        "apply": lambda plane: plane.apply([{"kind": "WorkerTemplate", **TEMPLATE}]),
        "step": lambda plane: plane.step(worker, given.changed(worker.status, {"retry_count": 1})),
        "report": lambda plane: plane.report(W1, given.telemetry()),
        "import": lambda plane: plane.import_workers(found),
    }


TEMPLATE = {"metadata": {"name": "metal"}, "spec": {"worker": {"aws": {"ami_name_pattern": "CML-*"}}}}


@everywhere
async def test_nothing_is_written_once_the_term_is_over(world: World) -> None:
    plane = controller(world)
    worker = await plane.create(given.worker())
    lease = await taken(plane)
    ghost = plane.under(lease.fence())
    await plane.release(lease)
    await taken(plane, "b")
    revision = await world.revision()
    for name, write in writes(worker).items():
        with pytest.raises(Deposed):
            await write(ghost)
        assert await world.revision() == revision, name
    assert await ghost.get(W1) == worker


@either
async def test_a_fence_of_another_lease_or_term_does_not_serve(world: World) -> None:
    plane = controller(world)
    lease = await taken(plane)
    for fence in (Fence("scheduler", lease.term), Fence(NAME, lease.term + 1), Fence(NAME, 1)):
        with pytest.raises(Deposed):
            await plane.under(fence).create(given.worker())
    await plane.under(Fence("nobody", 3)).under(lease.fence()).create(given.worker())


@either
async def test_only_services_lead(world: World) -> None:
    lease = await taken(controller(world))
    for plane in (world.root, world.ada, world.person("anna")):
        for attempt in (
            plane.acquire("mine", "me", ttl_seconds=TTL),
            plane.renew(lease),
            plane.release(lease),
            plane.lease(NAME),
        ):
            with pytest.raises(Forbidden):
                await attempt
        with pytest.raises(Forbidden):
            await plane.under(lease.fence()).create(given.worker())
    assert await controller(world).lease(NAME) == lease


@either
async def test_a_lease_that_no_engine_could_keep_is_refused(world: World) -> None:
    plane = controller(world)
    for name, holder, ttl_seconds in ((NAME, "a", 1), (NAME, "a", 86_401), (NAME, 513 * "x", TTL), ("!x", "a", TTL)):
        with pytest.raises(Invalid):
            await plane.acquire(name, holder, ttl_seconds=ttl_seconds)


@on_any_wire
async def test_names_of_leases_may_be_paths(world: World) -> None:
    plane = controller(world)
    for name in ("pools/ccna", "a:b", "a%2Fb", "a?b=c", "a.b/../c"):
        lease = await taken(plane, "a", name)
        await plane.renew(lease)
        assert await plane.lease(name) == lease
        await plane.under(lease.fence()).create(given.worker(name=f"w{lease.term}"))
        await plane.release(lease)
        assert await plane.lease(name) is None
