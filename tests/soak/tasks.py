"""What the main threads of pages did, read from a trace of the browser, and whether that and their memory is well.

Pure but for `Trace`, which records one by the browser's debugger.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import msgspec
from playwright.sync_api import Browser

MOST_P99_MS: Final = 100.0
MOST_MS: Final = 300.0
WORK_MS: Final = 1.0
"""What is shorter is no work: thousands of empty tasks would hide the long ones from the 99th percentile."""
MOST_GROWTH: Final = 0.025
"""By how much the least memory of the second half of the rounds may be above that of the first: a leak of 5 % shows."""

_PAGE_PROCESS: Final = "Renderer"
"""The browser's own pages run in others."""
_MAIN_THREAD: Final = "CrRendererMain"
_TASK: Final = "RunTask"
_CATEGORIES: Final = ("disabled-by-default-devtools.timeline", "__metadata")
_BUFFER_KB: Final = 400_000


class TraceEvent(msgspec.Struct):
    """A task, or the name of a thread."""

    name: str = ""
    pid: int = 0
    tid: int = 0
    dur: float = 0
    tdur: float = 0
    args: Any = None


class TraceFile(msgspec.Struct):
    """What the browser writes."""

    traceEvents: list[TraceEvent]  # noqa: N815 - the browser's own word


def _named(event: TraceEvent) -> str | None:
    return event.args.get("name") if isinstance(event.args, Mapping) else None


class Task(NamedTuple):
    """One task of a page's main thread: the milliseconds that it took, and those of them that it was on a processor."""

    took_ms: float
    ran_ms: float


class Trace:
    """Records what the browser does between entering and leaving; `tasks` are those of pages."""

    def __init__(self, browser: Browser) -> None:
        self._session = browser.new_browser_cdp_session()
        self._handle = ""
        self.tasks: Sequence[Task] = ()

    def __enter__(self) -> Self:
        config = {"includedCategories": _CATEGORIES, "traceBufferSizeInKb": _BUFFER_KB}
        self._session.send("Tracing.start", {"transferMode": "ReturnAsStream", "traceConfig": config})
        return self

    def __exit__(self, *_: object) -> None:
        self._session.once("Tracing.tracingComplete", self._finish)
        self._session.send("Tracing.end")
        while not self._handle:
            self._session.send("Tracing.getCategories")
        self.tasks = find_tasks(msgspec.json.decode(self._read(self._handle), type=TraceFile).traceEvents)
        self._session.detach()

    def _finish(self, event: Any) -> None:
        self._handle = event["stream"]

    def _read(self, handle: str) -> str:
        parts = []
        while True:
            part = self._session.send("IO.read", {"handle": handle, "size": 4_000_000})
            parts.append(part["data"])
            if part["eof"]:
                self._session.send("IO.close", {"handle": handle})
                return "".join(parts)


def find_tasks(events: Iterable[TraceEvent]) -> Sequence[Task]:
    """Return the tasks of the main threads of pages."""
    kept = list(events)
    pages = {one.pid for one in kept if one.name == "process_name" and _named(one) == _PAGE_PROCESS}
    main = {(one.pid, one.tid) for one in kept if one.name == "thread_name" and _named(one) == _MAIN_THREAD}
    main = {(pid, tid) for pid, tid in main if pid in pages}
    return [Task(one.dur / 1000, one.tdur / 1000) for one in kept if one.name == _TASK and (one.pid, one.tid) in main]


class TaskFigures(NamedTuple):
    """The tasks of one page."""

    tasks: int
    worked: int
    busy_percent: float
    p50_ms: float
    p99_ms: float
    longest_ms: float
    longest_run_ms: float
    """The longest that a task was on a processor: what is above it, others on the machine took."""


def summarize(tasks: Sequence[Task], seconds: float) -> TaskFigures:
    """Return what tasks of a page took, of those that did any work."""
    worked = sorted(one.took_ms for one in tasks if one.took_ms >= WORK_MS) or [0.0]
    cuts = statistics.quantiles(worked, n=100, method="inclusive") if len(worked) > 1 else worked * 99
    busy = sum(one.took_ms for one in tasks) / seconds / 10
    ran = max((one.ran_ms for one in tasks), default=0.0)
    return TaskFigures(len(tasks), len(worked), busy, cuts[49], cuts[98], worked[-1], ran)


def judge_tasks(figures: Mapping[str, TaskFigures]) -> Sequence[str]:
    """Return which pages do not answer at once."""
    late = [
        f"{page}: the 99th percentile of tasks is {one.p99_ms:.0f} ms, not below {MOST_P99_MS:.0f}"
        for page, one in figures.items()
        if one.p99_ms >= MOST_P99_MS
    ]
    long = [
        f"{page}: a task took {one.longest_ms:.0f} ms, more than {MOST_MS:.0f}"
        for page, one in figures.items()
        if one.longest_ms > MOST_MS
    ]
    return [*late, *long]


def judge_memory(heaps: Mapping[str, Sequence[float]]) -> Sequence[str]:
    """Return whose memory grows: by name, the megabytes after each round."""
    return [
        f"{name}: memory grew by {growth:.0%}, more than {MOST_GROWTH:.0%}"
        for name, each in heaps.items()
        if (growth := growth_of(each)) > MOST_GROWTH
    ]


def growth_of(each: Sequence[float]) -> float:
    """Return by which share the least of a figure grew from the first half of its rounds to the second.

    The least, because the browser compiles and forgets code in between, half a megabyte of it.
    """
    half = len(each) // 2
    return min(each[half:]) / min(each[:half]) - 1 if half else 0.0
