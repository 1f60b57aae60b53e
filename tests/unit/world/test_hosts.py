import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextvars import Context
from datetime import timedelta

import pytest

from lcm.model.base.errors import Deposed
from lcm.sim.time.host import HOST, Host
from lcm.sim.time.loop import Deadlock, UnobservedFailure, run
from lcm.store.base import Lease, Put
from lcm.store.memory import MemoryStore


def now() -> float:
    return asyncio.get_running_loop().time()


async def tick(heard: list[float], seconds: float = 1) -> None:
    for _ in range(1000):
        await asyncio.sleep(seconds)
        heard.append(now())


async def hold(store: MemoryStore, name: str) -> Lease:
    for _ in range(100):
        lease = await store.acquire("leader", name, ttl_seconds=15)
        if lease is not None:
            return lease
        await asyncio.sleep(1)
    raise AssertionError("the lease never became free")


async def keep(store: MemoryStore, name: str) -> None:
    lease = await hold(store, name)
    for _ in range(1000):
        await asyncio.sleep(5)
        await store.renew(lease)


def test_a_killed_host_does_nothing_more() -> None:
    heard: list[object] = []

    async def generate() -> AsyncGenerator[int, None]:
        try:
            for number in range(1000):
                yield number
                await asyncio.sleep(1)
        finally:
            heard.append("generator closed")

    async def walk() -> None:
        async for number in generate():
            heard.extend([number])

    async def program() -> None:
        try:
            async with asyncio.TaskGroup() as group, asyncio.timeout(5):
                group.create_task(walk())
                asyncio.get_running_loop().call_later(4, heard.append, "timer")
                await asyncio.Event().wait()
        finally:
            heard.append("finally")
            await asyncio.sleep(1)

    async def main() -> None:
        host = Host("a")
        host.spawn(program())
        await asyncio.sleep(2.5)
        host.kill()
        gc.collect()
        await asyncio.sleep(100)
        gc.collect()
        assert heard == [0, 1, 2]

    run(main)


def test_whatever_a_host_starts_belongs_to_it() -> None:
    async def child() -> Host | None:
        return HOST.get()

    async def program() -> list[Host | None]:
        heard: asyncio.Queue[Host | None] = asyncio.Queue()
        asyncio.get_running_loop().call_later(1, lambda: heard.put_nowait(HOST.get()))
        asyncio.get_running_loop().call_soon(lambda: heard.put_nowait(HOST.get()))
        return [await asyncio.create_task(child()), await heard.get(), await heard.get()]

    async def main() -> None:
        host = Host("a")
        assert await host.spawn(program()) == [host] * 3
        assert HOST.get() is None

    run(main)


def test_what_the_world_began_for_a_host_goes_on_without_it() -> None:
    async def program(heard: list[float]) -> None:
        asyncio.get_running_loop().call_later(5, lambda: heard.append(now()), context=Context())
        await asyncio.sleep(100)

    async def main() -> None:
        heard: list[float] = []
        host = Host("a")
        host.spawn(program(heard))
        await asyncio.sleep(1)
        host.kill()
        await asyncio.sleep(10)
        assert heard == [5]

    run(main)


def test_a_host_killed_before_it_began_never_begins() -> None:
    async def main() -> None:
        heard: list[float] = []
        host = Host("a")
        host.spawn(tick(heard))
        host.kill()
        await asyncio.sleep(10)
        assert heard == []

    run(main)


def test_a_host_may_kill_itself() -> None:
    heard = []

    async def program() -> None:
        try:
            heard.append("alive")
            host = HOST.get()
            assert host is not None
            host.kill()
            await asyncio.sleep(0)
        finally:
            heard.append("finally")

    async def main() -> None:
        host = Host("a")
        host.spawn(program())
        await host.until_dead()
        await asyncio.sleep(1)
        assert heard == ["alive"]

    run(main)


def test_the_dead_start_nothing() -> None:
    async def main() -> None:
        host = Host("a")
        host.kill()
        with pytest.raises(AssertionError, match="a restart is a new host"):
            host.spawn(asyncio.sleep(1))

    run(main)


def test_waiting_for_the_dead_is_a_deadlock() -> None:
    async def main() -> None:
        host = Host("a")
        host.kill_at(1)
        await host.spawn(asyncio.sleep(1))

    with pytest.raises(Deadlock, match=r"test_hosts\.py:\d+ main"):
        run(main)


def test_a_deadlock_tells_which_host_stands_still() -> None:
    async def main() -> None:
        host = Host("a")
        task = host.spawn(tick([]))
        host.pause()
        await task

    with pytest.raises(Deadlock, match=r"<Host a paused after 0 awaits>: .* tick"):
        run(main)


def test_a_failure_on_a_host_that_nobody_looks_at_ends_the_run_in_an_error() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    async def main() -> None:
        Host("a").spawn(fail())
        await asyncio.sleep(1)

    with pytest.raises(UnobservedFailure, match=r"a task of <Host a .* failed.*lost"):
        run(main)


def test_a_failure_that_only_the_dead_could_have_looked_at_is_none() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    async def program() -> None:
        child = asyncio.create_task(fail())
        await asyncio.sleep(1)
        await child

    async def main() -> None:
        host = Host("a")
        host.kill_at(2)
        host.spawn(program())
        await asyncio.sleep(10)

    run(main)


