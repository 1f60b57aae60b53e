"""What an API streams over HTTP: object changes and events; and waiting for an API to answer.

`HttpWatch` is the watch of `HttpPlane`: after every cut it resumes from the last commit it delivered.
`follow_events` and `read_recent` serve the command line:

    selection = EventSelection(event_types="worker.*")
    async with aclosing(follow_events(connection, selection, chance=system.chance)) as stream:
        async for item in stream: ...

A cut is not reported: the stream resumes after the last event that came. When it cannot resume, it yields `StreamStart`
with `reset`: some events may be missing. `compose` uses `fetch_installation_id` for controllers in a process of their
own.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

import httpx
import msgspec
import structlog

from lcm.control.plane.problems import error_of
from lcm.control.plane.protocol import Changes, ObjectChange, PlaneWatch, Ref
from lcm.control.plane.transport import CLOSED, ApiConnection, read_answer
from lcm.control.plane.wire import BUILD_HEADER, EPOCH_HEADER, NDJSON, ListedEvents, WatchedObject, WatchFrame
from lcm.control.upkeep.installation import Installation
from lcm.model.base.errors import (
    Fault,
    Invalid,
    Later,
    LcmError,
    NotSignedIn,
    Relist,
    Stuck,
    Throttled,
    Unreachable,
)
from lcm.model.kinds.registry import KINDS, Resource
from lcm.system.build import SCHEMA, build_name

_FIRST_WATCH_PAUSE: Final = 0.05
_LONGEST_STREAM_PAUSE: Final = 5.0
_LONGEST_STREAM_THROTTLE: Final = 60.0
_LONGEST_LINE: Final = 64_000_000
_RESTORED: Final = "the store was restored; list again"
_JSON_NULL: Final = b"null"
_watch_decoder: Final = msgspec.json.Decoder(WatchFrame)


class HttpWatch(PlaneWatch):
    """One reader. A cancelled read goes on in its task, and the next read finds what it brought."""

    def __init__(
        self,
        line: ApiConnection,
        kinds: Sequence[type[Resource]],
        *,
        after: int,
        chance: Callable[[], float],
        watches: dict["HttpWatch", None],
    ) -> None:
        self._connection = line
        self._kinds = ",".join(kind.__name__ for kind in kinds)
        self._after = after
        self._chance = chance
        self._watches = watches
        watches[self] = None
        self._ready: deque[Changes] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._open = AsyncExitStack()
        self._chunks: AsyncIterator[bytes] | None = None
        self._buffer = b""
        self._epoch = line.epoch
        self._failures = 0
        self._error: LcmError | None = None

    async def __anext__(self) -> Changes:
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_until_ready())
            await asyncio.wait({self._reading})
            self._finish_read()
        return self._ready.popleft()

    async def aclose(self) -> None:
        self._ready.clear()
        self._fail(Relist(CLOSED))
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._disconnect()

    def _finish_read(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None and not reading.cancelled():
            reading.result()

    def _fail(self, error: LcmError) -> None:
        self._error = self._error or error
        self._watches.pop(self, None)

    async def _read_until_ready(self) -> None:
        """Read until a commit is ready, or an error ends the watch."""
        while not self._ready and self._error is None:
            try:
                await self._read_chunk()
            except Later as error:
                if self._connection.closed:
                    self._fail(Relist(CLOSED))
                    break
                await self._disconnect()
                pause = _backoff_seconds(_FIRST_WATCH_PAUSE, self._failures, self._chance, error)
                self._failures += 1
                await asyncio.sleep(pause)
            except LcmError as error:
                self._fail(error)
        if self._error is not None:
            await self._disconnect()

    async def _read_chunk(self) -> None:
        if self._chunks is None:
            self._chunks = await self._connect()
        try:
            chunk = await anext(self._chunks)
        except (StopAsyncIteration, httpx.RequestError) as error:
            raise Unreachable(f"the stream broke off: {str(error) or type(error).__name__}") from error
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        if len(self._buffer) > _LONGEST_LINE:
            raise Stuck("UnexpectedAnswer", f"a line of a watch is longer than {_LONGEST_LINE} bytes")
        for line in filter(None, lines):
            self._accept_line(line)

    async def _connect(self) -> AsyncIterator[bytes]:
        query = {"kinds": self._kinds, "after": str(self._after)}
        response = await self._open.enter_async_context(self._connection.stream("/api/watch", query))
        if not response.headers.get("content-type", "").startswith(NDJSON):
            raise Stuck("UnexpectedAnswer", "a watch was not answered by an LCM API")
        epoch = response.headers.get(EPOCH_HEADER)
        if self._epoch not in (None, epoch):
            raise Relist(_RESTORED)
        self._epoch = epoch
        return response.aiter_bytes()

    async def _disconnect(self) -> None:
        opened, self._open = self._open, AsyncExitStack()
        self._chunks, self._buffer = None, b""
        await opened.aclose()

    def _accept_line(self, line: bytes) -> None:
        try:
            told = _watch_decoder.decode(line)
        except ValueError as error:
            raise Stuck("UnexpectedAnswer", f"a line of a watch cannot be read: {error}") from error
        if told.problem is not None:
            raise error_of(told.problem)
        self._failures = 0
        if told.seen:
            self._ready.append(Changes(told.revision, [_read_change(sight) for sight in told.seen]))
            self._after = told.revision


def _read_change(sight: WatchedObject) -> ObjectChange:
    known = KINDS.get(sight.kind)
    if known is None:
        raise Stuck("UnexpectedAnswer", f"a watch sent a {sight.kind}, which was not requested")
    ref = Ref(known.struct, sight.name, sight.namespace)
    return ObjectChange(ref, None if bytes(sight.object) == _JSON_NULL else read_answer(sight.object, known.struct))


STREAM_PATH: Final = "/api/events/stream"
EVENTS_PATH: Final = "/api/events"
STREAM_MEDIA_TYPE: Final = "text/event-stream"

_HELLO: Final = "hello"
_RESET: Final = "reset"
_SNAPSHOT: Final = "snapshot"
_FIRST_STREAM_PAUSE: Final = 0.1
_LONGEST_FRAME: Final = 64_000_000


class EventSelection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which events are wanted. Types are separated by commas; `worker.*` selects all that begin so."""

    session_id: str = ""
    worker_id: str = ""
    definition_id: str = ""
    owner_id: str = ""
    event_types: str = ""

    def query(self) -> Mapping[str, str]:
        """Return the filter as query parameters."""
        return {name: text for name, text in msgspec.structs.asdict(self).items() if text}


