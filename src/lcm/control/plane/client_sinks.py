"""The sinks over HTTP, for the command line.

Each function is one request to `api.routes.sinks`, or one for each page.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from lcm.control.plane.transport import ApiConnection, read_answer
from lcm.control.plane.wire import (
    ListedDeadLetter,
    ListedDeadLetters,
    ListedSinks,
    Queued,
    Replayed,
    ReplayRequest,
    ShownSink,
)
from lcm.model.kinds.sink import Sink

_SINKS_PATH: Final = "/api/sinks"


async def list_sinks(line: ApiConnection) -> Sequence[ShownSink]:
    """Read all sinks."""
    return read_answer(await line.request("GET", _SINKS_PATH), ListedSinks).items


async def create_sink(line: ApiConnection, sink: Sink) -> ShownSink:
    """Create a sink. Raise Conflict when there is one of this name."""
    return read_answer(await line.request("POST", _SINKS_PATH, body=msgspec.json.encode(sink)), ShownSink)


async def delete_sink(line: ApiConnection, name: str) -> None:
    """Delete a sink. Raise Gone when there is none."""
    await line.request("DELETE", _sink_path(name))


async def send_test(line: ApiConnection, name: str) -> Queued:
    """Send one test event to a sink."""
    return read_answer(await line.request("POST", f"{_sink_path(name)}/test"), Queued)


async def read_dead_letters(line: ApiConnection, name: str) -> AsyncIterator[ListedDeadLetter]:
    """Read all dead letters of a sink, oldest first."""
    cursor: str | None = ""
    while cursor is not None:
        query = {"cursor": cursor} if cursor else {}
        page = read_answer(
            await line.request("GET", f"{_sink_path(name)}/dead-letters", query=query), ListedDeadLetters
        )
        for letter in page.items:
            yield letter
        cursor = page.next


async def replay_dead_letters(line: ApiConnection, name: str, event_ids: Sequence[str]) -> int:
    """Request that dead letters are sent again; without any ids, all. Return how many were not queued already."""
    wish = msgspec.json.encode(ReplayRequest(event_ids=tuple(event_ids)))
    return read_answer(await line.request("POST", f"{_sink_path(name)}/dead-letters/replay", body=wish), Replayed).count


def _sink_path(name: str) -> str:
    return f"{_SINKS_PATH}/{quote(name, safe='')}"
