"""The sinks: who is sent the events of the system, how each fares, what it did not take, and a test of it.

A sink sees every event, so that only administrators make one. Operators read them, and mend: test and replay. URLs are
answered as far as they may be shown, secrets as references.
"""

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lcm.api.http.answers import Answer, value
from lcm.api.http.request import Request, shaped
from lcm.api.http.routing import DELETE, GET, POST, PUT, Policy, Route
from lcm.api.routes.resources import IF_MATCH
from lcm.api.routes.shapes import DryQuery, EventLine
from lcm.control.delivery import sinks
from lcm.control.delivery.sinks import SinkReport
from lcm.control.plane.wire import Queued, Replayed, ReplayWish, ShownSink
from lcm.model.access.identity import ADMINS, STAFF
from lcm.model.base.errors import Fault, Invalid, Refused
from lcm.model.base.event import Event, SinkTested, data_of, encode
from lcm.model.base.resource import DEFAULT_NAMESPACE, Count, Moment, Part, Text
from lcm.model.kinds.sink import BUILT_IN, TEST, DeadLetter, Sink, event_id, shown_url
from lcm.store.base import ABSENT

MENDERS: Final = Policy(STAFF)
KEEPERS: Final = Policy(ADMINS)
_LONGEST: Final = 200
_UNREADABLE: Final = (ValueError, RecursionError)
"""What base64 and msgspec raise for what they cannot read; their own errors are ValueErrors."""
_FIELDS: Final = Sink.__struct_fields__
_Place = tuple[Moment, Moment, str]
_places: Final = msgspec.json.Decoder(_Place)


class SinkList(msgspec.Struct, frozen=True):
    """All sinks; there are never more than fit into one page, so that `next` is always null."""

    items: tuple[ShownSink, ...]
    next: str | None = None


class DeadLetterQuery(Part):
    """Which dead letters to list."""

    limit: Annotated[int, Meta(ge=1, le=_LONGEST, description="dead letters in a page, at most")] = 50
    cursor: Annotated[str, Meta(min_length=1, max_length=1024, description="`next` of the page before")] | UnsetType = (
        UNSET
    )


class DeadLetterLine(msgspec.Struct, frozen=True):
    """An event that a sink did not take; `at` is when it was given up. With `replay` it waits to be sent once more."""

    event: EventLine
    attempts: Count
    last_error: Text
    at: Moment
    replay: bool


class DeadLetterList(msgspec.Struct, frozen=True):
    """A page of dead letters, oldest first; `next` is null on the last."""

    items: tuple[DeadLetterLine, ...]
    next: str | None


async def _list(request: Request) -> Answer:
    shared = request.shared
    found = await sinks.list_sinks(shared.core.store, shared.house.built_in)
    return value(SinkList(tuple(map(_shown, found))))


async def _get(request: Request) -> Answer:
    return _answer(await _found(request))


async def _create(request: Request) -> Answer:
    query = request.query(DryQuery)
    sent = await _read(request)
    made = await _put(request, sent, ABSENT, dry_run=query.dry_run)
    location = (b"location", f"/api/sinks/{made.sink.name}".encode())
    return _answer(made, 201, () if query.dry_run else (location,))


async def _replace(request: Request) -> Answer:
    query, at, name = request.query(DryQuery), request.at, request.params[0]
    sent = await _read(request, name)
    stored = await _found(request)
    if name.startswith(BUILT_IN):
        raise sinks.read_only(name)
    at = at if at is not None else sent.resource_version or stored.resource_version
    return _answer(await _put(request, sent, at, stored.sink, dry_run=query.dry_run))


async def _delete(request: Request) -> Answer:
    query, at = request.query(DryQuery), request.at
    stored = await _found(request)
    if not query.dry_run:
        note = request.note("delete", Sink.__name__, stored.sink.name)
        await sinks.delete(request.shared.core.store, stored.sink.name, at=at, beside=[note])
    return _answer(stored)


async def _dead_letters(request: Request) -> Answer:
    query = request.query(DeadLetterQuery)
    after = _place_of(query.cursor) if query.cursor else None
    stored = await _found(request)
    letters = await sinks.dead(request.shared.core.store, stored.sink.name)
    left = [one for one in letters if after is None or _place(one) > after]
    page = left[: query.limit]
    cursor = _cursor(page[-1]) if len(left) > len(page) else None
    return value(DeadLetterList(tuple(map(_letter, page)), cursor))


async def _replay(request: Request) -> Answer:
    wish = await request.read(ReplayWish, empty=ReplayWish())
    stored = await _found(request)
    name = stored.sink.name
    note = request.note("replay", Sink.__name__, name)
    count = await sinks.replay(request.shared.core.store, name, *wish.event_ids, beside=[note])
    return value(Replayed(count))


