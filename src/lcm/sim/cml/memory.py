"""A way to a simulated CML without a network, for clients that run in virtual time."""

import errno
from contextvars import Context
from typing import Final

import httpx

from lcm.sim.asgi import AsgiTransport
from lcm.sim.cml.http import REFUSABLE, CmlApp, CmlFleet
from lcm.sim.cml.refusals import Down

_EXTENSIONS: Final[dict[str, object]] = {REFUSABLE: {}}


class MemoryTransport(AsgiTransport):
    """Hands requests to the simulator's REST face in the same process; a machine that is down refuses them."""

    def __init__(self, app: CmlApp | CmlFleet, *, context: Context | None = None) -> None:
        super().__init__(app, context=context, extensions=_EXTENSIONS, refusal=Down)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except Down as error:
            cause = ConnectionRefusedError(str(error)) if error.there else OSError(errno.EHOSTUNREACH, str(error))
            raise httpx.ConnectError(str(error), request=request) from cause
