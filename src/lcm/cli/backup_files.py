"""Lab files and collected work in a backup: an archive beside the store's file. Used by `backup`.

What the store refers to was stored before it was referred to: so files are saved after the store, and brought back
before it. Bringing back adds; it removes nothing, since no file is ever changed.
"""

import asyncio
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from lcm.model.clock import Clock
from lcm.model.errors import Fault, Gone, Invalid, Stuck
from lcm.providers.artifacts import Address, Artifacts, check_digest, digest_of, named, parse

SUFFIX: Final = ".files.tar"
_DIGESTS, _NAMES = "sha256/", "tmp/"
_AHEAD: Final = timedelta(days=1)
"""What was stored a moment ago by a clock that is ahead counts too."""
_REMEDY: Final = "use another backup, or move this file away to restore without files; the store was not changed"


@dataclass
class Saved:
    """How many files there are in an archive, how large they are, and which could not be read."""

    count: int = 0
    size_bytes: int = 0
    damaged: tuple[str, ...] = ()


def beside(file: Path) -> Path:
    """Say where the files of a backup are."""
    return file.with_name(file.name + SUFFIX)


async def save(artifacts: Artifacts, path: Path, *, clock: Clock) -> Saved:
    """Write every file into an archive that only its owner can read; it replaces what was there."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)  # what a crash left behind may be readable by others
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                saved = await _fill(archive, artifacts, clock)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        problem = f"it cannot be written: {error.strerror}"
        raise Invalid(Fault(str(path), problem, "choose a folder that exists, with room and rights")) from error
    return saved


async def bring_back(artifacts: Artifacts, path: Path) -> Saved:
    """Store every file of an archive again. One that is damaged, or holds anything else, is refused."""
    saved = Saved()
    try:
        with tarfile.open(path, mode="r:") as archive:
            for address, data in _contents(archive, path):
                stored = await (artifacts.put_temporary(address.name, data) if address.name else artifacts.put(data))
                saved.count += 1
                saved.size_bytes += stored.size_bytes
                await asyncio.sleep(0)
    except (OSError, tarfile.TarError) as error:
        raise Invalid(Fault(str(path), f"it cannot be read: {error}", _REMEDY)) from error
    return saved


async def _fill(archive: tarfile.TarFile, artifacts: Artifacts, clock: Clock) -> Saved:
    saved = Saved()
    listed = await artifacts.list_stored(before=clock.now() + _AHEAD)
    for one in (*listed, *await artifacts.list_temporary()):
        try:
            data = await artifacts.get(one.uri)
        except Gone:  # since it was listed
            continue
        except Stuck as error:
            saved.damaged += (str(error),)
            continue
        member = tarfile.TarInfo(_member(parse(one.uri)))
        member.size, member.mode, member.mtime = len(data), 0o600, int(one.stored_at.timestamp())
        archive.addfile(member, io.BytesIO(data))
        saved.count += 1
        saved.size_bytes += len(data)
    return saved


def _member(address: Address) -> str:
    return _NAMES + address.name if address.name else _DIGESTS + address.digest.partition(":")[2]


def _contents(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[Address, bytes]]:
    """Give each file and its address, proven where its name is its digest. Nothing is unpacked by its name."""
    for member in archive:
        opened = archive.extractfile(member) if member.isreg() else None
        address = _address(member.name) if opened else None
        if opened is None or address is None:
            raise Invalid(Fault(str(path), f"{member.name!r} in it is no file of ours", _REMEDY))
        data = opened.read()
        if address.digest and digest_of(data) != address.digest:
            raise Invalid(Fault(str(path), f"{member.name} in it is damaged", _REMEDY))
        yield address, data


def _address(name: str) -> Address | None:
    with suppress(Invalid):
        if name.startswith(_NAMES):
            return named(name.removeprefix(_NAMES))
        if name.startswith(_DIGESTS):
            return Address(digest=check_digest(f"sha256:{name.removeprefix(_DIGESTS)}"))
    return None
