"""What became of the time of threads: ran, waited for a processor, or lost one. Used by `loop_watch`; Linux tells it.

A thread that could run waits while other programs have the processors. A processor of a virtual machine is also stolen:
the host runs another machine on it. Then nothing runs there, no timer goes off, and the system's own count of waiting
stands still.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

_MOST_BYTES: Final = 100_000
_PROCESSOR_FIELD: Final = 36
_STOLEN_FIELD: Final = 7
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_AT_ONCE_SECONDS: Final = 0.001
_MOST_READINGS: Final = 3


class Moment(NamedTuple):
    """What the system told of a thread at some time, all of it at once."""

    at: float
    ran: float = 0.0
    waited: float = 0.0
    """For how many seconds it had run, and had waited for a processor."""
    processor: str = ""
    stolen: bytes = b""
    """The processor that it was on, and the system's table of all of them."""


def lost_between(before: Moment, after: Moment) -> float:
    """Return for how many seconds others had the thread's processor, waiting and stolen time together.

    Stolen time may be in the waiting already, so the longer of the two is it. What the thread ran is never lost. Stolen
    time is that of the processor where the thread was before or after: a thread that slept there could not wake up.
    """
    ran, waited = after.ran - before.ran, after.waited - before.waited
    stolen = max(_stolen(after, one) - _stolen(before, one) for one in (before.processor, after.processor))
    return max(waited, min(stolen, after.at - before.at - ran))


def _stolen(moment: Moment, processor: str) -> float:
    """Return for how many seconds a processor was stolen since the machine began; 0 where nothing tells it."""
    line = moment.stolen.partition(b"\ncpu%s " % processor.encode())[2].partition(b"\n")[0].split()
    return int(line[_STOLEN_FIELD]) / _TICKS if len(line) > _STOLEN_FIELD else 0.0


@contextmanager
def moments(seconds: Callable[[], float]) -> Iterator[Callable[[], Moment]]:
    """Yield what tells of the thread that entered the block; only what time it is where the system tells nothing."""
    folder = Path(f"/proc/self/task/{threading.get_native_id()}")
    sources = (folder / "schedstat", folder / "stat", Path("/proc/stat"))
    if not all(one.exists() for one in sources):
        yield lambda: Moment(seconds())
        return
    with ExitStack() as files:
        times, place, processors = (files.enter_context(one.open("rb")) for one in sources)

        def read_once() -> Moment:
            at, (ran, waited, *_) = seconds(), _pread(times).split()
            on = _pread(place).rpartition(b")")[2].split()[_PROCESSOR_FIELD].decode()
            return Moment(at, int(ran) / 1e9, int(waited) / 1e9, on, _pread(processors))

        def read() -> Moment:
            for _ in range(_MOST_READINGS - 1):
                moment = read_once()
                if seconds() - moment.at < _AT_ONCE_SECONDS:
                    return moment
            return read_once()

        yield read


def _pread(file: BinaryIO) -> bytes:
    return os.pread(file.fileno(), _MOST_BYTES, 0)


class BusyThreads:
    """Knows which thread of the process ran most since it was last asked to note that."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}

    def note(self) -> None:
        """Remember what each has run until now."""
        self._before = {one.native_id: _busy(one.native_id) for one in threading.enumerate() if one.native_id}

    def busiest(self, *, besides: int) -> tuple[threading.Thread, float] | None:
        """Return the thread that ran, or waited to, for longest since, and for how many seconds; None without others.

        Not the calling one, nor the one with the id `besides`.
        """
        others = [one for one in threading.enumerate() if one.ident not in {besides, threading.get_ident()}]
        busy = ((one, _busy(one.native_id) - self._before.get(one.native_id or 0, 0.0)) for one in others)
        return max(busy, key=lambda one: one[1], default=None)


def _busy(native_id: int | None) -> float:
    """Return for how many seconds a thread has run, or waited for a processor; 0 if nothing tells it."""
    try:
        ran, waited, *_ = Path(f"/proc/self/task/{native_id}/schedstat").read_bytes().split()
    except OSError:  # it ended, or this is another system
        return 0.0
    return (int(ran) + int(waited)) / 1e9
