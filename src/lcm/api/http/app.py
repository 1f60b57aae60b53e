"""The API as an ASGI application: finds the route, admits the caller, sends the answer, counts it.

Made by `compose.api`, served by `system.serving`. The errors of a request are mapped to answers here and nowhere
else. StreamSender sends the chunks of a stream, and gives up on a client that does not read.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import structlog

from lcm.api.gateway.registry import OpenConsoles
from lcm.api.http.answers import Answer, Receive, Scope, Send, Stream, send_answer, send_stream_start
from lcm.api.http.auth import Authenticator, IssuedTokens
from lcm.api.http.limits import ApiLimits, CallerTurns, OpenStreams, SignInFailures
from lcm.api.http.metrics import NO_ROUTE_LABEL, ApiMetrics
from lcm.api.http.pages import Pages
from lcm.api.http.problems import BUG, NO_METHOD, NO_SOCKET, RATE_LIMITED, Declined, bug_answer, error_answer
from lcm.api.http.refusals import RefusalLog
from lcm.api.http.request import ClientDisconnected, Request, RequestContext
from lcm.api.http.routing import GET, Handler, NoQuery, Route, Router
from lcm.api.http.sockets import SWITCHING_PROTOCOLS, Socket
from lcm.api.openapi.description import describe
from lcm.api.routes.plan_shapes import Planner
from lcm.api.routes.stream import frame, send_heartbeats
from lcm.api.routes.table import ROUTES
from lcm.control.access.oidc_browser import BrowserSignIn
from lcm.control.access.sign_in import SignIns
from lcm.control.access.tokens import Tokens
from lcm.control.delivery.feed import Feed
from lcm.control.plane.local import ControlPlane
from lcm.controllers.runtime.counts import ControllerCounts
from lcm.model.access.address import TrustedProxies
from lcm.model.access.identity import SEES_ALL, Role
from lcm.model.base.clock import Clock
from lcm.model.base.errors import LcmError
from lcm.model.kinds.settings import SystemSettings
from lcm.settings.load import ShownSetting
from lcm.system.loop_watch import LoopWatch
from lcm.system.tasks import run_until_first_ends

if TYPE_CHECKING:
    from lcm.control.access.oidc import Verifier


class StreamSender:
    """Sends one stream to one client.

    A timeout around every chunk would cost as much as sending it; one timer per stream checks now and then instead.
    """

    def __init__(self, stream: Stream, send: Send, *, patience_seconds: float) -> None:
        self._stream = stream
        self._send = send
        self._patience = patience_seconds
        self._since: float | None = None
        """When sending of the current chunk began; None between chunks."""

    async def run(self) -> None:
        """Send everything. Ends early when the client takes longer for a chunk than it may."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._check_progress(loop, task)
        try:
            send = self._send
            async with aclosing(self._stream.begin()) as pieces:
                async for piece in pieces:
                    self._since = loop.time()
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    self._since = None
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not self._is_stalled(loop):
                raise
        finally:
            self._timer.cancel()

    def _check_progress(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        if self._is_stalled(loop):
            task.cancel()
        else:
            again = loop.time() + self._patience / 4 if self._since is None else self._since + self._patience
            self._timer = loop.call_at(again, self._check_progress, loop, task)

    def _is_stalled(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._since is not None and loop.time() >= self._since + self._patience


_HEAD: Final = "HEAD"
_READING: Final = frozenset({GET, _HEAD})
_NO_PROXIES: Final = TrustedProxies()
_log: Final = structlog.get_logger()


class Api:
    """The ASGI application: everything that is served over HTTP."""

    def __init__(
        self,
        core: ControlPlane,
        tokens: Tokens,
        *,
        clock: Clock,
        limits: ApiLimits | None = None,
        routes: Sequence[Route] = ROUTES,
        verifier: "Verifier | None" = None,
        plans: Planner | None = None,
        proxies: TrustedProxies = _NO_PROXIES,
        pages: Pages | None = None,
        provider: BrowserSignIn | None = None,
        configuration: Callable[[SystemSettings | None], tuple[ShownSetting, ...]] = lambda _: (),
        loop_watch: LoopWatch | None = None,
        counts: ControllerCounts | None = None,
    ) -> None:
        """Serve a plane. `verifier` also accepts an issuer's tokens; without `plans` there are no what-if plans.

        People sign in with a browser at the `provider`, if there is one. `configuration` lists this process's settings.
        `loop_watch` tells what holds the event loop, and `counts` what controllers of the process do.
        """
        self._limits = limits or ApiLimits()
        self._router = Router(routes)
        failures = SignInFailures(self._limits)
        self._authenticator = Authenticator(
            tokens, self._limits, failures, IssuedTokens(verifier, clock) if verifier else None
        )
        self._streams = OpenStreams(self._limits)
        self._turns = CallerTurns(self._limits)
        self._feed = Feed(core.store, frame)
        self.consoles = OpenConsoles(self._feed, self._limits)
        self.refusals = RefusalLog(core.store, self._limits)
        meter = ApiMetrics(loop_watch, counts)
        self._count = meter.answers.count
        self._shared = RequestContext(
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
            self.consoles,
            pages or Pages(),
            plans,
            provider,
            configuration,
            proxies=proxies,
        )
        self.machine_consoles = self._shared.machine_consoles

    async def run(self) -> None:
        """Follow events for open streams and consoles, and audit refusals, until cancelled.

        Without it no stream can be served.
        """
        try:
            await run_until_first_ends(
                self._feed.run(), send_heartbeats(self._feed), self.refusals.run(), self.consoles.run()
            )
        finally:
            await self._shared.snapshots.end()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            return self._serve(Request(scope, receive, self._shared), send)
        if scope["type"] == "websocket":
            seen = {**scope, "method": GET, "scheme": "https" if scope.get("scheme") == "wss" else "http"}
            return self._serve_socket(Request(seen, receive, self._shared), Socket(scope, receive, send))
        return _answer_lifespan(receive, send)

    async def _serve(self, request: Request, send: Send) -> None:
        time = asyncio.get_running_loop().time
        began = time()
        head = request.scope["method"] == _HEAD
        refusal: LcmError | None = None
        try:
            try:
                answer = await self._handle(request, began)
                if isinstance(answer, Stream) and not head:
                    self._reserve_stream(request)
            except LcmError as error:
                answer, refusal = error_answer(error, request.problem(error)), error
            request.started = True
            if isinstance(answer, Answer):
                await send_answer(request.scope, send, answer, secure=request.is_secure, bodiless=head)
            else:
                await self._send_stream(request, send, answer, bodiless=head)
            self._count(*_metric_labels(request), answer.status, time() - began)
            if refusal is not None:
                self.refusals.note(request, refusal, answer.status)
        except ClientDisconnected:
            return
        except LcmError as error:  # of a stream that had begun: it is cut, and the client comes again
            request.problem(error)
        except Exception as error:  # noqa: BLE001 - the outermost edge: our own bugs end here, told once
            _log.error("request met a bug", path=_loggable_path(request), trace=traceback.format_exception(error))
            self._count(*_metric_labels(request), BUG.status, time() - began)
            if not request.started:
                await send_answer(request.scope, send, bug_answer())
        finally:
            request.release()

    async def _serve_socket(self, request: Request, socket: Socket) -> None:
        time = asyncio.get_running_loop().time
        began = time()
        try:
            try:
                await self._open_socket(request, socket, began)
                status = SWITCHING_PROTOCOLS
            except LcmError as error:
                answer = error_answer(error, request.problem(error))
                status = answer.status
                await socket.refuse(answer)
                self.refusals.note(request, error, status)
            self._count(*_metric_labels(request), status, time() - began)
        except OSError:
            return  # the client left
        except Exception as error:  # noqa: BLE001 - the outermost edge, likewise
            _log.error("socket met a bug", path=_loggable_path(request), trace=traceback.format_exception(error))
            self._count(*_metric_labels(request), BUG.status, time() - began)
            await socket.refuse(bug_answer())

    async def _open_socket(self, request: Request, socket: Socket, now: float) -> None:
        if self._dispatch(request, now) == self._verify_then_dispatch:
            await self._authenticator.verify(request)
            self._dispatch(request, asyncio.get_running_loop().time())
        route = request.route
        if route is None or route.socket is None:
            raise Declined(NO_SOCKET, "no WebSocket is served here; /api/openapi.json lists what is")
        self._authenticator.admit_socket(request, now)
        await route.socket(request, socket)

    async def _handle(self, request: Request, now: float) -> Answer | Stream:
        """Answer a request when it is its caller's turn. Those who run the system do not wait."""
        handler, caller = self._dispatch(request, now), request.caller
        if caller is None or caller.role in SEES_ALL:
            return await handler(request)
        async with self._turns.take(caller.name):
            return await handler(request)

    def _dispatch(self, request: Request, now: float) -> Handler:
        """Return the handler of a request, after its caller was admitted."""
        scope = request.scope
        request.check_headers()
        try:
            place, request.params = self._router.find(scope.get("raw_path") or scope["path"].encode())
        except Declined:
            if scope["method"] not in _READING:
                raise
            request.route = self._shared.pages.find_route(request)
            return request.route.handler
        method = scope["method"]
        route = place.routes.get(GET if method == _HEAD else method)
        if route is None:
            if method == "OPTIONS":
                return place.options
            raise Declined(NO_METHOD, f"use {place.allow.decode()}", headers=((b"allow", place.allow),))
        request.route = route
        if not self._authenticator.admit(request, route.policy, now):
            return self._verify_then_dispatch
        if route.query is NoQuery:
            request.query(NoQuery)
        return route.handler

    async def _verify_then_dispatch(self, request: Request) -> Answer | Stream:
        """Verify an issuer's token, then dispatch the request again."""
        await self._authenticator.verify(request)
        return await self._handle(request, asyncio.get_running_loop().time())

    def _reserve_stream(self, request: Request) -> None:
        caller = request.signed_in
        if not self._streams.enter(caller.name, limited=caller.role is not Role.SERVICE):
            raise Declined(RATE_LIMITED, "too many streams are open; close one", wait=5.0)

    async def _send_stream(self, request: Request, send: Send, stream: Stream, *, bodiless: bool) -> None:
        if bodiless:
            await send_stream_start(send, stream)
            await send({"type": "http.response.body", "body": b""})
            return
        try:
            await send_stream_start(send, stream)
            sender = StreamSender(stream, send, patience_seconds=self._limits.send_seconds)
            sending = asyncio.ensure_future(sender.run())
            leaving = asyncio.ensure_future(_wait_for_disconnect(request.receive))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sending.cancel()
                leaving.cancel()
                await asyncio.wait({sending, leaving})
            if not sending.cancelled():
                sending.result()
        finally:
            self._streams.leave(request.signed_in.name)


def _loggable_path(request: Request) -> str:
    """Return the path of a request; of a public route without what stands in for its variables, which may be secret."""
    route, path = request.route, request.scope["path"]
    return route.path if route is not None and route.policy.public else str(path)


def _metric_labels(request: Request) -> tuple[str, str]:
    """Return the route and method of a request, as metric labels."""
    route = request.route
    return (NO_ROUTE_LABEL, NO_ROUTE_LABEL) if route is None else (route.path, route.method)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    while True:
        stage = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{stage}.complete"})
        if stage == "shutdown":
            return
