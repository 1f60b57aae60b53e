"""The folder of an embedded store: private to its owner, and locked by the processes that use it.

Called by `compose` and by `lcm restore`. The lock is one of the operating system and ends with its process, however
that ends: after a kill the next start need not wait for a lease to expire.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from lcm.model.base.errors import Refused, Stuck

STORE_FILE: Final = "lcm.db"
_LOCK_FILE: Final = "lcm.lock"
_OTHERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO
_log: Final = structlog.get_logger()


@contextmanager
def claim_folder(folder: Path, *, alone: bool) -> Iterator[Path]:
    """Create the folder if it is missing, hold a lock on it, and yield the path of the store's file.

    `alone` takes an exclusive lock; without it, the lock is shared with other processes that do not insist on being
    alone. Raises Refused if other processes are in the way.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        _lock(handle, folder, alone=alone)
        if is_open_to_others(folder):
            _log.warning("others may look into the data folder", folder=str(folder), remedy=f"chmod 700 {folder}")
        yield folder / STORE_FILE
    finally:
        os.close(handle)


@contextmanager
def claim_file(file: Path) -> Iterator[None]:
    """Create the folder of a file if it is missing, and keep other processes of this machine from using the file.

    Raises Refused if another process uses it.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused(f"another process uses {file.absolute()}: stop it, or choose another folder") from error
        yield
    finally:
        os.close(handle)


def has_store(folder: Path) -> bool:
    """Return whether there is a store in a folder; raise Stuck if nobody may tell."""
    try:
        return (folder / STORE_FILE).exists()
    except OSError as error:
        raise _unusable(folder, error) from error


def is_open_to_others(folder: Path) -> bool:
    """Return whether others than its owner may enter or list a folder; False for one that does not exist."""
    try:
        return bool(folder.stat().st_mode & _OTHERS_MODE)
    except OSError:
        return False


def _unusable(folder: Path, error: OSError) -> Stuck:
    message = f"{folder}: this folder cannot be used; check its path, owner and permissions ({error.strerror})"
    return Stuck("store_unusable", message)


def _lock(handle: int, folder: Path, *, alone: bool) -> None:
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = os.pread(handle, 20, 0).decode().strip()
        runs = f"process {who} runs" if who else "one or more processes of `lcm serve` run"
        message = f"{runs} on {folder.absolute()}: stop what runs there, or choose another folder"
        raise Refused(message) from error
    os.ftruncate(handle, 0)
    if alone:  # with a shared lock this would name the last process that came, which may have gone since
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
