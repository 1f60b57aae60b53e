"""What goes wrong between a caller and the simulated cloud. Set by tests and scenarios, asked by `compute`."""

from collections import Counter, defaultdict, deque
from datetime import datetime, timedelta
from typing import Final

from lcm.model.errors import LcmError, Throttled, Unreachable

EVERYWHERE: Final = ""
_SECOND: Final = timedelta(seconds=1)


class Faults:
    """Planned failures, lost answers, and a cloud that wants fewer calls."""

    def __init__(self, *, calls_per_second: int | None = None) -> None:
        self.calls_per_second = calls_per_second
        self._planned: defaultdict[str, deque[LcmError]] = defaultdict(deque)
        self._lost: Counter[str] = Counter()
        self._throttled: dict[str, datetime] = {}
        self._calls: defaultdict[str, deque[datetime]] = defaultdict(deque)

    def fail_next(self, verb: str, error: LcmError, times: int = 1) -> None:
        """Raise an error from the next calls of a verb, before they have any effect."""
        self._planned[verb].extend([error] * times)

    def lose_answer_next(self, verb: str, times: int = 1) -> None:
        """Let the next calls of a verb have their effect, and their caller hear nothing of it."""
        self._lost[verb] += times

    def throttle(self, until: datetime, region: str = EVERYWHERE) -> None:
        """Refuse all calls until a moment."""
        self._throttled[region] = until

    def before(self, verb: str, region: str, now: datetime) -> None:
        """Raise what stands between a call and its effect."""
        if self._planned[verb]:
            raise self._planned[verb].popleft()
        until = max((self._throttled[one] for one in (EVERYWHERE, region) if one in self._throttled), default=now)
        if until > now or self._too_many(region, now):
            raise Throttled(f"{verb}: too many calls in {region}", after=max(until - now, _SECOND))

    def after(self, verb: str) -> None:
        """Raise what stands between an effect and its caller."""
        if self._lost[verb]:
            self._lost[verb] -= 1
            raise Unreachable(f"{verb}: no answer came")

    def _too_many(self, region: str, now: datetime) -> bool:
        if self.calls_per_second is None:
            return False
        calls = self._calls[region]
        while calls and calls[0] <= now - _SECOND:
            calls.popleft()
        if len(calls) >= self.calls_per_second:
            return True
        calls.append(now)
        return False
