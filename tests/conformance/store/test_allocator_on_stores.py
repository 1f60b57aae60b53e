"""ResourceAllocator keeps its state in the store, on every engine."""

import asyncio

from harness.stores import Arena
from lcm.control.accounts.allocator import ResourceAllocator
from lcm.system.clock import SystemClock


async def opened(arena: Arena) -> ResourceAllocator:
    return await ResourceAllocator.open(8.0, 16, store=await arena.open(), clock=SystemClock())


async def test_allocations_survive_a_restart(arena: Arena) -> None:
    before = await opened(arena)
    allocation = await before.allocate_resources({"cpu": "3", "memory": "6Gi"})
    after = await opened(arena)
    assert after.get_active_allocations() == {allocation["allocation_id"]: allocation}
    assert after.get_resource_usage() == before.get_resource_usage()
    await after.release_resources(allocation)
    assert await before.check_availability({"cpu": "8", "memory": "16Gi"})


async def test_racing_allocators_never_over_allocate(arena: Arena) -> None:
    allocators = [await opened(arena) for _ in range(3)]
    wanted = {"cpu": "1", "memory": "1Gi"}
    results = await asyncio.gather(
        *(allocators[n % 3].allocate_resources(wanted) for n in range(20)), return_exceptions=True
    )
    assert sum(isinstance(result, dict) for result in results) == 8
    assert sum(isinstance(result, ValueError) for result in results) == 12
    fresh = await opened(arena)
    assert fresh.get_resource_usage()["available_cpu"] == 0


async def test_of_two_who_release_one_allocation_one_says_so(arena: Arena) -> None:
    first, second = await opened(arena), await opened(arena)
    allocation = await first.allocate_resources({"cpu": "1", "memory": "1Gi"})
    await asyncio.gather(first.release_resources(allocation), second.release_resources(allocation))
    assert (await opened(arena)).get_active_allocations() == {}
