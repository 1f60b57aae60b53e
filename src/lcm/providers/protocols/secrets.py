"""From a reference to the secret: `env:NAME`, `file:/path`, `aws:NAME[#key]` or `sealed:…`.

Made by `compose`; controllers reveal a secret right before they send it, and keep nothing. People may write any
reference into a document, and its secret is sent to a machine of their choice: so variables and files must be allowed
by name.
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
from lcm.providers.local.files import open_regular, translate_os_error

MISSING: Final = "SecretMissing"
EMPTY: Final = "SecretEmpty"
UNREADABLE: Final = "SecretUnreadable"
EXPOSED: Final = "SecretExposed"
"""Others could change the secret."""
NOT_ALLOWED: Final = "SecretNotAllowed"
MAX_BYTES: Final = 64 * 1024

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_NOT_A_FILE: Final = {errno.ELOOP, errno.ENXIO, errno.EISDIR}


class Secrets(Protocol):
    """Reads secrets for those who use them."""

    async def reveal(self, ref: str) -> Secret:
        """Read the secret that a reference names; never empty. May be repeated.

        Raises Stuck when there is nothing, or nothing usable; it names the reference and never the secret. Raises
        Later while the other side does not answer.
        """
        ...


class SecretSources:
    """Asks the source that a reference's scheme names."""

    def __init__(self, sources: Mapping[str, Secrets]) -> None:
        self._sources = sources

    async def reveal(self, ref: str) -> Secret:
        source = self._sources.get(ref.partition(":")[0])
        if source is None:  # the text may be the secret itself, so it is not shown
            raise Stuck(NOT_ALLOWED, f"not a reference to a secret: use one of {', '.join(sorted(self._sources))}")
        return await source.reveal(ref)


class ClosableSecrets(Secrets, Protocol):
    """A source that holds connections."""

    async def close(self) -> None:
        """Close the connections. May be repeated."""
        ...


class LazySecrets:
    """A source that is made at its first use, as some take long to load."""

    def __init__(self, make: Callable[[], ClosableSecrets]) -> None:
        self._make = make
        self._source: ClosableSecrets | None = None

    async def reveal(self, ref: str) -> Secret:
        if self._source is None:
            self._source = self._make()
        return await self._source.reveal(ref)

    async def close(self) -> None:
        """Close the source if it was made. May be repeated."""
        if self._source is not None:
            await self._source.close()


class EnvSecrets:
    """Environment variables whose names match one of the allowed patterns."""

    def __init__(self, environment: Mapping[str, str], *, allowed: Iterable[str]) -> None:
        self._environment = environment
        self._allowed = tuple(allowed)

    async def reveal(self, ref: str) -> Secret:
        name = ref.removeprefix("env:")
        if not _VARIABLE.fullmatch(name):
            raise Stuck(UNREADABLE, "env: is not followed by a variable's name")
        if not any(fnmatchcase(name, pattern) for pattern in self._allowed):
            raise Stuck(NOT_ALLOWED, f"{ref} may not be used as a secret; allowed are {_join_allowed(self._allowed)}")
        if name not in self._environment:
            raise Stuck(MISSING, f"{ref} is not set; set it, and start again")
        return nonempty_secret(ref, self._environment[name])


class FileSecrets:
    """Files below allowed folders that only their owner can change."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(Path(os.path.realpath(folder)) for folder in folders)

    async def reveal(self, ref: str) -> Secret:
        path = Path(ref.removeprefix("file:"))
        if not path.is_absolute() or not str(path).isprintable():
            raise Stuck(UNREADABLE, "file: is not followed by a path from the root")
        try:
            data = await asyncio.to_thread(self._read, path, ref)
        except OSError as error:
            raise _translate_os_error(error, path, ref) from error
        text = data.decode(errors="replace")
        if text.encode() != data:
            raise Stuck(UNREADABLE, f"{ref} is not a text in UTF-8")
        return nonempty_secret(ref, text.removesuffix("\n").removesuffix("\r"))

    def _read(self, path: Path, ref: str) -> bytes:
        real = Path(os.path.realpath(path))  # container platforms mount secrets as links
        if not any(real.is_relative_to(folder) for folder in self._folders):
            raise Stuck(NOT_ALLOWED, f"{ref} may not be read; allowed are files below {_join_allowed(self._folders)}")
        with ExitStack() as stack:
            fd = open_regular(real, stack)
            if os.fstat(fd).st_mode & _OTHERS_WRITE:
                raise Stuck(EXPOSED, f"{ref} can be changed by others; take that right away (chmod go-w)")
            return _read_all(fd, ref)


class Unsealer(Protocol):
    """Keys that can decrypt sealed texts."""

    def unseal(self, text: str) -> Secret:
        """Decrypt a sealed text. Raises Stuck when it was not sealed here, or was changed since."""
        ...


class SealedSecrets:
    """Secrets that were sealed with our keys."""

    def __init__(self, keys: Unsealer) -> None:
        self._keys = keys

    async def reveal(self, ref: str) -> Secret:
        return self._keys.unseal(ref)


def nonempty_secret(ref: str, text: str) -> Secret:
    """Make a secret of a text. Raise Stuck if it is empty: it would be sent as if it were meant."""
    if not text:
        raise Stuck(EMPTY, f"{ref} is empty")
    return Secret(text)


def _read_all(fd: int, ref: str) -> bytes:
    data = b""
    while part := os.read(fd, MAX_BYTES + 1 - len(data)):
        data += part
        if len(data) > MAX_BYTES:
            raise Stuck(UNREADABLE, f"{ref} has more than {MAX_BYTES} bytes")
    return data


def _translate_os_error(error: OSError, path: Path, ref: str) -> Exception:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Stuck(MISSING, f"{ref} does not exist")
    if isinstance(error, PermissionError):
        return Stuck(UNREADABLE, f"{ref} may not be read by us")
    if error.errno in _NOT_A_FILE:
        return Stuck(UNREADABLE, f"{ref} is not a file")
    return translate_os_error(error, path)


def _join_allowed(allowed: Sequence[object]) -> str:
    return ", ".join(map(str, allowed)) or "none"
