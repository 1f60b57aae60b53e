"""Sinks as admins make, change and read them."""

from datetime import timedelta

import pytest

from harness.event_clients import sink, writer
from lcm.control.delivery import sinks
from lcm.model.access.webhook import WebhookPolicy
from lcm.model.base.errors import Conflict, Gone, Invalid, NoRoom
from lcm.model.kinds.sink import Format, Sink
from lcm.sim.time.loop import START
from lcm.store.base import ABSENT
from lcm.store.memory import MemoryStore

LATER = START + timedelta(hours=1)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.mark.parametrize(
    ("bad", "paths"),
    [
        (sink(url="http://hooks.example.org/"), ["url"]),
        (sink(url="https://127.0.0.1/"), ["url"]),
        (sink(url="https://{credential}/", credential="env:X"), ["url"]),
        (sink(url="https://{credential}.example.org/", credential="env:X"), ["url"]),
        (sink(url="https://hooks.example.org/{credential}"), ["credential"]),
        (sink(url="https://hooks.example.org/{other}"), ["url"]),
        (sink(format=Format.PAGERDUTY), ["credential"]),
        (sink(secret=None, previous_secret="env:OLD"), ["secret"]),
        (
            sink(url="ftp://x", format=Format.PAGERDUTY, secret=None, previous_secret="env:X"),
            ["url", "credential", "secret"],
        ),
    ],
)
async def test_a_sink_that_could_never_work_is_refused_with_every_fault(
    store: MemoryStore, bad: Sink, paths: list[str]
) -> None:
    with pytest.raises(Invalid) as caught:
        await sinks.put_sink(store, bad, WebhookPolicy(), now=START)
    assert [fault.path for fault in caught.value.faults] == paths
    assert await sinks.list_sinks(store) == []


async def test_a_credential_may_stand_in_the_path(store: MemoryStore) -> None:
    good = sink(url="https://hooks.example.org/services/{credential}?x={credential}", credential="env:X")
    assert (await sinks.put_sink(store, good, WebhookPolicy(), now=START)).sink.url == good.url


async def test_a_sink_keeps_the_moment_of_its_making(store: MemoryStore) -> None:
    made = await sinks.put_sink(store, sink(), WebhookPolicy(), now=START)
    changed = await sinks.put_sink(store, sink(enabled=False), WebhookPolicy(), now=LATER, at=made.resource_version)
    assert (changed.sink.created_at, changed.sink.enabled) == (START, False)
    assert await sinks.find_sink(store, "a") == changed
    assert await sinks.find_sink(store, "b") is None


async def test_of_two_who_change_a_sink_one_must_look_again(store: MemoryStore) -> None:
    made = await sinks.put_sink(store, sink(), WebhookPolicy(), now=START, at=ABSENT)
    await sinks.put_sink(store, sink(enabled=False), WebhookPolicy(), now=START, at=made.resource_version)
    for at in (ABSENT, made.resource_version):
        with pytest.raises(Conflict):
            await sinks.put_sink(store, sink(), WebhookPolicy(), now=START, at=at)
    with pytest.raises(Conflict):
        await sinks.delete_sink(store, "a", at=made.resource_version)


async def test_there_is_a_limit_to_their_number(store: MemoryStore) -> None:
    for number in range(sinks.MAX_SINKS):
        await sinks.put_sink(store, sink(f"s{number}"), WebhookPolicy(), now=START)
    with pytest.raises(NoRoom):
        await sinks.put_sink(store, sink("one-more"), WebhookPolicy(), now=START)
    await sinks.put_sink(store, sink("s7", enabled=False), WebhookPolicy(), now=START)
    assert len(await sinks.list_sinks(store)) == sinks.MAX_SINKS


async def test_what_is_not_there_is_gone(store: MemoryStore) -> None:
    with pytest.raises(Gone):
        await sinks.delete_sink(store, "a")
    with pytest.raises(Gone):
        await sinks.replay_dead_letters(writer(store), "a", "e.1.0")
    assert await sinks.replay_dead_letters(writer(store), "a") == 0
    assert await sinks.list_dead_letters(store, "a") == []
