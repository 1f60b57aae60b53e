"""Artifacts in a folder. Made by `compose`; several processes may share the folder.

A file is written under a name of its own, forced to disk and then renamed, so that a killed process leaves no half
artifact. All work is done in threads.

    ROOT/sha256/ab/abcd…   by digest, the bytes as they are
    ROOT/tmp/NAME          by name: a line with the digest, then the bytes
    ROOT/incoming/…        being written, or left behind by killed processes
"""

import asyncio
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Final, ParamSpec, Self, TypeVar

from lcm.model.base.clock import Clock
from lcm.model.base.errors import Invalid, Stuck
from lcm.providers.local.files import open_regular, read_open, translate_os_error
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
    parse_address,
    read_verified,
    temporary_address,
)

P = ParamSpec("P")
T = TypeVar("T")

LEFTOVER_AGE: Final = timedelta(hours=1)
"""A draft that was not touched for so long was abandoned by its writer."""

_SHA256: Final = "sha256"
_TEMPORARY: Final = "tmp"
_INCOMING: Final = "incoming"
FOLDERS: Final = (_SHA256, _TEMPORARY, _INCOMING)
"""The folders below the root."""
_HEAD_BYTES: Final = len(digest_of(b"")) + 1
_TO_FILE: Final = str.maketrans("/:", "@=")
_FROM_FILE: Final = str.maketrans("@=", "/:")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LOCK_TRIES: Final = 500
_LOCK_SECONDS: Final = 0.01


