"""Workers that take steps, and what stands beside them in the store afterwards."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import given
from backstage import Stage, Standing, service
from lcm.control.accounts.billing import CLOSED_PREFIX, OPEN_PREFIX
from lcm.control.accounts.licences import SEATS_PREFIX
from lcm.control.accounts.step_records import FleetSettings
from lcm.control.objects.records import CODEC
from lcm.control.objects.steps import TEARDOWN
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.billing import BillingInterval
from lcm.model.money.licences import LicenceSeat, token_id
from lcm.model.money.prices import SHIPPED_PRICES, PriceBook
from lcm.store.base import Store, scan_all

P = WorkerPhase
BY = service(WORKER_CONTROLLER)
TOKEN = "env:CML_LICENSE_TOKEN"
LAUNCHED = {"client_token": "t", "launch_attempt": 1, "instance_id": "i-1", "instance_type": "m5zn.metal"}
RUNNING = {**LAUNCHED, "state": "running"}
BOOTED = {"version": "2.9.0", "api_url": "https://10.0.0.1", "licensed": False}


def fleet(seats: int | None = None, prices: PriceBook = SHIPPED_PRICES) -> FleetSettings:
    return FleetSettings({} if seats is None else {token_id(TOKEN): seats}, prices)


def worker(
    name: str = "w1",
    phase: WorkerPhase = P.READY_UNLICENSED,
    *,
    cml: Mapping[str, object] = {},
    token: str | None = TOKEN,
    **more: object,
) -> LabWorker:
    """Give a worker that is up, unless it is said otherwise; it was launched by us, and goes when it has ended."""
    status = {"phase": phase, "ec2": RUNNING, "cml": {**BOOTED, **cml}, "capacity": given.machine()}
    made = given.worker(name=name, uid=f"uid-{name}", finalizers=(TEARDOWN,), generation=1)
    return given.with_fields(given.changed(made, {"spec": {"cml": {"license_token": token}}, "status": status}), more)


async def move(stage: Stage, at: LabWorker, phase: WorkerPhase | None = None, **fields: object) -> LabWorker:
    """Take a step as the worker controller."""
    status = given.changed(at.status, {"phase": phase or at.status.phase, **fields})
    return await stage[BY].step(at, status, reason="seen")


def pass_time(stage: Stage, until: datetime) -> None:
    assert isinstance(stage.clock, Standing)
    stage.clock.moment = until


async def seats(store: Store) -> dict[str, LicenceSeat]:
    page = await scan_all(store, SEATS_PREFIX)
    found = [CODEC.decode(entry.value, LicenceSeat) for entry in page.entries]
    return {seat.worker_id: seat for seat in found}


async def intervals(store: Store) -> tuple[Sequence[BillingInterval], Sequence[BillingInterval]]:
    """Read those that go on and those that are closed, in the order of their ends."""
    pages = [await scan_all(store, prefix) for prefix in (OPEN_PREFIX, CLOSED_PREFIX)]
    going, closed = ([CODEC.decode(entry.value, BillingInterval) for entry in page.entries] for page in pages)
    return going, closed
