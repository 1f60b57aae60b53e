"""`lcm up`: everything in one process, on a folder, with a simulated cloud; or, when told and confirmed, on AWS."""

import asyncio
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from lcm import config, log
from lcm.cli import local_context
from lcm.cli.first import First, first
from lcm.cli.greeting import greet
from lcm.cli.render import out
from lcm.cli.stopping import stop_on_signals
from lcm.cli.up_on_aws import confirm
from lcm.compose import UP_PORT, Ask, embedded
from lcm.compose_outside import AWS
from lcm.config import Settings
from lcm.sim.cml.pace import FASTEST


class CloudName(StrEnum):
    """Where machines are."""

    SIMULATED = "simulated"
    AWS = "aws"


Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Folder for the data; LCM_DATA_DIR, else .data.")
]
Port = Annotated[
    int | None, typer.Option(min=0, max=65_535, help=f"Port of the API; LCM_PORT, else {UP_PORT}; 0: a free one.")
]
Speed = Annotated[
    float | None,
    typer.Option(
        max=FASTEST, metavar="K", help="How much faster than the clock simulated machines boot; LCM_SIM_SPEED, else 1."
    ),
]
Cloud = Annotated[
    CloudName | None, typer.Option(help="Where machines are; LCM_CLOUD, else simulated. On aws they cost money.")
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before acting on AWS.")]


FirstPaths = Annotated[
    list[str] | None,
    typer.Option(
        "--first", metavar="PATH", help="What a new folder begins with: a file or folder to apply; repeatable."
    ),
]


def up(
    port: Port = None,
    data: Data = None,
    speed: Speed = None,
    cloud: Cloud = None,
    paths: FirstPaths = None,
    *,
    yes: Yes = False,
) -> None:
    """Run everything in this process until Ctrl-C: API, controllers, data in a folder, and a simulated cloud."""
    if speed is not None and speed <= 0:
        raise typer.BadParameter("a speed is above 0", param_hint="--speed")
    settings = with_options(config.load(), port=port, data_dir=data, cloud=cloud and cloud.value)
    log.set_up(settings.log_level)
    if settings.cloud == AWS:
        _refuse_on_aws(speed, paths)
        asyncio.run(_up(settings, None, partial(confirm, settings=settings, yes=yes), None))
    else:
        documents = first(paths or ())
        asyncio.run(_up(settings, speed, documents, documents))


def _refuse_on_aws(speed: float | None, paths: list[str] | None) -> None:
    if speed not in (None, 1):
        raise typer.BadParameter("only a simulated cloud can be sped up", param_hint="--speed")
    if paths:
        raise typer.BadParameter(
            "nothing is applied by itself where machines cost money; leave it out, and use `lcm apply -f`",
            param_hint="--first",
        )


def with_options(settings: Settings, **said: object) -> Settings:
    """Put what a command's options say over the settings."""
    return msgspec.structs.replace(settings, **{name: value for name, value in said.items() if value is not None})


async def _up(settings: Settings, speed: float | None, before: Ask | None, documents: First | None) -> None:
    stop = stop_on_signals()
    async with embedded(settings, speed=speed, before=before) as it:
        kept = await local_context.keep(it.running, settings.data_dir)
        await greet(it, settings, kept, documents)
        await it.running.parts.until(stop)
        out("Stopping.")
    out("Stopped; everything is on disk.")