class DirectoryArtifacts:
    """Artifacts below a folder."""

    def __init__(
        self, root: Path, *, clock: Clock, sources: Sequence[ArtifactSource], max_bytes: int, leftover_age: timedelta
    ) -> None:
        self._root = root.absolute()
        self._objects = self._root / _SHA256
        self._temporary = self._root / _TEMPORARY
        self._incoming = self._root / _INCOMING
        self._clock = clock
        self._sources = sources
        self._max_bytes = max_bytes
        self._leftover_ns = leftover_age // _MICROSECOND * 1000

    @classmethod
    async def open(
        cls,
        root: Path,
        *,
        clock: Clock,
        sources: Sequence[ArtifactSource] = (),
        max_bytes: int = MAX_BYTES,
        leftover_age: timedelta = LEFTOVER_AGE,
    ) -> Self:
        """Create the folder where it does not exist, and remove what killed processes left behind.

        Raises Invalid when a source would read what is stored here.
        """
        self = cls(root, clock=clock, sources=sources, max_bytes=max_bytes, leftover_age=leftover_age)
        await self._run_in_thread(self._prepare)
        return self

    async def put(self, data: bytes) -> StoredArtifact:
        check_size("the artifact", len(data), self._max_bytes)
        return await self._store(None, data)

    async def put_temporary(self, name: str, data: bytes) -> StoredArtifact:
        address = temporary_address(name)
        check_size(name, len(data), self._max_bytes)
        return await self._store(address, data)

    async def get(self, uri: str, *, digest: str = "", limit_bytes: int = MAX_BYTES) -> bytes:
        limit = min(limit_bytes, self._max_bytes)
        return await read_verified(uri, digest=digest, limit_bytes=limit, own=self._read, sources=self._sources)

    async def find(self, uri: str) -> StoredArtifact | None:
        return await self._run_in_thread(self._find_now, parse_address(uri))

    async def remove(self, uri: str, *, before: datetime | None = None) -> None:
        await self._run_in_thread(self._remove_now, parse_address(uri), before)

    async def list_temporary(self) -> Sequence[ListedArtifact]:
        return await self._run_in_thread(self._list_names)

    async def list_stored(self, *, before: datetime) -> Sequence[ListedArtifact]:
        found = await self._run_in_thread(self._list_digests)
        return [one for one in found if one.stored_at < before]

    async def close(self) -> None:
        for source in self._sources:
            await source.close()

    async def _run_in_thread(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(job, *args, **kwargs)
        except OSError as error:
            raise translate_os_error(error, self._root) from error

    async def _store(self, address: ArtifactAddress | None, data: bytes) -> StoredArtifact:
        given_up = Event()
        try:
            return await self._run_in_thread(self._write, address, data, self._clock.now(), given_up)
        finally:
            given_up.set()

    async def _read(self, address: ArtifactAddress, limit_bytes: int) -> Content | None:
        return await self._run_in_thread(self._read_content, address, limit_bytes)

    def _prepare(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_sources(self._sources, [self._root.as_uri()])
        for folder in (self._objects, self._temporary, self._incoming):
            folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(self._root)
        self._remove_leftovers()

    def _write(self, address: ArtifactAddress | None, data: bytes, now: datetime, given_up: Event) -> StoredArtifact:
        digest = digest_of(data)
        address = address or ArtifactAddress(digest=digest)
        fd, draft = tempfile.mkstemp(dir=self._incoming)  # mode 0600
        try:
            _write_draft(fd, f"{digest}\n".encode() if address.name else b"", data, now)
            self._publish(Path(draft), self._path(address), given_up)
        finally:
            Path(draft).unlink(missing_ok=True)
        return StoredArtifact(uri=address.uri, digest=digest, size_bytes=len(data), stored_at=now)

    def _publish(self, draft: Path, path: Path, given_up: Event) -> None:
        if path.parent != self._temporary:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(self._objects)
        with self._lock(fcntl.LOCK_SH):
            # A caller that gave up may have stored something newer under this name: a late write must not replace it.
            if not given_up.is_set():
                draft.replace(path)
                _sync_folder(path.parent)

    def _read_content(self, address: ArtifactAddress, limit_bytes: int) -> Content | None:
        with ExitStack() as stack:
            fd = self._open(address, stack)
            if fd is None:
                return None
            recorded = _read_recorded(fd, address)
            return replace(read_open(fd, address.uri, limit_bytes), recorded=recorded)

    def _find_now(self, address: ArtifactAddress) -> StoredArtifact | None:
        with ExitStack() as stack:
            fd = self._open(address, stack)
            if fd is None:
                return None
            one = _as_listed(address, os.fstat(fd))
            digest = _read_recorded(fd, address)
            return StoredArtifact(uri=one.uri, digest=digest, size_bytes=one.size_bytes, stored_at=one.stored_at)

    def _open(self, address: ArtifactAddress, stack: ExitStack) -> int | None:
        try:
            return open_regular(self._path(address), stack)
        except FileNotFoundError:
            self._check_mounted()
            return None

    def _remove_now(self, address: ArtifactAddress, before: datetime | None) -> None:
        path = self._path(address)
        with self._lock(fcntl.LOCK_EX), suppress(FileNotFoundError):
            if before is None or _to_datetime(path.lstat().st_mtime_ns) < before:
                path.unlink()
                _sync_folder(path.parent)

    def _list_names(self) -> list[ListedArtifact]:
        self._remove_leftovers()
        return [*self._walk(self._temporary, lambda name: temporary_address(name.translate(_FROM_FILE)))]

    def _list_digests(self) -> list[ListedArtifact]:
        folders = [entry.path for entry in os.scandir(self._objects) if entry.is_dir(follow_symlinks=False)]
        return [
            found
            for folder in folders
            for found in self._walk(
                Path(folder), lambda name: ArtifactAddress(digest=check_digest(f"{_SHA256}:{name}"))
            )
        ]

    def _walk(self, folder: Path, address: Callable[[str], ArtifactAddress]) -> Iterator[ListedArtifact]:
        for name in sorted(os.listdir(folder)):  # noqa: PTH208  names are all that is wanted
            with suppress(FileNotFoundError, Invalid):  # removed since, or not ours
                facts = (folder / name).lstat()
                if stat.S_ISREG(facts.st_mode):
                    yield _as_listed(address(name), facts)

    def _remove_leftovers(self) -> None:
        with tempfile.NamedTemporaryFile(dir=self._incoming) as probe:
            # Use the clock that stamped the other files: on a shared disk it is not this machine's.
            now = os.fstat(probe.fileno()).st_ctime_ns
            for path in list(self._incoming.iterdir()):
                with suppress(FileNotFoundError):
                    if now - path.lstat().st_ctime_ns > self._leftover_ns:
                        path.unlink()

    def _path(self, address: ArtifactAddress) -> Path:
        if address.name:
            return self._temporary / address.name.translate(_TO_FILE)
        hexadecimal = address.digest.partition(":")[2]
        return self._objects / hexadecimal[:2] / hexadecimal

    def _check_mounted(self) -> None:
        # An unmounted volume looks like an empty folder, which does not mean that nothing is stored.
        self._objects.stat()

    @contextmanager
    def _lock(self, how: int) -> Iterator[None]:
        self._check_mounted()
        fd = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(_LOCK_TRIES):
                with suppress(BlockingIOError):
                    fcntl.flock(fd, how | fcntl.LOCK_NB)
                    break
                Event().wait(_LOCK_SECONDS)
            else:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
            yield
        finally:
            os.close(fd)


def _write_draft(fd: int, head: bytes, data: bytes, now: datetime) -> None:
    with os.fdopen(fd, "wb") as file:
        file.write(head)
        file.write(data)
        file.flush()
        stamp = (now - _EPOCH) // _MICROSECOND * 1000
        os.utime(fd, ns=(stamp, stamp))
        os.fsync(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_recorded(fd: int, address: ArtifactAddress) -> str:
    if not address.name:
        return address.digest
    try:
        return check_digest(os.read(fd, _HEAD_BYTES).decode("ascii", "replace").removesuffix("\n"))
    except Invalid as error:
        raise Stuck("DigestMismatch", f"{address.uri} is damaged: its digest is not on it; store it again") from error


def _as_listed(address: ArtifactAddress, facts: os.stat_result) -> ListedArtifact:
    head = _HEAD_BYTES if address.name else 0
    return ListedArtifact(
        uri=address.uri, size_bytes=max(0, facts.st_size - head), stored_at=_to_datetime(facts.st_mtime_ns)
    )


def _to_datetime(stamp_ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=stamp_ns // 1000)
