"""Files by content: lab topologies, rewritten labs, collected work. The `Artifacts` protocol and its addresses.

`local.directory` stores them on disk, `aws.s3` in any S3-like store, `sim.artifacts` in memory; one conformance suite
tests them. What is shared (an uploaded topology) is known by the digest of its bytes, so that storing twice is
storing once. What belongs to one owner and ends with it (a session's rewritten lab, its collected work) is known by a
name, so that removing it takes nothing from anybody else. Reading verifies the digest in either case.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from lcm.model.base.errors import Fault, Gone, Invalid, Stuck, TooLarge
from lcm.model.base.resource import Part, shorten_text

MAX_BYTES: Final = 100_000_000
MAX_NAME: Final = 200

_SHA256: Final = "sha256:"
_SCHEME: Final = "artifact://"
_TEMPORARY_PREFIX: Final = _SCHEME + "tmp/"
_DIGEST: Final = re.compile(_SHA256 + r"[0-9a-f]{64}")
_SEGMENT: Final = r"[a-z0-9](?:[a-z0-9._:-]*[a-z0-9])?"
_NAME: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_MAX_SHOWN: Final = 200


class ListedArtifact(Part):
    """An artifact in a list. `stored_at` is by the store's own clock, which may count whole seconds."""

    uri: str
    size_bytes: int
    stored_at: datetime


class StoredArtifact(ListedArtifact):
    """One artifact. `uri` is its address: `artifact://sha256:…` or, for a temporary one, `artifact://tmp/NAME`."""

    digest: str


class Artifacts(Protocol):
    """Files by content and by name.

    Every verb may raise Throttled, Unreachable, or Later when the store is full; Stuck when access is denied or the
    store itself is missing. An address or name that is not well-formed is Invalid before anything is touched.
    """

    async def put(self, data: bytes) -> StoredArtifact:
        """Store bytes under their digest. Repeating it counts as stored now. Raises TooLarge."""
        ...

    async def put_temporary(self, name: str, data: bytes) -> StoredArtifact:
        """Store bytes under a name until removed; repeating it replaces them. Raises TooLarge.

        A name is made of lower-case letters, digits and `. _ - :`, in parts separated by `/`, such as `UID/lab.yaml`.
        """
        ...

    async def get(self, uri: str, *, digest: str = "", limit_bytes: int = MAX_BYTES) -> bytes:
        """Read an artifact, or a file of one of the sources that the store was given.

        Raises Gone, TooLarge, and Stuck when the bytes do not match every known digest: the one of the address, the
        one recorded when they were stored, and the one asked for.
        """
        ...

    async def find(self, uri: str) -> StoredArtifact | None:
        """Return what is stored; None means that the store answered "not there". Only `get` verifies the bytes."""
        ...

    async def remove(self, uri: str, *, before: datetime | None = None) -> None:
        """Remove an artifact. Not there is success. With `before`, one that was stored again since then stays."""
        ...

    async def list_temporary(self) -> Sequence[ListedArtifact]:
        """List everything stored under names, to sweep leftovers. Return all of it or raise, never a part."""
        ...

    async def list_stored(self, *, before: datetime) -> Sequence[ListedArtifact]:
        """List what is stored under digests and was not stored again since, to sweep what nobody refers to.

        The sweep passes the same moment to `remove`, and leaves a day or more: between storing a file and referring
        to it, nothing refers to it.
        """
        ...

    async def close(self) -> None:
        """Close connections, including those of the sources. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes that were read, their digest, and the digest that was recorded for them, if any."""

    data: bytes
    digest: str
    recorded: str = ""


class ArtifactSource(Protocol):
    """A place besides the store from which labs may be read: allowed folders (`file://`) or buckets (`s3://`)."""

    def allows(self, uri: str) -> bool:
        """Return whether an address, as it is written, is of this source. Raises Invalid for one that would escape."""
        ...

    def meets(self, uri: str) -> bool:
        """Return whether this source reads anything below this address, all of it or a part."""
        ...

    async def read(self, uri: str, *, limit_bytes: int) -> Content:
        """Read a whole file. Raises Gone, TooLarge, Invalid."""
        ...

    async def close(self) -> None:
        """Close connections. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class ArtifactAddress:
    """An artifact's place in a store: its digest, or the name of a temporary one."""

    digest: str = ""
    name: str = ""

    @property
    def uri(self) -> str:
        """The address as text."""
        return _TEMPORARY_PREFIX + self.name if self.name else _SCHEME + self.digest


