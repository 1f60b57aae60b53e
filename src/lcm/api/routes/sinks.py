"""Event sinks: where events are sent, how delivery fares, dead letters, and a test.

A sink sees every event, so only administrators create one. Operators read, test and replay. URLs are answered as far
as they may be shown, secrets as references.
"""

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lcm.api.http.answers import Answer, json_answer
from lcm.api.http.request import Request, convert_document
from lcm.api.http.routing import DELETE, GET, POST, PUT, Policy, Route
from lcm.api.routes.resources import IF_MATCH
from lcm.api.routes.shapes import DryQuery, EventLine
from lcm.control.access.audit import AuditedAction
from lcm.control.delivery import sinks
from lcm.control.delivery.sinks import SinkReport
from lcm.control.plane.wire import Queued, Replayed, ReplayRequest, ShownSink
from lcm.model.access.identity import ADMINS, STAFF
from lcm.model.base.errors import Fault, Invalid, Refused
from lcm.model.base.event import Event, SinkTested, encode_data, encode_event
from lcm.model.base.resource import DEFAULT_NAMESPACE, Count, Moment, Part, Text
from lcm.model.kinds.sink import BUILT_IN_PREFIX, TEST_TYPE, DeadLetter, Sink, format_event_id, redact_url
from lcm.store.base import ABSENT

STAFF_POLICY: Final = Policy(STAFF)
ADMIN_POLICY: Final = Policy(ADMINS)
_LONGEST_PAGE: Final = 200
_DECODE_ERRORS: Final = (ValueError, RecursionError)
"""What base64 and msgspec raise for input that they cannot read; their own errors are ValueErrors."""
_FIELDS: Final = Sink.__struct_fields__
_CursorKey = tuple[Moment, Moment, str]
_cursor_decoder: Final = msgspec.json.Decoder(_CursorKey)


class SinkList(msgspec.Struct, frozen=True):
    """All sinks. They always fit into one page, so that `next` is always null."""

    items: tuple[ShownSink, ...]
    next: str | None = None


class DeadLetterQuery(Part):
    """Which dead letters to list."""

    limit: Annotated[int, Meta(ge=1, le=_LONGEST_PAGE, description="dead letters in a page, at most")] = 50
    cursor: Annotated[str, Meta(min_length=1, max_length=1024, description="`next` of the page before")] | UnsetType = (
        UNSET
    )


class DeadLetterLine(msgspec.Struct, frozen=True):
    """An event that a sink did not accept; `at` is when it was given up. With `replay` it waits to be sent again."""

    event: EventLine
    attempts: Count
    last_error: Text
    at: Moment
    replay: bool


class DeadLetterList(msgspec.Struct, frozen=True):
    """A page of dead letters, oldest first; `next` is null on the last."""

    items: tuple[DeadLetterLine, ...]
    next: str | None


async def _list_sinks(request: Request) -> Answer:
    shared = request.shared
    found = await sinks.list_sinks(shared.core.store, shared.house.built_in)
    return json_answer(SinkList(tuple(map(_sink_view, found))))


async def _get_sink(request: Request) -> Answer:
    return _sink_answer(await _find_sink(request))


async def _create_sink(request: Request) -> Answer:
    query = request.query(DryQuery)
    sent = await _read_sink(request)
    made = await _put_sink(request, sent, ABSENT, dry_run=query.dry_run)
    location = (b"location", f"/api/sinks/{made.sink.name}".encode())
    return _sink_answer(made, 201, () if query.dry_run else (location,))


async def _replace_sink(request: Request) -> Answer:
    query, at, name = request.query(DryQuery), request.if_match, request.params[0]
    sent = await _read_sink(request, name)
    stored = await _find_sink(request)
    if name.startswith(BUILT_IN_PREFIX):
        raise sinks.sink_read_only(name)
    at = at if at is not None else sent.resource_version or stored.resource_version
    return _sink_answer(await _put_sink(request, sent, at, stored.sink, dry_run=query.dry_run))


async def _delete_sink(request: Request) -> Answer:
    query, at = request.query(DryQuery), request.if_match
    stored = await _find_sink(request)
    if not query.dry_run:
        note = request.note("delete", Sink.__name__, stored.sink.name)
        await sinks.delete_sink(request.shared.core.store, stored.sink.name, at=at, beside=[note])
    return _sink_answer(stored)


async def _list_dead_letters(request: Request) -> Answer:
    query = request.query(DeadLetterQuery)
    after = _decode_cursor(query.cursor) if query.cursor else None
    stored = await _find_sink(request)
    letters = await sinks.list_dead_letters(request.shared.core.store, stored.sink.name)
    left = [one for one in letters if after is None or _cursor_key(one) > after]
    page = left[: query.limit]
    cursor = _encode_cursor(page[-1]) if len(left) > len(page) else None
    return json_answer(DeadLetterList(tuple(map(_dead_letter_line, page)), cursor))


async def _replay_dead_letters(request: Request) -> Answer:
    wish = await request.read(ReplayRequest, empty=ReplayRequest())
    stored = await _find_sink(request)
    name = stored.sink.name
    return json_answer(Replayed(await sinks.replay_dead_letters(request.writer, name, *wish.event_ids)))


