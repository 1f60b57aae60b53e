"""The watch over an event loop: how long something held it, and what. Made by `compose`, read by `/metrics`.

While a step runs, nobody else is served. The loop notes the time at short intervals; a thread sees when it does not,
and looks at what the loop's thread is doing just then. Time in which other programs had the processors is no step's
fault, and is not counted where the system tells it (Linux). `silence` also tells whether the loop reacts at all.
"""

import asyncio
import gc
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import structlog

from lcm.model.base.clock import Stopwatch
from lcm.system.clock import SystemStopwatch, spare_from_collection

HOLD_SECONDS: Final = 0.05
"""A step that takes longer is a hold."""
_BEAT_SECONDS: Final = 0.025
_LOGGED_SECONDS: Final = 0.1
_LOGGED_AGAIN_SECONDS: Final = 60.0
"""How long a hold must be to be logged, and after how long one of the same culprit is logged again."""
_MOST_HOLDS: Final = 1_000
_STAT_BYTES: Final = 100
_OURS: Final = "lcm."
_COLLECTION: Final = "garbage collection"
_log: Final = structlog.get_logger()


class LoopHold(NamedTuple):
    """One step that held the loop: when it ended, how long it took, and the function that was seen most often.

    `seconds` count from the last time that the loop was seen to react, a moment before the step began.
    """

    ended_at: float
    seconds: float
    culprit: str


class LoopWatch:
    """Watches the event loop on which it is started."""

    def __init__(self, stopwatch: Stopwatch | None = None) -> None:
        self._seconds = (stopwatch or SystemStopwatch()).seconds
        self._thread_id = 0
        self._beaten_at = self._seconds()
        """When the loop last noted the time."""
        self._read_wait: Callable[[], float] = lambda: 0.0
        self._waited = 0.0
        """For how long its thread had waited for a processor by then."""
        self._seen: Counter[str] = Counter()
        """What the thread saw during the present hold."""
        self._collecting_since: float | None = None
        """When the present garbage collection began."""
        self._stopped = threading.Event()
        self._logged: dict[str, float] = {}
        self.holds: deque[LoopHold] = deque(maxlen=_MOST_HOLDS)
        """The newest holds."""
        self.count = 0
        self.longest = LoopHold(0.0, 0.0, "")
        """The longest hold since the watch began."""

    @contextmanager
    def run(self) -> Iterator[None]:
        """Watch the running loop in the block."""
        self._thread_id, self._beaten_at = threading.get_ident(), self._seconds()
        gc.callbacks.append(self._on_collection)
        thread = threading.Thread(target=self._look, name="loop-watch", daemon=True)
        with _wait_reader() as self._read_wait:
            self._waited = self._read_wait()
            self._beat()
            thread.start()
            try:
                yield
            finally:
                gc.callbacks.remove(self._on_collection)
                self._stopped.set()
                thread.join()

    def silence(self) -> float:
        """Return how many seconds ago the loop last reacted. Any thread may ask."""
        return self._seconds() - self._beaten_at

    def longest_within(self, seconds: float) -> LoopHold | None:
        """Return the longest hold that ended within the last seconds; None if there was none."""
        since = self._seconds() - seconds
        return max(
            (one for one in list(self.holds) if one.ended_at >= since), key=lambda one: one.seconds, default=None
        )

    def _beat(self) -> None:
        if not self._stopped.is_set():
            self._note(self._seconds())
            asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)

    def _note(self, now: float) -> None:
        waited = self._read_wait()
        held = now - self._beaten_at - (waited - self._waited)
        self._beaten_at, self._waited = now, waited
        if held < HOLD_SECONDS:
            self._seen.clear()
            return
        if self._collecting_since is not None:  # another thread's, which has yet to tell that it ended
            self._seen[_COLLECTION] += int((now - self._collecting_since) / _BEAT_SECONDS)
        seen, self._seen = self._seen, Counter()
        hold = LoopHold(now, held, seen.most_common(1)[0][0] if seen else "unknown")
        self.count += 1
        self.holds.append(hold)
        self.longest = max(self.longest, hold, key=lambda one: one.seconds)
        if held >= _LOGGED_SECONDS and now >= self._logged.get(hold.culprit, 0.0):
            self._logged[hold.culprit] = now + _LOGGED_AGAIN_SECONDS
            _log.warning("the event loop was held", seconds=round(held, 3), culprit=hold.culprit)

    def _on_collection(self, phase: str, _: Mapping[str, int]) -> None:
        """Note a garbage collection, during which no thread sees anything, whichever of them began it.

        What survived one that held the loop is spared from the next: it is alive, and most of it for long.
        """
        if phase == "start":
            self._collecting_since = self._seconds()
            return
        seconds = self._seconds() - (self._collecting_since or self._seconds())
        self._collecting_since = None
        self._seen[_COLLECTION] += int(seconds / _BEAT_SECONDS)
        if seconds >= HOLD_SECONDS:
            spare_from_collection()

    def _look(self) -> None:
        while not self._stopped.wait(_BEAT_SECONDS):
            if self.silence() > HOLD_SECONDS and (frame := sys._current_frames().get(self._thread_id)):  # noqa: SLF001 - the documented way
                self._seen[describe_frame(frame)] += 1


@contextmanager
def _wait_reader() -> Iterator[Callable[[], float]]:
    """Yield what tells for how many seconds this thread has waited for a processor; always 0 where nothing does."""
    source = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    if not source.exists():
        yield lambda: 0.0
        return
    with source.open("rb") as file:
        yield lambda: int(os.pread(file.fileno(), _STAT_BYTES, 0).split()[1]) / 1e9


def describe_frame(frame: FrameType) -> str:
    """Return the innermost function of ours in a stack, with the one that it is in just then if that is not ours."""
    inner, found = frame, frame
    while not _module(found).startswith(_OURS) and found.f_back is not None:
        found = found.f_back
    if not _module(found).startswith(_OURS):
        return f"{_module(inner)}.{inner.f_code.co_qualname}"
    ours = f"{_module(found)}.{found.f_code.co_qualname}"
    return ours if found is inner else f"{ours}, in {inner.f_code.co_name}"


def _module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "?")
    return name
