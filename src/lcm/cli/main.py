"""`lcm`: the command line's entry."""

import asyncio
import signal
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lcm import config, log
from lcm.cli.cml_sim import cml_sim
from lcm.compose import Running, embedded
from lcm.config import Settings
from lcm.model.errors import LcmError
from lcm.store.base import everything

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Lablet Cloud Manager")
app.command("cml-sim")(cml_sim)
_out = Console(highlight=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, soft_wrap=True)


@app.callback()
def _lcm() -> None:
    """Keep `lcm` a group of commands while there are few of them."""


@app.command()
def up(
    data: Annotated[Path | None, typer.Option(help="Folder for the data; LCM_DATA_DIR, else .data.")] = None,
) -> None:
    """Run everything in this process until Ctrl-C."""
    try:
        settings = config.load()
        if data is not None:
            settings = settings.model_copy(update={"data_dir": data})
        log.set_up(settings.log_level)
        asyncio.run(_up(settings))
    except LcmError as error:
        _err.print(str(error), markup=False, style="red")
        raise typer.Exit(1) from error


@app.command("version")
def show_version() -> None:
    """Print the version."""
    _out.print(version("lablet-cloud-manager"))


async def _up(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with embedded(settings) as running:
        await _greet(running)
        await stop.wait()
    _out.print("Stopped; everything is on disk.")


async def _greet(running: Running) -> None:
    state = await everything(running.store, "")
    usage = running.allocator.get_resource_usage()
    _out.print(f"Lablet Cloud Manager {version('lablet-cloud-manager')}")
    _out.print(
        f"  store      {running.file}: {len(state.entries)} objects,"
        f" revision {state.revision}, epoch {running.store.epoch}"
    )
    _out.print(
        f"  allocator  {usage['available_cpu']:g} of {usage['total_cpu']:g} CPU and {usage['available_memory_mb']:g} of"
        f" {usage['total_memory_mb']:g} MB free, {usage['active_allocations']:g} allocations"
    )
    _out.print("Running. This version has the store and the allocator and serves no API. Ctrl-C stops it.")


if __name__ == "__main__":
    app()
