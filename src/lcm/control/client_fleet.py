"""The verbs of the plane over HTTP about licence seats and money. A part of `client`."""

from collections.abc import Sequence
from datetime import UTC, datetime

from lcm.control.client_line import read
from lcm.control.client_requests import Requests
from lcm.control.licences import check_worker_id
from lcm.control.wire_fleet import CostReport
from lcm.model.billing import BillingInterval
from lcm.model.licence import LicenceLedger


class Ledgers(Requests):
    """What is counted for all workers together."""

    async def licences(self) -> LicenceLedger:
        return read(await self._ask("GET", "/api/licenses", {}), LicenceLedger)

    async def free_licence(self, worker_id: str) -> None:
        check_worker_id(worker_id)  # some of what is none would be another path
        await self._write("DELETE", f"/api/licenses/{worker_id}", {})

    async def costs(self, *, since: datetime, until: datetime) -> Sequence[BillingInterval]:
        query = {"since": since.astimezone(UTC).isoformat(), "until": until.astimezone(UTC).isoformat()}
        return list(read(await self._ask("GET", "/api/costs", query), CostReport).intervals)
