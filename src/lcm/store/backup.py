"""Backup and restore of any engine through a file, for the command line.

The file is a line that names the format, a header, one record per key and a trailer with count and digest. A restore
reads it twice: once to verify that it is complete, once to load it.
"""

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Collection, Generator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.store.base import MAX_BYTES, Entry, Put, Store, check_commit, scan_all

_MAGIC: Final = b"LCM-BACKUP 1\n"
_LENGTH_BYTES: Final = 4
_MAX_FRAME_BYTES: Final = MAX_BYTES + 1_000
"""What one commit may hold, plus names and lengths around it."""
_YIELD_EVERY: Final = 500
_FOREIGN_MESSAGE: Final = "it is no backup of this software"
_DAMAGED_MESSAGE: Final = "it is cut short or altered"


class BackupHeader(msgspec.Struct, frozen=True, tag="header"):
    """The origin of a backup."""

    epoch: str
    revision: int
    taken_at: datetime


class BackupRecord(msgspec.Struct, frozen=True, tag="record"):
    """One key with its value and labels."""

    key: str
    value: bytes
    labels: dict[str, str]


class BackupTrailer(msgspec.Struct, frozen=True, tag="closing"):
    """Proof that the file is complete."""

    count: int
    sha256: bytes


class BackupContents(msgspec.Struct, frozen=True):
    """What a backup holds: the number of keys by their first path segment, and the size of the file."""

    header: BackupHeader
    keys: Mapping[str, int]
    size_bytes: int


_Frame = BackupHeader | BackupRecord | BackupTrailer
_decoder: Final[msgspec.msgpack.Decoder[_Frame]] = msgspec.msgpack.Decoder(_Frame)


async def write_backup(store: Store, path: Path, *, now: datetime) -> BackupHeader:
    """Write the whole state at one revision to a file, replacing it. Only its owner can read the file."""
    page = await scan_all(store, "")
    header = BackupHeader(store.epoch, page.revision, now)
    await asyncio.to_thread(_write_file, path, header, page.entries)
    return header


async def inspect_backup(path: Path) -> BackupContents:
    """Return what a backup holds. Raises Invalid if it is damaged or not a backup."""
    return await asyncio.to_thread(_verify_file, path)


async def restore_backup(store: Store, path: Path, *, epoch: str, without: Collection[str] = ()) -> BackupHeader:
    """Replace the store's state by a backup's, under a new epoch. A damaged file is refused first.

    Keys with a prefix in `without` are left out.
    """
    header = (await inspect_backup(path)).header
    assert epoch not in (store.epoch, header.epoch), "under an old epoch, old event ids would look valid"
    await store.load(_read_puts(path, tuple(without)), epoch=epoch)
    return header


def _write_file(path: Path, header: BackupHeader, entries: Sequence[Entry]) -> None:
    for entry in entries:  # raise now what a restore would raise
        check_commit([Put(entry.key, entry.value, entry.labels)], (), None)
    records = [BackupRecord(entry.key, entry.value, dict(entry.labels)) for entry in entries]
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)  # a file left by a crash may be readable by others
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            _write_frames(file, header, records)
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        problem = f"it cannot be written: {error.strerror}"
        raise Invalid(Fault(str(path), problem, "choose a folder that exists, with room and rights")) from error


def _write_frames(file: BinaryIO, header: BackupHeader, records: Sequence[BackupRecord]) -> None:
    file.write(_MAGIC)
    digest, count = hashlib.sha256(_write_frame(file, header)), 0
    for record in records:
        digest.update(_write_frame(file, record))
        count += 1
    _write_frame(file, BackupTrailer(count, digest.digest()))
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Wait until the folder's new entry would survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_frame(file: BinaryIO, frame: _Frame) -> bytes:
    data = msgspec.msgpack.encode(frame)
    file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    return data


def _verify_file(path: Path) -> BackupContents:
    keys: Counter[str] = Counter()
    try:
        frames = _read_frames(path)
        header = next(frames, None)
        for frame in frames:
            if not isinstance(frame, BackupRecord):
                raise _file_error(path, _DAMAGED_MESSAGE)
            keys[frame.key.partition("/")[0]] += 1
        size = path.stat().st_size
    except OSError as error:
        raise _file_error(path, f"it cannot be read: {error.strerror}") from error
    if not isinstance(header, BackupHeader):
        raise _file_error(path, _DAMAGED_MESSAGE)
    return BackupContents(header, keys, size)


async def _read_puts(path: Path, without: tuple[str, ...]) -> AsyncIterator[Put]:
    with closing(_read_frames(path)) as frames:
        for number, frame in enumerate(frames):
            if isinstance(frame, BackupRecord) and not frame.key.startswith(without):
                yield Put(frame.key, frame.value, frame.labels)
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)


def _read_frames(path: Path) -> Generator[_Frame]:
    """Yield every frame but the trailer, which must be the last and match count and digest."""
    digest, count = hashlib.sha256(), 0
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise _file_error(path, _FOREIGN_MESSAGE)
        data = _read_frame(file, path)
        while not isinstance(frame := _decode_frame(data, path), BackupTrailer):
            digest.update(data)
            count += isinstance(frame, BackupRecord)
            yield frame
            data = _read_frame(file, path)
        if (frame.count, frame.sha256) != (count, digest.digest()) or file.read(1):
            raise _file_error(path, _DAMAGED_MESSAGE)


def _read_frame(file: BinaryIO, path: Path) -> bytes:
    size = int.from_bytes(file.read(_LENGTH_BYTES), "big")
    data = file.read(size) if size <= _MAX_FRAME_BYTES else b""
    if len(data) != size:
        raise _file_error(path, _DAMAGED_MESSAGE)
    return data


def _decode_frame(data: bytes, path: Path) -> _Frame:
    try:
        return _decoder.decode(data)
    except ValueError as error:  # msgspec's errors, and Python's for text that is not UTF-8
        raise _file_error(path, _DAMAGED_MESSAGE) from error


def _file_error(path: Path, why: str) -> Invalid:
    return Invalid(Fault(str(path), why, "use another backup; nothing was changed"))
