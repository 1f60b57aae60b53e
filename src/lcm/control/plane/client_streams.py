"""A watch over HTTP: takes up its stream again after every cut, from the last commit it delivered. Used by `client`."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, Self

import httpx
import msgspec
import structlog

from lcm.control.plane.problems import error_of
from lcm.control.plane.protocol import Changes, Ref, Seen
from lcm.control.plane.transport import CLOSED, Line, read
from lcm.control.plane.wire import EPOCH, NDJSON, Sight, ToldEvents
from lcm.control.plane.wire import Line as WatchLine
from lcm.control.upkeep.installation import Installation
from lcm.model.base.errors import Later, LcmError, Relist, Stuck, Throttled, Unreachable
from lcm.model.kinds.registry import KINDS, Resource

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
_LONGEST_THROTTLE: Final = 60.0
_LONGEST_LINE: Final = 64_000_000
_RESTORED: Final = "the store was restored; list again"
_NOTHING: Final = b"null"
_decoder: Final = msgspec.json.Decoder(WatchLine)


class HttpWatch:
    """One reader. A read that is cancelled goes on in its task, and the next one finds what it brought."""

    def __init__(
        self,
        line: Line,
        kinds: Sequence[type[Resource]],
        *,
        after: int,
        chance: Callable[[], float],
        on_end: Callable[["HttpWatch"], None],
    ) -> None:
        self._line = line
        self._kinds = ",".join(kind.__name__ for kind in kinds)
        self._after = after
        self._chance = chance
        self._on_end = on_end
        self._ready: deque[Changes] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._open = AsyncExitStack()
        self._chunks: AsyncIterator[bytes] | None = None
        self._rest = b""
        self._epoch = line.epoch
        self._failures = 0
        self._error: LcmError | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Changes:
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            await asyncio.wait({self._reading})
            self._settle()
        return self._ready.popleft()

    async def aclose(self) -> None:
        self._ready.clear()
        self._fail(Relist(CLOSED))
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._hang_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _settle(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None and not reading.cancelled():
            reading.result()

    def _fail(self, error: LcmError) -> None:
        self._error = self._error or error
        self._on_end(self)

    async def _read(self) -> None:
        """Read until something is ready, or it is known that nothing ever will be."""
        while not self._ready and self._error is None:
            try:
                await self._read_chunk()
            except Later as error:
                if self._line.closed:
                    self._fail(Relist(CLOSED))
                    break
                await self._hang_up()
                await asyncio.sleep(self._pause(error))
            except LcmError as error:
                self._fail(error)
        if self._error is not None:
            await self._hang_up()

    async def _read_chunk(self) -> None:
        if self._chunks is None:
            self._chunks = await self._call()
        try:
            chunk = await anext(self._chunks)
        except (StopAsyncIteration, httpx.RequestError) as error:
            raise Unreachable(f"the stream broke off: {str(error) or type(error).__name__}") from error
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise Stuck("UnexpectedAnswer", f"a line of a watch is longer than {_LONGEST_LINE} bytes")
        for line in filter(None, lines):
            self._take(line)

    async def _call(self) -> AsyncIterator[bytes]:
        query = {"kinds": self._kinds, "after": str(self._after)}
        response = await self._open.enter_async_context(self._line.stream("/api/watch", query))
        if not response.headers.get("content-type", "").startswith(NDJSON):
            raise Stuck("UnexpectedAnswer", "a watch was answered by something that is no API of ours")
        epoch = response.headers.get(EPOCH)
        if self._epoch not in (None, epoch):
            raise Relist(_RESTORED)
        self._epoch = epoch
        return response.aiter_bytes()

    async def _hang_up(self) -> None:
        opened, self._open = self._open, AsyncExitStack()
        self._chunks, self._rest = None, b""
        await opened.aclose()

    def _take(self, line: bytes) -> None:
        try:
            told = _decoder.decode(line)
        except ValueError as error:
            raise Stuck("UnexpectedAnswer", f"a line of a watch cannot be read: {error}") from error
        if told.problem is not None:
            raise error_of(told.problem)
        self._failures = 0
        if told.seen:
            self._ready.append(Changes(told.revision, [_seen(sight) for sight in told.seen]))
            self._after = told.revision

    def _pause(self, error: Later) -> float:
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures, 16))
        self._failures += 1
        told = error.after.total_seconds() if isinstance(error, Throttled) else 0.0
        return max(min(told, _LONGEST_THROTTLE), longest * (0.5 + self._chance() / 2))


def _seen(sight: Sight) -> Seen:
    known = KINDS.get(sight.kind)
    if known is None:
        raise Stuck("UnexpectedAnswer", f"a watch tells of a {sight.kind}, which nobody asked for")
    ref = Ref(known.struct, sight.name, sight.namespace)
    return Seen(ref, None if bytes(sight.object) == _NOTHING else read(sight.object, known.struct))


STREAM: Final = "/api/events/stream"
PAGE: Final = "/api/events"
MEDIA: Final = "text/event-stream"

_HELLO: Final = "hello"
_RESET: Final = "reset"
_SNAPSHOT: Final = "snapshot"
_FIRST_STREAM_PAUSE: Final = 0.1
_LONGEST_FRAME: Final = 64_000_000


class Wish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which events are wanted; types with commas between, and worker.* is all that begin so."""

    session_id: str = ""
    worker_id: str = ""
    definition_id: str = ""
    owner_id: str = ""
    event_types: str = ""

    def query(self) -> Mapping[str, str]:
        """Write it as parameters."""
        return {name: text for name, text in msgspec.structs.asdict(self).items() if text}


