"""The outbox on every engine, over real sockets on the loopback, which configuration allows."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from harness.http_answers import AnswerServer, Asked, Say
from harness.plane_world import ROOT
from harness.stores import Arena
from lcm.control.delivery import sinks
from lcm.control.delivery.outbox import Outbox
from lcm.control.objects.writer import Writer
from lcm.model.access.secret import Secret
from lcm.model.access.webhook import ID_HEADER, WebhookPolicy, parse_networks, verify
from lcm.model.base import event as events
from lcm.model.base.event import Event
from lcm.model.kinds.sink import Sink
from lcm.providers.local.outbound import Outbound
from lcm.store.backup import restore_backup, write_backup
from lcm.store.base import Store
from lcm.system.clock import SystemClock

HOME = WebhookPolicy(networks=parse_networks(["127.0.0.0/8"]), plain_http=True)
KEY = Secret("whsec_c2lnbmluZy1rZXk=")
CLOCK = SystemClock()
SOON_SECONDS = 60


async def reveal(_ref: str) -> Secret:
    return KEY


@asynccontextmanager
async def delivering(store: Store) -> AsyncIterator[Outbox]:
    outbound = Outbound(HOME)
    outbox = Outbox(
        store, outbound.post, reveal, clock=CLOCK, chance=lambda: 0.99, source="https://lcm.test", ttl_seconds=2
    )
    running = asyncio.create_task(outbox.run())
    try:
        yield outbox
    finally:
        await outbox.close()
        await running
        await outbound.close()


async def happen(store: Store, count: int) -> list[str]:
    ids = []
    for number in range(count):
        data = msgspec.Raw(b"{}")
        told = Event(type="t", time=CLOCK.now(), kind="K", name=f"n{number}", namespace="default", data=data)
        revision = await store.commit(events=[events.encode_event(told)])
        ids.append(f"{store.epoch}.{revision}.0")
    return ids


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def taken(server: AnswerServer) -> list[str]:
    """List the ids that came, each once, after a look at every signature."""
    return list(dict.fromkeys(verified(one) for one in server.asked))


def verified(asked: Asked) -> str:
    return verify(asked.headers, asked.body, [KEY], now=CLOCK.now())


@pytest.fixture
async def server() -> AsyncIterator[AnswerServer]:
    async with AnswerServer() as server:
        server.tell("hook", Say(204))
        yield server


@pytest.fixture
async def opened(arena: Arena, server: AnswerServer) -> Store:
    store = await arena.open()
    sink = Sink(name="hook", url=f"{server.url}/api/v0/hook", secret="env:KEY")
    await sinks.put_sink(store, sink, HOME, now=CLOCK.now())
    return store


async def test_events_arrive_signed_and_in_order_across_clients(
    arena: Arena, opened: Store, server: AnswerServer
) -> None:
    async with delivering(opened):
        ids = await happen(opened, 20)
        await until(lambda: len(taken(server)) == 20)
        other = await arena.open()
        async with delivering(other):
            ids += await happen(other, 20)
            await until(lambda: len(taken(server)) == 40)
    assert [one.headers[ID_HEADER] for one in server.asked] == ids
    report = await sinks.find_sink(opened, "hook")
    assert report is not None
    assert report.status is not None
    assert report.status.revision == int(ids[-1].split(".")[1])


async def test_another_takes_over_when_one_ends(arena: Arena, opened: Store, server: AnswerServer) -> None:
    async with delivering(await arena.open()):
        async with delivering(opened):
            ids = await happen(opened, 3)
            await until(lambda: len(taken(server)) == 3)
        ids += await happen(opened, 3)
        await until(lambda: len(taken(server)) == 6)
    assert taken(server) == ids


async def test_what_is_refused_can_be_replayed(opened: Store, server: AnswerServer) -> None:
    server.tell("hook", Say(404), Say(404), Say(404), Say(204))
    async with delivering(opened):
        ids = await happen(opened, 3)
        await until(lambda: len(taken(server)) == 3)
        await until(lambda: len(server.asked) == 5)
        (letter,) = await sinks.list_dead_letters(opened, "hook")
        assert letter.event_id == ids[0]
        assert "404" in letter.last_error
        await sinks.replay_dead_letters(Writer(opened, CLOCK, ROOT), "hook")
        await until(lambda: len(server.asked) == 6)
        assert verified(server.asked[-1]) == ids[0]


async def test_history_that_is_gone_is_told(opened: Store, server: AnswerServer) -> None:
    async with delivering(opened):
        await happen(opened, 2)
        await until(lambda: len(taken(server)) == 2)
    await happen(opened, 2)
    await opened.compact((await opened.scan("sinks/")).revision)
    async with delivering(opened):
        await until(lambda: len(taken(server)) == 3)
        ids = await happen(opened, 2)
        await until(lambda: len(taken(server)) == 5)
    assert taken(server)[2].endswith(".reset")
    assert taken(server)[3:] == ids


async def test_a_restore_is_told(opened: Store, server: AnswerServer, tmp_path: Path) -> None:
    async with delivering(opened):
        await happen(opened, 2)
        await until(lambda: len(taken(server)) == 2)
    await write_backup(opened, tmp_path / "backup", now=CLOCK.now())
    await restore_backup(opened, tmp_path / "backup", epoch="second")
    async with delivering(opened):
        await until(lambda: len(taken(server)) == 3)
        ids = await happen(opened, 2)
        await until(lambda: len(taken(server)) == 5)
    assert taken(server)[2].endswith(".reset")
    assert taken(server)[3:] == ids
    assert ids[0].startswith("second.")


async def test_a_sink_to_which_nobody_delivered_before_a_restore_gets_what_comes_after(
    opened: Store, server: AnswerServer, tmp_path: Path
) -> None:
    await write_backup(opened, tmp_path / "backup", now=CLOCK.now())
    await restore_backup(opened, tmp_path / "backup", epoch="second")
    async with delivering(opened), asyncio.timeout(SOON_SECONDS):
        sent = list[str]()
        while not set(sent) & set(taken(server)):
            sent += await happen(opened, 1)
            await asyncio.sleep(0.1)
