"""The store's contract: leases, terms, fencing."""

import asyncio

import pytest

from harness.stores import Arena
from lcm.model.base.errors import Conflict, Deposed, Invalid, TooLarge
from lcm.store.base import ABSENT, LEASES_PREFIX, MAX_LEASE_SECONDS, MAX_OPERATIONS, Fence, Lease, Put, Store

TTL = 2
EXPIRY_SECONDS = 60
"""An engine may be late by a second or two; it is never early."""


async def taken(store: Store, holder: str, name: str = "leader", ttl_seconds: int = 30) -> Lease:
    lease = await store.acquire(name, holder, ttl_seconds=ttl_seconds)
    assert lease is not None
    return lease


async def wait_for(store: Store, holder: str) -> Lease:
    async with asyncio.timeout(EXPIRY_SECONDS):
        while (lease := await store.acquire("leader", holder, ttl_seconds=TTL)) is None:
            await asyncio.sleep(0.05)
    return lease


async def test_a_lease_is_held_by_one(arena: Arena) -> None:
    here, there = await arena.open(), await arena.open()
    lease = await taken(here, "a")
    assert (lease.name, lease.holder, lease.ttl_seconds) == ("leader", "a", 30)
    assert await there.acquire("leader", "b", ttl_seconds=30) is None
    assert await here.acquire("leader", "a", ttl_seconds=30) is None
    assert await there.lease("leader") == lease
    assert await there.lease("nobody") is None


async def test_of_many_campaigners_one_wins(arena: Arena) -> None:
    stores = [await arena.open(), await arena.open()]
    leases = await asyncio.gather(*(stores[n % 2].acquire("leader", str(n), ttl_seconds=30) for n in range(10)))
    assert sum(lease is not None for lease in leases) == 1


async def test_leases_of_different_names_do_not_meet(store: Store) -> None:
    await taken(store, "a", "one")
    await taken(store, "b", "two")


async def test_release_hands_over_at_once_with_a_higher_term(store: Store) -> None:
    first = await taken(store, "a")
    await store.release(first)
    assert await store.lease("leader") is None
    second = await taken(store, "b")
    assert second.term > first.term


async def test_releasing_twice_or_too_late_harms_nobody(store: Store) -> None:
    first = await taken(store, "a")
    await store.release(first)
    await store.release(first)
    second = await taken(store, "b")
    await store.release(first)
    assert await store.lease("leader") == second


async def test_a_lease_runs_out_unless_renewed_and_any_process_may_renew(arena: Arena) -> None:
    here, there = await arena.open(), await arena.open()
    first = await taken(here, "a", ttl_seconds=TTL)
    loop = asyncio.get_running_loop()
    until = loop.time() + TTL * 1.5
    while loop.time() < until:
        await there.renew(first)
        assert await here.lease("leader") == first
        await asyncio.sleep(0.3)
    renewed_at = loop.time()
    await there.renew(first)
    second = await wait_for(there, "b")
    assert loop.time() - renewed_at >= TTL * 0.99
    assert second.term > first.term
    with pytest.raises(Deposed):
        await here.renew(first)
    with pytest.raises(Deposed):
        await here.commit(Put("a", b"late"), fence=first.fence())
    await there.commit(Put("a", b"on time"), fence=second.fence())


async def test_expiry_is_seen_by_watchers_and_fences_at_once(store: Store) -> None:
    lease = await taken(store, "a", ttl_seconds=TTL)
    async with store.watch(LEASES_PREFIX, after=lease.term) as watch, asyncio.timeout(EXPIRY_SECONDS):
        [change] = (await anext(watch)).changes
    assert (change.key, change.entry) == (LEASES_PREFIX + "leader", None)
    with pytest.raises(Deposed):
        await store.commit(Put("a", b""), fence=lease.fence())
    assert await store.lease("leader") is None


async def test_taking_and_releasing_is_seen_by_watchers(store: Store) -> None:
    start = (await store.scan("")).revision
    lease = await taken(store, "a")
    await store.release(lease)
    async with store.watch(LEASES_PREFIX, after=start) as watch, asyncio.timeout(60):
        got, gone = await anext(watch), await anext(watch)
    assert (got.revision, got.changes[0].entry is not None) == (lease.term, True)
    assert (gone.revision, gone.changes[0].entry) == (lease.term + 1, None)


