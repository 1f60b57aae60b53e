"""What operators grep for in the logs about monitoring. Called by `monitor`; says each thing when it changes.

What was said is remembered here only so as not to repeat it: after a failover it is said once more.
"""

from typing import Any, Final

import structlog

from lcm.control.plane import WorkerRef
from lcm.model.errors import LcmError
from lcm.model.worker import WorkerTelemetry

THRESHOLD: Final = 90.0
CALM: Final = 10.0
"""How far below the threshold a value must fall before crossing it is worth another line."""
_log: Final = structlog.get_logger()
_LINES: Final = {
    "cpu": ("HIGH CPU", "cpu_utilization"),
    "memory": ("HIGH MEMORY", "memory_utilization"),
    "disk": ("HIGH DISK", "storage_utilization"),
}


class MonitorLog:
    """Remembers what was said last about each worker."""

    def __init__(self) -> None:
        self._trouble: dict[object, str] = {}
        self._high: set[tuple[WorkerRef, str]] = set()

    def collected(self, ref: WorkerRef, found: WorkerTelemetry) -> None:
        """Say that a worker was measured, and which values have become too high."""
        first = self._trouble.get(ref) != ""
        self._trouble[ref] = ""
        tell = _log.info if first else _log.debug
        tell("Collected metrics for worker", **_keys(ref), cpu=found.cpu_utilization, memory=found.memory_utilization)
        for metric, (message, field) in _LINES.items():
            self._value(ref, metric, message, getattr(found, field))

    def failed(self, ref: WorkerRef, error: LcmError) -> None:
        """Say that a worker could not be measured, unless that was said already."""
        if self._news(ref, error):
            _log.warning("Failed to collect metrics for worker", **_keys(ref), error=str(error))

    def region(self, region: str, error: LcmError | None) -> None:
        """Say that the cloud does not answer in a region, or does again."""
        if error is None and self._trouble.pop(region, ""):
            _log.info("Collected facts of region again", region=region)
        elif error is not None and self._news(region, error):
            _log.warning("Failed to collect facts of region", region=region, error=str(error))

    def started(self, ref: WorkerRef) -> None:
        """Say that a worker is measured from now on."""
        _log.info("Started monitoring worker", **_keys(ref))

    def stopped(self, ref: WorkerRef) -> None:
        """Say that a worker is measured no more, and forget it."""
        self._trouble.pop(ref, None)
        self._high = {one for one in self._high if one[0] != ref}
        _log.info("Stopped monitoring worker", **_keys(ref))

    def _news(self, key: object, error: LcmError) -> bool:
        kind = type(error).__name__
        known = self._trouble.get(key)
        self._trouble[key] = kind
        return known != kind

    def _value(self, ref: WorkerRef, metric: str, message: str, value: float | None) -> None:
        if value is None:
            return
        if value >= THRESHOLD and (ref, metric) not in self._high:
            self._high.add((ref, metric))
            _log.warning(message, **_keys(ref), value=value, threshold=THRESHOLD)
            _log.warning("Threshold Violation", **_keys(ref), metric=metric, value=value, threshold=THRESHOLD)
        elif value < THRESHOLD - CALM:
            self._high.discard((ref, metric))


def _keys(ref: WorkerRef) -> dict[str, Any]:
    return {"worker": f"{ref.namespace}/{ref.name}"}