def parse_address(uri: str) -> ArtifactAddress:
    """Parse an artifact's address, or raise Invalid."""
    if uri.startswith(_TEMPORARY_PREFIX):
        return temporary_address(uri.removeprefix(_TEMPORARY_PREFIX))
    digest = uri.removeprefix(_SCHEME)
    if digest == uri:
        raise invalid(uri, "not an artifact's address", f"write {_SCHEME}{_SHA256}… or {_TEMPORARY_PREFIX}NAME")
    return ArtifactAddress(digest=check_digest(digest))


def temporary_address(name: str) -> ArtifactAddress:
    """Return the address of a temporary artifact, or raise Invalid."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        remedy = f"use lower-case letters, digits and . _ - : in parts separated by /, at most {MAX_NAME}"
        raise invalid(name, "not a name", remedy)
    return ArtifactAddress(name=name)


def check_digest(digest: str) -> str:
    """Return a well-formed digest, or raise Invalid."""
    if not _DIGEST.fullmatch(digest):
        raise invalid(digest, "not a digest", f"write {_SHA256} and 64 hexadecimal digits")
    return digest


def digest_of(data: bytes) -> str:
    """Compute the digest of bytes."""
    return _SHA256 + hashlib.sha256(data).hexdigest()


def check_size(what: str, size_bytes: int | None, limit_bytes: int) -> None:
    """Raise TooLarge if there are more bytes than allowed. An unknown size (None) is checked while reading."""
    if size_bytes is not None and size_bytes > limit_bytes:
        raise TooLarge(f"{what} has {size_bytes} bytes or more; at most {limit_bytes} are allowed")


def check_sources(sources: Iterable[ArtifactSource], own: Iterable[str]) -> None:
    """Raise Invalid if a source could read the store's own artifacts below these addresses."""
    sources = tuple(sources)
    for uri in own:
        if any(source.meets(uri) for source in sources):
            raise invalid(uri, "a source would read the artifacts of everybody", "allow a folder or prefix beside it")


async def read_verified(
    uri: str,
    *,
    digest: str,
    limit_bytes: int,
    own: Callable[[ArtifactAddress, int], Awaitable[Content | None]],
    sources: Iterable[ArtifactSource],
) -> bytes:
    """Read from the store or from the address's source, and verify the digest: `get` of every store."""
    if digest:
        check_digest(digest)
    if not uri.startswith(_SCHEME):
        source = next((one for one in sources if one.allows(uri)), None)
        if source is None:
            raise invalid(uri, "may not be read", "upload the file, or have its folder or bucket allowed")
        return _verify(uri, await source.read(uri, limit_bytes=limit_bytes), digest)
    address = parse_address(uri)
    if digest and address.digest and digest != address.digest:
        raise invalid(uri, f"the address contradicts the digest {digest}", "leave one of them out")
    stored = await own(address, limit_bytes)
    if stored is None:
        raise Gone(f"{uri} is not stored")
    return _verify(uri, stored, address.digest, digest)


def printable(text: str) -> str:
    """Return text from outside in a form that fits a line and hides nothing."""
    return ascii(shorten_text(text, _MAX_SHOWN))


def invalid(text: str, problem: str, remedy: str = "") -> Invalid:
    """Return the error for a bad address or name."""
    return Invalid(Fault(printable(text), problem, remedy))


def _verify(uri: str, content: Content, *wanted: str) -> bytes:
    for digest in (content.recorded, *wanted):
        if digest and digest != content.digest:
            message = f"{printable(uri)} has the digest {content.digest}, but {digest} was expected; store it again"
            raise Stuck("DigestMismatch", message)
    return content.data
