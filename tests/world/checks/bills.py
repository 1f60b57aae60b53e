"""What the simulated cloud charges, by its own records of its machines, and whether a ledger divides exactly that."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from harness.clouds import SimPrices, make_bill
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.worker import RootVolume
from lcm.model.money.ledger import CostGroup, CostLedger
from lcm.model.money.prices import SHIPPED_PRICES
from lcm.providers.protocols.compute import WORKER_TAG, InstanceState
from lcm.sim.cloud.machines import SimMachine
from lcm.sim.world.environment import Environment
from lcm.sim.world.scenario import ScenarioPool
from lcm.sim.world.world import Violation
from world.observed import ObservedState

UNBALANCED: Final = "costs that do not add up to the bill"
CENT: Final = Decimal("0.01")
_HOUR: Final = timedelta(hours=1)
_DISK: Final = RootVolume()
_FLEET_GROUPS: Final = frozenset({CostGroup.TRACK, CostGroup.POOL, CostGroup.WORKER, CostGroup.DAY})
"""Groups in which each row has its own part of what nobody used."""


def parts_add_up(ledger: CostLedger) -> Sequence[Violation]:
    """Check that the rows of a ledger, all on one page, and what nobody used add up to the bill exactly."""
    usd = sum((row.usd for row in ledger.rows), Decimal(0)) + ledger.unused_usd
    found = [] if usd == ledger.total_usd or ledger.next else [f"{usd} of {ledger.total_usd} USD"]
    unused = sum((row.unused_usd for row in ledger.rows), Decimal(0))
    if ledger.by in _FLEET_GROUPS and not ledger.next and unused != ledger.unused_usd:
        found.append(f"{unused} of {ledger.unused_usd} USD unused")
    return [Violation(UNBALANCED, f"by {ledger.by}: {one}") for one in found]


def ledger_is_the_bill(ledger: CostLedger, usd: Decimal) -> Sequence[Violation]:
    """Check that a ledger of everything is the cloud's own bill, to the cent."""
    if abs(ledger.total_usd - usd) < CENT / 2:
        return ()
    return [Violation(UNBALANCED, f"the ledger has {ledger.total_usd} USD, the cloud's bill {usd}")]


def cloud_bill(stage: Environment, pools: Sequence[ScenarioPool], until: datetime) -> Decimal:
    """Return what all machines of the account have cost, as the cloud knows them."""
    machines = stage.cloud.account.machines.values()
    kinds = {(one.region, one.instance_type) for one in machines}
    gb_hourly = {region: _disk_hourly(region) / _DISK.size_gb for region, _ in kinds}
    hourly = {
        (region, kind): machine + _disk_hourly(region)
        for region, kind in kinds
        if (machine := SHIPPED_PRICES.hourly(region, kind)) is not None
    }
    spot = {
        (one.region, one.instance_type): Decimal(one.price_per_hour_usd) + _disk_hourly(one.region)
        for one in pools
        if one.market == "spot" and one.price_per_hour_usd
    }
    return make_bill(machines, SimPrices(hourly=hourly, disk_gb_hourly=gb_hourly, spot=spot), until).usd


def planned_hourly(template: WorkerTemplate) -> Decimal | None:
    """Return what a budget counts a machine of a template with an hour; None if nobody knows."""
    own = template.spec.price_per_hour_usd
    return _paid_hourly(template) if own is None else own


def _paid_hourly(template: WorkerTemplate) -> Decimal | None:
    """Return what a machine of a template is billed with an hour while it runs; None if nobody knows."""
    aws = template.spec.worker.aws
    known = SHIPPED_PRICES.hourly(aws.region, aws.instance_type) if aws.market == "on_demand" else None
    machine = template.spec.price_per_hour_usd if known is None else known
    return None if machine is None else machine + _disk_hourly(aws.region)


def pool_bill(
    stage: Environment, seen: ObservedState, pool: LabWorkerPool, since: datetime, until: datetime
) -> Decimal:
    """Return what the machines of a pool have cost while they ran in a span."""
    known = seen.pool(pool.metadata.name, pool.metadata.namespace)
    hourly = _paid_hourly(known[1]) if known else None
    mine = (one for one in stage.cloud.account.machines.values() if _pool_uid(seen, one) == pool.metadata.uid)
    return (hourly or Decimal(0)) * sum((running_hours(one, since, until) for one in mine), Decimal(0))


def running_hours(machine: SimMachine, since: datetime, until: datetime) -> Decimal:
    """Return for how many hours of a span a machine ran."""
    spans = [one for one in machine.spans(until) if one.state is InstanceState.RUNNING and one.until > since]
    return sum((Decimal((one.until - max(one.since, since)) / _HOUR) for one in spans), Decimal(0))


def month_start(moment: datetime) -> datetime:
    """Return when the calendar month of a moment began, in UTC."""
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _pool_uid(seen: ObservedState, machine: SimMachine) -> str:
    return seen.pool_uids.get(machine.tags.get(WORKER_TAG, ""), "")


def _disk_hourly(region: str) -> Decimal:
    found = SHIPPED_PRICES.disk_hourly(_DISK, region)
    assert found is not None, "its disks are in the price book"
    return found
