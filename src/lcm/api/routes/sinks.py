"""Sinks in a flat form, with how delivery to them fares; dead letters, and a test.

A sink is a kind like any other; here all its fields stand side by side, and those that the settings define are listed
too. A sink sees every event, so only administrators create one. Operators read, test and replay.
"""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from lcm.control.plane.protocol import Ref, ref_of
from lcm.control.plane.wire import Queued, Replayed, ReplayRequest, ShownSink, ShownSinks
from lcm.model.access.identity import ADMINS, STAFF
from lcm.model.base.errors import Fault, Gone, Invalid, Refused
from lcm.model.base.event import Event, SinkTested, encode_data, encode_event
from lcm.model.base.resource import DEFAULT_NAMESPACE, Count, Metadata, Moment, Part, Text
from lcm.model.kinds.sink import (
    BUILT_IN_PREFIX,
    TEST_TYPE,
    DeadLetter,
    Sink,
    SinkSpec,
    SinkStatus,
    format_event_id,
    redact_sink,
)

STAFF_POLICY: Final = Policy(STAFF)

_LONGEST_PAGE: Final = 200
_DECODE_ERRORS: Final = (ValueError, RecursionError)
"""What base64 and msgspec raise for input that they cannot read; their own errors are ValueErrors."""
_CursorKey = tuple[Moment, Moment, str]
_cursor_decoder: Final = msgspec.json.Decoder(_CursorKey)


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
    page, statuses = await request.plane.list(Sink), await sinks.read_statuses(request.shared.core.store)
    found = [*request.shared.core.sinks.built_in, *page.items]
    return json_answer(ShownSinks(tuple(_sink_view(one, statuses.get(one.metadata.name)) for one in found)))


async def _get_sink(request: Request) -> Answer:
    return await _sink_answer(request, await _find_sink(request))


async def _create_sink(request: Request) -> Answer:
    query = request.query(DryQuery)
    sent = await _read_sink(request)
    with _flat_faults():
        made = await request.write_plane.create(_sink_of(sent), dry_run=query.dry_run)
    location = (b"location", f"/api/sinks/{made.metadata.name}".encode())
    return await _sink_answer(request, made, 201, () if query.dry_run else (location,))


async def _replace_sink(request: Request) -> Answer:
    query, at, name = request.query(DryQuery), request.if_match, request.params[0]
    sent = await _read_sink(request, name)
    stored = await _find_sink(request)
    _refuse_built_in(name)
    wanted = msgspec.structs.replace(stored, spec=_sink_of(sent).spec)
    at = at if at is not None else sent.resource_version or None
    with _flat_faults():
        made = await request.write_plane.replace(wanted, at=at, dry_run=query.dry_run)
    return await _sink_answer(request, made)


async def _delete_sink(request: Request) -> Answer:
    query, at = request.query(DryQuery), request.if_match
    stored = await _find_sink(request)
    _refuse_built_in(stored.metadata.name)
    answer = await _sink_answer(request, stored)
    await request.write_plane.delete(ref_of(stored), at=at, dry_run=query.dry_run)
    return answer


async def _list_dead_letters(request: Request) -> Answer:
    query = request.query(DeadLetterQuery)
    after = _decode_cursor(query.cursor) if query.cursor else None
    stored = await _find_sink(request)
    letters = await sinks.list_dead_letters(request.shared.core.store, stored.metadata.name)
    left = [one for one in letters if after is None or _cursor_key(one) > after]
    page = left[: query.limit]
    cursor = None
    if len(left) > len(page):
        cursor = base64.urlsafe_b64encode(msgspec.json.encode(_cursor_key(page[-1]))).decode()
    lines = [
        DeadLetterLine(EventLine.of(one.event_id, one.event), one.attempts, one.last_error, one.at, one.replay)
        for one in page
    ]
    return json_answer(DeadLetterList(tuple(lines), cursor))


async def _replay_dead_letters(request: Request) -> Answer:
    wish = await request.read(ReplayRequest, empty=ReplayRequest())
    name = (await _find_sink(request)).metadata.name
    return json_answer(Replayed(await sinks.replay_dead_letters(request.writer, name, *wish.event_ids)))


