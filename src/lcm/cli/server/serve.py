"""`lcm serve`: some parts of the system in this process, on a store that other processes share."""

import asyncio
from typing import Annotated

import typer

from lcm.cli.output.render import print_message
from lcm.cli.server.up import Data, with_options
from lcm.compose import process
from lcm.compose.process import SERVE_PORT, ProcessPart
from lcm.model.base.errors import Later
from lcm.settings import load
from lcm.settings.load import Settings
from lcm.system import log
from lcm.system.clock import calm_collection, spare_from_collection
from lcm.system.tasks import stop_on_signals

Parts = Annotated[
    list[ProcessPart], typer.Argument(metavar="PART…", help="Parts to run: " + ", ".join(ProcessPart) + ".")
]
Host = Annotated[str | None, typer.Option(help="Address to listen on; default: LCM_HOST, else 127.0.0.1.")]
Port = Annotated[
    int | None,
    typer.Option(
        min=0, max=65_535, help=f"Port of the API; default: LCM_PORT, else {SERVE_PORT}; 0 chooses a free one."
    ),
]


def serve(parts: Parts, host: Host = None, port: Port = None, data: Data = None) -> None:
    """Run some parts until Ctrl-C. The store is etcd if its address is set, else a file in the data folder.

    Controllers without the API use the one at CONTROL_PLANE_API_URL and need no store. They sign in with
    CONTROL_PLANE_API_KEY, which must have the same value in every process. They use AWS unless LCM_CLOUD=simulated.
    """
    settings = with_options(load.load_settings(), host=host, port=port, data_dir=data)
    log.configure_logging(settings.log_level)
    asyncio.run(_serve_parts(settings, parts))


async def _serve_parts(settings: Settings, parts: list[ProcessPart]) -> None:
    stop = stop_on_signals()
    if ProcessPart.ALL not in parts and ProcessPart.API not in parts:
        await _run_controllers(settings, parts, stop)
        return
    try:
        await _run_api(settings, parts, stop)
    except Later:
        if not stop.is_set():  # who is told to stop while it waits for its store has not failed
            raise


async def _run_api(settings: Settings, parts: list[ProcessPart], stop: asyncio.Event) -> None:
    calm_collection()
    async with process.serve(settings, parts, stop) as running:
        print_message(f"Serving at {running.url}. Ctrl-C stops it.")
        if not settings.oidc_issuer and not await running.tokens.list():
            print_message(
                "Nobody can sign in yet: `lcm token create NAME --role admin --offline` creates the first token."
            )
        spare_from_collection()
        await running.parts.wait_until(stop)


async def _run_controllers(settings: Settings, parts: list[ProcessPart], stop: asyncio.Event) -> None:
    calm_collection()
    async with process.run_controllers(settings, parts) as running:
        print_message(
            f"Using the API at {settings.control_plane_api_url}; running {', '.join(parts)}; "
            f"{running.status_url}/readyz tells its state. Ctrl-C stops it."
        )
        await running.parts.wait_until(stop)
