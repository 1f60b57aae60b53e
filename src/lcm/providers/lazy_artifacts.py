"""Artifacts whose store is opened when somebody first needs it. Made by `compose`: most processes never do."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from lcm.providers.artifacts import MAX_BYTES, Artifacts, Listed, Stored


class LazyArtifacts:
    """A store that is not open yet; every verb may also raise what opening it raises, and opens it again next time."""

    def __init__(self, opening: Callable[[], Awaitable[Artifacts]]) -> None:
        self._opening = opening
        self._opened: Artifacts | None = None
        self._turn = asyncio.Lock()

    async def put(self, data: bytes) -> Stored:
        return await (await self._store()).put(data)

    async def put_temporary(self, name: str, data: bytes) -> Stored:
        return await (await self._store()).put_temporary(name, data)

    async def get(self, uri: str, *, digest: str = "", limit_bytes: int = MAX_BYTES) -> bytes:
        return await (await self._store()).get(uri, digest=digest, limit_bytes=limit_bytes)

    async def find(self, uri: str) -> Stored | None:
        return await (await self._store()).find(uri)

    async def remove(self, uri: str, *, before: datetime | None = None) -> None:
        await (await self._store()).remove(uri, before=before)

    async def list_temporary(self) -> Sequence[Listed]:
        return await (await self._store()).list_temporary()

    async def list_stored(self, *, before: datetime) -> Sequence[Listed]:
        return await (await self._store()).list_stored(before=before)

    async def close(self) -> None:
        async with self._turn:
            opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def _store(self) -> Artifacts:
        async with self._turn:
            if self._opened is None:
                self._opened = await self._opening()
            return self._opened
