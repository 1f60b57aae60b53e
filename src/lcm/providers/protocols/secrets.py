"""From a reference to the secret: `env:NAME`, `file:/path`, `aws:NAME[#key]` or `sealed:…`.

Made by `compose`; controllers reveal what they are about to send, and keep nothing. People may write any reference into
a document, and what it leads to is sent to a machine of their choice: so variables and files must be allowed by name.
"""

import asyncio
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Protocol

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Stuck
from lcm.providers.local.files import open_plain, translate

MISSING: Final = "SecretMissing"
EMPTY: Final = "SecretEmpty"
UNREADABLE: Final = "SecretUnreadable"
EXPOSED: Final = "SecretExposed"
"""Others could change it."""
NOT_ALLOWED: Final = "SecretNotAllowed"
MAX_BYTES: Final = 64 * 1024

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_NO_FILE: Final = {errno.ELOOP, errno.ENXIO, errno.EISDIR}


class Secrets(Protocol):
    """Gives secrets to those who use them."""

    async def reveal(self, ref: str) -> Secret:
        """Find what a reference leads to; never empty. May be repeated.

        Raises Stuck, which names the reference and never what it leads to, when there is nothing, or nothing usable;
        Later while the other side does not answer.
        """
        ...


class SecretSources:
    """Asks the source that a reference's scheme names."""

    def __init__(self, sources: Mapping[str, Secrets]) -> None:
        self._sources = sources

    async def reveal(self, ref: str) -> Secret:
        source = self._sources.get(ref.partition(":")[0])
        if source is None:  # whatever this is, it may be the secret itself
            raise Stuck(NOT_ALLOWED, f"not a reference to a secret: use one of {', '.join(sorted(self._sources))}")
        return await source.reveal(ref)


class Closing(Secrets, Protocol):
    """A source that holds connections."""

    async def close(self) -> None:
        """Let go of them. May be repeated."""
        ...


class Lazily:
    """A source that is made when it is first asked, as some take long to load."""

    def __init__(self, make: Callable[[], Closing]) -> None:
        self._make = make
        self._made: Closing | None = None

    async def reveal(self, ref: str) -> Secret:
        if self._made is None:
            self._made = self._make()
        return await self._made.reveal(ref)

    async def close(self) -> None:
        """Let go of what was made. May be repeated."""
        if self._made is not None:
            await self._made.close()


class EnvSecrets:
    """Variables of the environment whose names fit one of the patterns allowed."""

    def __init__(self, environment: Mapping[str, str], *, allowed: Iterable[str]) -> None:
        self._environment = environment
        self._allowed = tuple(allowed)

    async def reveal(self, ref: str) -> Secret:
        name = ref.removeprefix("env:")
        if not _VARIABLE.fullmatch(name):
            raise Stuck(UNREADABLE, "env: is not followed by a variable's name")
        if not any(fnmatchcase(name, pattern) for pattern in self._allowed):
            raise Stuck(NOT_ALLOWED, f"{ref} may not be used as a secret; allowed are {_listed(self._allowed)}")
        if name not in self._environment:
            raise Stuck(MISSING, f"{ref} is not set; set it, and start again")
        return not_empty(ref, self._environment[name])


class FileSecrets:
    """Files below folders that were allowed, which nobody but their owner can change."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(Path(os.path.realpath(folder)) for folder in folders)

    async def reveal(self, ref: str) -> Secret:
        path = Path(ref.removeprefix("file:"))
        if not path.is_absolute() or not str(path).isprintable():
            raise Stuck(UNREADABLE, "file: is not followed by a path from the root")
        try:
            data = await asyncio.to_thread(self._read, path, ref)
        except OSError as error:
            raise _unreadable(error, path, ref) from error
        text = data.decode(errors="replace")
        if text.encode() != data:
            raise Stuck(UNREADABLE, f"{ref} is not a text in UTF-8")
        return not_empty(ref, text.removesuffix("\n").removesuffix("\r"))

    def _read(self, path: Path, ref: str) -> bytes:
        real = Path(os.path.realpath(path))  # container platforms show secrets by links
        if not any(real.is_relative_to(folder) for folder in self._folders):
            raise Stuck(NOT_ALLOWED, f"{ref} may not be read; allowed are files below {_listed(self._folders)}")
        with ExitStack() as stack:
            fd = open_plain(real, stack)
            if os.fstat(fd).st_mode & _OTHERS_WRITE:
                raise Stuck(EXPOSED, f"{ref} can be changed by others; take that right away (chmod go-w)")
            return _all_of(fd, ref)


class Opens(Protocol):
    """Keys, as far as opening goes."""

    def unseal(self, text: str) -> Secret:
        """Decrypt a sealed text. Raises Stuck when it was not sealed here, or was changed since."""
        ...


class SealedSecrets:
    """What was sealed with our keys."""

    def __init__(self, keys: Opens) -> None:
        self._keys = keys

    async def reveal(self, ref: str) -> Secret:
        return self._keys.unseal(ref)


def not_empty(ref: str, text: str) -> Secret:
    """Make a secret of a text; an empty one would be sent as if it were meant."""
    if not text:
        raise Stuck(EMPTY, f"{ref} is empty")
    return Secret(text)


def _all_of(fd: int, ref: str) -> bytes:
    data = b""
    while part := os.read(fd, MAX_BYTES + 1 - len(data)):
        data += part
        if len(data) > MAX_BYTES:
            raise Stuck(UNREADABLE, f"{ref} has more than {MAX_BYTES} bytes")
    return data


def _unreadable(error: OSError, path: Path, ref: str) -> Exception:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Stuck(MISSING, f"{ref} does not exist")
    if isinstance(error, PermissionError):
        return Stuck(UNREADABLE, f"{ref} may not be read by us")
    if error.errno in _NO_FILE:
        return Stuck(UNREADABLE, f"{ref} is not a file")
    return translate(error, path)


def _listed(allowed: Sequence[object]) -> str:
    return ", ".join(map(str, allowed)) or "none"
