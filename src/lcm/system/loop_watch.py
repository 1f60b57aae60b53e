"""The watch over an event loop: how long something held it, and what. Made by `compose`, read by `/metrics`.

While a step runs, nobody else is served. The loop notes the time at short intervals; a thread sees when it does not,
and looks at what the loop's thread is doing just then, or the thread that keeps it from running. Time in which other
programs or machines had the processor is no step's fault, and is not counted where the system tells it
(`thread_times`). `silence` also tells whether the loop reacts at all.
"""

import asyncio
import gc
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Final, NamedTuple

import structlog

from lcm.model.base.clock import Stopwatch
from lcm.system.clock import SystemStopwatch, spare_from_collection
from lcm.system.thread_times import Moment, ThreadReader, busiest_since, lost_between

HOLD_SECONDS: Final = 0.05
"""A step that takes longer is a hold."""
_BEAT_SECONDS: Final = 0.025
_LONG_COLLECTION_SECONDS: Final = 0.015
_LOGGED_SECONDS: Final = 0.1
_LOGGED_AGAIN_SECONDS: Final = 60.0
"""How long a hold must be to be logged, and after how long one of the same culprit is logged again."""
_MOST_HOLDS: Final = 1_000
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
        self._beaten = Moment(self._seconds())
        """When the loop last noted the time."""
        self._around = self._beaten
        """What the thread saw of other threads and processors about then."""
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
        self._thread_id, native_id = threading.get_ident(), threading.get_native_id()
        gc.callbacks.append(self._on_collection)
        with ThreadReader(native_id, self._seconds) as reader, ThreadReader(native_id, self._seconds) as beside:
            thread = threading.Thread(target=self._look, args=(beside,), name="loop-watch", daemon=True)
            self._beaten = self._around = reader.read()
            self._beat(reader)
            thread.start()
            try:
                yield
            finally:
                gc.callbacks.remove(self._on_collection)
                self._stopped.set()
                thread.join()

    def silence(self) -> float:
        """Return how many seconds ago the loop last reacted. Any thread may ask."""
        return self._seconds() - self._beaten.at

    def longest_within(self, seconds: float) -> LoopHold | None:
        """Return the longest hold that ended within the last seconds; None if there was none."""
        since = self._seconds() - seconds
        return max(
            (one for one in list(self.holds) if one.ended_at >= since), key=lambda one: one.seconds, default=None
        )

    def _beat(self, reader: ThreadReader) -> None:
        if not self._stopped.is_set():
            # What others do is looked at before anything is read: reading lets them go on.
            doing = describe_threads() if self.silence() >= HOLD_SECONDS else {}
            beaten = reader.read_briefly()
            is_late = beaten.at - self._beaten.at >= HOLD_SECONDS
            self._note(reader.read() if is_late else beaten, doing)
            asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat, reader)

    def _note(self, beaten: Moment, doing: Mapping[int, str]) -> None:
        before, self._beaten, now = self._beaten, beaten, beaten.at
        held = now - before.at
        if held >= HOLD_SECONDS:
            held -= lost_between(before, beaten, self._around)
        if held < HOLD_SECONDS:
            self._seen.clear()
            return
        if self._collecting_since is not None:  # another thread's, which has yet to tell that it ended
            self._seen[_COLLECTION] += int((now - self._collecting_since) / _BEAT_SECONDS)
        seen, self._seen = self._seen, Counter()
        hold = LoopHold(now, held, seen.most_common(1)[0][0] if seen else self._name_other(held, doing) or "unknown")
        self.count += 1
        self.holds.append(hold)
        self.longest = max(self.longest, hold, key=lambda one: one.seconds)
        if held >= _LOGGED_SECONDS and now >= self._logged.get(hold.culprit, 0.0):
            self._logged[hold.culprit] = now + _LOGGED_AGAIN_SECONDS
            _log.warning("the event loop was held", seconds=round(held, 3), culprit=hold.culprit)

    def _on_collection(self, phase: str, _: Mapping[str, int]) -> None:
        """Note a garbage collection, during which no thread sees anything, whichever of them began it.

        What survived one that took long is spared from the next: it is alive, and most of it for long.
        """
        if phase == "start":
            self._collecting_since = self._seconds()
            return
        seconds = self._seconds() - (self._collecting_since or self._seconds())
        self._collecting_since = None
        self._seen[_COLLECTION] += int(seconds / _BEAT_SECONDS)
        if seconds >= _LONG_COLLECTION_SECONDS:
            spare_from_collection()

    def _look(self, reader: ThreadReader) -> None:
        while not self._stopped.wait(_BEAT_SECONDS):
            silence = self.silence()
            if silence <= HOLD_SECONDS:
                self._around = reader.read()
            elif culprit := self._name_culprit(silence):
                self._seen[culprit] += 1

    def _name_culprit(self, silence: float) -> str | None:
        """Return what the loop's thread does now; None if that is to note the time.

        A loop that could go on, but does not, waits for another thread.
        """
        doing = describe_threads()
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - the documented way
        if frame is None or _is_within(frame, LoopWatch._beat.__code__):
            return None
        if frame.f_code is LoopWatch._on_collection.__code__:
            return _COLLECTION
        return (_is_selecting(frame) and self._name_other(silence, doing)) or describe_frame(frame)

    def _name_other(self, held: float, doing: Mapping[int, str]) -> str | None:
        """Return what the thread did that was busiest besides the loop, if it was busy for most of so many seconds."""
        found = busiest_since(self._around, besides=self._thread_id)
        if found is None or found[1] < held / 2:
            return None
        deed = doing.get(found[0].ident or 0)
        return f"{deed}, in thread {found[0].name}" if deed else None


def describe_threads() -> dict[int, str]:
    """Return the function that each thread of Python is in, by the threads' ids."""
    return {one: describe_frame(frame) for one, frame in sys._current_frames().items()}  # noqa: SLF001 - documented


def _is_within(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _is_selecting(frame: FrameType) -> bool:
    return (_module(frame), frame.f_code.co_name) == ("selectors", "select")


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
