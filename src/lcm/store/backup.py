"""Backup and restore of any engine through a file.

The file is a line that names the format, a header, one record per key and a closing record with count and digest.
Restoring reads it twice: once to prove it whole, once to load it. Called by the command line.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from lcm.model.errors import Fault, Invalid
from lcm.store.base import Put, Store, everything

_MAGIC: Final = b"LCM-BACKUP 1\n"
_LENGTH_BYTES: Final = 4
_PAGE: Final = 500


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


_Frame = Header | Record | Closing
_decoder: Final[msgspec.msgpack.Decoder[_Frame]] = msgspec.msgpack.Decoder(_Frame)


async def backup(store: Store, path: Path, *, now: datetime) -> Header:
    """Write the whole state at one revision to a new file, readable by its owner only."""
    page = await everything(store, "")
    header = Header(store.epoch, page.revision, now)
    records = (Record(entry.key, entry.value, dict(entry.labels)) for entry in page.entries)
    await asyncio.to_thread(_write, path, header, records)
    return header


async def restore(store: Store, path: Path, *, epoch: str) -> Header:
    """Replace the store's state by a backup's, under a new epoch. A damaged file is refused first."""
    header = await asyncio.to_thread(_prove, path)
    await store.load(_puts(path), epoch=epoch)
    return header


def _write(path: Path, header: Header, records: Iterator[Record]) -> None:
    partial = path.with_name(path.name + ".partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(_MAGIC)
        digest, count = hashlib.sha256(_put_frame(file, header)), 0
        for record in records:
            digest.update(_put_frame(file, record))
            count += 1
        _put_frame(file, Closing(count, digest.digest()))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _put_frame(file: BinaryIO, frame: _Frame) -> bytes:
    data = msgspec.msgpack.encode(frame)
    file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    return data


def _prove(path: Path) -> Header:
    digest, count = hashlib.sha256(), 0
    header: Header | None = None
    with path.open("rb") as file:
        for data in _frames(file, path):
            match _decode(data, path):
                case Header() as first:
                    header = first
                case Record():
                    count += 1
                case Closing(count=wanted, sha256=proof):
                    if header is not None and (count, digest.digest()) == (wanted, proof):
                        return header
            digest.update(data)
    raise _damaged(path, "it is cut short or altered")


async def _puts(path: Path) -> AsyncIterator[Put]:
    with await asyncio.to_thread(path.open, "rb") as file:
        for number, data in enumerate(_frames(file, path)):
            frame = _decode(data, path)
            if isinstance(frame, Record):
                yield Put(frame.key, frame.value, frame.labels)
            if number % _PAGE == 0:
                await asyncio.sleep(0)


def _frames(file: BinaryIO, path: Path) -> Iterator[bytes]:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise _damaged(path, "it is no backup of this software")
    while size := file.read(_LENGTH_BYTES):
        yield file.read(int.from_bytes(size, "big"))


def _decode(data: bytes, path: Path) -> _Frame:
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise _damaged(path, "it is cut short or altered") from error


def _damaged(path: Path, why: str) -> Invalid:
    return Invalid(Fault(str(path), why, "use another backup; nothing was changed"))
