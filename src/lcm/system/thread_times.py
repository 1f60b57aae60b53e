"""What became of the time of threads: ran, waited for a processor, or lost one. Used by `loop_watch`; Linux tells it.

A thread that could run waits while other programs have the processors. A processor of a virtual machine is also stolen:
the host runs another machine on it. Then nothing runs there, no timer goes off, and the system's own count of waiting
stands still. And only one thread of Python runs at a time, which has its lock: the others wait for it, even while it
waits for a processor itself.
"""

import os
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self

_TASKS: Final = Path("/proc/self/task")
_PROCESSORS: Final = Path("/proc/stat")
_MOST_BYTES: Final = 100_000
_PROCESSOR_FIELD: Final = 36
_STOLEN_FIELD: Final = 7
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_AT_ONCE_SECONDS: Final = 0.001
_MOST_READINGS: Final = 3


class ThreadTimes(NamedTuple):
    """For how many seconds a thread ran, and waited for a processor; and how often it was given one."""

    ran: float = 0.0
    waited: float = 0.0
    turns: int = 0

    def since(self, before: "ThreadTimes") -> "ThreadTimes":
        """Return what came after an earlier reading."""
        return ThreadTimes(self.ran - before.ran, self.waited - before.waited, self.turns - before.turns)


_NONE: Final = ThreadTimes()


class Moment(NamedTuple):
    """What the system told of a thread at some time, all of it at once."""

    at: float
    times: ThreadTimes = _NONE
    others: Mapping[int, ThreadTimes] = {}
    """The other threads of Python, by the system's ids."""
    processor: str = ""
    stolen: bytes = b""
    """The processor that it was on, and the system's table of all of them."""


def lost_between(before: Moment, after: Moment, around: Moment | None = None) -> float:
    """Return for how many seconds others had the processor of a thread, or of the one for which it waited.

    `around` was read near `before` and tells of other threads and processors; by what lies between the two, less is
    taken for lost. Stolen time may be in the waiting already, so the longer of the two is it. What the thread ran is
    never lost. Stolen time is that of the processor where the thread was before or after: a thread that slept there
    could not wake up.
    """
    around, passed, own = around or before, after.at - before.at, after.times.since(before.times)
    stolen = max(_stolen(after, one) - _stolen(around, one) for one in (around.processor, after.processor))
    stolen -= max(0.0, before.at - around.at)
    return max(own.waited + _lost_behind_lock(passed, own, after, around), min(stolen, passed - own.ran))


def _lost_behind_lock(passed: float, own: ThreadTimes, after: Moment, around: Moment) -> float:
    """Return for how many seconds, at least, the thread waited for Python's lock while its holder had no processor.

    Who waits for the lock wakes up at each switch interval: a step that waits for something else does not. Of that
    time, all that other threads ran is not lost, nor that in which the busiest of them could not run either.
    """
    others = [times.since(around.others.get(one, _NONE)) for one, times in after.others.items()]
    locked_out = min(passed - own.ran - own.waited, own.turns * sys.getswitchinterval())
    busy = max((one.ran + one.waited for one in others), default=0.0)
    between = abs(after.at - around.at - passed)
    return max(0.0, locked_out - sum(one.ran for one in others) - max(0.0, passed - busy) - between)


def _stolen(moment: Moment, processor: str) -> float:
    """Return for how many seconds a processor was stolen since the machine began; 0 where nothing tells it."""
    line = moment.stolen.partition(b"\ncpu%s " % processor.encode())[2].partition(b"\n")[0].split()
    return int(line[_STOLEN_FIELD]) / _TICKS if len(line) > _STOLEN_FIELD else 0.0


class ThreadReader:
    """Reads what becomes of a thread's time; a context manager. One thread uses it, not necessarily that which is read.

    While a file is read another thread may run, and keep the reading one waiting: a brief reading is one file.
    """

    def __init__(self, native_id: int, seconds: Callable[[], float]) -> None:
        self._native_id = native_id
        self._seconds = seconds
        self._files: dict[Path, BinaryIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for path in list(self._files):
            self._files.pop(path).close()

    def read_briefly(self) -> Moment:
        """Return what time it is, and the times of the thread, which are nothing where the system does not tell."""
        for _ in range(_MOST_READINGS - 1):
            moment = Moment(self._seconds(), self._times(self._native_id))
            if self._seconds() - moment.at < _AT_ONCE_SECONDS:
                return moment
        return Moment(self._seconds(), self._times(self._native_id))

    def read(self) -> Moment:
        """Return all that the system tells now."""
        present = {one.native_id for one in threading.enumerate() if one.native_id}
        others = {one: self._times(one) for one in present - {self._native_id}}
        place = self._pread(_TASKS / str(self._native_id) / "stat").rpartition(b")")[2].split()
        processor = place[_PROCESSOR_FIELD].decode() if place else ""
        self._close_ended(present)
        return self.read_briefly()._replace(others=others, processor=processor, stolen=self._pread(_PROCESSORS))

    def _times(self, native_id: int) -> ThreadTimes:
        return _parse(self._pread(_source(native_id)))

    def _pread(self, path: Path) -> bytes:
        """Return the content of a file; nothing if there is none, or its thread has ended."""
        try:
            if path not in self._files:
                self._files[path] = path.open("rb")
            return os.pread(self._files[path].fileno(), _MOST_BYTES, 0)
        except OSError:
            return b""

    def _close_ended(self, present: Collection[int]) -> None:
        wanted = {_source(one) for one in present}
        for path in [one for one in self._files if one.name == "schedstat" and one not in wanted]:
            self._files.pop(path).close()


def times_of(native_id: int) -> ThreadTimes:
    """Return the times of a thread; nothing if it ended, or the system does not tell."""
    try:
        return _parse(_source(native_id).read_bytes())
    except OSError:
        return _NONE


def busiest_since(moment: Moment, *, besides: int) -> tuple[threading.Thread, float] | None:
    """Return the thread that ran, or waited to, for longest since, and for how many seconds; None without others.

    Not the calling one, nor the one with the id `besides`.
    """
    others = [one for one in threading.enumerate() if one.ident not in {besides, threading.get_ident()}]
    busy = ((one, _busy_since(moment, one.native_id or 0)) for one in others)
    return max(busy, key=lambda one: one[1], default=None)


def _busy_since(moment: Moment, native_id: int) -> float:
    times = times_of(native_id).since(moment.others.get(native_id, _NONE))
    return times.ran + times.waited


@lru_cache(maxsize=1_000)
def _source(native_id: int) -> Path:
    return _TASKS / str(native_id) / "schedstat"


def _parse(text: bytes) -> ThreadTimes:
    told = text.split()
    return ThreadTimes(int(told[0]) / 1e9, int(told[1]) / 1e9, int(told[2])) if told else _NONE
