"""`lcm up`: everything in one process, on a folder, with a simulated cloud; on AWS only when asked for and confirmed.

On AWS it first prints the account and the highest possible cost per hour of all workers that may run.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from lcm.cli.output.follow import read_all
from lcm.cli.output.render import print_line
from lcm.cli.output.screen import can_redraw
from lcm.cli.server import greeting
from lcm.cli.server.greeting import FirstDocuments, print_greeting, read_first_documents
from lcm.cli.server.status_line import keep_status_line
from lcm.compose.outside import AWS, aws_identity
from lcm.compose.process import UP_PORT, BeforeStart, EmbeddedProcess, run_embedded
from lcm.control.plane.protocol import Plane
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Refused
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.worker import AwsSpec, LabWorker
from lcm.model.money.prices import SHIPPED_ON, PriceBook
from lcm.settings import load
from lcm.settings.load import Settings
from lcm.sim.cml.pace import FASTEST
from lcm.system import log
from lcm.system.clock import SystemClock, calm_collection, spare_from_collection
from lcm.system.tasks import stop_on_signals


class CostShare(NamedTuple):
    """Machines of one kind. `each` None means the price of one is unknown."""

    what: str
    most: int
    each: Decimal | None


async def list_cost_shares(plane: Plane, prices: PriceBook) -> Sequence[CostShare]:
    """Return every worker outside of pools, and every pool with its maximum number of workers."""
    templates = {one.metadata.name: one for one in (await read_all(plane, WorkerTemplate)).items}
    pools = (await read_all(plane, LabWorkerPool)).items
    workers = (await read_all(plane, LabWorker)).items
    return [*_shares_of_workers(workers, prices), *_shares_of_pools(pools, templates, prices)]


def total_hourly(found: Sequence[CostShare]) -> Decimal:
    """Add up the known prices per hour."""
    return sum((one.each * one.most for one in found if one.each is not None), Decimal(0))


def _shares_of_workers(workers: Sequence[LabWorker], prices: PriceBook) -> Iterator[CostShare]:
    for one in workers:
        if one.metadata.owner is None:
            yield CostShare(f"worker {one.metadata.name}", 1, _highest_hourly_price(one.spec.aws, prices))


def _shares_of_pools(
    pools: Sequence[LabWorkerPool], templates: dict[str, WorkerTemplate], prices: PriceBook
) -> Iterator[CostShare]:
    for one in pools:
        template = templates.get(one.spec.template)
        price = template.spec.price_per_hour_usd if template else None
        each = (
            price
            if price is not None
            else _highest_hourly_price(template.spec.worker.aws, prices)
            if template
            else None
        )
        yield CostShare(f"pool {one.metadata.name}", one.spec.max_workers, each)


def _highest_hourly_price(aws: AwsSpec, prices: PriceBook) -> Decimal | None:
    """Return the price of the dearest machine that the spec allows, with its disk; None when it is unknown."""
    types = (aws.instance_type, *aws.instance_type_alternatives)
    machines = [prices.hourly(aws.region, one) for one in types]
    disk = prices.disk_hourly(aws.root_volume, aws.region)
    if disk is None or any(price is None for price in machines):
        return None
    return max(price for price in machines if price is not None) + disk


_QUESTION = "Launch, stop and terminate machines in this account?"


async def confirm_aws(it: EmbeddedProcess, *, settings: Settings, yes: bool) -> None:
    """Print the account, the region and the highest possible cost; raise Refused unless somebody agrees."""
    who = await aws_identity(settings)
    found = await list_cost_shares(
        it.running.control.plane_for(_READER), it.running.control.fleet.prices.at(SystemClock().now())
    )
    searched = ", ".join(settings.worker_discovery_regions)
    print_line(f"AWS account {who.account}, as {who.arn}")
    print_line(f"  region    {settings.aws_region}; machines are searched for in {searched}")
    for one in found:
        each = f"{one.each:.2f} USD an hour each" if one.each is not None else "price not known"
        print_line(f"  {one.what}: up to {one.most}, {each}")
    more = ", plus machines without a known price" if any(one.each is None for one in found) else ""
    book = settings.price_book or f"AWS's prices of {SHIPPED_ON}"
    print_line(f"  at most   {total_hourly(found):.2f} USD an hour{more}, by {book}; more if you apply more")
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused("there is nobody to confirm the cost; add --yes")
    if not typer.confirm(_QUESTION, default=False):
        raise Refused("nothing was done; leave out --cloud aws to simulate everything")


_READER = Caller(name="lcm up", role=Role.ADMIN)


class CloudName(StrEnum):
    """Where machines run."""

    SIMULATED = "simulated"
    AWS = "aws"


Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Data folder; default: LCM_DATA_DIR, else .data.")
]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help=f"Port of the API; default: LCM_PORT, else {UP_PORT}; 0 chooses a free one."),
]
Speed = Annotated[
    float | None,
    typer.Option(
        max=FASTEST, metavar="K", help="How many times faster simulated machines boot; default: LCM_SIM_SPEED, else 1."
    ),
]
Cloud = Annotated[
    CloudName | None,
    typer.Option(help="Where machines run; default: LCM_CLOUD, else simulated. On aws they cost money."),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation before using AWS.")]


FirstPaths = Annotated[
    list[str] | None,
    typer.Option("--first", metavar="PATH", help="File or folder to apply if the data folder is new; repeatable."),
]


ShowLog = Annotated[bool, typer.Option("--log", help="Print the log here instead of writing it to a file.")]


def up(
    port: Port = None,
    data: Data = None,
    speed: Speed = None,
    cloud: Cloud = None,
    paths: FirstPaths = None,
    *,
    show_log: ShowLog = False,
    yes: Yes = False,
) -> None:
    """Run everything in this process until Ctrl-C: API, controllers, data in a folder, and a simulated cloud."""
    if speed is not None and speed <= 0:
        raise typer.BadParameter("must be above 0", param_hint="--speed")
    settings = with_options(load.load_settings(), port=port, data_dir=data, cloud=cloud and cloud.value)
    file = None if show_log else (settings.data_dir / log.LOG_FILE).absolute()
    log.configure_logging(settings.log_level, file)
    if settings.cloud == AWS:
        _refuse_on_aws(speed, paths)
        asyncio.run(_run_until_stopped(settings, None, partial(confirm_aws, settings=settings, yes=yes), None, file))
    else:
        documents = read_first_documents(paths or ())
        asyncio.run(_run_until_stopped(settings, speed, documents, documents, file))


def _refuse_on_aws(speed: float | None, paths: list[str] | None) -> None:
    if speed not in (None, 1):
        raise typer.BadParameter("only a simulated cloud can be sped up", param_hint="--speed")
    if paths:
        raise typer.BadParameter(
            "cannot be used on AWS, where machines cost money; use `lcm apply -f`",
            param_hint="--first",
        )


def with_options(settings: Settings, **options: object) -> Settings:
    """Override settings with a command's options; an option that is None changes nothing."""
    return msgspec.structs.replace(settings, **{name: value for name, value in options.items() if value is not None})


async def _run_until_stopped(
    settings: Settings,
    speed: float | None,
    before: BeforeStart | None,
    documents: FirstDocuments | None,
    log_file: Path | None,
) -> None:
    calm_collection()
    stop = stop_on_signals()
    async with run_embedded(settings, speed=speed, before=before) as it:
        kept = await greeting.write_local_context(it.running, settings.data_dir)
        await print_greeting(it, settings, kept, documents, log_file)
        if log_file and can_redraw():
            plane = it.running.control.plane_for(_READER)
            it.running.parts.start("status line", keep_status_line(plane, SystemClock()))
        spare_from_collection()
        await it.running.parts.wait_until(stop)
        print_line("Stopping.")
    print_line("Stopped; everything is on disk.")
