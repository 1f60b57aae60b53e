"""Watches the store itself: whether it takes writes, how full it is, and whether it is still the one that was opened.

Started by `compose.api`; readiness, metrics and the list of alerts ask it. Reads do not show that a store is full, but
every commit of this process does, which writers tell. Who commits nothing would not know, so it writes: a probe now
and then, and more often while something is wrong, which uses no revision; how full it is changes slowly, and is asked
with some of the probes. A store that went back ends the process.
"""

import asyncio
import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import structlog

from lcm.control.objects.records import ALERTS
from lcm.control.objects.writer import commit_ops
from lcm.control.telemetry.alert_records import read_alerts
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Later, LcmError, StoreFull, Stuck, WentBack
from lcm.model.base.event import encode_event
from lcm.model.base.resource import DEFAULT_NAMESPACE
from lcm.model.telemetry.alert import Alert, Severity
from lcm.store.base import Store, StoreUsage

PROBE_SECONDS: Final = 15.0
FAULT_PROBE_SECONDS: Final = 5.0
_PROBES_PER_SIZE: Final = 4
"""With one of so many probes the store is asked how full it is."""
ALERT_PERCENT: Final = 80
NEARLY_FULL: Final = "StoreNearlyFull"
NOT_WRITABLE: Final = "StoreNotWritable"
STORE_KIND: Final = "Store"
"""The kind that alerts about the store have. It is no object."""

_CALM_PERCENT: Final = 5
"""How far below the limit the usage must fall before the alert is cleared."""
_ALERTS_KEY: Final = f"{ALERTS}store"
_MB: Final = 1e6
_log: Final = structlog.get_logger()


class StoreHealth:
    """What is known about one store. Before the first probe it counts as healthy."""

    def __init__(self, store: Store, *, clock: Clock, alert_percent: int = ALERT_PERCENT) -> None:
        """Watch a store; raise an alert when it takes `alert_percent` of the room that it can take."""
        self._store = store
        self._clock = clock
        self._alert_percent = alert_percent
        self._fault: Alert | None = None
        self._raised: bool | None = None
        """Whether the alert is raised; None means that nobody looked yet."""
        self.usage: StoreUsage | None = None
        """How full it was when last probed; None while nobody knows."""

    @property
    def is_writable(self) -> bool:
        """Whether the newest probe or commit could write."""
        return self._fault is None

    @property
    def unstored_alerts(self) -> Sequence[Alert]:
        """The alerts that cannot be stored: a store that takes no writes cannot hold the alert that says so."""
        return [self._fault] if self._fault else []

    async def run(self) -> None:
        """Probe the store every few seconds, until cancelled. Raises WentBack when it is not the one that was known."""
        for number in itertools.count():
            await self.probe(with_size=number % _PROBES_PER_SIZE == 0)
            await asyncio.sleep(PROBE_SECONDS if self.is_writable else FAULT_PROBE_SECONDS)

    def record_commit(self, refusal: StoreFull | None) -> None:
        """Record that a commit of this process was taken, or refused for want of room."""
        if refusal is not None:
            self._mark_fault(refusal)
        elif self._fault is not None:
            self._mark_writable()

    async def probe(self, *, with_size: bool = True) -> None:
        """Probe once. With its size, also keep the alert about that as the result says."""
        try:
            if with_size:
                self.usage = await self._store.usage()
            await self._store.probe()
            if with_size and self.usage is not None:
                await self._sync_alert(self.usage)
        except WentBack:
            raise
        except Conflict:
            self._raised = None  # another process was faster
        except (Later, Stuck) as error:
            self._mark_fault(error)
        else:
            self._mark_writable()

    def _mark_fault(self, error: LcmError) -> None:
        reason = type(error).__name__
        if self._fault is None or self._fault.reason != reason:
            _log.error("store takes no writes", error=str(error))
            since = self._fault.since if self._fault else self._clock.now()
            remedy = "; see “A full store” in docs/operate.md" if isinstance(error, StoreFull) else ""
            self._fault = _make_alert(NOT_WRITABLE, reason, f"nothing can be written: {error}{remedy}", since)

    def _mark_writable(self) -> None:
        if self._fault is not None:
            _log.info("store takes writes again")
        self._fault = None

    async def _sync_alert(self, usage: StoreUsage) -> None:
        wanted = usage.percent >= self._alert_percent - (_CALM_PERCENT if self._raised else 0)
        if wanted is self._raised:
            return
        kept, now = await read_alerts(self._store, _ALERTS_KEY), self._clock.now()
        if kept.alerts.find(NEARLY_FULL) is not None:
            wanted = usage.percent >= self._alert_percent - _CALM_PERCENT
        alert = _make_alert(NEARLY_FULL, NEARLY_FULL, _describe(usage), now)
        after = kept.alerts.with_raised(alert) if wanted else kept.alerts.without(NEARLY_FULL)
        if after != kept.alerts:
            events = [encode_event(event) for event in kept.change_events(after, now)]
            await commit_ops(self._store, *kept.replace_ops(after), events=events)
            _log.warning("store is nearly full" if wanted else "store has room again", percent=round(usage.percent))
        self._raised = wanted


def _make_alert(name: str, reason: str, message: str, since: datetime) -> Alert:
    return Alert(
        kind=STORE_KIND,
        name="store",
        namespace=DEFAULT_NAMESPACE,
        uid="store",
        alert=name,
        severity=Severity.CRITICAL,
        reason=reason,
        message=message,
        since=since,
    )


def _describe(usage: StoreUsage) -> str:
    unused = f", {usage.unused_bytes / _MB:.0f} MB of them unused" if usage.unused_bytes else ""
    return (
        f"the store takes {usage.used_bytes / _MB:.0f} of {usage.limit_bytes / _MB:.0f} MB ({usage.percent:.0f} %)"
        f"{unused}; at 100 % nothing can be written: make room, as “A full store” in docs/operate.md says"
    )
