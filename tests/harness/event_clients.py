"""A receiver of webhooks, and a client of the event stream that resumes where it was cut."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, NamedTuple

import httpx
import msgspec

from lcm.control.delivery import sinks
from lcm.control.delivery.outbox import LEASE_SECONDS, Outbox
from lcm.control.delivery.sinks import SinkSettings
from lcm.control.objects.writer import Writer
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.access.webhook import WebhookPolicy, verify
from lcm.model.base import event as events
from lcm.model.base.clock import Clock
from lcm.model.base.errors import LcmError
from lcm.model.base.event import Event
from lcm.model.base.resource import Metadata
from lcm.model.kinds.sink import Sink, SinkSpec, SinkStatus
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import START, VirtualClock, run
from lcm.store.base import Store
from lcm.store.memory import MemoryStore

KEY = Secret("signing-key")
SOURCE = "https://lcm.test"
DAY = 86_400

Story = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Got:
    """One request as it was taken."""

    event_id: str
    type: str
    subject: str
    at: datetime
    body: bytes = field(repr=False)


Trouble = Callable[[str, str], LcmError | None]
"""From a sink's path and an event's id to what goes wrong."""


class Receiver:
    """Takes what is posted to it, each path a sink of its own; suspends on both sides of that, as a network does."""

    def __init__(self) -> None:
        self.got: dict[str, list[Got]] = defaultdict(list)
        self.asked: dict[str, int] = defaultdict(int)
        self.trouble: Trouble = lambda _path, _event_id: None
        self.lost_answer: Trouble = lambda _path, _event_id: None
        self.slow_seconds: dict[str, float] = {}
        self.news = asyncio.Event()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        path = url.rpartition("/")[2]
        await asyncio.sleep(self.slow_seconds.get(path, 0))
        now = VirtualClock().now()
        number = verify(headers, body, [KEY], now=now)
        self.asked[path] += 1
        if (error := self.trouble(path, number)) is not None:
            raise error
        told = json.loads(body)
        self.got[path].append(Got(number, told["type"], told["subject"], now, body))
        self.news.set()
        await asyncio.sleep(0)
        if (error := self.lost_answer(path, number)) is not None:
            raise error

    def ids(self, path: str = "a") -> list[str]:
        """List what was taken, each once, in the order in which it first came."""
        return list(dict.fromkeys(one.event_id for one in self.got[path]))

    async def until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            self.news.clear()
            await self.news.wait()


async def reveal(_ref: str) -> Secret:
    return KEY


def sink(name: str = "a", **fields: Any) -> Sink:
    spec: dict[str, Any] = {"url": f"https://hooks.example.org/{name}", "secret": "env:KEY"} | fields
    return Sink(metadata=Metadata(name=name), spec=SinkSpec(**spec))


def writer(store: Store) -> Writer:
    """Return the writer of an administrator."""
    return Writer(store, VirtualClock(), Caller(name="root", role=Role.ADMIN))


def admin(store: Store, *, clock: Clock | None = None, reach: WebhookPolicy | None = None) -> Plane:
    """Return the plane of an administrator."""
    core = ControlPlane(store, clock=clock or VirtualClock(), sinks=SinkSettings(reach or WebhookPolicy()))
    return core.plane_for(writer(store).caller)


async def put(store: Store, one: Sink) -> Sink:
    """Make a sink, or change the one of its name."""
    plane = admin(store)
    return await (plane.replace(one) if await plane.get(ref_of(one)) else plane.create(one))


async def delete(store: Store, name: str = "a") -> None:
    await admin(store).delete(Ref(Sink, name))


def event(number: int = 0, **fields: Any) -> bytes:
    """Return an event about one of three workers."""
    whole: dict[str, Any] = {
        "type": "worker.status.updated",
        "time": fields.get("time") or VirtualClock().now(),
        "kind": "LabWorker",
        "name": f"w{number % 3}",
        "namespace": "default",
        "data": msgspec.Raw(msgspec.json.encode({"number": number})),
    } | fields
    return events.encode_event(Event(**whole))


async def happen(store: Store, count: int = 1, **fields: Any) -> list[str]:
    """Commit so many events, every third commit with two of them, and name them."""
    ids, number = list[str](), 0
    while number < count:
        several = min(count - number, 2 if number % 3 == 0 else 1)
        batch = [event(number + place, **fields) for place in range(several)]
        revision = await store.commit(events=batch)
        ids += [f"{store.epoch}.{revision}.{place}" for place in range(several)]
        number += several
    return ids


@dataclass
class World:
    """A store and a receiver, which outlive the processes between them."""

    store: Store = field(default_factory=MemoryStore)
    receiver: Receiver = field(default_factory=Receiver)
    expected: list[str] = field(default_factory=list)
    seed: int = 0
    ttl_seconds: int = LEASE_SECONDS

    def outbox(self, holder: str = "outbox", post: Callable[..., Awaitable[None]] | None = None) -> Outbox:
        return Outbox(
            self.store,
            post or self.receiver.post,
            reveal,
            clock=VirtualClock(),
            chance=Chance(self.seed).random,
            source=SOURCE,
            holder=holder,
            ttl_seconds=self.ttl_seconds,
        )

    async def deliver(self, enough: Callable[[], bool]) -> None:
        """Run a process that delivers until that is so, and then ends as it should."""
        outbox = self.outbox()
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.run())
            await self.receiver.until(enough)
            await outbox.close()

    def arrived(self, *paths: str) -> bool:
        return all(set(self.expected) <= set(self.receiver.ids(path)) for path in paths or ("a",))

    def in_order(self, path: str = "a") -> Sequence[str]:
        return [one for one in self.receiver.ids(path) if one in self.expected]


def virtual(story: Story) -> Callable[[], None]:
    @wraps(story)
    def test() -> None:
        run(story)

    return test


@asynccontextmanager
async def delivering(*outboxes: Outbox) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for outbox in outboxes:
            group.create_task(outbox.run())
        yield
        for outbox in outboxes:
            await outbox.close()


async def status(world: World, name: str = "a") -> SinkStatus:
    return (await sinks.read_statuses(world.store))[name]


def always(error: LcmError, *paths: str) -> Callable[[str, str], LcmError | None]:
    return lambda path, _: error if path in (paths or ("a",)) else None


def now_seconds() -> float:
    return (VirtualClock().now() - START).total_seconds()


class Told(NamedTuple):
    """One event as it came over the wire."""

    id: str
    type: str
    data: Any


async def told(lines: AsyncIterator[str]) -> AsyncIterator[Told]:
    """Read events from the lines of a stream."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "event" in fields:
                yield Told(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
            fields = {}


class Listener:
    """Reads the stream for ever, across cuts, and keeps the ids of what it was told since the last reset."""

    def __init__(self, client: httpx.AsyncClient, token: str, **query: str) -> None:
        self._client = client
        self._headers = {"Authorization": f"Bearer {token}"}
        self._query = query
        self.last_id = ""
        self.events: list[Told] = []
        self.notices: list[Told] = []
        self.cuts = 0

    async def run(self) -> None:
        while True:
            with suppress(httpx.TransportError):
                await self._read()
            self.cuts += 1
            await asyncio.sleep(0.02)

    async def _read(self) -> None:
        headers = self._headers | ({"Last-Event-ID": self.last_id} if self.last_id else {})
        async with self._client.stream("GET", "/api/events/stream", params=self._query, headers=headers) as answer:
            if answer.status_code != 200:
                return
            async for one in told(answer.aiter_lines()):
                self._note(one)

    def _note(self, one: Told) -> None:
        if one.id:
            self.last_id = one.id
        if one.type in {"hello", "reset", "snapshot"}:
            self.notices.append(one)
        else:
            self.events.append(one)