class Begun(msgspec.Struct, frozen=True):
    """The stream begins here; with `reset`, because what happened before cannot be told any more."""

    id: str
    reset: bool


class Standing(msgspec.Struct, frozen=True):
    """How some things stand where the stream begins."""

    data: msgspec.Raw


class Heard(msgspec.Struct, frozen=True):
    """One event."""

    id: str
    type: str
    data: msgspec.Raw


Told = Begun | Standing | Heard


async def recent(line: Line, wish: Wish, *, after: str = "", limit: int | None = None) -> ToldEvents:
    """Read the newest events, or the first ones after one that is known. Relist when what followed that is not."""
    query = {**wish.query(), **({"after": after} if after else {}), **({"limit": str(limit)} if limit else {})}
    return read(await line.ask("GET", PAGE, query=query), ToldEvents)


async def follow(
    line: Line, wish: Wish, *, chance: Callable[[], float], after: str = "", snapshot: bool = False
) -> AsyncGenerator[Told]:
    """Tell what happens, without end; after an event's id, or from now on. Only the first call may fail for long."""
    failures, begun = 0, False
    while True:
        try:
            async with line.stream(STREAM, _query(wish, after, snapshot=snapshot)) as response:
                begun = True
                async for told in _frames(response):
                    failures = 0
                    after = after if isinstance(told, Standing) else told.id or after
                    yield told
        except Later as error:
            if not begun or line.closed:
                raise
            told_seconds = error.after.total_seconds() if isinstance(error, Throttled) else 0.0
            await asyncio.sleep(max(min(told_seconds, _LONGEST_THROTTLE), _pause(failures, chance)))
        else:
            await asyncio.sleep(_pause(failures, chance))
        failures += 1


def _query(wish: Wish, after: str, *, snapshot: bool) -> Mapping[str, str]:
    said = {"snapshot": "true" if snapshot else "false"} | ({"last_event_id": after} if after else {})
    return {**wish.query(), **said}


def _pause(failures: int, chance: Callable[[], float]) -> float:
    longest = min(_LONGEST_PAUSE, _FIRST_STREAM_PAUSE * 2.0 ** min(failures, 16))
    return longest * (0.5 + chance() / 2)


async def _frames(response: httpx.Response) -> AsyncIterator[Told]:
    """Read a stream's frames; one that was cut off is not told."""
    if not response.headers.get("content-type", "").startswith(MEDIA):
        raise Stuck("UnexpectedAnswer", "the event stream was answered by something that is no API of ours")
    rest = b""
    async for chunk in response.aiter_bytes():
        *frames, rest = (rest + chunk).split(b"\n\n")
        if len(rest) > _LONGEST_FRAME:
            raise Stuck("UnexpectedAnswer", f"an event is longer than {_LONGEST_FRAME} bytes")
        for frame in frames:
            if (told := _read(frame)) is not None:
                yield told


def _read(frame: bytes) -> Told | None:
    """Read one frame; None for a comment, and for what only a browser wants to know."""
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
        return Begun(number, reset=kind == _RESET)
    return Standing(data) if kind == _SNAPSHOT else Heard(number, kind, data)


_PAUSE_SECONDS: Final = 1.0
_log: Final = structlog.get_logger()


async def called(line: Line, chance: Callable[[], float]) -> str:
    """Wait until the API answers; what it refuses is raised."""
    trouble = ""
    while True:
        try:
            return read(await line.ask("GET", "/api/internal/installation", query={}), Installation).id
        except Later as error:
            if str(error) != trouble:
                _log.warning("waiting for the API", error=str(error))
            trouble = str(error)
            await asyncio.sleep(_PAUSE_SECONDS * (1 + chance()))
