"""Two hundred clients of the event stream in a storm: connections cut, restarts, a restore, a compaction, a stall.

Each must end with exactly the events that its caller may see, in order, none lost and none twice, or have been told to
begin anew.
"""

import asyncio
import itertools
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from harness.event_clients import event
from harness.servers import LOOPBACK, free_port
from harness.stores import Arena, etcd_arena, sqlite_arena
from harness.suite import PATIENCE
from lcm.api.http.app import Api
from lcm.api.http.limits import ApiLimits
from lcm.api.openapi.description import DOCUMENTS
from lcm.control.access.tokens import Tokens
from lcm.control.delivery.feed import WHOLE_COMMIT
from lcm.control.plane.local import ControlPlane
from lcm.model.access.identity import Caller, Role
from lcm.model.base.event import Event, decode_event
from lcm.store.backup import restore_backup, write_backup
from lcm.store.base import Store
from lcm.system.clock import SystemClock
from lcm.system.serving import listen, serve

CHAOS = int(os.environ.get("LCM_CHAOS", "1"))
CLIENTS = 200
USERS = 19
EVENTS = 5_200 * CHAOS
BATCH = 40
LIMITS = ApiLimits(requests_per_second=1e9, burst=10**9)
ROOT = Caller(name="root", role=Role.ADMIN)
Where = tuple[str, int, int]
"""Epoch, revision, place."""


class Heard(NamedTuple):
    """What a client was told between two resets: from where on, and which events."""

    start: Where
    events: list[tuple[Where, str]]


class Client:
    """Speaks HTTP over a bare socket, hangs up at random, in the middle of a frame too, and comes back."""

    def __init__(self, port: int, who: str, token: str, chance: random.Random) -> None:
        self._port, self._token, self._chance = port, token, chance
        self.who = who
        self.heard: list[Heard] = []
        self.last = ""
        self.cuts = 0
        self.steady = False

    async def run(self) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._connect()
            self.cuts += 1
            await asyncio.sleep(self._chance.random() * 0.2)

    async def _connect(self) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
        try:
            resume = f"Last-Event-ID: {self.last}\r\n" if self.last else ""
            writer.write(
                f"GET /api/events/stream?snapshot=false HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\n"
                f"{resume}\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 200"):
                await self._read(reader)
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            rest += (await reader.readexactly(size + 2))[:-2]
            if not self.steady and self._chance.random() < 0.02:
                rest = rest[: self._chance.randrange(len(rest) + 1)]
                self._note_all(rest)
                return
            rest = self._note_all(rest)

    def _note_all(self, rest: bytes) -> bytes:
        *frames, rest = rest.split(b"\n\n")
        for frame in frames:
            fields = dict(line.split(": ", 1) for line in frame.decode().split("\n") if not line.startswith(":"))
            if "event" in fields:
                self._note(fields)
        return rest

    def _note(self, fields: dict[str, str]) -> None:
        self.last = fields["id"]
        where = at(self.last)
        if fields["event"] in {"hello", "reset"}:
            self.heard.append(Heard(where, []))
        else:
            self.heard[-1].events.append((where, told_name(fields["data"]).name))


class Told(msgspec.Struct):
    """What is looked at of an event."""

    name: str


told_name = msgspec.json.Decoder(Told).decode


def at(text: str) -> Where:
    epoch, revision, place = text.split(".")
    return epoch, int(revision), int(place)


class Truth:
    """Every event there ever was, read from the store itself before history goes."""

    def __init__(self) -> None:
        self.events: dict[str, list[tuple[Where, Event]]] = {}
        self.read: dict[str, int] = {}
        """Up to which revision of each history."""

    async def learn(self, store: Store) -> None:
        """Read what happened up to an event that is made for it: that none comes for a while means nothing."""
        epoch = store.epoch
        known, after = self.events.setdefault(epoch, []), self.read.get(epoch, 0)
        newest = await store.commit(events=[event(time=SystemClock().now(), data=msgspec.Raw(b'{"name":"w0"}'))])
        async with asyncio.timeout(PATIENCE), store.events(after=after) as reader:
            while after < newest:
                happened = await anext(reader)
                after = happened.revision
                known += [((epoch, after, place), decode_event(raw)) for place, raw in enumerate(happened.events)]
        self.read[epoch] = newest

    def seen_by(self, who: str, start: Where) -> list[tuple[Where, str]]:
        return [
            (where, event.name)
            for where, event in self.events[start[0]]
            if where[1:] > start[1:] and (who == "root" or event.public or event.owner == who)
        ]


