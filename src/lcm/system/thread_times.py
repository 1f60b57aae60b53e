"""What became of the time of threads: ran, waited for a processor, or lost one. Used by `loop_watch`; Linux tells it.

A thread that could run waits while other programs have the processors. A processor of a virtual machine is also stolen:
the host runs another machine on it. Then nothing runs there, no timer goes off, and the system's own count of waiting
stands still. And only one thread of Python runs at a time, which has its lock: the others wait for it, even while it
waits for a processor itself.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self

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


def lost_between(before: Moment, after: Moment) -> float:
    """Return for how many seconds others had the processor of a thread, or of the one for which it waited.

    Stolen time may be in the waiting already, so the longer of the two is it. What the thread ran is never lost. Stolen
    time is that of the processor where the thread was before or after: a thread that slept there could not wake up.
    """
    passed, own = after.at - before.at, after.times.since(before.times)
    stolen = max(_stolen(after, one) - _stolen(before, one) for one in (before.processor, after.processor))
    return max(own.waited + _lost_behind_lock(before, after), min(stolen, passed - own.ran))


def _lost_behind_lock(before: Moment, after: Moment) -> float:
    """Return for how many seconds, at least, the thread waited for Python's lock while its holder had no processor.

    Who waits for the lock wakes up at each switch interval: a step that waits for something else does not. Of that
    time, all that other threads ran is not lost, nor that in which the busiest of them could not run either.
    """
    passed, own = after.at - before.at, after.times.since(before.times)
    others = [times.since(before.others.get(one, _NONE)) for one, times in after.others.items()]
    locked_out = min(passed - own.ran - own.waited, own.turns * sys.getswitchinterval())
    busy = max((one.ran + one.waited for one in others), default=0.0)
    return max(0.0, locked_out - sum(one.ran for one in others) - max(0.0, passed - busy))


def _stolen(moment: Moment, processor: str) -> float:
    """Return for how many seconds a processor was stolen since the machine began; 0 where nothing tells it."""
    line = moment.stolen.partition(b"\ncpu%s " % processor.encode())[2].partition(b"\n")[0].split()
    return int(line[_STOLEN_FIELD]) / _TICKS if len(line) > _STOLEN_FIELD else 0.0


@contextmanager
def moments(seconds: Callable[[], float]) -> Iterator[Callable[[], Moment]]:
    """Yield what tells of the thread that entered the block; only what time it is where the system tells nothing."""
    own = threading.get_native_id()
    sources = (Path(f"/proc/self/task/{own}/stat"), Path("/proc/stat"))
    if not all(one.exists() for one in (*sources, _source(own))):
        yield lambda: Moment(seconds())
        return
    with ExitStack() as files, _TimesOfAll() as threads:
        place, processors = (files.enter_context(one.open("rb")) for one in sources)

        def read_once() -> Moment:
            at, others = seconds(), threads.read()
            on = _pread(place).rpartition(b")")[2].split()[_PROCESSOR_FIELD].decode()
            return Moment(at, others.pop(own, _NONE), others, on, _pread(processors))

        def read() -> Moment:
            for _ in range(_MOST_READINGS - 1):
                moment = read_once()
                if seconds() - moment.at < _AT_ONCE_SECONDS:
                    return moment
            return read_once()

        yield read


class _TimesOfAll:
    """Reads the times of all threads of Python, often; a context manager that closes their files at its end."""

    def __init__(self) -> None:
        self._files: dict[int, BinaryIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for native_id in list(self._files):
            self._files.pop(native_id).close()

    def read(self) -> dict[int, ThreadTimes]:
        """Return the times of each thread that runs now."""
        present = {one.native_id for one in threading.enumerate() if one.native_id}
        for gone in self._files.keys() - present:
            self._files.pop(gone).close()
        return {one: times for one in present if (times := self._read(one)) is not None}

    def _read(self, native_id: int) -> ThreadTimes | None:
        try:
            if native_id not in self._files:
                self._files[native_id] = _source(native_id).open("rb")
            return _parse(_pread(self._files[native_id]))
        except OSError:  # it ended
            return None


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


def _source(native_id: int) -> Path:
    return Path(f"/proc/self/task/{native_id}/schedstat")


def _parse(text: bytes) -> ThreadTimes:
    ran, waited, turns = text.split()
    return ThreadTimes(int(ran) / 1e9, int(waited) / 1e9, int(turns))


def _pread(file: BinaryIO) -> bytes:
    return os.pread(file.fileno(), _MOST_BYTES, 0)
