"""What happens, over HTTP: a page of recent events, and the stream of those to come. Used by the command line.

    async with aclosing(follow(line, Wish(event_types="worker.*"), chance=system.chance)) as stream:
        async for told in stream: ...

A cut is not told: the stream is taken up again after the last event that came. What could not be taken up is `Begun`
with `reset`: some events may be missing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Final

import httpx
import msgspec

from lcm.control.client_line import Line, read
from lcm.control.wire import ToldEvents
from lcm.model.errors import Later, Stuck, Throttled, Unreachable

STREAM: Final = "/api/events/stream"
PAGE: Final = "/api/events"
MEDIA: Final = "text/event-stream"

_HELLO: Final = "hello"
_RESET: Final = "reset"
_SNAPSHOT: Final = "snapshot"
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_LONGEST_THROTTLE: Final = 60.0
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
    longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failures, 16))
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
