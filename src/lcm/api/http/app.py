"""The API as an ASGI application: finds the route, lets the caller in, answers, counts.

Made by `compose`, served by `serving`. A request's errors are mapped here and nowhere else.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import structlog

from lcm.api.http.answers import Answer, Receive, Scope, Send, Stream, head_of, send_answer, send_head
from lcm.api.http.auth import Door, Issued
from lcm.api.http.limits import Failures, Limits, Streams
from lcm.api.http.metrics import ELSEWHERE, Meter
from lcm.api.http.problems import NO_METHOD, RATE_LIMITED, Declined, answer_of, bug
from lcm.api.http.request import ClientLeft, Request, Shared
from lcm.api.http.routing import GET, Handler, NoQuery, Route, Router
from lcm.api.openapi.description import describe
from lcm.api.routes.plan_shapes import Plans
from lcm.api.routes.stream import beat, frame
from lcm.api.routes.table import ROUTES
from lcm.control.access.sign_in import SignIns
from lcm.control.access.tokens import Tokens
from lcm.control.delivery.feed import Feed
from lcm.control.delivery.sinks import House
from lcm.control.plane.local import ControlPlane
from lcm.model.access.identity import Role
from lcm.model.access.webhook import Reach
from lcm.model.base.clock import Clock
from lcm.model.base.errors import LcmError

if TYPE_CHECKING:
    from lcm.control.access.oidc import Verifier


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


_HEAD: Final = "HEAD"
_BUG: Final = 500
_STREAM_WAIT_SECONDS: Final = 5.0
_log: Final = structlog.get_logger()


class Api:
    """Everything that is served over HTTP."""

    def __init__(
        self,
        core: ControlPlane,
        tokens: Tokens,
        *,
        clock: Clock,
        limits: Limits | None = None,
        routes: Sequence[Route] = ROUTES,
        verifier: "Verifier | None" = None,
        house: House | None = None,
        plans: Plans | None = None,
    ) -> None:
        """Serve a plane; `verifier` accepts the tokens of an issuer as well, `house` says what sinks may do.

        `plans` makes what-if plans; without it there are none.
        """
        self._limits = limits or Limits()
        self._router = Router(routes)
        failures = Failures(self._limits)
        self._door = Door(tokens, self._limits, failures, Issued(verifier, clock) if verifier else None)
        self._streams = Streams(self._limits)
        self._feed = Feed(core.store, frame)
        meter = Meter()
        self._count = meter.answers.count
        self._shared = Shared(
            core,
            tokens,
            clock,
            self._limits,
            meter,
            self._streams,
            self._feed,
            describe(tuple(routes)),
            failures,
            SignIns(core.store, tokens, clock=clock),
            house or House(Reach()),
            plans,
        )

    async def run(self) -> None:
        """Follow events for those who stream them, until cancelled; without it, nobody can."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed.run())
            group.create_task(beat(self._feed))

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            return self._serve(Request(scope, receive, self._shared), send)
        return _live(receive, send) if scope["type"] == "lifespan" else _refuse(receive, send)

    async def _serve(self, request: Request, send: Send) -> None:
        time = asyncio.get_running_loop().time
        began = time()
        head = request.scope["method"] == _HEAD
        try:
            try:
                answer = await self._open(request, began)(request)
                if isinstance(answer, Stream) and not head:
                    self._enter(request)
            except LcmError as error:
                answer = answer_of(error, matched=request.matched)
            request.started = True
            if isinstance(answer, Answer):
                await send({"type": "http.response.start", "status": answer.status, "headers": head_of(answer)})
                await send({"type": "http.response.body", "body": b"" if head else answer.body})
            else:
                await self._pour(request, send, answer, bodiless=head)
            self._count(*_of(request), answer.status, time() - began)
        except ClientLeft:
            return
        except Exception as error:  # noqa: BLE001 - the outermost edge: our own bugs end here, told once
            _log.error("request met a bug", path=request.scope["path"], trace=traceback.format_exception(error))
            self._count(*_of(request), _BUG, time() - began)
            if not request.started:
                await send_answer(send, bug())

    def _open(self, request: Request, now: float) -> Handler:
        """Find who answers a request, and let its caller in."""
        scope = request.scope
        place, request.params = self._router.find(scope.get("raw_path") or scope["path"].encode())
        method = scope["method"]
        route = place.routes.get(GET if method == _HEAD else method)
        if route is None:
            if method == "OPTIONS":
                return place.options
            raise Declined(NO_METHOD, f"use {place.allow.decode()}", headers=((b"allow", place.allow),))
        request.route = route
        if not self._door.admit(request, route.policy, now):
            return self._verify
        if route.query is NoQuery:
            request.query(NoQuery)
        return route.handler

    async def _verify(self, request: Request) -> Answer | Stream:
        """Have an issuer's token verified, then begin anew."""
        await self._door.verify(request)
        return await self._open(request, asyncio.get_running_loop().time())(request)

    def _enter(self, request: Request) -> None:
        caller = request.signed_in
        if not self._streams.enter(caller.name, limited=caller.role is not Role.SERVICE):
            raise Declined(RATE_LIMITED, "too many streams are open; close one", wait=_STREAM_WAIT_SECONDS)

    async def _pour(self, request: Request, send: Send, stream: Stream, *, bodiless: bool) -> None:
        if bodiless:
            await send_head(send, stream)
            await send({"type": "http.response.body", "body": b""})
            return
        try:
            await send_head(send, stream)
            await self._flow(request, send, stream)
        finally:
            self._streams.leave(request.signed_in.name)

    async def _flow(self, request: Request, send: Send, stream: Stream) -> None:
        pouring = Pouring(stream, send, patience_seconds=self._limits.send_seconds)
        pumping = asyncio.ensure_future(pouring.run())
        leaving = asyncio.ensure_future(_left(request.receive))
        try:
            await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pumping.cancel()
            leaving.cancel()
            await asyncio.wait({pumping, leaving})
        if not pumping.cancelled():
            pumping.result()


def _of(request: Request) -> tuple[str, str]:
    """Name a request's route and method for those who count."""
    route = request.route
    return (ELSEWHERE, ELSEWHERE) if route is None else (route.path, route.method)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close"})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        stage = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{stage}.complete"})
        if stage == "shutdown":
            return
