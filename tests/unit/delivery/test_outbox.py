"""The outbox in virtual time: what sinks get, in which order, how often it is tried, and who delivers."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from harness.credentials import given_keys
from harness.event_clients import (
    DAY,
    KEY,
    SOURCE,
    World,
    always,
    delete,
    delivering,
    event,
    happen,
    now_seconds,
    put,
    reveal,
    sink,
    status,
    virtual,
)
from lcm.control.delivery import progress, sinks
from lcm.control.delivery.outbox import LEASE, LEASE_SECONDS, Outbox
from lcm.control.plane.local import ControlPlane
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import LcmError, Refused, Stuck, Throttled, Unreachable
from lcm.sim.time.host import Host
from lcm.sim.time.loop import START, VirtualClock
from lcm.store.base import Op, Put
from lcm.store.memory import MemoryStore


@virtual
async def test_events_arrive_once_and_in_order_when_all_is_well() -> None:
    world = World()
    await put(world.store, sink())
    async with delivering(world.outbox()):
        ids = await happen(world.store, 20)
        await asyncio.sleep(5)
        assert [one.event_id for one in world.receiver.got["a"]] == ids
        assert world.receiver.got["a"][0].at == START
    done = await status(world)
    assert (done.n, done.failures, done.last_success_at) == (0, 0, START)
    assert done.revision == int(ids[-1].split(".")[1])


@virtual
async def test_a_new_sink_gets_what_happens_from_its_making_on() -> None:
    world = World()
    await happen(world.store, 3)
    await put(world.store, sink())
    ids = await happen(world.store, 3)
    async with delivering(world.outbox()):
        await asyncio.sleep(1)
        await put(world.store, sink("b"))
        later = await happen(world.store, 2)
        await asyncio.sleep(1)
    assert world.receiver.ids("a") == ids + later
    assert world.receiver.ids("b") == later


@virtual
async def test_a_sink_gets_what_it_asked_for() -> None:
    world = World()
    await put(world.store, sink("a", event_types=("alert.*",)))
    await put(world.store, sink("b", owner_id="ada"))
    async with delivering(world.outbox()):
        await happen(world.store, 3)
        alert = await happen(world.store, 1, type="alert.raised")
        hers = await happen(world.store, 1, owner="ada")
        await asyncio.sleep(1)
    assert (world.receiver.ids("a"), world.receiver.ids("b")) == (alert, hers)


@virtual
async def test_a_sink_that_is_down_is_tried_again_and_nothing_is_skipped() -> None:
    world, tried = World(), list[float]()

    def down_now(_path: str, _id: str) -> LcmError:
        tried.append(now_seconds())
        return Unreachable("down")

    world.receiver.trouble = down_now
    await put(world.store, sink())
    async with delivering(world.outbox()):
        ids = await happen(world.store, 10)
        await asyncio.sleep(3600)
        down = await status(world)
        world.receiver.trouble = lambda _path, _id: None
        await asyncio.sleep(61)
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert 0.5 <= pauses[0] <= 1 < pauses[2] <= 4 < pauses[4] <= 16
    assert all(30 <= pause <= 60 for pause in pauses[7:])
    assert len(set(pauses[7:])) > 10, "without jitter, all sinks of a receiver come back at once"
    assert len(tried) - 1 <= down.failures <= len(tried)
    assert down.last_error == "down"
    assert world.receiver.ids() == ids


@virtual
async def test_a_receiver_that_says_when_is_not_asked_before() -> None:
    world = World()
    world.receiver.trouble = lambda _path, _id: (
        Throttled("slow down", after=timedelta(seconds=600)) if now_seconds() < 599 else None
    )
    await put(world.store, sink())
    async with delivering(world.outbox()):
        await happen(world.store)
        await asyncio.sleep(599)
        assert world.receiver.asked["a"] == 1
        await asyncio.sleep(2)
        assert len(world.receiver.ids()) == 1


@virtual
async def test_after_a_long_absence_of_ours_a_healthy_sink_still_gets_everything() -> None:
    world = World()
    await put(world.store, sink())
    ids = await happen(world.store, 5)
    await asyncio.sleep(3 * DAY)
    async with delivering(world.outbox()):
        await asyncio.sleep(1)
    assert world.receiver.ids() == ids


@virtual
async def test_a_reader_that_was_cut_off_for_being_slow_loses_nothing() -> None:
    world = World(store=MemoryStore(backlog=3))
    world.receiver.trouble = always(Unreachable("down"))
    await put(world.store, sink())
    async with delivering(world.outbox()):
        ids = await happen(world.store, 40)
        await asyncio.sleep(1)
        world.receiver.trouble = lambda _path, _id: None
        await asyncio.sleep(60)
    assert world.receiver.ids() == ids


@virtual
async def test_one_delivers_at_a_time_and_hands_over_at_once() -> None:
    world = World()
    await put(world.store, sink())
    first, second = world.outbox("first"), world.outbox("second")
    async with delivering(first, second):
        ids = await happen(world.store, 5)
        await asyncio.sleep(2)
        lease = await world.store.lease(LEASE)
        assert lease is not None
        await (first if lease.holder == "first" else second).close()
        ids += await happen(world.store, 5)
        await asyncio.sleep(0.1)
        assert [one.event_id for one in world.receiver.got["a"]] == ids
    assert await world.store.lease(LEASE) is None


@virtual
async def test_a_slow_sink_does_not_hold_up_another() -> None:
    world = World()
    world.receiver.slow_seconds["a"] = 30
    await put(world.store, sink("a"))
    await put(world.store, sink("b"))
    async with delivering(world.outbox()):
        ids = await happen(world.store, 10)
        await asyncio.sleep(1)
        assert (world.receiver.ids("a"), world.receiver.ids("b")) == ([], ids)
        await asyncio.sleep(301)
        assert world.receiver.ids("a") == ids


@virtual
async def test_sinks_are_disabled_enabled_changed_and_deleted_as_it_runs() -> None:
    world = World()
    await put(world.store, sink())
    async with delivering(world.outbox()):
        ids = await happen(world.store, 2)
        await asyncio.sleep(0.1)
        await put(world.store, sink(enabled=False))
        await asyncio.sleep(0.1)
        ids += await happen(world.store, 2)
        await asyncio.sleep(10)
        assert world.receiver.ids() == ids[:2]
        await put(world.store, sink(url="https://hooks.example.org/z"))
        await asyncio.sleep(0.1)
        assert world.receiver.ids("z") == ids[2:]
        await delete(world.store)
        await happen(world.store, 2)
        await asyncio.sleep(10)
        assert world.receiver.ids("z") == ids[2:]
        await put(world.store, sink())
        fresh = await happen(world.store, 2)
        await asyncio.sleep(10)
        assert world.receiver.ids() == ids[:2] + fresh


@virtual
async def test_progress_is_written_in_groups() -> None:
    world = World()
    for name in "abc":
        await put(world.store, sink(name))
    commits = 0

    class Counting(MemoryStore):
        async def commit(self, *ops: Op, **more: Any) -> int:
            nonlocal commits
            commits += any(op.key.startswith("sink-cursors/") for op in ops)
            return await super().commit(*ops, **more)

    world.store = Counting()
    for name in "abc":
        await put(world.store, sink(name))
    async with delivering(world.outbox()):
        for _ in range(10):
            await happen(world.store, 60)
            await asyncio.sleep(1)
    assert len(world.receiver.ids("c")) == 600
    assert commits <= 10 + 3 * 600 / 100 + 3


@virtual
async def test_compaction_waits_for_sinks_but_not_for_ever() -> None:
    world = World(ttl_seconds=900)
    now = VirtualClock().now
    assert await sinks.oldest_needed_revision(world.store, now()) is None
    await put(world.store, sink())
    made = (await world.store.scan("sinks/")).entries[0].created
    assert await sinks.oldest_needed_revision(world.store, now()) == made
    world.receiver.trouble = always(Unreachable("down"))
    async with delivering(world.outbox()):
        await happen(world.store, 3)
        await asyncio.sleep(7200)
        assert await sinks.oldest_needed_revision(world.store, now()) == made
        world.receiver.trouble = lambda _path, _id: None
        await asyncio.sleep(120)
        latest = await world.store.commit(Put("x", b""))
        await asyncio.sleep(DAY + 7200)
        needed = await sinks.oldest_needed_revision(world.store, now())
        assert needed is not None
        assert needed >= latest, "without events, progress goes on too"
        await world.store.compact(needed)
        ids = await happen(world.store, 1)
        await asyncio.sleep(1)
        assert world.receiver.ids()[3:] == ids
    await asyncio.sleep(DAY + 1)
    assert await sinks.oldest_needed_revision(world.store, now()) is None


class Flaky(MemoryStore):
    """A store that does not answer for a while."""

    down = False

    async def _suspend(self) -> None:
        await super()._suspend()
        if self.down:
            raise Unreachable("the store is away")


@virtual
async def test_an_outage_of_the_store_loses_nothing() -> None:
    store = Flaky()
    world = World(store=store)
    await put(store, sink())
    async with delivering(world.outbox()):
        ids = await happen(store, 3)
        for seconds in (1, 4, 20, 300):
            store.down = True
            await asyncio.sleep(seconds)
            store.down = False
            ids += await happen(store, 3)
            await asyncio.sleep(30)
    assert world.receiver.ids() == ids


@virtual
async def test_nobody_delivers_without_time_left_on_the_lease() -> None:
    store = Flaky()
    world = World(store=store)
    world.receiver.trouble = always(Unreachable("down"))
    await put(store, sink())
    async with delivering(world.outbox()):
        await happen(store, 1)
        await asyncio.sleep(100)
        store.down = True
        await asyncio.sleep(LEASE_SECONDS + 1)
        asked = world.receiver.asked["a"]
        await asyncio.sleep(600)
        assert world.receiver.asked["a"] == asked
        store.down = False


@virtual
async def test_a_missing_secret_holds_events_back_and_loses_none() -> None:
    world, there = World(), False

    async def late(ref: str) -> Secret:
        if not there:
            raise Stuck("SecretMissing", f"{ref} is not set")
        return await reveal(ref)

    await put(world.store, sink())
    outbox = Outbox(
        world.store, world.receiver.post, late, clock=VirtualClock(), chance=lambda: 0.5, source=SOURCE, holder="x"
    )
    async with delivering(outbox):
        ids = await happen(world.store, 2)
        await asyncio.sleep(600)
        assert (await status(world)).last_error == "env:KEY is not set"
        there = True
        await asyncio.sleep(60)
    assert world.receiver.ids() == ids


@virtual
async def test_a_sealed_url_is_opened_for_the_delivery_only() -> None:
    world, keys = World(), given_keys()

    async def opened(ref: str) -> Secret:
        return keys.unseal(ref) if ref.startswith("sealed:") else await reveal(ref)

    core = ControlPlane(world.store, clock=VirtualClock(), sealer=keys)
    await core.plane_for(Caller(name="root", role=Role.ADMIN)).create(sink(url="https://hooks.example.org/swordfish"))
    outbox = Outbox(
        world.store, world.receiver.post, opened, clock=VirtualClock(), chance=lambda: 0.5, source=SOURCE, holder="x"
    )
    async with delivering(outbox):
        ids = await happen(world.store, 2)
        await asyncio.sleep(60)
    assert world.receiver.ids("swordfish") == ids
    assert b"swordfish" not in b"".join(entry.value for entry in (await world.store.scan("")).entries)


@virtual
async def test_what_a_receiver_says_does_not_spread_our_secrets() -> None:
    world = World()
    world.receiver.trouble = always(Refused(f"400: bad signature made with {KEY.reveal()}"))
    await put(world.store, sink())
    async with delivering(world.outbox()):
        await happen(world.store, 1)
        await asyncio.sleep(60)
    told = b"".join(entry.value for entry in (await world.store.scan("")).entries)
    assert b"bad signature made with ***" in told
    assert KEY.reveal().encode() not in told


@virtual
async def test_an_event_or_a_sink_that_nobody_can_read_stops_nobody() -> None:
    world = World()
    await put(world.store, sink())
    await world.store.commit(Put("sinks/broken", b"9/9\n{}"), Put("dead-letters/a/broken", b"?"))
    async with delivering(world.outbox()):
        await world.store.commit(events=[b"not json", b"\xff", b"{}", event()])
        await world.store.commit(Put("sinks/worse", b"nonsense"))
        ids = await happen(world.store, 1)
        await asyncio.sleep(5)
    assert world.receiver.ids()[1:] == ids
    assert (await status(world)).dropped == 3


@virtual
async def test_closing_may_come_first_or_twice() -> None:
    world = World()
    outbox = world.outbox()
    await outbox.close()
    await outbox.run()
    other = world.outbox()
    running = asyncio.create_task(other.run())
    await asyncio.sleep(1)
    await other.close()
    await other.close()
    await running


@virtual
async def test_cancelling_hands_over_too() -> None:
    world = World()
    running = asyncio.create_task(world.outbox().run())
    await asyncio.sleep(1)
    assert await world.store.lease(LEASE) is not None
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await world.store.lease(LEASE) is None


@virtual
async def test_a_bug_in_posting_is_not_hidden() -> None:
    world = World()
    await put(world.store, sink())
    await happen(world.store, 1)

    async def broken(_url: str, _body: bytes, _headers: Mapping[str, str]) -> None:
        raise AssertionError("our bug")

    with pytest.raises(BaseExceptionGroup) as caught:
        await world.outbox(post=broken).run()
    assert caught.group_contains(AssertionError)
    assert progress.MAX_LETTERS == 1000


@virtual
async def test_what_was_taken_of_a_commit_is_not_sent_again_after_an_orderly_end() -> None:
    world = World()
    await put(world.store, sink())
    revision = await world.store.commit(events=[event(number) for number in range(4)])
    ids = [f"memory.{revision}.{place}" for place in range(4)]
    world.receiver.trouble = lambda _path, number: Unreachable("away") if number == ids[2] else None
    async with delivering(world.outbox()):
        await asyncio.sleep(5)
    world.receiver.trouble = lambda _path, _id: None
    async with delivering(world.outbox()):
        await asyncio.sleep(5)
    assert [one.event_id for one in world.receiver.got["a"]] == ids


@virtual
async def test_who_slept_through_its_term_sends_nothing() -> None:
    world, sent = World(), list[str]()
    await put(world.store, sink())
    world.receiver.trouble = always(Unreachable("down"))

    async def post(holder: str, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        sent.append(holder)
        await world.receiver.post(url, body, headers)

    hosts = {name: Host(name) for name in ("first", "second")}
    for name, host in hosts.items():
        host.spawn(world.outbox(name, partial(post, name)).run())
        await asyncio.sleep(0.1)
    await happen(world.store, 1)
    await asyncio.sleep(100)
    assert set(sent) == {"first"}
    hosts["first"].pause()
    await asyncio.sleep(300)
    before = sent.count("first")
    hosts["first"].resume()
    await asyncio.sleep(300)
    assert sent.count("first") == before
    assert sent.count("second") > 5
    for host in hosts.values():
        host.kill()
