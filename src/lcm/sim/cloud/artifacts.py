"""Artifacts in memory, for the simulation: no threads, no disk, time from the given clock.

Every verb suspends once before its effect and once after it, so that the crash harness can stop a caller at either.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from lcm.model.base.clock import Clock
from lcm.providers.protocols.artifacts import (
    MAX_BYTES,
    ArtifactAddress,
    Artifacts,
    ArtifactSource,
    Content,
    ListedArtifact,
    StoredArtifact,
    check_size,
    digest_of,
    parse_address,
    read_verified,
    temporary_address,
)
from lcm.sim.time.faults import ActiveFaults, PlannedFailures


@dataclass(frozen=True, slots=True)
class _StoredBytes:
    data: bytes
    digest: str
    at: datetime


class SimulatedArtifacts:
    """An artifact store that lasts as long as the simulation."""

    def __init__(self, clock: Clock, *, sources: Sequence[ArtifactSource] = (), max_bytes: int = MAX_BYTES) -> None:
        self._clock = clock
        self._sources = sources
        self._max_bytes = max_bytes
        self._kept: dict[ArtifactAddress, _StoredBytes] = {}
        self.spells = ActiveFaults()
        self._failures = PlannedFailures(Artifacts, self.spells)
        self.fail_next = self._failures.fail_next

    async def put(self, data: bytes) -> StoredArtifact:
        check_size("the artifact", len(data), self._max_bytes)
        return await self._store("put", ArtifactAddress(digest=digest_of(data)), data)

    async def put_temporary(self, name: str, data: bytes) -> StoredArtifact:
        address = temporary_address(name)
        check_size(name, len(data), self._max_bytes)
        return await self._store("put_temporary", address, data)

    async def get(self, uri: str, *, digest: str = "", limit_bytes: int = MAX_BYTES) -> bytes:
        limit = min(limit_bytes, self._max_bytes)
        await self._begin("get")
        data = await read_verified(uri, digest=digest, limit_bytes=limit, own=self._read, sources=self._sources)
        await self._end("get")
        return data

    async def find(self, uri: str) -> StoredArtifact | None:
        address = parse_address(uri)
        await self._begin("find")
        kept = self._kept.get(address)
        await self._end("find")
        return _as_stored(address, kept) if kept else None

    async def remove(self, uri: str, *, before: datetime | None = None) -> None:
        address = parse_address(uri)
        await self._begin("remove")
        kept = self._kept.get(address)
        if kept and (before is None or kept.at < before):
            del self._kept[address]
        await self._end("remove")

    async def list_temporary(self) -> Sequence[ListedArtifact]:
        await self._begin("list_temporary")
        found = self.temporary_now()
        await self._end("list_temporary")
        return found

    async def list_stored(self, *, before: datetime) -> Sequence[ListedArtifact]:
        await self._begin("list_stored")
        kept = [(address, one) for address, one in self._kept.items() if address.digest and one.at < before]
        await self._end("list_stored")
        return [_as_listed(address, one) for address, one in kept]

    async def close(self) -> None:
        for source in self._sources:
            await source.close()

    def temporary_now(self) -> Sequence[ListedArtifact]:
        """Return what is stored by name, at once and whatever fails."""
        return [_as_listed(address, kept) for address, kept in self._kept.items() if address.name]

    def content_now(self, uri: str) -> bytes | None:
        """Return the bytes of an artifact, at once and whatever fails; None if there is none."""
        kept = self._kept.get(parse_address(uri))
        return kept.data if kept else None

    def damage(self, uri: str) -> None:
        """Replace the bytes of an artifact by others, as a bad disk does."""
        kept = self._kept[parse_address(uri)]
        self._kept[parse_address(uri)] = _StoredBytes(kept.data + b"!", kept.digest, kept.at)

    async def _store(self, verb: str, address: ArtifactAddress, data: bytes) -> StoredArtifact:
        await self._begin(verb)
        kept = self._kept[address] = _StoredBytes(bytes(data), digest_of(data), self._clock.now())
        await self._end(verb)
        return _as_stored(address, kept)

    async def _read(self, address: ArtifactAddress, limit_bytes: int) -> Content | None:
        kept = self._kept.get(address)
        if kept is None:
            return None
        check_size(address.uri, len(kept.data), limit_bytes)
        return Content(kept.data, digest_of(kept.data), kept.digest)

    async def _begin(self, verb: str) -> None:
        await asyncio.sleep(0)
        await self._failures.delay_call(verb)
        self._failures.raise_before_effect(verb)

    async def _end(self, verb: str) -> None:
        await asyncio.sleep(0)
        self._failures.raise_after_effect(verb)


def _as_listed(address: ArtifactAddress, kept: _StoredBytes) -> ListedArtifact:
    return ListedArtifact(uri=address.uri, size_bytes=len(kept.data), stored_at=kept.at)


def _as_stored(address: ArtifactAddress, kept: _StoredBytes) -> StoredArtifact:
    return StoredArtifact(uri=address.uri, digest=kept.digest, size_bytes=len(kept.data), stored_at=kept.at)
