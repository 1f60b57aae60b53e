"""A client of the event stream that notes what it reads and comes back where it was cut."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple

import httpx


class Told(NamedTuple):
    """One event as it came over the wire."""

    id: str
    type: str
    data: Any


async def told(lines: AsyncIterator[str]) -> AsyncIterator[Told]:
    """Read events from the lines of a stream."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "event" in fields:
                yield Told(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
            fields = {}


class Listener:
    """Reads the stream for ever, across cuts, and keeps the ids of what it was told since the last reset."""

    def __init__(self, client: httpx.AsyncClient, token: str, **query: str) -> None:
        self._client = client
        self._headers = {"Authorization": f"Bearer {token}"}
        self._query = query
        self.last_id = ""
        self.events: list[Told] = []
        self.notices: list[Told] = []
        self.cuts = 0

    async def run(self) -> None:
        while True:
            with suppress(httpx.TransportError):
                await self._read()
            self.cuts += 1
            await asyncio.sleep(0.02)

    async def _read(self) -> None:
        headers = self._headers | ({"Last-Event-ID": self.last_id} if self.last_id else {})
        async with self._client.stream("GET", "/api/events/stream", params=self._query, headers=headers) as answer:
            if answer.status_code != 200:
                return
            async for one in told(answer.aiter_lines()):
                self._note(one)

    def _note(self, one: Told) -> None:
        if one.id:
            self.last_id = one.id
        if one.type in {"hello", "reset", "snapshot"}:
            self.notices.append(one)
        else:
            self.events.append(one)