async def _test_sink(request: Request) -> Answer:
    sink, now = await _find_sink(request), request.shared.clock.now()
    name = sink.metadata.name
    if name == sinks.MAIL_SINK:
        raise Refused("notices go to people, not to a sink: book a session to see one arrive")
    if not sink.spec.enabled:
        raise Refused(f"sink {name} is not enabled, so that nothing would be sent to it")
    event = Event(
        type=TEST_TYPE,
        time=now,
        kind=Sink.__name__,
        name=name,
        namespace=DEFAULT_NAMESPACE,
        data=encode_data(SinkTested(sink=name, requested_by=request.signed_in.name, timestamp=now)),
    )
    tested = AuditedAction(verb="test", kind=Sink.__name__, name=name)
    revision = await request.writer.submit([], [encode_event(event)], deeds=[tested])
    return json_answer(Queued(format_event_id(request.shared.core.epoch, revision, 0)), 202)


async def _find_sink(request: Request) -> Sink:
    name = request.params[0]
    fixed = {one.metadata.name: one for one in request.shared.core.sinks.built_in}
    found = fixed.get(name) or await request.plane.get(Ref(Sink, name))
    if found is None:
        raise Gone(f"there is no sink {name}")
    return found


def _refuse_built_in(name: str) -> None:
    if name.startswith(BUILT_IN_PREFIX):
        maker = "SMTP_HOST" if name == sinks.MAIL_SINK else "WORKER_NOTIFICATION_WEBHOOKS"
        raise Refused(f"sink {name} is made by {maker}: change it there")


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


def _sink_of(sent: ShownSink) -> Sink:
    spec = SinkSpec(**{name: getattr(sent, name) for name in SinkSpec.__struct_fields__})
    return Sink(metadata=Metadata(name=sent.name), spec=spec)


@contextmanager
def _flat_faults() -> Iterator[None]:
    """Name the fields of a document as they are named here."""
    try:
        yield
    except Invalid as error:
        faults = [(fault.path.removeprefix("metadata.").removeprefix("spec."), fault) for fault in error.faults]
        raise Invalid(*(Fault(path, fault.problem, fault.remedy) for path, fault in faults)) from error


async def _sink_answer(
    request: Request, sink: Sink, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Answer:
    statuses = await sinks.read_statuses(request.shared.core.store)
    answer = json_answer(_sink_view(sink, statuses.get(sink.metadata.name)), status)
    answer.headers = ((b"etag", b'"%d"' % sink.metadata.resource_version), *headers)
    return answer


def _sink_view(sink: Sink, status: SinkStatus | None) -> ShownSink:
    metadata, built_in = sink.metadata, sink.metadata.name.startswith(BUILT_IN_PREFIX)
    fields: dict[str, Any] = msgspec.structs.asdict(redact_sink(sink).spec)
    return ShownSink(
        **fields | ({"credential": None} if built_in else {}),
        name=metadata.name,
        created_at=metadata.created_at,
        resource_version=metadata.resource_version,
        built_in=built_in,
        status=status,
    )


def _cursor_key(letter: DeadLetter) -> _CursorKey:
    return letter.at, letter.event.time, letter.event_id


def _decode_cursor(cursor: str) -> _CursorKey:
    try:
        place: _CursorKey = _cursor_decoder.decode(base64.b64decode(cursor, b"-_", validate=True))
    except _DECODE_ERRORS as error:
        raise Invalid(Fault("cursor", "not a cursor of this list", "take it from `next` of the page before")) from error
    return place


_SINK_PATH: Final = "/api/sinks/{id}"
_WRITE_OPTIONS: Final[dict[str, Any]] = {"policy": Policy(ADMINS), "query": DryQuery, "answer": ShownSink}
ROUTES: Final[tuple[Route, ...]] = (
    Route(GET, "/api/sinks", _list_sinks, "listSinks", "List sinks", policy=STAFF_POLICY, answer=ShownSinks),
    Route(
        POST,
        "/api/sinks",
        _create_sink,
        "createSink",
        "Create a sink",
        **_WRITE_OPTIONS,
        body=ShownSink,
        status=201,
    ),
    Route(
        GET,
        _SINK_PATH,
        _get_sink,
        "getSink",
        "Read a sink and its delivery status",
        policy=STAFF_POLICY,
        answer=ShownSink,
    ),
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
        "Delete a sink and its dead letters",
        **_WRITE_OPTIONS,
        headers=(IF_MATCH,),
    ),
    Route(
        GET,
        f"{_SINK_PATH}/dead-letters",
        _list_dead_letters,
        "listDeadLetters",
        "List the events that a sink did not accept",
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
