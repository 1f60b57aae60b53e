"""What the workers that may run here can cost an hour at most. Asked by `lcm up` before it acts on a real account."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

from lcm.cli.follow import everything
from lcm.control.plane import Plane
from lcm.model.pool import LabWorkerPool, WorkerTemplate
from lcm.model.prices import PriceBook
from lcm.model.worker import AwsSpec, LabWorker


class Share(NamedTuple):
    """Machines of one kind; `each` None: nobody knows what one costs."""

    what: str
    most: int
    each: Decimal | None


async def shares(plane: Plane, prices: PriceBook) -> Sequence[Share]:
    """List every worker outside of pools, and every pool with as many as it may have."""
    templates = {one.metadata.name: one for one in (await everything(plane, WorkerTemplate)).items}
    pools = (await everything(plane, LabWorkerPool)).items
    workers = (await everything(plane, LabWorker)).items
    return [*_alone(workers, prices), *_pooled(pools, templates, prices)]


def total(found: Sequence[Share]) -> Decimal:
    """Add up what is known."""
    return sum((one.each * one.most for one in found if one.each is not None), Decimal(0))


def _alone(workers: Sequence[LabWorker], prices: PriceBook) -> Iterator[Share]:
    for one in workers:
        if one.metadata.owner is None:
            yield Share(f"worker {one.metadata.name}", 1, _hourly(one.spec.aws, prices))


def _pooled(pools: Sequence[LabWorkerPool], templates: dict[str, WorkerTemplate], prices: PriceBook) -> Iterator[Share]:
    for one in pools:
        template = templates.get(one.spec.template)
        price = template.spec.price_per_hour_usd if template else None
        each = price if price is not None else _hourly(template.spec.worker.aws, prices) if template else None
        yield Share(f"pool {one.metadata.name}", one.spec.max_workers, each)


def _hourly(aws: AwsSpec, prices: PriceBook) -> Decimal | None:
    """Say what the dearest machine that the spec allows costs, with its disk."""
    types = (aws.instance_type, *aws.instance_type_alternatives)
    machines = [prices.hourly(aws.region, one) for one in types]
    disk = prices.disk_hourly(aws.root_volume, aws.region)
    if disk is None or any(price is None for price in machines):
        return None
    return max(price for price in machines if price is not None) + disk
