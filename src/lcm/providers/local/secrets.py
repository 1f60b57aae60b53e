"""Secrets of this machine: environment variables and files, each allowed by name. Sources of `protocols.secrets`."""

import asyncio
import errno
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Stuck
from lcm.providers.local.files import open_regular, translate_os_error
from lcm.providers.protocols.secrets import EXPOSED, MISSING, NOT_ALLOWED, UNREADABLE, nonempty_secret

MAX_BYTES: Final = 64 * 1024

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_NOT_A_FILE: Final = {errno.ELOOP, errno.ENXIO, errno.EISDIR}


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