class StreamStart(msgspec.Struct, frozen=True):
    """The start of the stream. With `reset`, the events before it are no longer available."""

    id: str
    reset: bool


class StreamSnapshot(msgspec.Struct, frozen=True):
    """The state of some objects where the stream begins."""

    data: msgspec.Raw


class StreamEvent(msgspec.Struct, frozen=True):
    """One event."""

    id: str
    type: str
    data: msgspec.Raw


StreamItem = StreamStart | StreamSnapshot | StreamEvent


async def read_recent(
    line: ApiConnection, wish: EventSelection, *, after: str = "", limit: int | None = None
) -> ListedEvents:
    """Read the newest events, or the first ones after a known one. Raise Relist when its successors are unknown."""
    query = {**wish.query(), **({"after": after} if after else {}), **({"limit": str(limit)} if limit else {})}
    return read_answer(await line.request("GET", EVENTS_PATH, query=query), ListedEvents)


async def follow_events(
    line: ApiConnection, wish: EventSelection, *, chance: Callable[[], float], after: str = "", snapshot: bool = False
) -> AsyncGenerator[StreamItem]:
    """Yield events without end: after an event's id, or from now on. Only the first connection may fail for long."""
    failures, begun = 0, False
    while True:
        trouble: Later | None = None
        query = {**wish.query(), "snapshot": "true" if snapshot else "false"}
        query |= {"last_event_id": after} if after else {}
        try:
            async with line.stream(STREAM_PATH, query) as response:
                begun = True
                async for told in _read_frames(response):
                    failures = 0
                    after = after if isinstance(told, StreamSnapshot) else told.id or after
                    yield told
        except Later as error:
            if not begun or line.closed:
                raise
            trouble = error
        await asyncio.sleep(_backoff_seconds(_FIRST_STREAM_PAUSE, failures, chance, trouble))
        failures += 1


