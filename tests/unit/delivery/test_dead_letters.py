"""The outbox in virtual time: dead letters, their replay, and what a sink is told that lost events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from harness.event_clients import (
    DAY,
    World,
    always,
    delete,
    delivering,
    event,
    happen,
    put,
    sink,
    status,
    virtual,
    writer,
)
from lcm.control.delivery import sinks
from lcm.control.objects.records import CODEC
from lcm.model.base.errors import LcmError, Refused, Unreachable
from lcm.model.kinds.sink import DeadLetter, read_event
from lcm.sim.time.loop import START, run
from lcm.store.base import Delete, Op, Put
from lcm.store.memory import MemoryStore


@virtual
async def test_what_a_sink_refuses_becomes_a_dead_letter_and_the_rest_goes_on() -> None:
    world = World()
    await put(world.store, sink())
    async with delivering(world.outbox()):
        ids = await happen(world.store, 6)
        world.receiver.trouble = lambda _path, number: Refused(f"422 {number}") if number in ids[1:3] else None
        await asyncio.sleep(10)
        assert world.receiver.ids() == [ids[0], *ids[3:]]
        assert world.receiver.asked["a"] == 4 + 2 * 3
    letters = await sinks.list_dead_letters(world.store, "a")
    assert [(one.event_id, one.attempts, one.last_error) for one in letters] == [
        (ids[1], 3, f"422 {ids[1]}"),
        (ids[2], 3, f"422 {ids[2]}"),
    ]
    assert (await status(world)).dead_letters == 2


@virtual
async def test_refusals_are_counted_across_processes() -> None:
    world = World()
    world.receiver.trouble = always(Refused("no"))
    await put(world.store, sink())
    ids = await happen(world.store)
    for _ in range(3):
        async with delivering(world.outbox()):
            await asyncio.sleep(0.1)
    assert [(one.event_id, one.attempts) for one in await sinks.list_dead_letters(world.store, "a")] == [(ids[0], 3)]


@virtual
async def test_what_cannot_be_delivered_for_a_day_becomes_a_dead_letter() -> None:
    world = World(ttl_seconds=900)
    world.receiver.trouble = always(Unreachable("down"))
    await put(world.store, sink())
    async with delivering(world.outbox()):
        old = await happen(world.store, 300)
        await asyncio.sleep(DAY / 2)
        young = await happen(world.store, 5)
        await asyncio.sleep(DAY / 2 + 120)
        letters = await sinks.list_dead_letters(world.store, "a")
        assert {one.event_id for one in letters} == set(old)
        world.receiver.trouble = lambda _path, _id: None
        await asyncio.sleep(61)
        assert world.receiver.ids() == young
    assert world.receiver.asked["a"] < 24 * 60 * 3, "what is too old is not tried one by one"


def test_dead_letters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcm.control.delivery.progress.MAX_LETTERS", 5)

    async def story() -> None:
        world = World()
        world.receiver.trouble = always(Refused("no"))
        await put(world.store, sink())
        async with delivering(world.outbox()):
            ids = await happen(world.store, 8)
            await asyncio.sleep(60)
            assert [one.event_id for one in await sinks.list_dead_letters(world.store, "a")] == ids[3:]
        assert ((await status(world)).dead_letters, (await status(world)).dropped) == (5, 3)

    run(story)


@virtual
async def test_a_dead_letter_too_large_to_keep_is_counted() -> None:
    world = World()
    world.receiver.trouble = always(Refused("no"))
    await put(world.store, sink())
    async with delivering(world.outbox()):
        data = msgspec.Raw(msgspec.json.encode("x" * 300_000))
        await happen(world.store, 1, data=data)
        ids = await happen(world.store, 1)
        await asyncio.sleep(60)
        assert [one.event_id for one in await sinks.list_dead_letters(world.store, "a")] == ids
    assert (await status(world)).dropped == 1


@virtual
async def test_dead_letters_are_replayed_under_their_own_id() -> None:
    world = World()
    world.receiver.trouble = always(Refused("no"))
    await put(world.store, sink())
    async with delivering(world.outbox()):
        ids = await happen(world.store, 4)
        await asyncio.sleep(60)
        world.receiver.trouble = lambda _path, _id: None
        assert await sinks.replay_dead_letters(writer(world.store), "a", ids[2]) == 1
        await asyncio.sleep(1)
        assert world.receiver.ids() == [ids[2]]
        assert await sinks.replay_dead_letters(writer(world.store), "a") == 3
        assert await sinks.replay_dead_letters(writer(world.store), "a") == 0
        await asyncio.sleep(1)
        assert sorted(world.receiver.ids()) == sorted(ids)
        assert await sinks.list_dead_letters(world.store, "a") == []
        with pytest.raises(LcmError, match="no dead letter"):
            await sinks.replay_dead_letters(writer(world.store), "a", ids[0])


@virtual
async def test_a_replay_asked_for_while_nobody_delivers_is_made_later() -> None:
    world = World()
    world.receiver.trouble = always(Refused("no"))
    await put(world.store, sink())
    async with delivering(world.outbox()):
        ids = await happen(world.store, 2)
        await asyncio.sleep(60)
    world.receiver.trouble = lambda _path, _id: None
    await sinks.replay_dead_letters(writer(world.store), "a")
    async with delivering(world.outbox()):
        await asyncio.sleep(1)
    assert sorted(world.receiver.ids()) == sorted(ids)


@virtual
async def test_a_replay_that_fails_stays_a_dead_letter_with_its_newest_error() -> None:
    world = World()
    world.receiver.trouble = always(Refused("no"))
    await put(world.store, sink())
    async with delivering(world.outbox()):
        await happen(world.store, 1)
        await asyncio.sleep(60)
        for error, attempts in ((Refused("still no"), 4), (Unreachable("away"), 7)):
            world.receiver.trouble = always(error)
            await sinks.replay_dead_letters(writer(world.store), "a")
            await asyncio.sleep(600)
            (letter,) = await sinks.list_dead_letters(world.store, "a")
            assert (letter.last_error, letter.attempts, letter.replay) == (str(error), attempts, False)


@virtual
async def test_a_sink_that_history_left_behind_is_told_once_and_goes_on_from_now() -> None:
    world = World()
    await put(world.store, sink())
    async with delivering(world.outbox()):
        first = await happen(world.store, 2)
        await asyncio.sleep(5)
    await happen(world.store, 3)
    revision = await world.store.commit(Put("x", b""))
    await world.store.compact(revision)
    async with delivering(world.outbox()):
        await asyncio.sleep(1)
        later = await happen(world.store, 2)
        await asyncio.sleep(5)
    assert [one.type for one in world.receiver.got["a"]] == ["worker.status.updated"] * 2 + ["reset"] + [
        "worker.status.updated"
    ] * 2
    ids = world.receiver.ids()
    assert (ids[:2], ids[3:]) == (first, later)
    assert ids[2].endswith(".reset")
    done = await status(world)
    assert done.reset == ""
    assert done.last_reset_at is not None


@virtual
async def test_a_sink_is_told_of_a_restore() -> None:
    world = World()
    await put(world.store, sink())
    async with delivering(world.outbox()):
        await happen(world.store, 2)
        await asyncio.sleep(5)
    saved = [Put(entry.key, entry.value) for entry in (await world.store.scan("")).entries]

    async def entries() -> AsyncIterator[Put]:
        for one in saved:
            yield one

    await world.store.load(entries(), epoch="second")
    async with delivering(world.outbox()):
        await asyncio.sleep(1)
        later = await happen(world.store, 2)
        await asyncio.sleep(5)
    assert world.receiver.got["a"][2].type == "reset"
    assert world.receiver.ids()[2:] == ["second.8.reset", *later]


@virtual
async def test_a_reset_that_was_not_told_yet_survives_the_process() -> None:
    world = World()
    await put(world.store, sink())
    await world.store.compact(await world.store.commit(Put("x", b"")))
    world.receiver.trouble = always(Unreachable("down"))
    async with delivering(world.outbox()):
        await asyncio.sleep(10)
    ids = await happen(world.store, 2)
    world.receiver.trouble = lambda _path, _id: None
    async with delivering(world.outbox()):
        await asyncio.sleep(5)
    assert world.receiver.got["a"][0].type == "reset"
    assert world.receiver.ids()[1:] == ids


@virtual
async def test_a_deleted_sink_leaves_nothing_behind() -> None:
    world = World()
    world.receiver.trouble = always(Refused("no"))
    await put(world.store, sink())
    async with delivering(world.outbox()):
        await happen(world.store, 2)
        await asyncio.sleep(60)
    await delete(world.store)
    await world.store.commit(Put("sink-cursors/b", b""), letter("b"))
    async with delivering(world.outbox()):
        await asyncio.sleep(5)
    left = [entry.key for entry in (await world.store.scan("")).entries]
    assert all(key.startswith("audit/") for key in left)


def letter(name: str = "a", number: str = "x") -> Put:
    told = DeadLetter(sink=name, event_id=number, event=read_event(event()), attempts=3, last_error="no", at=START)
    return Put(sinks.dead_letter_key(name, number), CODEC.encode(told))


@virtual
async def test_a_reset_that_is_refused_is_a_dead_letter_too() -> None:
    world = World()
    await put(world.store, sink())
    await world.store.compact(await world.store.commit(Put("x", b"")))
    world.receiver.trouble = lambda _path, number: Refused("no") if number.endswith(".reset") else None
    async with delivering(world.outbox()):
        await asyncio.sleep(10)
        ids = await happen(world.store, 2)
        await asyncio.sleep(10)
    assert world.receiver.ids() == ids
    assert [one.event.type for one in await sinks.list_dead_letters(world.store, "a")] == ["reset"]


class Contended(MemoryStore):
    """A store in which somebody removes a dead letter just before the first replay is asked for."""

    removed = False

    async def commit(self, *ops: Op, **more: Any) -> int:
        if len(ops) > 1 and not self.removed:
            self.removed = True
            await super().commit(Delete(ops[0].key))
        return await super().commit(*ops, **more)


@virtual
async def test_many_dead_letters_are_replayed_though_others_work_on_them() -> None:
    store = Contended()
    for number in range(250):
        await store.commit(letter(number=f"e.{number}.0"))
    assert await sinks.replay_dead_letters(writer(store), "a") == 249
    assert all(one.replay for one in await sinks.list_dead_letters(store, "a"))


@virtual
async def test_a_replay_that_nobody_can_read_stops_nobody() -> None:
    world = World()
    await put(world.store, sink())
    await world.store.commit(Put("dead-letters/a/e.1.0", b'1/1\n{"at": "2026-01-01T00:00:00Z", "replay": true}'))
    async with delivering(world.outbox()):
        ids = await happen(world.store, 2)
        await asyncio.sleep(5)
    assert world.receiver.ids() == ids
