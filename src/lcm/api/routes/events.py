"""Recent events, and the watch on objects.

The event list is a page of the newest events, or of those after a known event, by the same visibility rule as the
stream; one request reads a limited part of the store's history. The watch sends a line of JSON for every commit that
touches the wanted kinds, as far as the caller may see it. An empty line is a keep-alive, and the stream ends when
the caller's token does, which is checked before every line.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from lcm.api.http.answers import NDJSON, Answer, Stream, json_answer
from lcm.api.http.auth import TokenWatch
from lcm.api.http.request import Request, epoch_header
from lcm.api.http.routing import GET, SIGNED_IN, Route
from lcm.api.routes.shapes import EventLine, EventPage, ObjectSeen, WatchLine, WatchQuery
from lcm.api.routes.stream import EventFilters, EventId, EventSubscription, parse_event_id, subscription_of
from lcm.control.delivery.feed import WHOLE_COMMIT, Position
from lcm.control.objects.records import SINK_CURSORS
from lcm.control.plane.protocol import Changes
from lcm.control.plane.wire import KEEPALIVE_SECONDS
from lcm.model.access.identity import PERMISSIONS, Caller, Verb
from lcm.model.base.errors import Fault, Forbidden, Invalid, LcmError, Relist
from lcm.model.base.event import decode_event
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.sink import format_event_id
from lcm.store.base import EVENTS_KEY, CommitEvents, Cursor, Store
from lcm.system.tasks import TimeSlice

SPANS: Final = (500, 5_000)
"""How many revisions are searched for the newest events: the first span if that is enough, else the second."""


class RecentQuery(EventFilters):
    """Which events to list: the newest ones, or the first ones after an event."""

    after: Annotated[EventId, Meta(description="an event's id; 410 when what followed it is not known any more")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="events in a page, at most")] = 100


async def _list_events(request: Request) -> Answer:
    query = request.query(RecentQuery)
    wanted, store = subscription_of(request.signed_in, query), request.shared.core.store
    page = await store.scan(EVENTS_KEY, limit=1)
    newest = page.entries[0].revision if page.entries else 0
    if query.after:
        after = parse_event_id(query.after, store.epoch)
        if after is None or after.revision > page.revision:
            raise Relist("that event is of another history; list the newest ones")
        found, last = await _events_after(store, wanted, after, newest, query.limit)
    else:
        found = await _newest_events(store, wanted, newest, query.limit)
        last = Position(page.revision, WHOLE_COMMIT)
    more = last < (newest, WHOLE_COMMIT)
    return json_answer(EventPage(tuple(found), format_event_id(store.epoch, *last), more))


async def _newest_events(store: Store, wanted: EventSubscription, newest: int, limit: int) -> list[EventLine]:
    found: deque[EventLine] = deque(maxlen=limit)
    time_slice = TimeSlice()
    for span in SPANS:
        found.clear()
        begin = await _first_readable(store, max(0, newest - span), newest)
        async with store.events(after=begin) as reader:
            while begin < newest:
                happened = await anext(reader)
                begin = happened.revision
                await time_slice.yield_if_over()
                lines = _event_lines_or_none(store, wanted, happened)
                found.extend(line for line in lines if line is not None)
        if len(found) == limit:
            break
    return list(found)


async def _events_after(
    store: Store, wanted: EventSubscription, after: Position, newest: int, limit: int
) -> tuple[list[EventLine], Position]:
    """Return the events that were found, and the position after which to go on."""
    found, time_slice = list[EventLine](), TimeSlice()
    begin = after.revision if after.place >= WHOLE_COMMIT else max(0, after.revision - 1)
    revision, most = begin, begin + SPANS[-1]
    async with store.events(after=begin) as reader:
        while revision < min(newest, most):
            happened = await anext(reader)
            revision = happened.revision
            await time_slice.yield_if_over()
            for place, line in enumerate(_event_lines_or_none(store, wanted, happened)):
                if line is not None and (revision, place) > after:
                    found.append(line)
                    after = Position(revision, place)
                if len(found) == limit:
                    return found, after
            after = Position(revision, WHOLE_COMMIT)
    return found, after


async def _first_readable(store: Store, low: int, high: int) -> int:
    """Return the first revision from which history can still be read."""
    if await _is_readable(store, low):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if await _is_readable(store, middle) else (middle, high)
    return high


async def _is_readable(store: Store, revision: int) -> bool:
    try:
        await store.scan(SINK_CURSORS, limit=1, cursor=Cursor(revision, SINK_CURSORS))
    except Relist:
        return False
    return True


def _event_lines_or_none(store: Store, wanted: EventSubscription, happened: CommitEvents) -> list[EventLine | None]:
    return [
        EventLine.of(format_event_id(store.epoch, happened.revision, place), event) if wanted.wants(event) else None
        for place, event in enumerate(map(decode_event, happened.events))
    ]


EVENT_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/events",
        _list_events,
        "listEvents",
        "List recent events",
        policy=SIGNED_IN,
        query=RecentQuery,
        answer=EventPage,
        also=(410,),
    ),
)


_encode: Final = msgspec.json.Encoder().encode


async def _watch_objects(request: Request) -> Stream:
    query = request.query(WatchQuery)
    kinds = _kinds_to_watch(request.signed_in, query.kinds)
    return Stream(partial(_watch_lines, request, kinds, query.after), NDJSON, (epoch_header(request),))


def _kinds_to_watch(caller: Caller, text: str) -> list[type[Resource]]:
    names = text.split(",")
    strange = [name for name in names if name not in KINDS]
    if strange:
        remedy = f"use some of {', '.join(KINDS)}, with commas between"
        raise Invalid(*(Fault("kinds", f"{name!r} is no kind", remedy) for name in strange))
    for name in names:
        if caller.role not in PERMISSIONS[name][Verb.READ]:
            raise Forbidden(f"a caller of role {caller.role} may not {Verb.READ} {name} objects")
    return [KINDS[name].struct for name in dict.fromkeys(names)]


async def _watch_lines(request: Request, kinds: list[type[Resource]], after: int) -> AsyncGenerator[bytes]:
    vigil = TokenWatch(request)
    async with request.plane.watch(*kinds, after=after) as watch:
        coming = asyncio.ensure_future(anext(watch))
        try:
            while True:
                await asyncio.wait({coming}, timeout=KEEPALIVE_SECONDS)
                vigil.check()
                if not coming.done():
                    yield _encode_line(WatchLine(after, ()))
                    continue
                changes = coming.result()
                after = changes.revision
                yield _encode_line(_watch_line(changes))
                coming = asyncio.ensure_future(anext(watch))
        except LcmError as error:
            yield _encode_line({"problem": request.problem(error)})
        finally:
            coming.cancel()
            await asyncio.wait({coming})


def _watch_line(changes: Changes) -> WatchLine:
    seen = [(one.ref, one.resource) for one in changes.seen]
    lines = [ObjectSeen(ref.kind.__name__, ref.namespace, ref.name, resource) for ref, resource in seen]
    return WatchLine(changes.revision, tuple(lines))


def _encode_line(content: object) -> bytes:
    return _encode(content) + b"\n"


WATCH_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/watch",
        _watch_objects,
        "watch",
        "Follow changes, a line of JSON each",
        policy=SIGNED_IN,
        query=WatchQuery,
        answer=WatchLine,
        answer_media=NDJSON,
    ),
)
