"""Backup and restore of any engine through a file.

The file is a line that names the format, a header, one record per key and a closing record with count and digest.
Restoring reads it twice: once to prove it whole, once to load it. Made for the command
line's backup and restore.
"""

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.store.base import MAX_BYTES, Entry, Put, Store, check_commit, everything

_MAGIC: Final = b"LCM-BACKUP 1\n"
_LENGTH_BYTES: Final = 4
_LONGEST_FRAME: Final = MAX_BYTES + 1_000
"""What one commit may hold, and the names and lengths around it."""
_PAGE: Final = 500
_FOREIGN: Final = "it is no backup of this software"
_DAMAGED: Final = "it is cut short or altered"


class Header(msgspec.Struct, frozen=True, tag="header"):
    """Where a backup comes from."""

    epoch: str
    revision: int
    taken_at: datetime


class Record(msgspec.Struct, frozen=True, tag="record"):
    """One key."""

    key: str
    value: bytes
    labels: dict[str, str]


class Closing(msgspec.Struct, frozen=True, tag="closing"):
    """Proof that the file is whole."""

    count: int
    sha256: bytes


class Contents(msgspec.Struct, frozen=True):
    """What a backup holds: how many keys begin with each word, and how large the file is."""

    header: Header
    keys: Mapping[str, int]
    size_bytes: int


_Frame = Header | Record | Closing
_decoder: Final[msgspec.msgpack.Decoder[_Frame]] = msgspec.msgpack.Decoder(_Frame)


async def backup(store: Store, path: Path, *, now: datetime) -> Header:
    """Write the whole state at one revision to a file that only its owner can read; it replaces what was there."""
    page = await everything(store, "")
    header = Header(store.epoch, page.revision, now)
    await asyncio.to_thread(_write, path, header, page.entries)
    return header


async def inspect(path: Path) -> Contents:
    """Say what a backup holds. One that is damaged, or is none, is refused."""
    return await asyncio.to_thread(_prove, path)


async def restore(store: Store, path: Path, *, epoch: str) -> Header:
    """Replace the store's state by a backup's, under a new epoch. A damaged file is refused first."""
    header = (await inspect(path)).header
    assert epoch not in (store.epoch, header.epoch), "under an old epoch, old event ids would look valid"
    await store.load(_puts(path), epoch=epoch)
    return header


def _record(entry: Entry) -> Record:
    """Make an entry's record; what a restore would refuse to read is refused here."""
    check_commit([Put(entry.key, entry.value, entry.labels)], (), None)
    return Record(entry.key, entry.value, dict(entry.labels))


def _write(path: Path, header: Header, entries: Sequence[Entry]) -> None:
    records = [_record(entry) for entry in entries]
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)  # what a crash left behind may be readable by others
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            _fill(file, header, records)
        partial.replace(path)
        _make_lasting(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        problem = f"it cannot be written: {error.strerror}"
        raise Invalid(Fault(str(path), problem, "choose a folder that exists, with room and rights")) from error


def _fill(file: BinaryIO, header: Header, records: Sequence[Record]) -> None:
    file.write(_MAGIC)
    digest, count = hashlib.sha256(_put_frame(file, header)), 0
    for record in records:
        digest.update(_put_frame(file, record))
        count += 1
    _put_frame(file, Closing(count, digest.digest()))
    file.flush()
    os.fsync(file.fileno())


def _make_lasting(folder: Path) -> None:
    """Wait until the folder's new entry would survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _put_frame(file: BinaryIO, frame: _Frame) -> bytes:
    data = msgspec.msgpack.encode(frame)
    file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    return data


def _prove(path: Path) -> Contents:
    keys: Counter[str] = Counter()
    try:
        frames = _read(path)
        header = next(frames, None)
        for frame in frames:
            if not isinstance(frame, Record):
                raise _refused(path, _DAMAGED)
            keys[frame.key.partition("/")[0]] += 1
        size = path.stat().st_size
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror}") from error
    if not isinstance(header, Header):
        raise _refused(path, _DAMAGED)
    return Contents(header, keys, size)


async def _puts(path: Path) -> AsyncIterator[Put]:
    with closing(_read(path)) as frames:
        for number, frame in enumerate(frames):
            if isinstance(frame, Record):
                yield Put(frame.key, frame.value, frame.labels)
            if number % _PAGE == 0:
                await asyncio.sleep(0)


def _read(path: Path) -> Generator[_Frame]:
    """Give every frame but the closing one, which must prove them whole and be the last."""
    digest, count = hashlib.sha256(), 0
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise _refused(path, _FOREIGN)
        data = _get_frame(file, path)
        while not isinstance(frame := _decode(data, path), Closing):
            digest.update(data)
            count += isinstance(frame, Record)
            yield frame
            data = _get_frame(file, path)
        if (frame.count, frame.sha256) != (count, digest.digest()) or file.read(1):
            raise _refused(path, _DAMAGED)


def _get_frame(file: BinaryIO, path: Path) -> bytes:
    size = int.from_bytes(file.read(_LENGTH_BYTES), "big")
    data = file.read(size) if size <= _LONGEST_FRAME else b""
    if len(data) != size:
        raise _refused(path, _DAMAGED)
    return data


def _decode(data: bytes, path: Path) -> _Frame:
    try:
        return _decoder.decode(data)
    except ValueError as error:  # msgspec's own, and Python's for text that is no UTF-8
        raise _refused(path, _DAMAGED) from error


def _refused(path: Path, why: str) -> Invalid:
    return Invalid(Fault(str(path), why, "use another backup; nothing was changed"))
