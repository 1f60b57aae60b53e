"""The outbox's ledger: what is written when, and by whom it may not be."""

import asyncio
from typing import NamedTuple

import msgspec
import pytest

from harness.event_clients import event, put, sink, virtual
from lcm.control.delivery import sinks
from lcm.control.delivery.progress import DeadLetters, DeliveryProgress
from lcm.control.objects.records import CODEC
from lcm.control.objects.records import SINK_CURSORS as CURSORS
from lcm.model.base.errors import Deposed
from lcm.model.kinds.sink import DeadLetter, SinkStatus, read_event
from lcm.sim.time.loop import START, VirtualClock
from lcm.store.base import Lease, Put
from lcm.store.memory import MemoryStore


class Desk(NamedTuple):
    """A term's ledger and letters, with one sink open."""

    store: MemoryStore
    lease: Lease
    ledger: DeliveryProgress
    letters: DeadLetters


async def desk() -> Desk:
    store = MemoryStore()
    await put(store, sink())
    lease = await store.acquire("x", "me", ttl_seconds=60)
    assert lease is not None
    letters = DeadLetters(store, lease.fence())
    ledger = DeliveryProgress(store, lease.fence(), VirtualClock(), letters)
    await ledger.open_sink("a", (await store.scan("sinks/")).entries[0])
    return Desk(store, lease, ledger, letters)


async def stored(store: MemoryStore) -> SinkStatus:
    return (await sinks.read_statuses(store))["a"]


def letter(number: str = "e.9.0") -> DeadLetter:
    return DeadLetter(sink="a", event_id=number, event=read_event(event()), attempts=3, last_error="no", at=START)


@virtual
async def test_who_was_deposed_writes_nothing() -> None:
    store, lease, ledger, letters = await desk()
    await ledger.add_dead_letter(letter(), n=1)
    entry = await store.get(sinks.dead_letter_key("a", "e.9.0"))
    assert entry is not None
    await store.release(lease)
    before = (await store.scan("")).revision
    ledger.update("a", n=5)
    for write in (
        ledger.save(),
        ledger.add_dead_letter(letter("e.9.1")),
        letters.finish_replay(entry, letter(), taken=True),
    ):
        with pytest.raises(Deposed):
            await write
    await store.commit(Put(f"{CURSORS}orphan", CODEC.encode(ledger["a"])))
    with pytest.raises(Deposed):
        await ledger.remove_all_but({"a"})
    assert (await store.scan("")).revision == before + 1


@virtual
async def test_what_changes_while_it_is_written_is_written_again() -> None:
    store, _, ledger, _ = await desk()
    ledger.update("a", revision=10)
    saving = asyncio.create_task(ledger.save())
    await asyncio.sleep(0)
    ledger.update("a", revision=11)
    await saving
    assert (await stored(store)).revision == 10
    await ledger.save()
    assert (await stored(store)).revision == 11


@virtual
async def test_what_did_not_change_is_not_written() -> None:
    store, _, ledger, _ = await desk()
    await ledger.save()
    revision = (await store.scan("")).revision
    await ledger.save()
    assert (await store.scan("")).revision == revision


@virtual
async def test_a_dead_letter_and_the_progress_past_it_are_one_commit() -> None:
    store, _, ledger, letters = await desk()
    before = (await store.scan("")).revision
    await ledger.add_dead_letter(letter(), revision=9, n=0)
    assert (await store.scan("")).revision == before + 1
    assert (await stored(store)).revision == ledger["a"].revision == 9
    assert letters.event_ids("a") == ["e.9.0"]


@virtual
async def test_a_sink_of_an_old_name_begins_with_its_own_making() -> None:
    store, _, ledger, _ = await desk()
    made = (await store.scan("sinks/")).entries[0]
    for status in (
        SinkStatus(epoch=store.epoch, revision=1, sink=made.created - 1, at=START),
        SinkStatus(epoch=store.epoch, revision=made.created + 5, sink=made.created - 1, at=START),
    ):
        await store.commit(Put(f"{CURSORS}a", CODEC.encode(status)))
        await ledger.open_sink("a", made)
        assert ledger["a"].revision == made.created
    known = msgspec.structs.replace(ledger["a"], revision=made.created + 3)
    await store.commit(Put(f"{CURSORS}a", CODEC.encode(known)))
    await ledger.open_sink("a", made)
    assert ledger["a"].revision == made.created + 3
