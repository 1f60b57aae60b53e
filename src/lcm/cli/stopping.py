"""How the commands that run until told to stop are told."""

import asyncio
import os
import signal
from typing import Final

import typer

_FORCED: Final = 130


def stop_on_signals() -> asyncio.Event:
    """Give what SIGINT or SIGTERM sets; whoever asks a second time will not wait."""
    stop = asyncio.Event()

    def asked() -> None:
        if stop.is_set():
            typer.echo("Stopped by force.", err=True)
            os._exit(_FORCED)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    return stop
