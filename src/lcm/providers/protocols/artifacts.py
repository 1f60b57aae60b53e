"""Files by content: lab topologies, rewritten labs, collected work. The `Artifacts` protocol and its grammar.

`directory` keeps them on disk, `s3` in any S3-like store, `sim.artifacts` in memory; one conformance suite holds them.
What is shared (an uploaded topology) is known by the digest of its bytes, so that storing twice is storing once. What
belongs to somebody and ends with him (a session's rewritten lab, his collected work) is known by a name, so that
removing it takes nothing from anybody else. Reading proves what was read in either case.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from lcm.model.base.errors import Fault, Gone, Invalid, Stuck, TooLarge
from lcm.model.base.resource import Part

MAX_BYTES: Final = 100_000_000
MAX_NAME: Final = 200

_SHA256: Final = "sha256:"
_OWN: Final = "artifact://"
_TEMPORARY: Final = _OWN + "tmp/"
_DIGEST: Final = re.compile(_SHA256 + r"[0-9a-f]{64}")
_SEGMENT: Final = r"[a-z0-9](?:[a-z0-9._:-]*[a-z0-9])?"
_NAME: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_SHOWN: Final = 200


class Listed(Part):
    """An artifact as a list shows it. `stored_at` is by the store's own clock, which may count whole seconds."""

    uri: str
    size_bytes: int
    stored_at: datetime


class Stored(Listed):
    """One artifact. `uri` finds it again: `artifact://sha256:…` or, for a temporary one, `artifact://tmp/NAME`."""

    digest: str


class Artifacts(Protocol):
    """Files by content and by name.

    Every verb may raise Throttled, Unreachable, or Later when the store is full; Stuck when access is denied or the
    store itself is missing. An address or name that is not well-formed is Invalid before anything is touched.
    """

    async def put(self, data: bytes) -> Stored:
        """Store bytes under their digest. May be repeated: it then counts as stored now. Raises TooLarge."""
        ...

    async def put_temporary(self, name: str, data: bytes) -> Stored:
        """Store bytes under a name until removed; repeating it replaces them. Raises TooLarge.

        A name is made of lower-case letters, digits and `. _ - :`, in parts separated by `/`, such as `UID/lab.yaml`.
        """
        ...

    async def get(self, uri: str, *, digest: str = "", limit_bytes: int = MAX_BYTES) -> bytes:
        """Read an artifact, or a file of one of the sources that the store was given.

        Raises Gone, TooLarge, and Stuck when the bytes do not have the digest they should: the one of the address, the
        one recorded when they were stored, and the one asked for.
        """
        ...

    async def find(self, uri: str) -> Stored | None:
        """Tell what is stored; None means that the store answered "not there". Only `get` proves the bytes."""
        ...

    async def remove(self, uri: str, *, before: datetime | None = None) -> None:
        """Remove an artifact. Not there is success. With `before`, one that was stored again since then stays."""
        ...

    async def list_temporary(self) -> Sequence[Listed]:
        """List all that is stored under names, for a sweep of leftovers. All of it or an error, never a part."""
        ...

    async def list_stored(self, *, before: datetime) -> Sequence[Listed]:
        """List all that is stored under digests and was not stored again since, for a sweep of what nobody refers to.

        Who sweeps passes the same moment to `remove`, and leaves a day or more: between storing and referring to it a
        file is nobody's.
        """
        ...

    async def close(self) -> None:
        """Let go of connections, those of the sources too. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes that were read, the digest they have, and the one that was recorded for them if any."""

    data: bytes
    digest: str
    recorded: str = ""


