"""The folder of an embedded store: its owner's only, and claimed by the processes that run on it.

Called by `compose` and by `lcm restore`. The claim is a lock of the operating system, which ends with its process,
however that ends: after a kill the next start need not wait until a lease has run out.
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

STORE: Final = "lcm.db"
_LOCK: Final = "lcm.lock"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_log: Final = structlog.get_logger()


@contextmanager
def claimed(folder: Path, *, alone: bool) -> Iterator[Path]:
    """Make the folder if it is missing, and keep it claimed; gives the store's file. Refused if others run on it.

    Alone, or together with others that do not insist on being alone.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        message = f"{folder}: this folder cannot be used; check its path, owner and permissions ({error.strerror})"
        raise Stuck("store_unusable", message) from error
    try:
        _lock(handle, folder, alone=alone)
        if open_to_others(folder):
            _log.warning("others may look into the data folder", folder=str(folder), remedy=f"chmod 700 {folder}")
        yield folder / STORE
    finally:
        os.close(handle)


def open_to_others(folder: Path) -> bool:
    """Tell whether others than its owner may enter or list a folder; not for one that is not there."""
    try:
        return bool(folder.stat().st_mode & _OTHERS)
    except OSError:
        return False


def _lock(handle: int, folder: Path, *, alone: bool) -> None:
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = os.pread(handle, 20, 0).decode().strip()
        runs = f"process {who} runs" if who else "one or more processes of `lcm serve` run"
        message = f"{runs} on {folder.absolute()}: stop what runs there, or choose another folder"
        raise Refused(message) from error
    os.ftruncate(handle, 0)
    if alone:  # of those that share it, the one that came last would be named, whoever is left
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