async def _test(request: Request) -> Answer:
    sink, store = (await _found(request)).sink, request.shared.core.store
    if not sink.enabled:
        raise Refused(f"sink {sink.name} is not enabled, so that nothing would be sent to it")
    now = request.shared.clock.now()
    event = Event(
        type=TEST,
        time=now,
        kind=Sink.__name__,
        name=sink.name,
        namespace=DEFAULT_NAMESPACE,
        data=data_of(SinkTested(sink=sink.name, requested_by=request.signed_in.name, timestamp=now)),
    )
    revision = await store.commit(request.note("test", Sink.__name__, sink.name), events=[encode(event)])
    return value(Queued(event_id(store.epoch, revision, 0)), 202)


async def _found(request: Request) -> SinkReport:
    name, shared = request.params[0], request.shared
    found = await sinks.find(shared.core.store, name, shared.house.built_in) if sinks.nameable(name) else None
    if found is None:
        raise sinks.missing(name)
    return found


async def _read(request: Request, name: str | None = None) -> ShownSink:
    """Read a sink; a name that the path says already may be left out, and secrets in clear are sealed at once."""
    document = await request.document()
    if name is not None and isinstance(document, Mapping):
        if document.get("name", name) != name:
            raise Invalid(Fault("name", "differs from the path", f"use {name}, or leave it out"))
        document = {**document, "name": name}
    sealed, faults = request.shared.core.sealing.raw(document, ShownSink)
    return shaped(sealed, ShownSink, faults)


async def _put(
    request: Request, sent: ShownSink, at: int, stored: Sink | None = None, *, dry_run: bool = False
) -> SinkReport:
    shared = request.shared
    sink = shared.core.sealing.kept(stored, Sink(**{name: getattr(sent, name) for name in _FIELDS}))
    note = request.note("update" if stored else "create", Sink.__name__, sink.name)
    return await sinks.put(
        shared.core.store,
        sink,
        shared.house.reach,
        now=shared.clock.now(),
        at=at,
        dry_run=dry_run,
        beside=[note],
    )


def _answer(report: SinkReport, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    answer = value(_shown(report), status)
    answer.headers = ((b"etag", b'"%d"' % report.resource_version), *headers)
    return answer


def _shown(report: SinkReport) -> ShownSink:
    sink = report.sink
    fields: dict[str, Any] = {name: getattr(sink, name) for name in _FIELDS}
    built_in = sink.name.startswith(BUILT_IN)
    fields |= {"url": shown_url(sink.url)} | ({"credential": None} if built_in else {})
    return ShownSink(**fields, resource_version=report.resource_version, built_in=built_in, status=report.status)


def _letter(letter: DeadLetter) -> DeadLetterLine:
    line = EventLine.of(letter.event_id, letter.event)
    return DeadLetterLine(line, letter.attempts, letter.last_error, letter.at, letter.replay)


def _place(letter: DeadLetter) -> _Place:
    return letter.at, letter.event.time, letter.event_id


def _cursor(letter: DeadLetter) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_place(letter))).decode()


def _place_of(cursor: str) -> _Place:
    try:
        place: _Place = _places.decode(base64.b64decode(cursor, b"-_", validate=True))
    except _UNREADABLE as error:
        raise Invalid(Fault("cursor", "not one of ours", "take it from `next` of the page before")) from error
    return place


_ONE: Final = "/api/sinks/{id}"
_WRITING: Final[dict[str, Any]] = {"policy": KEEPERS, "query": DryQuery, "answer": ShownSink}
ROUTES: Final[tuple[Route, ...]] = (
    Route(GET, "/api/sinks", _list, "listSinks", "List who is sent events", policy=MENDERS, answer=SinkList),
    Route(POST, "/api/sinks", _create, "createSink", "Send events to somebody", **_WRITING, body=ShownSink, status=201),
    Route(GET, _ONE, _get, "getSink", "Read a sink and how it fares", policy=MENDERS, answer=ShownSink),
    Route(PUT, _ONE, _replace, "replaceSink", "Replace a sink", **_WRITING, body=ShownSink, headers=(IF_MATCH,)),
    Route(
        DELETE,
        _ONE,
        _delete,
        "deleteSink",
        "Send a sink nothing more, and forget its dead letters",
        **_WRITING,
        headers=(IF_MATCH,),
    ),
    Route(
        GET,
        f"{_ONE}/dead-letters",
        _dead_letters,
        "listDeadLetters",
        "List the events that a sink did not take",
        policy=MENDERS,
        query=DeadLetterQuery,
        answer=DeadLetterList,
    ),
    Route(
        POST,
        f"{_ONE}/dead-letters/replay",
        _replay,
        "replayDeadLetters",
        "Send some or all dead letters once more",
        policy=MENDERS,
        body=ReplayWish,
        body_needed=False,
        answer=Replayed,
    ),
    Route(
        POST,
        f"{_ONE}/test",
        _test,
        "testSink",
        "Send one test event to this sink",
        policy=MENDERS,
        answer=Queued,
        status=202,
    ),
)
