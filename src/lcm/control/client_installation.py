"""Asks an API in another process what its installation is called. Used by `compose`, for controllers on their own."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from lcm.control.client_line import Line, read
from lcm.control.installation import Installation
from lcm.model.errors import Later

_PAUSE_SECONDS: Final = 1.0
_log: Final = structlog.get_logger()


async def called(line: Line, chance: Callable[[], float]) -> str:
    """Wait until the API answers; what it refuses is raised."""
    trouble = ""
    while True:
        try:
            return read(await line.ask("GET", "/api/internal/installation", query={}), Installation).id
        except Later as error:
            if str(error) != trouble:
                _log.warning("waiting for the API", error=str(error))
            trouble = str(error)
            await asyncio.sleep(_PAUSE_SECONDS * (1 + chance()))