async def _test_sink(request: Request) -> Answer:
    sink, store = (await _find_sink(request)).sink, request.shared.core.store
    if not sink.enabled:
        raise Refused(f"sink {sink.name} is not enabled, so that nothing would be sent to it")
    now = request.shared.clock.now()
    event = Event(
        type=TEST_TYPE,
        time=now,
        kind=Sink.__name__,
        name=sink.name,
        namespace=DEFAULT_NAMESPACE,
        data=encode_data(SinkTested(sink=sink.name, requested_by=request.signed_in.name, timestamp=now)),
    )
    tested = AuditedAction(verb="test", kind=Sink.__name__, name=sink.name)
    revision = await request.writer.submit([], [encode_event(event)], deeds=[tested])
    return json_answer(Queued(format_event_id(store.epoch, revision, 0)), 202)


async def _find_sink(request: Request) -> SinkReport:
    name, shared = request.params[0], request.shared
    found = await sinks.find_sink(shared.core.store, name, shared.house.built_in) if sinks.is_sink_name(name) else None
    if found is None:
        raise sinks.no_such_sink(name)
    return found


async def _read_sink(request: Request, name: str | None = None) -> ShownSink:
    """Read a sink from the body. Secrets in clear text are sealed at once.

    The name may be left out where the path has it.
    """
    document = await request.document()
    if name is not None and isinstance(document, Mapping):
        if document.get("name", name) != name:
            raise Invalid(Fault("name", "differs from the path", f"use {name}, or leave it out"))
        document = {**document, "name": name}
    sealed, faults = request.shared.core.sealing.seal_raw(document, ShownSink)
    return convert_document(sealed, ShownSink, faults)


async def _put_sink(
    request: Request, sent: ShownSink, at: int, stored: Sink | None = None, *, dry_run: bool = False
) -> SinkReport:
    shared = request.shared
    sink = shared.core.sealing.keep_sealed(stored, Sink(**{name: getattr(sent, name) for name in _FIELDS}))
    note = request.note("update" if stored else "create", Sink.__name__, sink.name)
    return await sinks.put_sink(
        shared.core.store,
        sink,
        shared.house.reach,
        now=shared.clock.now(),
        at=at,
        dry_run=dry_run,
        beside=[note],
    )


def _sink_answer(report: SinkReport, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    answer = json_answer(_sink_view(report), status)
    answer.headers = ((b"etag", b'"%d"' % report.resource_version), *headers)
    return answer


def _sink_view(report: SinkReport) -> ShownSink:
    sink = report.sink
    fields: dict[str, Any] = {name: getattr(sink, name) for name in _FIELDS}
    built_in = sink.name.startswith(BUILT_IN_PREFIX)
    fields |= {"url": redact_url(sink.url)} | ({"credential": None} if built_in else {})
    return ShownSink(**fields, resource_version=report.resource_version, built_in=built_in, status=report.status)


def _dead_letter_line(letter: DeadLetter) -> DeadLetterLine:
    line = EventLine.of(letter.event_id, letter.event)
    return DeadLetterLine(line, letter.attempts, letter.last_error, letter.at, letter.replay)


def _cursor_key(letter: DeadLetter) -> _CursorKey:
    return letter.at, letter.event.time, letter.event_id


def _encode_cursor(letter: DeadLetter) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_cursor_key(letter))).decode()


def _decode_cursor(cursor: str) -> _CursorKey:
    try:
        place: _CursorKey = _cursor_decoder.decode(base64.b64decode(cursor, b"-_", validate=True))
    except _DECODE_ERRORS as error:
        raise Invalid(Fault("cursor", "not one of ours", "take it from `next` of the page before")) from error
    return place


_SINK_PATH: Final = "/api/sinks/{id}"
_WRITE_OPTIONS: Final[dict[str, Any]] = {"policy": ADMIN_POLICY, "query": DryQuery, "answer": ShownSink}
ROUTES: Final[tuple[Route, ...]] = (
    Route(GET, "/api/sinks", _list_sinks, "listSinks", "List who is sent events", policy=STAFF_POLICY, answer=SinkList),
    Route(
        POST,
        "/api/sinks",
        _create_sink,
        "createSink",
        "Send events to somebody",
        **_WRITE_OPTIONS,
        body=ShownSink,
        status=201,
    ),
    Route(GET, _SINK_PATH, _get_sink, "getSink", "Read a sink and how it fares", policy=STAFF_POLICY, answer=ShownSink),
    Route(
        PUT,
        _SINK_PATH,
        _replace_sink,
        "replaceSink",
        "Replace a sink",
        **_WRITE_OPTIONS,
        body=ShownSink,
        headers=(IF_MATCH,),
    ),
    Route(
        DELETE,
        _SINK_PATH,
        _delete_sink,
        "deleteSink",
        "Send a sink nothing more, and forget its dead letters",
        **_WRITE_OPTIONS,
        headers=(IF_MATCH,),
    ),
    Route(
        GET,
        f"{_SINK_PATH}/dead-letters",
        _list_dead_letters,
        "listDeadLetters",
        "List the events that a sink did not take",
        policy=STAFF_POLICY,
        query=DeadLetterQuery,
        answer=DeadLetterList,
    ),
    Route(
        POST,
        f"{_SINK_PATH}/dead-letters/replay",
        _replay_dead_letters,
        "replayDeadLetters",
        "Send some or all dead letters once more",
        policy=STAFF_POLICY,
        body=ReplayRequest,
        body_needed=False,
        answer=Replayed,
    ),
    Route(
        POST,
        f"{_SINK_PATH}/test",
        _test_sink,
        "testSink",
        "Send one test event to this sink",
        policy=STAFF_POLICY,
        answer=Queued,
        status=202,
    ),
)
