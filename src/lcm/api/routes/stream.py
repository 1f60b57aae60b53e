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
from lcm.control.delivery.feed import WHOLE_COMMIT, Feed, Position
from lcm.control.plane.protocol import LONGEST_PAGE, Plane
from lcm.model.access.identity import PERMISSIONS, SEES_ALL, Caller, Verb
from lcm.model.base.errors import Later, Relist
from lcm.model.base.event import Event
from lcm.model.base.resource import Part
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, coarse_status

HEARTBEAT_SECONDS: Final = 5.0
_ID: Final = re.compile(r"([0-9A-Za-z_-]{1,64})\.([0-9]{1,15})\.([0-9]{1,15})")

_RETRY: Final = b"retry: 2000\n\n"
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
    last_event_id: EventId = ""


@dataclass(frozen=True, slots=True)
class EventSubscription:
    """What one client subscribed to, within what it may see."""

    everything: bool
    name: str
    session_id: str
    definition_id: str
    owner_id: str
    worker_id: str
    types: frozenset[str]
    families: tuple[str, ...]

    def wants(self, event: Event) -> bool:
        """Return whether the client should receive an event."""
        return (
            (self.everything or event.public or (event.owner is not None and event.owner == self.name))
            and (not self.session_id or event.session_id == self.session_id)
            and (not self.definition_id or event.definition_id == self.definition_id)
            and (not self.owner_id or event.owner == self.owner_id)
            and (not self.worker_id or event.worker_id == self.worker_id)
            and (not (self.types or self.families) or event.type in self.types or event.type.startswith(self.families))
        )


class WorkerLine(Part):
    """A worker in a snapshot."""

    worker_id: str
    worker_name: str
    namespace: str
    phase: str
    status: str
    resource_version: int


class SessionLine(Part):
    """A session in a snapshot."""

    session_id: str
    session_name: str
    namespace: str
    state: str
    worker_id: str | None
    resource_version: int


class Snapshot(Part):
    """A part of the current state that the client may see. What a later event says is newer."""

    workers: tuple[WorkerLine, ...] = ()
    sessions: tuple[SessionLine, ...] = ()


def frame(event: Event, at: Position, epoch: str) -> bytes:
    """Return an event in the form of a server-sent event."""
    return b"%s\nevent: %s\ndata: %s\n\n" % (_id_line(at, epoch), event.type.encode(), bytes(event.data))


async def _stream_events(request: Request) -> Stream:
    query = request.query(EventsQuery)
    brought = request.header("last-event-id") or query.last_event_id
    wanted = subscription_of(request.signed_in, query)
    return Stream(partial(_stream_frames, request, wanted, brought, snapshot=query.snapshot), SSE)


async def _stream_frames(
    request: Request, wanted: EventSubscription, brought: str, *, snapshot: bool
) -> AsyncGenerator[bytes]:
    feed, vigil = request.shared.feed, TokenWatch(request)
    yield _RETRY
    at = parse_event_id(brought, feed.epoch)
    while True:
        if at is None:
            at = Position(feed.revision, WHOLE_COMMIT)
            held = b"event: %s\ndata: {}\n\n" % (b"reset" if brought else b"hello")
            if snapshot:
                async for lines in _read_snapshot(request.plane):
                    yield held
                    held = b"event: snapshot\ndata: %s\n\n" % _encode(lines)
            # The last of them has the id: a client that is cut off before gets everything again when it returns.
            yield b"%s\n%s" % (_id_line(at, feed.epoch), held)
        try:
            async with aclosing(feed.follow(wanted, at)) as following:
                async for frames in following:
                    if not vigil.is_valid():
                        return
                    if frames:
                        yield frames
        except Relist:
            brought, at = "gone", None
            continue
        except Later as error:
            request.problem(error)  # not now: the client comes again, with the id that it has
        return


async def send_heartbeats(feed: Feed) -> None:
    """Send every client a heartbeat now and then; this is also when a stream notices that its token is over."""
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        feed.broadcast(b": alive\n\n")


async def _read_snapshot(plane: Plane) -> AsyncGenerator[Snapshot]:
    if plane.caller.role in PERMISSIONS[LabWorker.__name__][Verb.READ]:
        cursor = None
        while True:
            workers = await plane.list(LabWorker, limit=LONGEST_PAGE, cursor=cursor)
            yield Snapshot(workers=tuple(map(_worker_line, workers.items)))
            cursor = workers.next
            if cursor is None:
                break
    cursor = None
    while True:
        sessions = await plane.list(LabletSession, limit=LONGEST_PAGE, cursor=cursor)
        yield Snapshot(sessions=tuple(map(_session_line, sessions.items)))
        cursor = sessions.next
        if cursor is None:
            break


def subscription_of(caller: Caller, query: EventFilters) -> EventSubscription:
    """Return what a caller asks for, within what it may see."""
    types = [one.strip() for one in query.event_types.split(",") if one.strip()]
    return EventSubscription(
        everything=caller.role in SEES_ALL,
        name=caller.name,
        session_id=query.session_id or query.instance_id,
        definition_id=query.definition_id,
        owner_id=query.owner_id,
        worker_id=query.worker_id,
        types=frozenset(one for one in types if not one.endswith("*")),
        families=tuple(one[:-1] for one in types if one.endswith("*")),
    )


def parse_event_id(brought: str, epoch: str) -> Position | None:
    """Return the position of an event's id; None for an id of another history, or for something that is no id."""
    found = _ID.fullmatch(brought)
    return Position(int(found[2]), int(found[3])) if found and found[1] == epoch else None


def _id_line(at: Position, epoch: str) -> bytes:
    return b"id: %s.%d.%d" % (epoch.encode(), at.revision, at.place)


def _worker_line(worker: LabWorker) -> WorkerLine:
    return WorkerLine(
        worker_id=worker.metadata.uid,
        worker_name=worker.metadata.name,
        namespace=worker.metadata.namespace,
        phase=worker.status.phase,
        status=coarse_status(worker.status),
        resource_version=worker.metadata.resource_version,
    )


def _session_line(session: LabletSession) -> SessionLine:
    return SessionLine(
        session_id=session.metadata.uid,
        session_name=session.metadata.name,
        namespace=session.metadata.namespace,
        state=session.status.phase,
        worker_id=session.status.worker_id,
        resource_version=session.metadata.resource_version,
    )


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