class Server:
    """An API on one port over one store, which can be stopped, restored and started again."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.port = free_port()
        self.truth = Truth()

    @asynccontextmanager
    async def up(self) -> AsyncIterator["Server"]:
        clock = SystemClock()
        self.store = await self._arena.open()
        self.core = ControlPlane(self.store, clock=clock)
        self.tokens = Tokens(self.store, clock=clock)
        await self.tokens.start()
        api = Api(self.core, self.tokens, clock=clock, limits=LIMITS)
        stop = asyncio.Event()
        running = asyncio.create_task(api.run())
        serving = asyncio.create_task(serve(api, listen(LOOPBACK, self.port), None, stop))
        try:
            yield self
        finally:
            stop.set()
            await serving
            running.cancel()
            await asyncio.wait([running])
            await self.truth.learn(self.store)
            await self.tokens.close()
            await self.store.close()

    async def restore(self, file: Path, epoch: str) -> None:
        store = await self._arena.open()
        await restore_backup(store, file, epoch=epoch)
        self.truth.read[epoch] = (await store.scan("", limit=1)).revision
        await store.close()


def bookings(numbers: Iterator[int], people: Sequence[str], chance: random.Random) -> list[dict[str, Any]]:
    document = DOCUMENTS["LabletSession"]
    return [
        {
            **document,
            "metadata": {"name": f"s{next(numbers)}"},
            "spec": {**document["spec"], "owner": chance.choice(people)},
        }
        for _ in range(BATCH)
    ]


async def until(holds: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.05)


@pytest.fixture(params=["sqlite", "etcd"])
async def durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Arena]:
    """On etcd closing a reader really takes a while, and events go on meanwhile."""
    if request.param == "sqlite":
        opened = sqlite_arena(tmp_path)
    else:
        opened = etcd_arena(request.getfixturevalue("etcd").endpoint)
    yield opened
    await opened.close()


@pytest.mark.timeout(600 * CHAOS)
async def test_every_client_ends_with_exactly_what_it_may_see(
    durable: Arena, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    numbers, people = itertools.count(), [f"user{number}" for number in range(USERS)]
    server = Server(durable)
    clients: list[Client] = []
    tasks: list[asyncio.Task[None]] = []
    stalled = socket.socket()

    async def flow(share: float) -> None:
        for _ in range(int(EVENTS * share) // BATCH):
            await server.core.plane_for(ROOT).apply(bookings(numbers, people, chance))
            await asyncio.sleep(0)

    async with server.up():
        await server.core.plane_for(ROOT).apply([DOCUMENTS["LabletDefinition"]])
        secrets = {name: (await server.tokens.make(name, Role.USER))[0].reveal() for name in people}
        secrets["root"] = (await server.tokens.make("root", Role.ADMIN))[0].reveal()
        for number in range(CLIENTS):
            who = (*people, "root")[number % (USERS + 1)]
            clients.append(Client(server.port, who, secrets[who], random.Random(f"{seed}-{number}")))
            tasks.append(asyncio.create_task(clients[-1].run()))
        await until(lambda: all(client.heard for client in clients), PATIENCE)
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect((LOOPBACK, server.port))
        stalled.send(
            f"GET /api/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secrets['root']}\r\n\r\n".encode()
        )
        await flow(0.25)
        await write_backup(server.store, tmp_path / "saved", now=SystemClock().now())
    async with server.up():
        await flow(0.25)
        await server.truth.learn(server.store)
        await server.store.compact((await server.store.scan("", limit=1)).revision)
        await flow(0.15)
    await server.restore(tmp_path / "saved", "feed5")
    async with server.up():
        numbers = itertools.count(10**6)
        await flow(0.35)
        await server.truth.learn(server.store)
        for client in clients:
            client.steady = True
        wanted = {who: server.truth.seen_by(who, ("feed5", 0, 0))[-1][0] for who in secrets}
        try:
            await until(lambda: all(at(client.last) == wanted[client.who] for client in clients), PATIENCE)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            stalled.close()
        check(clients, server.truth)
    cuts, resets = sum(client.cuts for client in clients), sum(len(client.heard) - 1 for client in clients)
    told = sum(len(part.events) for client in clients for part in client.heard)
    events = sum(map(len, server.truth.events.values()))
    counted = f"{CLIENTS} clients, {events} events, {told} told, {cuts} cuts, {resets} resets, seed {seed}"
    tell(f"event stream on {type(server.store).__name__}: {counted}")


def check(clients: list[Client], truth: Truth) -> None:
    for client in clients:
        for place, part in enumerate(client.heard):
            wanted = truth.seen_by(client.who, part.start)
            last = place == len(client.heard) - 1
            assert part.start[2] == WHOLE_COMMIT
            assert part.events == (wanted if last else wanted[: len(part.events)]), (client.who, place, part.start)
        assert client.heard[-1].start[0] == "feed5", "told of the restore"
        assert len(client.heard) >= 2