def test_a_generator_of_the_dead_is_not_closed_by_whoever_drops_it() -> None:
    heard = []

    async def generate() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            heard.append("generator closed")

    async def program(box: list[AsyncGenerator[int, None]]) -> None:
        box.append(generate())
        await anext(box[0])

    async def main() -> None:
        box: list[AsyncGenerator[int, None]] = []
        host = Host("a")
        await host.spawn(program(box))
        host.kill()
        box.clear()
        await asyncio.sleep(1)
        assert heard == []

    run(main)


def test_an_end_that_was_planned_but_not_reached_does_not_disturb_the_clean_up() -> None:
    heard: list[float] = []

    async def program() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await tick(heard, 60)

    async def main() -> None:
        host = Host("a")
        host.kill_at(10)
        host.spawn(program())
        await asyncio.sleep(1)

    run(main)
    assert len(heard) == 1000


def test_a_living_host_cleans_up_when_the_program_ends() -> None:
    heard = []

    async def generate() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await asyncio.sleep(1)
            heard.append("generator closed")

    async def program() -> None:
        generator = generate()
        await anext(generator)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            heard.append("finally")

    async def main() -> None:
        Host("a").spawn(program())
        await asyncio.sleep(1)

    run(main)
    assert sorted(heard) == ["finally", "generator closed"]


def test_a_paused_host_goes_on_in_order_while_time_went_by() -> None:
    heard: list[tuple[str, float]] = []

    async def note(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        heard.append((name, now()))

    async def main() -> None:
        host = Host("a")
        for name, seconds in (("third", 3), ("first", 1), ("second", 2), ("late", 12)):
            host.spawn(note(name, seconds))
        await asyncio.sleep(0.5)
        host.pause()
        await asyncio.sleep(9.5)
        assert heard == []
        host.resume()
        await asyncio.sleep(10)
        assert heard == [("first", 10), ("second", 10), ("third", 10), ("late", 12)]

    run(main)


def test_a_host_may_be_paused_again() -> None:
    heard: list[float] = []

    async def main() -> None:
        host = Host("a")
        host.spawn(tick(heard))
        for _ in range(2):
            host.pause_at(host.awaits + 3, for_=timedelta(seconds=10))
            await host.until_stopped()
            await asyncio.sleep(10)
        assert (heard, now()) == ([1, 2, 12, 13, 14], 24)

    run(main)


def test_what_was_cancelled_during_a_pause_does_not_happen() -> None:
    heard: list[str] = []

    async def program() -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(1, heard.append, "timer")

    async def main() -> None:
        host = Host("a")
        timer = await host.spawn(program())
        host.pause()
        await asyncio.sleep(5)
        timer.cancel()
        host.resume()
        await asyncio.sleep(5)
        assert heard == []

    run(main)


def test_a_host_killed_during_a_pause_stays_dead() -> None:
    heard: list[float] = []

    async def main() -> None:
        host = Host("a")
        host.spawn(tick(heard))
        host.pause()
        await asyncio.sleep(5)
        host.kill()
        host.resume()
        await asyncio.sleep(5)
        assert heard == []

    run(main)


def test_a_lease_of_the_dead_passes_on_with_a_higher_term() -> None:
    async def main() -> None:
        store = MemoryStore()
        first, second = Host("first"), Host("second")
        first.spawn(keep(store, "first"))
        await asyncio.sleep(100)
        before = await store.lease("leader")
        first.kill()
        after = await second.spawn(hold(store, "second"))
        assert before is not None
        assert (before.holder, after.holder) == ("first", "second")
        assert after.term > before.term
        assert 110 <= now() <= 116

    run(main)


def test_a_leader_that_wakes_up_too_late_is_fenced_off() -> None:
    async def lead(store: MemoryStore, name: str) -> None:
        lease = await hold(store, name)
        for _ in range(100):
            await asyncio.sleep(5)
            await store.renew(lease)
            await store.commit(Put("leader", name.encode()), fence=lease.fence())

    async def main() -> None:
        store = MemoryStore()
        first, second = Host("first"), Host("second")
        deposed = first.spawn(lead(store, "first"))
        await asyncio.sleep(22)
        first.pause()
        second.spawn(lead(store, "second"))
        await asyncio.sleep(40)
        first.resume()
        with pytest.raises(Deposed):
            await deposed
        entry = await store.get("leader")
        assert entry is not None
        assert entry.value == b"second"
        second.kill()

    run(main)


LAST_WORDS = """
import asyncio, gc, sys
from lcm.sim.time.host import Host
from lcm.sim.time.loop import run

async def linger():
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(3):
            try:
                await asyncio.sleep(0)
            finally:
                await asyncio.sleep(0)

async def numbers():
    try:
        yield 1
        await linger()
    finally:
        await linger()

async def generate():
    try:
        async for number in numbers():
            yield number
    finally:
        await asyncio.sleep(0)

async def break_off():
    async for _ in generate():
        break
    await asyncio.sleep(0)

async def walk():
    async for _ in generate():
        await asyncio.sleep(0)

async def fail():
    raise KeyError("child")

async def program():
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(linger())
            group.create_task(break_off())
            group.create_task(walk())
            await asyncio.gather(linger(), linger())
    finally:
        await linger()

async def main():
    for k in range(1, 21):
        host = Host("a")
        host.kill_at(k)
        host.spawn(program())
        await asyncio.sleep(100)
        host.kill()
    return host

dead = run(main)
if "collect" in sys.argv:
    del dead
    gc.collect()
"""


@pytest.mark.parametrize("argument", ["collect", "exit"])
def test_the_dead_are_silent(argument: str) -> None:
    program = [sys.executable, "-Xdev", "-Werror", "-c", LAST_WORDS, argument]
    done = subprocess.run(program, capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
