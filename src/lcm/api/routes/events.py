"""What happened lately: a page of the events that the caller may see, by the same rule as the stream's.

The newest ones, or those after an event that is known already. Both read the store's own history, and only so much of
it for one request.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from lcm.api.http.answers import NDJSON, Answer, Stream, value
from lcm.api.http.auth import Vigil
from lcm.api.http.problems import told
from lcm.api.http.request import Request, epoch_header
from lcm.api.http.routing import GET, SIGNED_IN, Route
from lcm.api.routes.shapes import EventLine, EventPage, ObjectSeen, WatchLine, WatchQuery
from lcm.api.routes.stream import EventFilters, EventId, Wanted, position_of, wanted_by
from lcm.control.delivery.feed import WHOLE, Position
from lcm.control.delivery.sinks import CURSORS
from lcm.control.plane.protocol import Changes
from lcm.control.plane.wire import LIFE_SECONDS
from lcm.model.access.identity import PERMITTED, Caller, Verb
from lcm.model.base.errors import Fault, Forbidden, Invalid, LcmError, Relist
from lcm.model.base.event import decode
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.sink import event_id
from lcm.store.base import EVENTS_KEY, Cursor, Happened, Store

SPANS: Final = (500, 5_000)
"""How many revisions are looked through for the newest events: as many as it takes, and then no more."""


class RecentQuery(EventFilters):
    """Which events to list: the newest ones, or the first ones after an event."""

    after: Annotated[EventId, Meta(description="an event's id; 410 when what followed it is not known any more")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="events in a page, at most")] = 100


class _Read(NamedTuple):
    """What was found, and after which event to go on."""

    found: list[EventLine]
    last: Position


async def _recent(request: Request) -> Answer:
    query = request.query(RecentQuery)
    wanted, store = wanted_by(request.signed_in, query), request.shared.core.store
    page = await store.scan(EVENTS_KEY, limit=1)
    newest = page.entries[0].revision if page.entries else 0
    if query.after:
        after = position_of(query.after, store.epoch)
        if after is None or after.revision > page.revision:
            raise Relist("that event is of another history; list the newest ones")
        read = await _following(store, wanted, after, newest, query.limit)
    else:
        read = _Read(await _newest(store, wanted, newest, query.limit), Position(page.revision, WHOLE))
    more = read.last < (newest, WHOLE)
    return value(EventPage(tuple(read.found), event_id(store.epoch, *read.last), more))


async def _newest(store: Store, wanted: Wanted, newest: int, limit: int) -> list[EventLine]:
    found: deque[EventLine] = deque(maxlen=limit)
    for span in SPANS:
        found.clear()
        begin = await _readable(store, max(0, newest - span), newest)
        async with store.events(after=begin) as reader:
            while begin < newest:
                happened = await anext(reader)
                begin = happened.revision
                found.extend(_lines(store, wanted, happened))
        if len(found) == limit:
            break
    return list(found)


async def _following(store: Store, wanted: Wanted, after: Position, newest: int, limit: int) -> _Read:
    found = list[EventLine]()
    begin = after.revision if after.place >= WHOLE else max(0, after.revision - 1)
    revision, most = begin, begin + SPANS[-1]
    async with store.events(after=begin) as reader:
        while revision < min(newest, most):
            happened = await anext(reader)
            revision = happened.revision
            for place, line in enumerate(_lines_or_none(store, wanted, happened)):
                if line is not None and (revision, place) > after:
                    found.append(line)
                    after = Position(revision, place)
                if len(found) == limit:
                    return _Read(found, after)
            after = Position(revision, WHOLE)
    return _Read(found, after)


async def _readable(store: Store, low: int, high: int) -> int:
    """Find the first revision from which history can still be read."""
    if await _is_readable(store, low):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if await _is_readable(store, middle) else (middle, high)
    return high


async def _is_readable(store: Store, revision: int) -> bool:
    try:
        await store.scan(CURSORS, limit=1, cursor=Cursor(revision, CURSORS))
    except Relist:
        return False
    return True


def _lines(store: Store, wanted: Wanted, happened: Happened) -> list[EventLine]:
    return [line for line in _lines_or_none(store, wanted, happened) if line is not None]


def _lines_or_none(store: Store, wanted: Wanted, happened: Happened) -> list[EventLine | None]:
    events = [decode(raw) for raw in happened.events]
    return [
        EventLine.of(event_id(store.epoch, happened.revision, place), event) if wanted.wants(event) else None
        for place, event in enumerate(events)
    ]


EVENT_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/events",
        _recent,
        "listEvents",
        "List what happened lately",
        policy=SIGNED_IN,
        query=RecentQuery,
        answer=EventPage,
        also=(410,),
    ),
)


_encode: Final = msgspec.json.Encoder().encode


async def _watch(request: Request) -> Stream:
    query = request.query(WatchQuery)
    kinds = _kinds(request.signed_in, query.kinds)
    return Stream(partial(_watch_lines, request, kinds, query.after), NDJSON, (epoch_header(request),))


def _kinds(caller: Caller, text: str) -> list[type[Resource]]:
    names = text.split(",")
    strange = [name for name in names if name not in KINDS]
    if strange:
        remedy = f"use some of {', '.join(KINDS)}, with commas between"
        raise Invalid(*(Fault("kinds", f"{name!r} is no kind", remedy) for name in strange))
    for name in names:
        if caller.role not in PERMITTED[name][Verb.READ]:
            raise Forbidden(f"a caller of role {caller.role} may not {Verb.READ} {name} objects")
    return [KINDS[name].struct for name in dict.fromkeys(names)]


async def _watch_lines(request: Request, kinds: list[type[Resource]], after: int) -> AsyncGenerator[bytes]:
    vigil = Vigil(request)
    async with request.plane.watch(*kinds, after=after) as watch:
        coming = asyncio.ensure_future(anext(watch))
        try:
            while True:
                await asyncio.wait({coming}, timeout=LIFE_SECONDS)
                vigil.check()
                if not coming.done():
                    yield _line(WatchLine(after, ()))
                    continue
                changes = coming.result()
                after = changes.revision
                yield _line(_written(changes))
                coming = asyncio.ensure_future(anext(watch))
        except LcmError as error:
            yield _line({"problem": told(error)})
        finally:
            coming.cancel()
            await asyncio.wait({coming})


def _written(changes: Changes) -> WatchLine:
    seen = [(one.ref, one.resource) for one in changes.seen]
    return WatchLine(
        changes.revision,
        tuple(ObjectSeen(ref.kind.__name__, ref.namespace, ref.name, resource) for ref, resource in seen),
    )


def _line(content: object) -> bytes:
    return _encode(content) + b"\n"


WATCH_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/watch",
        _watch,
        "watch",
        "Follow changes, a line of JSON each",
        policy=SIGNED_IN,
        query=WatchQuery,
        answer=WatchLine,
        answer_media=NDJSON,
    ),
)
