"""What a soak is judged by: pure functions over its samples, each of which returns what is wrong, or nothing."""

import statistics
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import Final, NamedTuple

SETTLED_AFTER: Final = 500
"""From this session on nothing may grow: caches are filled by then, and the archive takes what ended."""
MOST_GROWTH: Final = 0.05
"""Memory of the last quarter of what is judged above that of its first quarter, medians of both.

Steps of the allocator and the minute's rhythm of the archive make about half of it."""
MOST_KB_PER_SESSION: Final = 4.0
"""The slope of memory over all that is judged: a leak of this size would be 100 MB in 25,000 sessions."""
MORE_FILES: Final = 8
"""How many more files may be open, under load and without: connections and files in use at the moment of a look."""
MOST_LOG_MB: Final = 16
"""The log beside the store's file, which is used again from its start: a few groups of the largest commits."""
MOST_TIMES_REWRITTEN: Final = 2.0
"""A compacted file against a new one with the same content: a quarter may be empty, pages are partly filled, and one in
use has the history of its last minutes. Together that is 1.3 to 1.6 times."""
MOST_TIMES_APART: Final = 1.5
"""The bytes of a kept session, wherever that is measured, against each other."""
MORE_ENTRIES: Final = 200
"""How many more entries than before the first session may be left after the last: what workers and hours leave."""

_FEWEST: Final = 8
_KB: Final = 1_000
_MB: Final = 1e6


class Sample(NamedTuple):
    """One look at a running installation, after so many sessions have ended."""

    ended: int
    seconds: float
    memory_bytes: int
    files: int
    store_bytes: int
    log_bytes: int
    alive: int
    alive_bytes: int


class Compacted(NamedTuple):
    """A store after compaction, when it keeps so many sessions."""

    where: str
    sessions: int
    alive: int
    alive_bytes: int
    store_bytes: int
    rewritten_bytes: int
    """What a new store takes that holds the same."""


def judge_samples(samples: Sequence[Sample]) -> Sequence[str]:
    """Return what grows after the first sessions; a fault if there is too little to tell.

    The first and the last sample are taken while there is no session.
    """
    settled = [one for one in samples if one.ended >= SETTLED_AFTER]
    if len(settled) < _FEWEST:
        return [
            f"{len(settled)} samples after session {SETTLED_AFTER} are too few to judge; at least {_FEWEST} are needed"
        ]
    loaded, idle = _quarters(settled, lambda one: one.files), (samples[0].files, samples[-1].files)
    return [
        *_judge_memory(settled),
        *_judge_files("under load", *loaded),
        *_judge_files("without load", *idle),
        *_judge_log(settled),
    ]


def _judge_memory(settled: Sequence[Sample]) -> Sequence[str]:
    first, last = _quarters(settled, lambda one: one.memory_bytes)
    faults = []
    if last > first * (1 + MOST_GROWTH):
        faults.append(
            f"memory grows: {first / _MB:.1f} MB in the first quarter after session {SETTLED_AFTER},"
            f" {last / _MB:.1f} MB in the last; at most {MOST_GROWTH:.0%} more are allowed"
        )
    slope = median_slope([(one.ended, one.memory_bytes) for one in settled]) / _KB
    if slope > MOST_KB_PER_SESSION:
        faults.append(f"memory grows by {slope:.1f} KB per session; at most {MOST_KB_PER_SESSION:g} are allowed")
    return faults


def _judge_files(when: str, first: float, last: float) -> Sequence[str]:
    if last <= first + MORE_FILES:
        return []
    return [f"open files {when} grow: from {first:.0f} to {last:.0f}; at most {MORE_FILES} more are allowed"]


def _judge_log(settled: Sequence[Sample]) -> Sequence[str]:
    largest = max(one.log_bytes for one in settled) / _MB
    return (
        [f"the store's log takes {largest:.1f} MB; at most {MOST_LOG_MB} are allowed"] if largest > MOST_LOG_MB else []
    )


def _quarters(settled: Sequence[Sample], value: Callable[[Sample], int]) -> tuple[float, float]:
    """Return the medians of the first and of the last quarter."""
    values = [value(one) for one in settled]
    size = len(values) // 4
    return statistics.median(values[:size]), statistics.median(values[-size:])


def median_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between all points: a few outliers, or one step, do not move it."""
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if a[0] != b[0])


def judge_stores(stores: Sequence[Compacted], alive_before: int) -> Sequence[str]:
    """Return where a compacted store is larger than what is alive in it; the last has no sessions any more."""
    return [*_judge_sizes(stores), *_judge_shares(stores), *_judge_remains(stores[-1], alive_before)]


def _judge_sizes(stores: Sequence[Compacted]) -> Sequence[str]:
    return [
        f"{one.where}: the store takes {one.store_bytes / one.rewritten_bytes:.2f} times what a new one takes with the"
        f" same content; at most {MOST_TIMES_REWRITTEN:g} times are allowed"
        for one in stores
        if one.store_bytes > MOST_TIMES_REWRITTEN * one.rewritten_bytes
    ]


def bytes_per_session(stores: Sequence[Compacted]) -> Sequence[float]:
    """Return what each session takes that is in one store and not in the next."""
    return [(more.store_bytes - less.store_bytes) / (more.sessions - less.sessions) for more, less in pairwise(stores)]


def _judge_shares(stores: Sequence[Compacted]) -> Sequence[str]:
    shares = bytes_per_session(stores)
    if min(shares) > 0 and max(shares) <= MOST_TIMES_APART * min(shares):
        return []
    told = ", ".join(f"{share / _KB:.1f}" for share in shares)
    return [f"the store does not follow what is alive: {told} KB per session between one number kept and the next"]


def _judge_remains(empty: Compacted, alive_before: int) -> Sequence[str]:
    if empty.alive <= alive_before + MORE_ENTRIES:
        return []
    told = f"{empty.alive} entries are left when every session is gone, {alive_before} were there before the first"
    return [f"{told}; at most {MORE_ENTRIES} more are allowed"]
