"""The API as an ASGI application: finds the route, lets the caller in, answers, counts.

Made by `compose`, served by `serving`. A request's errors are mapped here and nowhere else.
"""

import asyncio
import traceback
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import structlog

from lcm.api.answers import Answer, Receive, Scope, Send, Stream, send_answer, send_head
from lcm.api.auth import Door
from lcm.api.http import ClientLeft, Request, Shared
from lcm.api.limits import Limits, Streams
from lcm.api.metrics import ELSEWHERE, Meter
from lcm.api.openapi import describe
from lcm.api.problems import NO_METHOD, RATE_LIMITED, Declined, answer_of, bug
from lcm.api.routes import GET, NoQuery, Route, Router
from lcm.api.table import ROUTES
from lcm.control.local import ControlPlane
from lcm.control.tokens import Tokens
from lcm.model.clock import Clock
from lcm.model.errors import LcmError
from lcm.model.identity import Role

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
    ) -> None:
        self._limits = limits or Limits()
        self._router = Router(routes)
        self._door = Door(tokens, self._limits)
        self._streams = Streams(self._limits)
        meter = Meter()
        self._count = meter.answers.count
        self._shared = Shared(core, tokens, clock, self._limits, meter, self._streams, describe(tuple(routes)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive, self._shared)
            try:
                await self._serve(request, send)
            except ClientLeft:
                return
            except Exception as error:  # noqa: BLE001 - the outermost edge: our own bugs end here, told once
                _log.error("request met a bug", path=scope["path"], trace=traceback.format_exception(error))
                self._count(*_of(request), _BUG, 0.0)
                if not request.started:
                    await send_answer(send, bug())
        elif scope["type"] == "lifespan":
            await _live(receive, send)
        else:
            await receive()
            await send({"type": "websocket.close"})

    async def _serve(self, request: Request, send: Send) -> None:
        time = asyncio.get_running_loop().time
        began = time()
        head = request.scope["method"] == _HEAD
        answer: Answer | Stream
        try:
            answer = await self._answer(request, began)
            if isinstance(answer, Stream) and not head:
                self._enter(request)
        except LcmError as error:
            answer = answer_of(error, matched=request.matched)
        request.started = True
        if isinstance(answer, Answer):
            await send_answer(send, answer, bodiless=head)
        else:
            await self._pour(request, send, answer, bodiless=head)
        self._count(*_of(request), answer.status, time() - began)

    async def _answer(self, request: Request, now: float) -> Answer | Stream:
        scope = request.scope
        place, request.params = self._router.find(scope.get("raw_path") or scope["path"].encode())
        method = scope["method"]
        route = place.routes.get(GET if method == _HEAD else method)
        if route is None:
            allow = (b"allow", place.allow)
            if method == "OPTIONS":
                return Answer(204, headers=(allow,))
            raise Declined(NO_METHOD, f"use {place.allow.decode()}", headers=(allow,))
        request.route = route
        request.caller = self._door.admit(request, route.policy, now)
        if route.query is NoQuery:
            request.query(NoQuery)
        return await route.handler(request)

    def _enter(self, request: Request) -> None:
        caller = request.signed_in
        if not self._streams.enter(caller.name, limited=caller.role is not Role.SERVICE):
            raise Declined(RATE_LIMITED, "too many streams are open; close one", wait=_STREAM_WAIT_SECONDS)

    async def _pour(self, request: Request, send: Send, stream: Stream, *, bodiless: bool) -> None:
        await send_head(send, stream)
        if bodiless:
            await send({"type": "http.response.body", "body": b""})
            return
        pumping = asyncio.ensure_future(self._pump(stream, send))
        leaving = asyncio.ensure_future(_left(request.receive))
        try:
            await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pumping.cancel()
            leaving.cancel()
            await asyncio.wait({pumping, leaving})
            self._streams.leave(request.signed_in.name)
        if not pumping.cancelled():
            pumping.result()

    async def _pump(self, stream: Stream, send: Send) -> None:
        async with aclosing(stream.begin()) as pieces:
            async for piece in pieces:
                try:
                    async with asyncio.timeout(self._limits.send_seconds):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                except TimeoutError:
                    return
        await send({"type": "http.response.body", "body": b""})


def _of(request: Request) -> tuple[str, str]:
    """Name a request's route and method for those who count."""
    route = request.route
    return (ELSEWHERE, ELSEWHERE) if route is None else (route.path, route.method)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _live(receive: Receive, send: Send) -> None:
    while True:
        stage = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{stage}.complete"})
        if stage == "shutdown":
            return
