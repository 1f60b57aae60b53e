"""The event stream (SSE): what happens from now on, or since the last event that a client saw, as far as it may see it.

A client that reconnects gets what it missed, by the id it sends. One that is new, or whose past is gone, first gets
a snapshot of its own. Frames are made once, by `control.delivery.feed`.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from lcm.api.http.answers import SSE, Stream
from lcm.api.http.auth import TokenWatch
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, SIGNED_IN, Route
from lcm.api.routes.snapshot import SNAPSHOT_FRAME, find_known, read_snapshot
from lcm.control.delivery.feed import WHOLE_COMMIT, Feed, Position
from lcm.model.access.identity import Caller
from lcm.model.access.learner import can_hear
from lcm.model.base.errors import Fault, Invalid, Later, Relist
from lcm.model.base.event import Event
from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker

HEARTBEAT_SECONDS: Final = 5.0
_ID: Final = re.compile(r"([0-9A-Za-z_-]{1,64})\.([0-9]{1,15})\.([0-9]{1,15})")

_RETRY: Final = b"retry: 2000\n\n"
ALIVE: Final = b": alive\n\n"
"""A comment, which clients hear and do not read."""
_encode: Final = msgspec.json.Encoder().encode
EventId = Annotated[str, Meta(max_length=128)]


class EventFilters(Part):
    """Filters on the events that a caller may see."""

    session_id: EventId = ""
    instance_id: Annotated[EventId, Meta(description="what older clients call session_id")] = ""
    definition_id: EventId = ""
    owner_id: EventId = ""
    worker_id: EventId = ""
    event_types: Annotated[
        str, Meta(max_length=1024, description="types with commas between; worker.* is all that begin so")
    ] = ""


class EventsQuery(EventFilters):
    """Which events to receive. `last_event_id` is for clients that cannot send the header of that name."""

    snapshot: Annotated[bool, Meta(description="send a new client the current state first")] = True
    rows: Annotated[
        bool,
        Meta(description="send the changed object in brief with each event, and such rows as the snapshot, unfiltered"),
    ] = False
    last_event_id: EventId = ""


@dataclass(frozen=True, slots=True)
class EventSubscription:
    """What one client subscribed to, within what it may see."""

    caller: Caller
    session_id: str
    definition_id: str
    owner_id: str
    worker_id: str
    types: frozenset[str]
    families: tuple[str, ...]
    rows: bool = False

    @property
    def is_filtered(self) -> bool:
        """Whether the client asked for less than what it may see."""
        filters = (self.session_id, self.definition_id, self.owner_id, self.worker_id, self.types, self.families)
        return any(filters)

    def wants(self, event: Event) -> bool:
        """Return whether the client should receive an event."""
        return (
            can_hear(self.caller, event)
            and (not self.session_id or event.session_id == self.session_id)
            and (not self.definition_id or event.definition_id == self.definition_id)
            and (not self.owner_id or event.owner == self.owner_id)
            and (not self.worker_id or event.worker_id == self.worker_id)
            and (not (self.types or self.families) or event.type in self.types or event.type.startswith(self.families))
        )

    def wants_object(self, resource: LabWorker | LabletSession) -> bool:
        """Return whether the client should receive an object in its snapshot: one of which it would receive events."""
        uid = resource.metadata.uid
        if isinstance(resource, LabWorker):
            of_sessions = self.session_id or self.definition_id or self.owner_id
            return self._wants_family("worker.") and not of_sessions and self.worker_id in ("", uid)
        status, spec = resource.status, resource.spec
        return (
            self._wants_family("lablet.session.")
            and self.session_id in ("", uid)
            and self.definition_id in ("", spec.definition)
            and self.owner_id in ("", spec.owner)
            and self.worker_id in ("", status.worker_id)
        )

    def _wants_family(self, begin: str) -> bool:
        """Return whether the client receives any events whose type begins so."""
        named = any(one.startswith(begin) for one in self.types)
        return (
            named
            or not (self.types or self.families)
            or any(one.startswith(begin) or begin.startswith(one) for one in self.families)
        )


class RowEvent(Part):
    """An event for a client that asked for rows; `row` is null when an object was removed, or did not change."""

    time: Moment
    kind: str
    name: str
    namespace: str
    data: msgspec.Raw
    row: msgspec.Raw


class Ready(Part):
    """The end of a snapshot of rows: from now on, events tell what changes after this revision."""

    revision: int
    now: Moment


def frame(event: Event, at: Position, epoch: str, rows: bool = False) -> bytes:  # noqa: FBT001, FBT002 - as feeds call it
    """Return an event in the form of a server-sent event, with the row of the changed object if asked for."""
    data = bytes(event.data) if not rows else _encode(_row_event(event))
    return b"%s\nevent: %s\ndata: %s\n\n" % (_id_line(at, epoch), event.type.encode(), data)


def _row_event(event: Event) -> RowEvent:
    return RowEvent(
        time=event.time, kind=event.kind, name=event.name, namespace=event.namespace, data=event.data, row=event.row
    )


async def _stream_events(request: Request) -> Stream:
    query = request.query(EventsQuery)
    brought = request.header("last-event-id") or query.last_event_id
    wanted = subscription_of(request.signed_in, query, rows=query.rows)
    if query.rows and query.snapshot and wanted.is_filtered:
        raise Invalid(Fault("rows", "the snapshot of rows is not filtered", "leave the filters out, or snapshot=false"))
    return Stream(partial(_stream_frames, request, wanted, brought, snapshot=query.snapshot), SSE)


async def _stream_frames(
    request: Request, wanted: EventSubscription, brought: str, *, snapshot: bool
) -> AsyncGenerator[bytes]:
    feed, vigil = request.shared.feed, TokenWatch(request)
    yield _RETRY
    at = parse_event_id(brought, feed.epoch)
    while True:
        begun_at = -1
        if at is None:
            begun = _Beginning(request, b"reset" if brought else b"hello", wanted, snapshot=snapshot)
            async with aclosing(begun.frames()) as beginning:
                async for part in beginning:
                    if not vigil.is_valid():
                        return
                    yield part
            at, begun_at = begun.at, begun.at.revision
        try:
            async with aclosing(feed.follow(wanted, at)) as following:
                async for frames in following:
                    if not vigil.is_valid():
                        return
                    if frames:
                        yield frames
        except Relist:
            # An id that the client brought says nothing about the snapshot that others are given.
            request.shared.snapshots.forget(begun_at)
            brought, at = "gone", None
            continue
        except Later as error:
            request.problem(error)  # not now: the client comes again, with the id that it has
        return


class _Beginning:
    """What a client is sent that is new, or whose past is gone. Events follow from the position `at`."""

    def __init__(self, request: Request, greeting: bytes, wanted: EventSubscription, *, snapshot: bool) -> None:
        self._request = request
        self._greeting = greeting
        self._wanted = wanted
        self._parts = _no_parts if not snapshot else self._read_rows if wanted.rows else self._read_lines
        self.at = Position(request.shared.feed.revision, WHOLE_COMMIT)

    async def frames(self) -> AsyncGenerator[bytes]:
        """Yield a greeting and the snapshot. The last frame has the id: who is cut off before gets everything again."""
        held = b"event: %s\ndata: {}\n\n" % self._greeting
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                if part is ALIVE:
                    yield part
                else:
                    yield held
                    held = part
        yield b"%s\n%s" % (_id_line(self.at, self._request.shared.feed.epoch), held)

    async def _read_lines(self) -> AsyncGenerator[bytes]:
        known, revision = find_known(self._request.shared.core.cache, self._request.shared.feed)
        self.at = Position(revision, WHOLE_COMMIT)
        async for lines in read_snapshot(self._request.plane, known, self._wanted.wants_object):
            yield SNAPSHOT_FRAME % _encode(lines)

    async def _read_rows(self) -> AsyncGenerator[bytes]:
        """Yield the parts of a snapshot of rows, and heartbeats while it is made. Raises Throttled, or as the store."""
        snapshots, caller = self._request.shared.snapshots, self._request.signed_in
        making = snapshots.find(caller)
        while not (await asyncio.wait({making}, timeout=HEARTBEAT_SECONDS))[0]:
            yield ALIVE
        made = making.result()
        del making
        self.at, parts = Position(made.revision, WHOLE_COMMIT), snapshots.frames_for(caller, made)
        del made  # who does not need it while parts are sent does not hold it
        for part in parts:
            yield part
            await asyncio.sleep(0)  # one part for each client in turn
        now = self._request.shared.clock.now()
        yield b"event: ready\ndata: %s\n\n" % _encode(Ready(revision=self.at.revision, now=now))


async def _no_parts() -> AsyncGenerator[bytes]:
    for part in tuple[bytes, ...]():
        yield part


async def send_heartbeats(feed: Feed) -> None:
    """Send every client a heartbeat now and then; this is also when a stream notices that its token is over."""
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        feed.broadcast(ALIVE)


def subscription_of(caller: Caller, query: EventFilters, *, rows: bool = False) -> EventSubscription:
    """Return what a caller asks for, within what it may see."""
    types = [one.strip() for one in query.event_types.split(",") if one.strip()]
    return EventSubscription(
        caller=caller,
        session_id=query.session_id or query.instance_id,
        definition_id=query.definition_id,
        owner_id=query.owner_id,
        worker_id=query.worker_id,
        types=frozenset(one for one in types if not one.endswith("*")),
        families=tuple(one[:-1] for one in types if one.endswith("*")),
        rows=rows,
    )


def parse_event_id(brought: str, epoch: str) -> Position | None:
    """Return the position of an event's id; None for an id of another history, or for something that is no id."""
    found = _ID.fullmatch(brought)
    return Position(int(found[2]), int(found[3])) if found and found[1] == epoch else None


def _id_line(at: Position, epoch: str) -> bytes:
    return b"id: %s.%d.%d" % (epoch.encode(), at.revision, at.place)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/events/stream",
        _stream_events,
        "streamEvents",
        "Follow what happens (SSE); Last-Event-ID resumes where a client was cut",
        policy=SIGNED_IN,
        query=EventsQuery,
        answer=str,
        answer_media=SSE,
        headers=("Last-Event-ID",),
    ),
)
