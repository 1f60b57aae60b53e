"""Sinks: a kind like any other, whose URLs are shown only in part."""

import asyncio

import msgspec
import pytest

from harness.event_clients import World, admin, delete, delivering, happen, put, sink, virtual, writer
from lcm.control.delivery import sinks
from lcm.control.objects.records import SINK_CODEC
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Conflict, Gone, Invalid, NoRoom
from lcm.model.base.resource import Metadata
from lcm.model.kinds.sink import Format, Sink
from lcm.sim.time.loop import START, run
from lcm.store.base import Put
from lcm.store.memory import MemoryStore

A = Ref(Sink, "a")
OLD = b'1/1\n{"name":"a","url":"https://hooks.example.org/a","secret":"env:KEY","created_at":"2026-01-01T00:00:00Z"}'
"""A sink of the first schema."""


@pytest.mark.parametrize(
    ("bad", "paths"),
    [
        (sink(url="http://hooks.example.org/"), ["spec.url"]),
        (sink(url="https://127.0.0.1/"), ["spec.url"]),
        (sink(url="https://{credential}/", credential="env:X"), ["spec.url"]),
        (sink(url="https://{credential}.example.org/", credential="env:X"), ["spec.url"]),
        (sink(url="https://hooks.example.org/{credential}"), ["spec.credential"]),
        (sink(url="https://hooks.example.org/{other}"), ["spec.url"]),
        (sink(format=Format.PAGERDUTY), ["spec.credential"]),
        (sink(secret=None, previous_secret="env:OLD"), ["spec.secret"]),
        (
            sink(url="ftp://x", format=Format.PAGERDUTY, secret=None, previous_secret="env:X"),
            ["spec.url", "spec.credential", "spec.secret"],
        ),
    ],
)
def test_a_sink_that_could_never_work_is_refused_with_every_fault(bad: Sink, paths: list[str]) -> None:
    async def story() -> None:
        store = MemoryStore()
        with pytest.raises(Invalid) as caught:
            await put(store, bad)
        assert [fault.path for fault in caught.value.faults] == paths
        assert not (await store.scan("")).entries

    run(story)


@virtual
async def test_a_credential_may_stand_in_the_path() -> None:
    good = sink(url="https://hooks.example.org/services/{credential}?x={credential}", credential="env:X")
    assert (await put(MemoryStore(), good)).spec.url == good.spec.url


async def stored(store: MemoryStore) -> Sink:
    entry = await store.get("sinks/a")
    assert entry is not None
    return SINK_CODEC.decode(entry.value, Sink)


@virtual
async def test_a_url_is_never_answered_in_full_and_survives_being_sent_back() -> None:
    store = MemoryStore()
    plane = admin(store)
    made = await plane.create(sink())
    shown = "https://hooks.example.org/***"
    listing = await plane.list(Sink)
    watch = plane.watch(Sink, after=listing.revision)
    changed = await plane.replace(msgspec.structs.replace(made, spec=sink(url=shown, enabled=False).spec))
    patched = await plane.patch(A, {"metadata": {"labels": {"team": "ops"}}})
    rehearsed = await plane.patch(A, {"spec": {"event_types": ["alert.*"]}}, dry_run=True)
    seen = [one.resource for _ in range(2) for one in (await anext(watch)).seen]
    every = [made, *listing.items, changed, patched, rehearsed, *seen, await plane.get(A), await plane.delete(A)]
    assert {one.spec.url for one in every if isinstance(one, Sink)} == {shown}
    assert len([one for one in every if one is not None]) == len(every)


@virtual
async def test_the_same_document_changes_nothing() -> None:
    store = MemoryStore()
    document = {"kind": "Sink", "metadata": {"name": "a"}, "spec": msgspec.to_builtins(sink().spec)}
    outcomes = [(await admin(store).apply([document]))[0].outcome for _ in range(2)]
    assert outcomes == ["created", "unchanged"]
    assert (await stored(store)).spec == sink().spec


@virtual
async def test_of_two_who_change_a_sink_one_must_look_again() -> None:
    store = MemoryStore()
    plane, made = admin(store), await put(store, sink())
    await plane.replace(sink(enabled=False), at=made.metadata.resource_version)
    with pytest.raises(Conflict):
        await plane.create(sink())
    with pytest.raises(Conflict):
        await plane.replace(sink(), at=made.metadata.resource_version)
    with pytest.raises(Conflict):
        await plane.delete(A, at=made.metadata.resource_version)


@virtual
async def test_there_is_a_limit_to_their_number() -> None:
    store = MemoryStore()
    for number in range(sinks.MAX_SINKS):
        await put(store, sink(f"s{number}"))
    with pytest.raises(NoRoom):
        await put(store, sink("one-more"))
    await put(store, sink("s7", enabled=False))
    with pytest.raises(Conflict):
        await admin(store).create(sink("s7"))
    assert len((await admin(store).list(Sink)).items) == sinks.MAX_SINKS


@virtual
async def test_a_sink_is_in_no_namespace() -> None:
    elsewhere = msgspec.structs.replace(sink(), metadata=Metadata(name="a", namespace="exams"))
    with pytest.raises(Invalid) as caught:
        await put(MemoryStore(), elsewhere)
    assert [fault.path for fault in caught.value.faults] == ["metadata.namespace"]


@virtual
async def test_a_stored_sink_of_the_first_schema_is_read_changed_and_deleted() -> None:
    store = MemoryStore()
    await store.commit(Put("sinks/a", OLD))
    plane = admin(store)
    found = (await plane.list(Sink)).items[0]
    assert (found.metadata.name, found.metadata.created_at, found.spec.secret) == ("a", START, "env:KEY")
    changed = await plane.patch(A, {"spec": {"enabled": False}})
    assert (changed.metadata.created_at, changed.spec.enabled) == (START, False)
    assert (await stored(store)).spec == sink(enabled=False).spec
    await plane.delete(A)
    assert await plane.get(A) is None


@virtual
async def test_a_stored_sink_of_the_first_schema_is_sent_events_from_where_it_was() -> None:
    world = World()
    await world.store.commit(Put("sinks/a", OLD))
    async with delivering(world.outbox()):
        ids = await happen(world.store, 2)
        await asyncio.sleep(1)
        await admin(world.store).patch(A, {"metadata": {"labels": {"team": "ops"}}})
        ids += await happen(world.store, 2)
        await asyncio.sleep(1)
    assert world.receiver.ids() == ids


@virtual
async def test_what_is_not_there_is_gone() -> None:
    store = MemoryStore()
    with pytest.raises(Gone):
        await delete(store)
    with pytest.raises(Gone):
        await sinks.replay_dead_letters(writer(store), "a", "e.1.0")
    assert await sinks.replay_dead_letters(writer(store), "a") == 0
    assert await sinks.list_dead_letters(store, "a") == []
