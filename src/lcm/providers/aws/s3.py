"""Artifacts in a bucket of S3 or a compatible store, and labs in other buckets. Made by `compose`.

PREFIX/sha256/…   by digest
PREFIX/tmp/NAME   by name, with its digest recorded as metadata
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from lcm.model.base.errors import Gone, Invalid, Stuck, Unreachable
from lcm.providers.aws.s3_calls import S3Connection, S3Object, S3ObjectLocation
from lcm.providers.protocols.artifacts import (
    MAX_BYTES,
    ArtifactAddress,
    ArtifactSource,
    Content,
    ListedArtifact,
    StoredArtifact,
    check_digest,
    check_size,
    check_sources,
    digest_of,
    invalid,
    parse_address,
    read_verified,
    temporary_address,
)

MAX_PAGES: Final = 1_000

_SCHEME: Final = "s3://"
_BUCKET: Final = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*")
_LOCATION: Final = re.compile(rf"{_SCHEME}({_BUCKET})/(.+)", re.DOTALL)
_ALLOWED: Final = re.compile(rf"{_BUCKET}(?:/[^/]+)*/?")
_MAX_KEY: Final = 1024
_ROUNDING: Final = timedelta(seconds=1)


class S3Artifacts:
    """Artifacts below a prefix of a bucket.

    S3 stamps whole seconds, so `before` spares what is up to one second older. S3 has no conditional removal:
    `remove` looks right before it removes.
    """

    def __init__(
        self,
        wire: S3Connection,
        bucket: str,
        *,
        prefix: str = "",
        sources: Sequence[ArtifactSource] = (),
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if not re.fullmatch(_BUCKET, bucket):
            raise invalid(bucket, "not a bucket's name")
        if not _PREFIX.fullmatch(prefix):
            raise invalid(prefix, "not a prefix", "write words separated by /, and a / at the end")
        self._connection = wire
        self._bucket = bucket
        self._digests = f"{prefix}sha256/"
        self._names = f"{prefix}tmp/"
        check_sources(sources, [f"{_SCHEME}{bucket}/{folder}" for folder in (self._digests, self._names)])
        self._sources = sources
        self._max_bytes = max_bytes

    async def put(self, data: bytes) -> StoredArtifact:
        check_size("the artifact", len(data), self._max_bytes)
        digest = await asyncio.to_thread(digest_of, data)
        return await self._store(ArtifactAddress(digest=digest), data, digest)

    async def put_temporary(self, name: str, data: bytes) -> StoredArtifact:
        address = temporary_address(name)
        check_size(name, len(data), self._max_bytes)
        return await self._store(address, data, await asyncio.to_thread(digest_of, data))

    async def get(self, uri: str, *, digest: str = "", limit_bytes: int = MAX_BYTES) -> bytes:
        limit = min(limit_bytes, self._max_bytes)
        return await read_verified(uri, digest=digest, limit_bytes=limit, own=self._read, sources=self._sources)

    async def find(self, uri: str) -> StoredArtifact | None:
        address = parse_address(uri)
        facts = await self._connection.find(self._location(address))
        if facts is None:
            return None
        digest = address.digest or _check_recorded(address, facts.recorded)
        return StoredArtifact(uri=uri, digest=digest, size_bytes=facts.size_bytes, stored_at=facts.stored_at)

    async def remove(self, uri: str, *, before: datetime | None = None) -> None:
        place = self._location(parse_address(uri))
        if before is not None:
            facts = await self._connection.find(place)
            if facts is None or not _is_before(facts, before):
                return
        await self._connection.remove(place)

    async def list_temporary(self) -> Sequence[ListedArtifact]:
        return [_as_listed(address, facts) for address, facts in await self._list(self._names)]

    async def list_stored(self, *, before: datetime) -> Sequence[ListedArtifact]:
        found = await self._list(self._digests)
        return [_as_listed(address, facts) for address, facts in found if _is_before(facts, before)]

    async def close(self) -> None:
        for source in self._sources:
            await source.close()
        await self._connection.close()

    async def _store(self, address: ArtifactAddress, data: bytes, digest: str) -> StoredArtifact:
        place = self._location(address)
        await self._connection.put(place, data, digest)
        facts = await self._connection.find(place)  # the answer to a put has no time of storage
        if facts is None:
            raise Unreachable(f"{place} was stored, but S3 does not show it")
        return StoredArtifact(uri=address.uri, digest=digest, size_bytes=len(data), stored_at=facts.stored_at)

    async def _read(self, address: ArtifactAddress, limit_bytes: int) -> Content | None:
        try:
            content = await self._connection.read(self._location(address), limit_bytes)
        except Gone:
            return None
        return replace(content, recorded=address.digest or _check_recorded(address, content.recorded))

    async def _list(self, prefix: str) -> list[tuple[ArtifactAddress, S3Object]]:
        found: list[tuple[ArtifactAddress, S3Object]] = []
        token = ""
        for _ in range(MAX_PAGES):
            page, token = await self._connection.list_page(S3ObjectLocation(self._bucket, prefix), token)
            found += [(address, facts) for facts in page if (address := self._address(facts.place.key))]
            if not token:
                return found
        raise Stuck("TooMany", f"s3://{self._bucket}/{prefix} has more than {MAX_PAGES} pages of objects")

    def _location(self, address: ArtifactAddress) -> S3ObjectLocation:
        key = self._names + address.name if address.name else self._digests + address.digest.partition(":")[2]
        return S3ObjectLocation(self._bucket, key)

    def _address(self, key: str) -> ArtifactAddress | None:
        try:
            if key.startswith(self._names):
                return temporary_address(key.removeprefix(self._names))
            return ArtifactAddress(digest=check_digest(f"sha256:{key.removeprefix(self._digests)}"))
        except Invalid:
            return None  # not ours


class S3Source:
    """Reads objects of allowed buckets, or of allowed prefixes in them: `labs`, `shared/labs/`."""

    def __init__(self, wire: S3Connection, allowed: Iterable[str]) -> None:
        self._connection = wire
        self._allowed = tuple(map(_allowed_prefix, allowed))

    def allows(self, uri: str) -> bool:
        return uri.startswith(_SCHEME) and str(_parse_location(uri)).startswith(self._allowed)

    def meets(self, uri: str) -> bool:
        return any(uri.startswith(one) or one.startswith(uri) for one in self._allowed)

    async def read(self, uri: str, *, limit_bytes: int) -> Content:
        content = await self._connection.read(_parse_location(uri), limit_bytes)
        return replace(content, recorded="")  # a digest recorded by others follows their rules, not ours

    async def close(self) -> None:
        await self._connection.close()


def _allowed_prefix(text: str) -> str:
    if not _ALLOWED.fullmatch(text):
        raise invalid(text, "neither a bucket nor a prefix in one", "write BUCKET or BUCKET/PREFIX/")
    return f"{_SCHEME}{text.rstrip('/')}/"


def _parse_location(uri: str) -> S3ObjectLocation:
    found = _LOCATION.fullmatch(uri)
    if not found:
        raise invalid(uri, "not the address of an object", f"write {_SCHEME}BUCKET/KEY")
    place = S3ObjectLocation(found[1], found[2])
    if len(place.key.encode(errors="replace")) > _MAX_KEY or not place.key.isprintable():
        raise invalid(uri, "the key is too long or has marks that are invisible")
    if {".", ".."} & set(place.key.split("/")):  # HTTP libraries would normalize it to another key
        raise invalid(uri, "the key has a part that is . or ..", "rename the object")
    return place


def _check_recorded(address: ArtifactAddress, recorded: str) -> str:
    try:
        return check_digest(recorded)
    except Invalid as error:
        raise Stuck("DigestMismatch", f"{address.uri} is damaged: its digest is not on it; store it again") from error


def _is_before(facts: S3Object, before: datetime) -> bool:
    return facts.stored_at + _ROUNDING <= before


def _as_listed(address: ArtifactAddress, facts: S3Object) -> ListedArtifact:
    return ListedArtifact(uri=address.uri, size_bytes=facts.size_bytes, stored_at=facts.stored_at)
