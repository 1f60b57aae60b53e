"""`lcm cml-sim`: a simulated CML alone, for any CML client."""

import asyncio
import socket
from typing import Annotated

import typer

from lcm.cli.output import render
from lcm.model.base.errors import LcmError
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.pace import FASTEST
from lcm.sim.cml.rest.app import CmlApp, make_certificate
from lcm.sim.time.chance import Chance
from lcm.system.clock import SystemClock, new_epoch
from lcm.system.serving import listen, serve, url_host
from lcm.system.tasks import stop_on_signals
from lcm.system.tls import ServerTls, make_tls


def cml_sim(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 chooses a free one.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    username: Annotated[str, typer.Option(help="Name of the administrator.")] = "admin",
    password: Annotated[str, typer.Option(help="Password of the administrator.")] = "admin",  # noqa: S107  a simulator's
    speed: Annotated[float, typer.Option(max=FASTEST, help="How many times faster nodes boot.")] = 1.0,
    *,
    seed: Annotated[str, typer.Option(help="Seed of ids and boot times; default: random.")] = "",
    http: Annotated[bool, typer.Option("--http", help="Use HTTP instead of HTTPS.")] = False,
) -> None:
    """Run a simulated CML until Ctrl-C."""
    if speed <= 0:
        raise typer.BadParameter("must be above 0", param_hint="--speed")
    clock = SystemClock()
    cml = Cml(clock, Chance(seed or new_epoch()), speed=speed, username=username, password=password)
    tls = None if http else make_tls(make_certificate(host, clock.now()))
    try:
        listening = listen(host, port)
    except LcmError as error:
        render.print_message(str(error), colour="red")
        raise typer.Exit(1) from error
    address = f"{'http' if http else 'https'}://{url_host(host)}:{listening.getsockname()[1]}"
    render.print_line(
        f"Simulated CML {cml.machine.version} at {address} user {username} speed {speed:g}. Ctrl-C stops it."
    )
    asyncio.run(_serve_cml(CmlApp(cml), listening, tls))


async def _serve_cml(app: CmlApp, listening: socket.socket, tls: ServerTls | None) -> None:
    await serve(app, listening, tls, stop_on_signals())
