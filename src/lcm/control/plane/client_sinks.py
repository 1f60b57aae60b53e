"""The sinks over HTTP: each verb is one request to `api.sinks`, or one for each page. Used by the command line."""

from collections.abc import AsyncIterator, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from lcm.control.plane.transport import Line, read
from lcm.control.plane.wire import Queued, Replayed, ReplayWish, ShownSink, ToldLetter, ToldLetters, ToldSinks
from lcm.model.kinds.sink import Sink

_ALL: Final = "/api/sinks"


async def list_sinks(line: Line) -> Sequence[ShownSink]:
    """Read all sinks."""
    return read(await line.ask("GET", _ALL), ToldSinks).items


async def create(line: Line, sink: Sink) -> ShownSink:
    """Make a sink; Conflict when there is one of this name."""
    return read(await line.ask("POST", _ALL, body=msgspec.json.encode(sink)), ShownSink)


async def delete(line: Line, name: str) -> None:
    """Remove a sink; Gone when there is none."""
    await line.ask("DELETE", _path(name))


async def send_test(line: Line, name: str) -> Queued:
    """Send one event to a sink to see whether it arrives."""
    return read(await line.ask("POST", f"{_path(name)}/test"), Queued)


async def dead(line: Line, name: str) -> AsyncIterator[ToldLetter]:
    """Read all dead letters of a sink, oldest first."""
    cursor: str | None = ""
    while cursor is not None:
        query = {"cursor": cursor} if cursor else {}
        page = read(await line.ask("GET", f"{_path(name)}/dead-letters", query=query), ToldLetters)
        for letter in page.items:
            yield letter
        cursor = page.next


async def replay(line: Line, name: str, event_ids: Sequence[str]) -> int:
    """Have dead letters sent once more, all without any ids; returns how many were not waiting for it already."""
    wish = msgspec.json.encode(ReplayWish(event_ids=tuple(event_ids)))
    return read(await line.ask("POST", f"{_path(name)}/dead-letters/replay", body=wish), Replayed).count


def _path(name: str) -> str:
    return f"{_ALL}/{quote(name, safe='')}"
