"""Artifacts in memory, for the simulation: no threads, no disk, time from the clock it is given.

Every verb suspends once before its effect and once after it, so that a crash harness can stop a caller on either side.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone
from lcm.providers.protocols.artifacts import (
    MAX_BYTES,
    Address,
    Artifacts,
    Content,
    Listed,
    Source,
    Stored,
    check_size,
    digest_of,
    named,
    parse,
    read,
)
from lcm.sim.time.faults import Failures, Spells


@dataclass(frozen=True, slots=True)
class _Kept:
    data: bytes
    digest: str
    at: datetime


class SimulatedArtifacts:
    """A store that lasts as long as the simulation."""

    def __init__(self, clock: Clock, *, sources: Sequence[Source] = (), max_bytes: int = MAX_BYTES) -> None:
        self._clock = clock
        self._sources = sources
        self._max_bytes = max_bytes
        self._kept: dict[Address, _Kept] = {}
        self.spells = Spells()
        self._failures = Failures(Artifacts, self.spells)
        self.fail_next = self._failures.fail_next

    async def put(self, data: bytes) -> Stored:
        check_size("the artifact", len(data), self._max_bytes)
        return await self._store("put", Address(digest=digest_of(data)), data)

    async def put_temporary(self, name: str, data: bytes) -> Stored:
        address = named(name)
        check_size(name, len(data), self._max_bytes)
        return await self._store("put_temporary", address, data)

    async def get(self, uri: str, *, digest: str = "", limit_bytes: int = MAX_BYTES) -> bytes:
        limit = min(limit_bytes, self._max_bytes)
        await self._begin("get")
        data = await read(uri, digest=digest, limit_bytes=limit, own=self._read, sources=self._sources)
        await self._end("get")
        return data

    async def find(self, uri: str) -> Stored | None:
        address = parse(uri)
        await self._begin("find")
        kept = self._kept.get(address)
        await self._end("find")
        return _stored(address, kept) if kept else None

    async def remove(self, uri: str, *, before: datetime | None = None) -> None:
        address = parse(uri)
        await self._begin("remove")
        kept = self._kept.get(address)
        if kept and (before is None or kept.at < before):
            del self._kept[address]
        await self._end("remove")

    async def list_temporary(self) -> Sequence[Listed]:
        await self._begin("list_temporary")
        found = self.temporary()
        await self._end("list_temporary")
        return found

    async def list_stored(self, *, before: datetime) -> Sequence[Listed]:
        await self._begin("list_stored")
        kept = [(address, one) for address, one in self._kept.items() if address.digest and one.at < before]
        await self._end("list_stored")
        return [_listed(address, one) for address, one in kept]

    async def close(self) -> None:
        for source in self._sources:
            await source.close()

    def temporary(self) -> Sequence[Listed]:
        """List what is kept by name, at once and whatever fails."""
        return [_listed(address, kept) for address, kept in self._kept.items() if address.name]

    def damage(self, uri: str) -> None:
        """Exchange the bytes of an artifact for others, as a bad disk does."""
        kept = self._kept[parse(uri)]
        self._kept[parse(uri)] = _Kept(kept.data + b"!", kept.digest, kept.at)

    async def _store(self, verb: str, address: Address, data: bytes) -> Stored:
        await self._begin(verb)
        kept = self._kept[address] = _Kept(bytes(data), digest_of(data), self._clock.now())
        await self._end(verb)
        return _stored(address, kept)

    async def _read(self, address: Address, limit_bytes: int) -> Content | None:
        kept = self._kept.get(address)
        if kept is None:
            return None
        check_size(address.uri, len(kept.data), limit_bytes)
        return Content(kept.data, digest_of(kept.data), kept.digest)

    async def _begin(self, verb: str) -> None:
        await asyncio.sleep(0)
        await self._failures.linger(verb)
        self._failures.before(verb)

    async def _end(self, verb: str) -> None:
        await asyncio.sleep(0)
        self._failures.after(verb)


class SimulatedSource:
    """Made-up files and objects by address."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def allows(self, uri: str) -> bool:
        return uri.startswith(("file://", "s3://"))

    def meets(self, uri: str) -> bool:
        return self.allows(uri)

    async def read(self, uri: str, *, limit_bytes: int) -> Content:
        await asyncio.sleep(0)
        data = self._files.get(uri)
        if data is None:
            raise Gone(f"{uri} does not exist")
        check_size(uri, len(data), limit_bytes)
        return Content(data, digest_of(data))

    async def close(self) -> None:
        return None


def _listed(address: Address, kept: _Kept) -> Listed:
    return Listed(uri=address.uri, size_bytes=len(kept.data), stored_at=kept.at)


def _stored(address: Address, kept: _Kept) -> Stored:
    return Stored(uri=address.uri, digest=kept.digest, size_bytes=len(kept.data), stored_at=kept.at)
