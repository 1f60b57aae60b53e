"""Labs in folders: `file://` addresses below allowed folders, and how this package opens a file.

Made by `compose` as a source of an artifact store. The store on disk (`directory`) opens its own files the same way.
"""

import asyncio
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Final
from unicodedata import normalize
from urllib.parse import unquote

from lcm.model.base.errors import Gone, Later, LcmError, Stuck, Unreachable
from lcm.providers.protocols.artifacts import Content, check_size, invalid, printable

FULL_RETRY_AFTER: Final = timedelta(seconds=30)

_SCHEME: Final = "file://"
_SPECIAL: Final = frozenset("./\\:")
_CHUNK: Final = 1 << 20
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)

_FULL: Final = "the disk is full"
_DENIED: Final = "access is denied"
_NOT_REGULAR: Final = "something else is in the place of a file"
_MEANINGS: Final[Mapping[int, tuple[type[Later | Stuck], str]]] = {
    errno.ENOSPC: (Later, _FULL),
    errno.EDQUOT: (Later, _FULL),
    errno.EFBIG: (Later, _FULL),
    errno.EACCES: (Stuck, _DENIED),
    errno.EPERM: (Stuck, _DENIED),
    errno.EROFS: (Stuck, "the disk is read-only"),
    errno.EIO: (Stuck, "the disk fails"),
    errno.ELOOP: (Stuck, _NOT_REGULAR),
    errno.EISDIR: (Stuck, _NOT_REGULAR),
    errno.ENOTDIR: (Stuck, _NOT_REGULAR),
    errno.ENXIO: (Stuck, _NOT_REGULAR),
    errno.EAGAIN: (Later, "another process keeps it locked"),
    errno.ENOENT: (Unreachable, "the folder is missing"),
}
"""What the system's errors mean; any other one counts as no answer."""

_NOT_A_FILE: Final = {errno.ELOOP, errno.ENXIO}
"""What opening a link, a pipe, a socket or a folder raises."""


class FileSource:
    """Reads files below folders; a link that leads out of them is refused."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = [(Path(os.path.abspath(folder)), Path(os.path.realpath(folder))) for folder in folders]  # noqa: PTH100  resolves no links

    def allows(self, uri: str) -> bool:
        return uri.startswith(_SCHEME) and self._folder_of(_parse_path(uri), resolved=False) is not None

    def meets(self, uri: str) -> bool:
        if not uri.startswith(_SCHEME):
            return False
        folder = Path(os.path.realpath(_parse_path(uri)))
        return any(folder.is_relative_to(real) or real.is_relative_to(folder) for _, real in self._folders)

    async def read(self, uri: str, *, limit_bytes: int) -> Content:
        path = _parse_path(uri)
        try:
            return await asyncio.to_thread(self._read, path, uri, limit_bytes)
        except OSError as error:
            raise translate_os_error(error, path) from error

    async def close(self) -> None:
        return None

    def _read(self, path: Path, uri: str, limit_bytes: int) -> Content:
        real = Path(os.path.realpath(path))
        folder = self._folder_of(real, resolved=True)
        if folder is None:
            raise invalid(uri, "leads out of the folders that may be read")
        try:
            with ExitStack() as stack:
                fd = _open_below(folder, real.relative_to(folder).parts, stack)
                return read_open(fd, uri, limit_bytes)
        except (FileNotFoundError, NotADirectoryError) as error:
            if not folder.is_dir():
                raise
            raise Gone(f"{printable(uri)} does not exist") from error
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise invalid(uri, "not a file") from error
            raise

    def _folder_of(self, path: Path, *, resolved: bool) -> Path | None:
        for written, real in self._folders:
            if path.is_relative_to(real) or (not resolved and path.is_relative_to(written)):
                return real
        return None


def open_regular(path: Path, stack: ExitStack, *, folder: int | None = None) -> int:
    """Open a file to read it, never through a link, nor waiting for the other end of a pipe."""
    fd = os.open(path, _FILE_FLAGS, dir_fd=folder)
    stack.callback(os.close, fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.ENXIO, "not a file")
    return fd


def read_open(fd: int, what: str, limit_bytes: int) -> Content:
    """Read an open file from its present position to its end."""
    check_size(what, os.fstat(fd).st_size - os.lseek(fd, 0, os.SEEK_CUR), limit_bytes)
    digest, parts, size = hashlib.sha256(), [], 0
    while part := os.read(fd, _CHUNK):
        size += len(part)
        check_size(what, size, limit_bytes)  # it may grow while we read
        digest.update(part)
        parts.append(part)
    return Content(b"".join(parts), f"sha256:{digest.hexdigest()}")


def translate_os_error(error: OSError, path: Path) -> LcmError:
    """Return our error for an error of the system."""
    if error.errno == errno.ENAMETOOLONG:
        return invalid(str(path), "a name in the path is too long", "shorten it")
    kind, meaning = _MEANINGS.get(error.errno or 0, (Unreachable, "the disk does not answer"))
    message = f"{printable(str(path))}: {meaning} ({errno.errorcode.get(error.errno or 0, 'unknown')})"
    if issubclass(kind, Stuck):
        return kind("Disk", message)
    return kind(message, after=FULL_RETRY_AFTER) if meaning is _FULL else kind(message)


def _open_below(folder: Path, parts: Sequence[str], stack: ExitStack) -> int:
    fd = os.open(folder, _FOLDER_FLAGS)
    stack.callback(os.close, fd)
    for part in parts[:-1]:
        fd = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
        stack.callback(os.close, fd)
    return open_regular(Path(*parts[-1:]), stack, folder=fd)


def _parse_path(uri: str) -> Path:
    rest = uri.removeprefix(_SCHEME).removeprefix("localhost")
    try:
        text = unquote(rest, errors="strict")
        text.encode()
    except UnicodeError as error:
        raise invalid(uri, "not UTF-8") from error
    parts = text.split("/")
    if not rest.startswith("/") or any(mark in rest for mark in "?#"):
        raise invalid(rest, "not the address of a file", f"write {_SCHEME}/ and the path from the root")
    if parts[0] or not all(parts[1:]) or any(part in {".", ".."} for part in parts):
        raise invalid(rest, "the path has an empty part, . or ..", "write the path without them")
    if "\\" in text or (len(parts[1]) == 2 and parts[1].endswith(":")):  # noqa: PLR2004  C:
        raise invalid(rest, "a path of another system", "write it with / and without a drive")
    if not text.isprintable() or any(set(normalize("NFKC", mark)) & _SPECIAL for mark in text if not mark.isascii()):
        raise invalid(rest, "the path has marks that are invisible or look like others", "rename the file")
    return Path(text)
