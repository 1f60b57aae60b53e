"""A deliverer killed at any moment, and a receiver that goes away: every event arrives at least once, in its order."""

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from harness import suite
from harness.event_clients import admin, sink
from harness.http_answers import AnswerServer, Say
from lcm.model.access.secret import Secret
from lcm.model.access.webhook import WebhookPolicy, parse_networks, verify
from lcm.model.base import event as events
from lcm.model.base.event import Event
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.clock import SystemClock

DELIVERER = Path(__file__).with_name("outbox_deliverer.py")
HOME = WebhookPolicy(networks=parse_networks(["127.0.0.0/8"]), plain_http=True)
KEY = "env:KEY"
CLOCK = SystemClock()
KILLS = 2 * suite.TIMES
EVENTS = 150 * KILLS


async def start(path: Path) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(sys.executable, DELIVERER, path, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def happen(store: SqliteStore) -> list[str]:
    ids = []
    for number in range(EVENTS):
        told = Event(
            type="t", time=CLOCK.now(), kind="K", name=f"n{number % 5}", namespace="default", data=msgspec.Raw(b"{}")
        )
        ids.append(f"{store.epoch}.{await store.commit(events=[events.encode_event(told)])}.0")
        await asyncio.sleep(0.01)
    return ids


def taken(server: AnswerServer) -> list[str]:
    return [verify(one.headers, one.body, [Secret(KEY)], now=CLOCK.now()) for one in server.asked]


async def kill_again_and_again(path: Path, server: AnswerServer) -> None:
    chance = random.Random(5)
    for number in range(KILLS):
        server.tell("hook", *[Say(503)] * (number % 3), Say(204))  # each doubles the wait before the next attempt
        deliverer, had = await start(path), len(server.asked)
        while len(server.asked) < had + 10:
            await asyncio.sleep(0.01)
        await asyncio.sleep(chance.uniform(0, 0.5))
        deliverer.kill()
        await deliverer.communicate()


async def test_a_killed_deliverer_loses_nothing(tmp_path: Path, tell: Callable[[str], None]) -> None:
    path = tmp_path / "store.db"
    store = await SqliteStore.open(path)
    async with AnswerServer() as server, asyncio.timeout(300 * suite.TIMES):
        hook = sink("hook", url=f"{server.url}/api/v0/hook", secret=KEY)
        await admin(store, clock=CLOCK, reach=HOME).create(hook)
        happening = asyncio.create_task(happen(store))
        await kill_again_and_again(path, server)
        ids = await happening
        deliverer = await start(path)
        while not set(ids) <= set(taken(server)):
            await asyncio.sleep(0.05)
        deliverer.kill()
        await deliverer.communicate()
        came = taken(server)
    await store.close()
    tell(f"outbox: {KILLS} kills; {len(ids)} events, {len(came)} requests, {len(came) - len(ids)} of them repeated")
    assert list(dict.fromkeys(came)) == ids
