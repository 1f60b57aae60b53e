"""What goes wrong between a caller and the simulated cloud. Set by tests and scenarios, asked by `compute`."""

from collections import defaultdict, deque
from datetime import datetime, timedelta
from typing import Final

from lcm.model.errors import Throttled, Unreachable
from lcm.providers.compute import Compute
from lcm.sim.faults import Failures, Spells

EVERYWHERE: Final = ""
_SECOND: Final = timedelta(seconds=1)


class Faults:
    """Planned failures, lost answers, and a cloud that wants fewer calls."""

    def __init__(self, *, calls_per_second: int | None = None) -> None:
        self.calls_per_second = calls_per_second
        self.spells = Spells()
        self._failures = Failures(Compute, self.spells)
        self.fail_next = self._failures.fail_next
        self._throttled: dict[str, datetime] = {}
        self._calls: defaultdict[str, deque[datetime]] = defaultdict(deque)

    def lose_answer_next(self, verb: str, times: int = 1) -> None:
        """Let the next calls of a verb have their effect, and their caller hear nothing of it."""
        self.fail_next(verb, Unreachable(f"{verb}: no answer came"), times=times, after_effect=True)

    def throttle(self, until: datetime, region: str = EVERYWHERE) -> None:
        """Refuse all calls until a moment."""
        self._throttled[region] = until

    async def linger(self, verb: str) -> None:
        """Hold up a call that hangs or is slow, and a caller who stands still."""
        await self.spells.linger(verb)

    def before(self, verb: str, region: str, now: datetime) -> None:
        """Raise what stands between a call and its effect."""
        self._failures.before(verb)
        until = max((self._throttled[one] for one in (EVERYWHERE, region) if one in self._throttled), default=now)
        if until > now or self._too_many(region, now):
            raise Throttled(f"{verb}: too many calls in {region}", after=max(until - now, _SECOND))

    def after(self, verb: str) -> None:
        """Raise what stands between an effect and its caller."""
        self._failures.after(verb)

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
