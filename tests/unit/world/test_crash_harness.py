import asyncio
import itertools
import re
from datetime import timedelta

import pytest

from crash.everywhere import crash_everywhere, pause_everywhere
from lcm.model.base.errors import Conflict
from lcm.store.base import Delete, Fence, Lease, Put, scan_all
from lcm.store.memory import MemoryStore

TTL = timedelta(seconds=15)


async def claims(store: MemoryStore) -> int:
    return len((await scan_all(store, "claims/")).entries)


async def book_at_once(store: MemoryStore) -> None:
    if await store.get("sessions/s1") is None:
        await store.commit(Put("sessions/s1", b""), Put("claims/s1", b""))


async def book_in_two_steps(store: MemoryStore) -> None:
    if await store.get("sessions/s1") is None:
        await store.commit(Put("sessions/s1", b""))
        await store.commit(Put("claims/s1", b""))


async def check_booking(store: MemoryStore) -> None:
    assert await store.get("sessions/s1") is not None
    assert await claims(store) == 1, "a session without its claim"


def test_a_single_commit_survives_a_crash_at_every_await() -> None:
    said: list[str] = []
    awaits = crash_everywhere("booking", MemoryStore, book_at_once, check_booking, report=said.append)
    assert awaits == 4
    assert said == ["crash booking: 4 awaits, 5 runs, 0 failures"]


def test_two_commits_that_should_be_one_are_found_with_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError) as caught:
        crash_everywhere("booking", MemoryStore, book_in_two_steps, check_booking)
    assert capsys.readouterr().out == "crash booking: 6 awaits, 7 runs, 2 failures\n"
    headline, *failures = str(caught.value).splitlines()
    assert headline == "crash booking: 2 of 7 runs failed"
    places = [
        re.search(r"await (\d), .*test_crash_harness\.py:(\d+) book_in_two_steps > .*memory\.py:\d+ commit\b(.*)", f)
        for f in failures
    ]
    first = book_in_two_steps.__code__.co_firstlineno
    assert [place and (place[1], int(place[2]) - first) for place in places] == [("3", 2), ("4", 3)]
    assert all("a session without its claim" in failure for failure in failures)
    assert isinstance(caught.value.__cause__, AssertionError)


async def take(store: MemoryStore) -> Lease:
    for _ in range(100):
        lease = await store.acquire("leader", "somebody", ttl_seconds=15)
        if lease is not None:
            return lease
        await asyncio.sleep(1)
    raise AssertionError("the lease never became free")


async def count_up(store: MemoryStore, fence: Fence | None) -> None:
    """Add the words that are missing; a latecomer would add one twice."""
    words = (await scan_all(store, "words/")).entries
    for number in range(len(words), 3):
        await asyncio.sleep(1)
        latest = (await scan_all(store, "numbers/")).entries
        await store.commit(Put(f"words/{number}", b""), Put(f"numbers/{len(latest)}", b"%d" % number), fence=fence)


async def lead_fenced(store: MemoryStore) -> None:
    lease = await take(store)
    await count_up(store, lease.fence())
    await store.release(lease)


async def lead_unfenced(store: MemoryStore) -> None:
    lease = await take(store)
    await count_up(store, None)
    await store.release(lease)


async def check_numbers(store: MemoryStore) -> None:
    numbers = [entry.value for entry in (await scan_all(store, "numbers/")).entries]
    assert numbers == [b"0", b"1", b"2"]


def test_the_lease_of_the_dead_is_waited_for() -> None:
    crash_everywhere("leader", MemoryStore, lead_fenced, check_numbers, report=str)
    crash_everywhere("leader", MemoryStore, lead_fenced, check_numbers, restart_after=TTL, report=str)


def test_a_fenced_leader_does_no_harm_when_it_wakes_up() -> None:
    said: list[str] = []
    pause_everywhere("leader", MemoryStore, lead_fenced, check_numbers, pause_for=2 * TTL, report=said.append)
    pause_everywhere("leader", MemoryStore, lead_fenced, check_numbers, pause_for=TTL / 5, report=said.append)
    assert said == ["pause leader: 18 awaits, 19 runs, 0 failures"] * 2


def test_a_leader_without_a_fence_is_found_out() -> None:
    with pytest.raises(AssertionError, match=r"await \d+, .*lead_unfenced > .*count_up > .*memory.py:\d+ commit: "):
        pause_everywhere("leader", MemoryStore, lead_unfenced, check_numbers, pause_for=2 * TTL, report=str)