def _backoff_seconds(first: float, failures: int, chance: Callable[[], float], error: Later | None) -> float:
    longest = min(_LONGEST_STREAM_PAUSE, first * 2.0 ** min(failures, 16))
    told = error.after.total_seconds() if isinstance(error, Throttled) else 0.0
    return max(min(told, _LONGEST_STREAM_THROTTLE), longest * (0.5 + chance() / 2))


async def _read_frames(response: httpx.Response) -> AsyncIterator[StreamItem]:
    """Read a stream's frames. A frame that was cut off is dropped."""
    if not response.headers.get("content-type", "").startswith(STREAM_MEDIA_TYPE):
        raise Stuck("UnexpectedAnswer", "the event stream was not answered by an LCM API")
    rest = b""
    async for chunk in response.aiter_bytes():
        *frames, rest = (rest + chunk).split(b"\n\n")
        if len(rest) > _LONGEST_FRAME:
            raise Stuck("UnexpectedAnswer", f"an event is longer than {_LONGEST_FRAME} bytes")
        for frame in frames:
            if (told := _read_frame(frame)) is not None:
                yield told


def _read_frame(frame: bytes) -> StreamItem | None:
    """Read one frame; None for a comment, and for what concerns only browsers."""
    fields: dict[bytes, bytes] = {}
    for line in frame.split(b"\n"):
        name, _, text = line.partition(b":")
        fields[name] = text.removeprefix(b" ")
    if b"event" not in fields:
        return None
    try:
        number, kind = fields.get(b"id", b"").decode(), fields[b"event"].decode()
        data = msgspec.json.decode(fields.get(b"data", b"{}"), type=msgspec.Raw).copy()
    except ValueError as error:
        raise Unreachable(f"an event cannot be read: {error}") from error
    if kind in {_HELLO, _RESET}:
        return StreamStart(number, reset=kind == _RESET)
    return StreamSnapshot(data) if kind == _SNAPSHOT else StreamEvent(number, kind, data)


_INSTALLATION_PAUSE_SECONDS: Final = 1.0
_log: Final = structlog.get_logger()


async def fetch_installation_id(line: ApiConnection, chance: Callable[[], float]) -> str:
    """Return the installation's id; wait until the API answers. Raise Invalid if it does not accept our key.

    Both sides tell their builds; that the API is older than this process is logged.
    """
    trouble, told = "", {BUILD_HEADER: f"{build_name()} {SCHEMA}"}
    while True:
        try:
            answer = await line.request("GET", "/api/internal/installation", query={}, headers=told)
            there = read_answer(answer, Installation)
        except Later as error:
            if str(error) != trouble:
                _log.warning("waiting for the API", error=str(error))
            trouble = str(error)
            await asyncio.sleep(_INSTALLATION_PAUSE_SECONDS * (1 + chance()))
        except NotSignedIn as error:
            remedy = "set it to the same value for the API and for every controller"
            raise Invalid(Fault("CONTROL_PLANE_API_KEY", "the API does not accept it", remedy)) from error
        else:
            _compare_builds(there)
            return there.id


def _compare_builds(there: Installation) -> None:
    """Log both builds, and if they were upgraded in the wrong order, what to do."""
    builds = {"here": build_name(), "api": there.version or "unknown"}
    if there.schema < SCHEMA:
        _log.error("the API is older than this controller: upgrade the API first", **builds)
    elif there.schema > SCHEMA:
        _log.warning("the API is newer than this controller: upgrade the controllers now", **builds)
    else:
        _log.info("API found", **builds)