class Source(Protocol):
    """Where labs may be read from besides the store: folders (`file://`) or buckets (`s3://`) that were allowed."""

    def allows(self, uri: str) -> bool:
        """Tell whether an address, as it is written, is of this source. Raises Invalid for one that would escape."""
        ...

    def meets(self, uri: str) -> bool:
        """Tell whether it reads anything below this address, all of it or a part."""
        ...

    async def read(self, uri: str, *, limit_bytes: int) -> Content:
        """Read a file whole. Raises Gone, TooLarge, Invalid."""
        ...

    async def close(self) -> None:
        """Let go of connections. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class Address:
    """An artifact's place in a store: its digest, or the name of a temporary one."""

    digest: str = ""
    name: str = ""

    @property
    def uri(self) -> str:
        """The address in writing."""
        return _TEMPORARY + self.name if self.name else _OWN + self.digest


def parse(uri: str) -> Address:
    """Read an artifact's address, or raise Invalid."""
    if uri.startswith(_TEMPORARY):
        return named(uri.removeprefix(_TEMPORARY))
    digest = uri.removeprefix(_OWN)
    if digest == uri:
        raise invalid(uri, "not an artifact's address", f"write {_OWN}{_SHA256}… or {_TEMPORARY}NAME")
    return Address(digest=check_digest(digest))


def named(name: str) -> Address:
    """Make a temporary artifact's address, or raise Invalid."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        remedy = f"use lower-case letters, digits and . _ - : in parts separated by /, at most {MAX_NAME}"
        raise invalid(name, "not a name", remedy)
    return Address(name=name)


def check_digest(digest: str) -> str:
    """Return a well-formed digest, or raise Invalid."""
    if not _DIGEST.fullmatch(digest):
        raise invalid(digest, "not a digest", f"write {_SHA256} and 64 hexadecimal digits")
    return digest


def digest_of(data: bytes) -> str:
    """Compute the digest of bytes."""
    return _SHA256 + hashlib.sha256(data).hexdigest()


def check_size(what: str, size_bytes: int | None, limit_bytes: int) -> None:
    """Raise TooLarge if there are more bytes than allowed; an unknown size (None) is for the reader to watch."""
    if size_bytes is not None and size_bytes > limit_bytes:
        raise TooLarge(f"{what} has {size_bytes} bytes or more; at most {limit_bytes} are allowed")


def check_sources(sources: Iterable[Source], own: Iterable[str]) -> None:
    """Raise Invalid if a source would show what the store keeps for its owners below these addresses."""
    sources = tuple(sources)
    for uri in own:
        if any(source.meets(uri) for source in sources):
            raise invalid(uri, "a source would read the artifacts of everybody", "allow a folder or prefix beside it")


async def read(
    uri: str,
    *,
    digest: str,
    limit_bytes: int,
    own: Callable[[Address, int], Awaitable[Content | None]],
    sources: Iterable[Source],
) -> bytes:
    """Read from the store itself or from the source of the address, and prove what was read: `get` of every store."""
    if digest:
        check_digest(digest)
    if not uri.startswith(_OWN):
        content = await _source_of(uri, sources).read(uri, limit_bytes=limit_bytes)
        return _proven(uri, content, digest)
    address = parse(uri)
    if digest and address.digest and digest != address.digest:
        raise invalid(uri, f"the address contradicts the digest {digest}", "leave one of them out")
    stored = await own(address, limit_bytes)
    if stored is None:
        raise Gone(f"{uri} is not stored")
    return _proven(uri, stored, address.digest, digest)


def shown(text: str) -> str:
    """Write what somebody else wrote so that it fits a line and hides nothing."""
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def invalid(text: str, problem: str, remedy: str = "") -> Invalid:
    """Make the error for a bad address or name."""
    return Invalid(Fault(shown(text), problem, remedy))


def _source_of(uri: str, sources: Iterable[Source]) -> Source:
    for source in sources:
        if source.allows(uri):
            return source
    raise invalid(uri, "may not be read", "upload the file, or have its folder or bucket allowed")


def _proven(uri: str, content: Content, *wanted: str) -> bytes:
    for digest in (content.recorded, *wanted):
        if digest and digest != content.digest:
            message = f"{shown(uri)} has the digest {content.digest}, but {digest} was expected; store it again"
            raise Stuck("DigestMismatch", message)
    return content.data