def test_an_error_that_is_not_excused_fails_a_pause() -> None:
    async def body(store: MemoryStore) -> None:
        if await store.get("key") is None:
            await store.commit(Put("key", b"", at=0))

    pause_everywhere("create", MemoryStore, body, lambda _: None, pause_for=TTL, report=str)
    with pytest.raises(AssertionError, match=r"1 of 5 runs failed\n  await 2, .*Conflict"):
        pause_everywhere("create", MemoryStore, body, lambda _: None, pause_for=TTL, excused=(), report=str)


def test_a_restart_that_fails_is_a_failure() -> None:
    async def create(store: MemoryStore) -> None:
        await store.commit(Put("key", b"", at=0))

    with pytest.raises(AssertionError, match=r"2 of 4 runs failed(\n  await [23], .*Conflict.*){2}") as caught:
        crash_everywhere("create", MemoryStore, create, lambda _: None, report=str)
    assert isinstance(caught.value.__cause__, Conflict)


def test_a_restart_that_hangs_is_a_failure() -> None:
    async def mark(store: MemoryStore) -> None:
        if await store.get("mark") is not None:
            await asyncio.Event().wait()
        await store.commit(Put("mark", b""))

    with pytest.raises(AssertionError, match=r"await 3, .*Deadlock"):
        crash_everywhere("mark", MemoryStore, mark, lambda _: None, report=str)


def test_a_restart_that_waits_in_vain_is_cut_off() -> None:
    async def lead_once(store: MemoryStore) -> None:
        if await store.get("led") is None:
            await store.acquire("leader", "somebody", ttl_seconds=3600)
            await store.commit(Put("led", b""))
        for _ in itertools.count():
            if await store.lease("leader") is not None:
                return
            await asyncio.sleep(60)

    hour = timedelta(hours=1)
    crash_everywhere("leader", MemoryStore, lead_once, lambda _: None, report=str)
    with pytest.raises(AssertionError, match=r"await 5, .*LimitExceeded\('virtual time passed its limit"):
        crash_everywhere("leader", MemoryStore, lead_once, lambda _: None, restart_after=hour, report=str)


def test_tasks_started_by_the_program_are_interrupted_too() -> None:
    async def put(store: MemoryStore, name: str) -> None:
        await store.commit(Put(f"claims/{name}", b""))

    async def body(store: MemoryStore) -> None:
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(put(store, name))

    async def world() -> MemoryStore:
        store = MemoryStore()
        await store.commit(Put("claims/zero", b""))
        return store

    async def check(store: MemoryStore) -> None:
        assert await claims(store) == 4

    assert crash_everywhere("children", world, body, check, report=str) == 1 + 3 * 3 + 1


def test_every_run_has_a_world_of_its_own() -> None:
    worlds: list[list[int]] = []

    def world() -> list[int]:
        worlds.append([])
        return worlds[-1]

    async def body(world: list[int]) -> None:
        world.append(1)
        await asyncio.sleep(0)

    crash_everywhere("worlds", world, body, len, report=str)
    assert worlds == [[1], [1, 1], [1, 1]]


def test_a_program_that_fails_undisturbed_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"even the undisturbed run failed: AssertionError\(.*"):
        crash_everywhere("booking", MemoryStore, lead_fenced, check_booking, report=str)


def test_a_program_without_an_await_is_refused() -> None:
    async def body(_: None) -> None:
        pass

    with pytest.raises(AssertionError, match="never awaits"):
        crash_everywhere("nothing", lambda: None, body, lambda _: None, report=str)


@pytest.mark.parametrize("lengths", [[2, 3], [3, 2], [3, 3, 3, 3, 3, 3, 3, 2, 3]])
def test_a_program_that_differs_from_run_to_run_is_refused(lengths: list[int]) -> None:
    turns = itertools.cycle(lengths)

    async def body(_world: None) -> None:
        for _ in range(next(turns)):
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="not deterministic"):
        crash_everywhere("moody", lambda: None, body, lambda _: None, report=str)


async def recover_badly(store: MemoryStore) -> None:
    """Finish in two commits after a crash, and forget in the first that there was one."""
    if await store.get("marker"):
        await store.commit(Delete("marker"))
        await store.commit(Put("done", b""))
    elif not await store.get("started"):
        await store.commit(Put("marker", b""), Put("started", b""))
        await store.commit(Put("done", b""), Delete("marker"))


async def done(store: MemoryStore) -> None:
    assert await store.get("done")


def test_a_recovery_that_cannot_be_interrupted_is_found_by_crashing_twice() -> None:
    told: list[str] = []
    crash_everywhere("recovery", MemoryStore, recover_badly, done, report=told.append)
    with pytest.raises(AssertionError, match=r"await \d+, .*, then await \d+, .*recover_badly"):
        crash_everywhere("recovery", MemoryStore, recover_badly, done, twice=True, report=told.append)
    assert "0 failures" in told[0]
    assert "0 failures" not in told[1]