async def test_several_are_renewed_at_once_and_one_that_is_over_harms_no_other(store: Store) -> None:
    over, held = await taken(store, "a", "one"), await taken(store, "a", "two", ttl_seconds=TTL)
    await store.renew(over, held)
    await store.release(over)
    loop = asyncio.get_running_loop()
    until = loop.time() + TTL * 1.5
    while loop.time() < until:
        with pytest.raises(Deposed, match="one"):
            await store.renew(over, held)
        await asyncio.sleep(0.3)
    assert await store.lease("two") == held


async def test_renewing_spends_no_revision(store: Store) -> None:
    lease = await taken(store, "a")
    await store.renew(lease)
    assert await store.commit(Put("a", b"")) == lease.term + 1


async def test_a_commit_is_fenced_by_the_term(store: Store) -> None:
    first = await taken(store, "a")
    await store.commit(Put("a", b"first"), fence=first.fence())
    await store.release(first)
    with pytest.raises(Deposed):
        await store.commit(Put("a", b"ghost"), fence=first.fence())
    second = await taken(store, "b")
    with pytest.raises(Deposed):
        await store.commit(Put("a", b"ghost"), events=[b"ghost"], fence=first.fence())
    await store.commit(Put("a", b"second"), fence=second.fence())
    entry = await store.get("a")
    assert entry is not None
    assert entry.value == b"second"


async def test_a_fence_on_a_lease_nobody_took_is_deposed(store: Store) -> None:
    with pytest.raises(Deposed):
        await store.commit(Put("a", b""), fence=Fence("leader", 7))


async def test_deposed_is_said_before_conflict(store: Store) -> None:
    await store.commit(Put("a", b""))
    lease = await taken(store, "a")
    with pytest.raises(Conflict):
        await store.commit(Put("a", b"", at=ABSENT), fence=lease.fence())
    await store.release(lease)
    with pytest.raises(Deposed):
        await store.commit(Put("a", b"", at=ABSENT), fence=lease.fence())


async def test_the_fence_counts_as_an_operation(store: Store) -> None:
    lease = await taken(store, "a")
    puts = [Put(f"k/{n}", b"", at=ABSENT) for n in range(MAX_OPERATIONS)]
    with pytest.raises(TooLarge):
        await store.commit(*puts, fence=lease.fence())
    await store.commit(*puts[1:], fence=lease.fence())


async def test_a_full_commit_is_fenced(store: Store) -> None:
    lease = await taken(store, "a")
    await store.release(lease)
    puts = [Put(f"k/{n}", b"", at=ABSENT) for n in range(MAX_OPERATIONS - 1)]
    with pytest.raises(Deposed):
        await store.commit(*puts, fence=lease.fence())
    assert (await store.scan("k/")).entries == []


@pytest.mark.parametrize("ttl_seconds", [1, 0, -5, MAX_LEASE_SECONDS + 1, 10**12, 2**70, float("nan")])
async def test_a_lease_shorter_or_longer_than_every_engine_can_keep_is_refused(store: Store, ttl_seconds: int) -> None:
    with pytest.raises(Invalid):
        await store.acquire("leader", "a", ttl_seconds=ttl_seconds)
    assert (await store.scan(LEASES_PREFIX)).entries == []


async def test_the_longest_lease_is_granted(store: Store) -> None:
    assert (await taken(store, "a", ttl_seconds=MAX_LEASE_SECONDS)).ttl_seconds == MAX_LEASE_SECONDS


@pytest.mark.parametrize("holder", ["x" * 513, "é" * 257, "\ud800"])
async def test_a_holder_that_some_engine_could_not_hold_is_refused(store: Store, holder: str) -> None:
    with pytest.raises(Invalid):
        await store.acquire("leader", holder, ttl_seconds=5)


async def test_a_lease_needs_a_name(store: Store) -> None:
    with pytest.raises(Invalid):
        await store.acquire("", "a", ttl_seconds=5)
