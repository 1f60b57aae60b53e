"""What the controllers of a process do, in plain numbers: looks, failures, queues and terms. Read by `/metrics`.

`compose` makes one `ControllerCounts` for a process and gives it to all its controllers.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Final

LOOK_BOUNDS: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0)
"""Seconds: the upper bounds of the buckets in which looks are counted; the last bucket has none."""


class LookCount:
    """The looks of one controller at its objects."""

    def __init__(self, measure_queue: Callable[[], int] = int) -> None:
        self.seconds = 0.0
        """All looks together."""
        self.buckets = [0] * (len(LOOK_BOUNDS) + 1)
        self.errors: Counter[str] = Counter()
        """How many ended with an error, by its class: a name of `model.base.errors`, or that of a bug's exception."""
        self.measure_queue = measure_queue
        """Returns how many objects are due and not being looked at."""

    def add(self, seconds: float) -> None:
        """Count a look that took so long."""
        self.seconds += seconds
        self.buckets[bisect_left(LOOK_BOUNDS, seconds)] += 1


class TermCount:
    """The terms of one lease for which this process is a candidate."""

    def __init__(self, measure_left: Callable[[], float] = float) -> None:
        self.elected = 0
        self.interrupted = 0
        """How many terms ended otherwise than by handing over."""
        self.measure_left = measure_left
        """Returns for how many seconds an effect may still be started; 0 or less if this process does not lead."""


class ControllerCounts:
    """The counts of all controllers of a process, by their names."""

    def __init__(self) -> None:
        self.looks: dict[str, LookCount] = {}
        self.terms: dict[str, TermCount] = {}

    def looks_of(self, name: str) -> LookCount:
        """Return the count of a controller's looks."""
        return self.looks.setdefault(name, LookCount())

    def terms_of(self, lease: str) -> TermCount:
        """Return the count of a lease's terms."""
        return self.terms.setdefault(lease, TermCount())
