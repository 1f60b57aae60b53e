"""The verbs of the plane over HTTP about measurements, idleness and alerts. A part of `client`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from lcm.control.client_line import read
from lcm.control.client_requests import Requests, internal, named, path_of, within
from lcm.control.plane import R, Ref, Sample, WorkerRef
from lcm.control.wire import AlertList, WorkerHistory, report_of
from lcm.model.alert import Alert, Complaint
from lcm.model.errors import Gone
from lcm.model.worker import IdleVerdict, WorkerTelemetry


class Reports(Requests):
    """What controllers report, and what was made of it."""

    async def report(self, ref: WorkerRef, telemetry: WorkerTelemetry) -> WorkerTelemetry:
        answer = await self._write("POST", f"{internal(ref)}/metrics", within(ref), report_of(telemetry))
        return read(answer, WorkerTelemetry)

    async def telemetry(self, ref: WorkerRef) -> WorkerTelemetry | None:
        try:
            return read(await self._ask("GET", f"{path_of(ref)}/telemetry", within(ref)), WorkerTelemetry)
        except Gone:
            return None

    async def history(self, ref: WorkerRef, *, since: datetime) -> Sequence[Sample]:
        query = within(ref) | {"since": since.astimezone(UTC).isoformat()}
        return list(read(await self._ask("GET", f"{path_of(ref)}/history", query), WorkerHistory).items)

    async def detect_idle(self, ref: WorkerRef) -> IdleVerdict:
        return read(await self._write("POST", f"{internal(ref)}/detect-idle", within(ref)), IdleVerdict)

    async def complain(self, ref: Ref[R], complaint: Complaint) -> None:
        await self._write("POST", _alerts(ref), _about(ref), complaint)

    async def settle(self, ref: Ref[R], alert: str) -> None:
        await self._write("DELETE", _alerts(ref), _about(ref) | {"alert": alert})

    async def alerts(self) -> Sequence[Alert]:
        return list(read(await self._ask("GET", "/api/alerts", {}), AlertList).items)


def _alerts(ref: Ref[Any]) -> str:
    return f"/api/internal/alerts/{named(ref)}"


def _about(ref: Ref[Any]) -> dict[str, str]:
    return {"kind": ref.kind.__name__, **within(ref)}
