"""`lcm up`: everything in one process, on a folder, with a simulated cloud; or, when told and confirmed, on AWS."""

import asyncio
import os
import shutil
import sys
from enum import StrEnum
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from lcm import config, log
from lcm.api.sign_in import LINK, link_path
from lcm.cli import contexts, local_context
from lcm.cli.local_context import ADMIN, Kept
from lcm.cli.render import out
from lcm.cli.stopping import stop_on_signals
from lcm.cli.up_on_aws import confirm
from lcm.compose import UP_PORT, Ask, Embedded, embedded
from lcm.compose_api import Running
from lcm.compose_outside import AWS, SIM_SECRETS
from lcm.config import Settings
from lcm.control.sign_in import SignIns
from lcm.data_folder import STORE
from lcm.model.identity import Role
from lcm.sim.cml.pace import FASTEST
from lcm.store.base import everything
from lcm.system import SystemClock


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


def up(port: Port = None, data: Data = None, speed: Speed = None, cloud: Cloud = None, *, yes: Yes = False) -> None:
    """Run everything in this process until Ctrl-C: API, controllers, data in a folder, and a simulated cloud."""
    if speed is not None and speed <= 0:
        raise typer.BadParameter("a speed is above 0", param_hint="--speed")
    settings = with_options(config.load(), port=port, data_dir=data, cloud=cloud and cloud.value)
    log.set_up(settings.log_level)
    if settings.cloud == AWS:
        if speed not in (None, 1):
            raise typer.BadParameter("only a simulated cloud can be sped up", param_hint="--speed")
        asyncio.run(_up(settings, 1, partial(confirm, settings=settings, yes=yes)))
    else:
        asyncio.run(_up(settings, settings.sim_speed if speed is None else speed, None))


def with_options(settings: Settings, **said: object) -> Settings:
    """Put what a command's options say over the settings."""
    return msgspec.structs.replace(settings, **{name: value for name, value in said.items() if value is not None})


async def _up(settings: Settings, speed: float, agree: Ask | None) -> None:
    stop = stop_on_signals()
    async with embedded(settings, speed=speed, agree=agree) as it:
        kept = await local_context.keep(it.running, settings.data_dir)
        await _greet(it, settings, speed, kept)
        await it.running.parts.until(stop)
        out("Stopping.")
    out("Stopped; everything is on disk.")


async def _link(running: Running) -> str:
    """Make a link with which a browser signs in as the administrator."""
    sign_ins = SignIns(running.store, running.tokens, clock=SystemClock())
    code, _ = await sign_ins.invite(ADMIN, Role.ADMIN, also=[local_context.note(running, "create", LINK, ADMIN)])
    return running.url + link_path(code.reveal())


async def _greet(it: Embedded, settings: Settings, speed: float, kept: Kept) -> None:
    state = await everything(it.running.store, "")
    lcm = _command()
    use = "which is now the current one" if kept.current else f"for `{lcm} context use {kept.name}`: another one runs"
    out(
        f"Lablet Cloud Manager {metadata.version('lablet-cloud-manager')} runs at {it.running.url}\n"
        f"  data      {(settings.data_dir / STORE).absolute()}: {len(state.entries)} keys, revision {state.revision},"
        f" epoch {it.running.store.epoch}\n"
        f"  allocator {_free(it)}\n"
        f"{_cloud(it, settings, speed)}"
        f"  sign-in   {ADMIN}, through the context {kept.name!r} in {contexts.file()}, {use}\n"
        f"  browser   {await _link(it.running)}\n"
        f"            signs in once, within ten minutes; `{lcm} sign-in` prints another\n"
        "\n"
        "In another terminal:\n"
        f"  {lcm} apply -f examples/first   a template, a pool, two workers, a lab, settings\n"
        f"  {lcm} get workers --watch       see them come alive\n"
        f"  {lcm} describe worker workshop  everything about one\n"
        f"  {lcm} doctor                    what this installation is made of\n"
        "\n"
        "Ctrl-C stops it; nothing is lost."
    )


def _cloud(it: Embedded, settings: Settings, speed: float) -> str:
    fleet = it.outside.fleet
    if fleet is None:
        return f"  cloud     AWS, region {settings.aws_region}: what is launched there costs money\n"
    there = sum(one.shown(SystemClock().now()) for one in fleet.cloud.account.machines.values())
    unset = [name for name in SIM_SECRETS if name not in {*os.environ, *config.referred(settings)}]
    stands_in = f"            {' and '.join(unset)}: not set, so made up\n" if unset else ""
    return (
        f"  cloud     simulated, at {speed:g} times the clock's speed, {there} machines there\n"
        "            no money is spent\n" + stands_in
    )


def _free(it: Embedded) -> str:
    usage = it.allocator.get_resource_usage()
    return (
        f"{usage['available_cpu']:g} of {usage['total_cpu']:g} CPU and {usage['available_memory_mb']:g} of"
        f" {usage['total_memory_mb']:g} MB free"
    )


def _command() -> str:
    """Say how this very program is called: a virtual environment that is not active has it under a longer name."""
    own = Path(sys.argv[0]).absolute()
    found = shutil.which("lcm")
    if own.name != "lcm" or (found and Path(found).absolute() == own):
        return "lcm"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)
