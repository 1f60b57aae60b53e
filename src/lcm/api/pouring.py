"""Sends a stream's pieces, and gives up on a reader that does not read. Called by `app`."""

import asyncio
from contextlib import aclosing

from lcm.api.answers import Send, Stream


class Pouring:
    """One stream on its way to one client.

    A time limit around every piece would cost as much as sending it: one timer a stream looks now and then instead.
    """

    def __init__(self, stream: Stream, send: Send, *, patience_seconds: float) -> None:
        self._stream = stream
        self._send = send
        self._patience = patience_seconds
        self._since: float | None = None
        """When the piece was begun that is being sent."""

    async def run(self) -> None:
        """Send everything; ends early when the client takes longer for a piece than it may."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._look(loop, task)
        try:
            await self._pump(loop)
        except asyncio.CancelledError:
            if not self._late(loop):
                raise
        finally:
            self._timer.cancel()

    async def _pump(self, loop: asyncio.AbstractEventLoop) -> None:
        send = self._send
        async with aclosing(self._stream.begin()) as pieces:
            async for piece in pieces:
                self._since = loop.time()
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                self._since = None
        await send({"type": "http.response.body", "body": b""})

    def _look(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        if self._late(loop):
            task.cancel()
        else:
            again = loop.time() + self._patience / 4 if self._since is None else self._since + self._patience
            self._timer = loop.call_at(again, self._look, loop, task)

    def _late(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._since is not None and loop.time() >= self._since + self._patience
