"""The simulator's REST face: an ASGI application that any CML client can drive, in memory or behind a server.

`CmlApp` serves one machine; `CmlFleet` serves many, by path (`/w/<name>/api/v0/…`) or by host name.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import Down, HttpFault, Refusal, forbidden
from lcm.sim.cml.rest import admin, labs, nodes, people, system
from lcm.sim.cml.rest.routing import ADMIN, ANYBODY, Call, Reply, Route, Routes, error, query_of, reply_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

REFUSABLE: Final = "lcm.refusable"
"""The extension by which a transport says that it can refuse a connection: it is raised `Down` instead of told 502."""

_API: Final = "/api/v0/"
_ADMIN: Final = "/sim"
_ROUTES: Final = Routes((*labs.ROUTES, *nodes.ROUTES, *system.ROUTES, *people.ROUTES))
_ADMIN_ROUTES: Final = Routes(admin.ROUTES)
_NO_CONTENT: Final = 204
_NOT_READY: Final = Reply(502, b"<html><body><h1>502 Bad Gateway</h1></body></html>", "text/html")


class _ClientLeft(Exception):
    """The connection ended in the middle of a request, which therefore never was one."""


class CmlApp:
    """One machine's REST face."""

    def __init__(self, cml: Cml) -> None:
        self.cml = cml

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self.answer(scope, receive, send, scope["path"])

    async def answer(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        """Answer one request, with the fault that waits for it if there is one."""
        admin = path.startswith(_ADMIN)
        fault = None
        with suppress(_ClientLeft):
            try:
                if not admin:
                    self.cml.check_up()
                    fault = self.cml.faults.take(f"{scope['method']} {path}")
                reply = await self._reply(scope, receive, path, fault, admin=admin)
            except Down as down:
                if not down.listening and REFUSABLE in scope.get("extensions", {}):
                    raise
                reply = _NOT_READY
            await _send(send, receive, reply, fault)

    async def _reply(self, scope: Scope, receive: Receive, path: str, fault: HttpFault | None, *, admin: bool) -> Reply:
        if fault and fault.delay_seconds:
            await asyncio.sleep(fault.delay_seconds)
            self.cml.check_up()
        if fault and fault.status:
            await _read(receive, 0)
            return error(fault.status, fault.body or "An injected fault.")
        try:
            route, params = _find(scope["method"], path)
            body = await _read(receive, route.largest_body)
            if not admin:
                self.cml.check_up()  # an upload takes a while
            call = Call(self.cml, params, query_of(scope["query_string"]), body)
            if route.access != ANYBODY:
                _sign_in(call, scope, route)
            return reply_of(route.handler(call))
        except Refusal as refusal:
            return error(refusal.status, refusal.description)


class CmlFleet:
    """Many machines behind one address."""

    def __init__(self) -> None:
        self._apps: dict[str, CmlApp] = {}

    def add(self, name: str, cml: Cml) -> None:
        """Serve a machine under `/w/<name>/` and under `<name>` as host name."""
        self._apps[name] = CmlApp(cml)

    def remove(self, name: str) -> None:
        """Stop serving a machine."""
        self._apps.pop(name, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            app, path = self._of(scope)
            if app is None:
                with suppress(_ClientLeft):
                    await _read(receive, 0)
                    await _send(send, receive, _NOT_READY, None)
            else:
                await app.answer(scope, receive, send, path)

    def _of(self, scope: Scope) -> tuple[CmlApp | None, str]:
        path: str = scope["path"]
        if path.startswith("/w/"):
            name, _, rest = path[3:].partition("/")
            return self._apps.get(name), f"/{rest}"
        host = _header(scope, b"host").partition(":")[0]
        return self._apps.get(host), path


def _find(method: str, path: str) -> tuple[Route, list[str]]:
    if path.startswith(_API):
        return _ROUTES.find(method, path[len(_API) :])
    if path.startswith(_ADMIN):
        return _ADMIN_ROUTES.find(method, path)
    raise Refusal(404, "404: Not Found")


def _sign_in(call: Call, scope: Scope, route: Route) -> None:
    scheme, _, token = _header(scope, b"authorization").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Refusal(401, "Unauthorized")
    call.token, call.signed_in = token, call.cml.users.known_by(token)
    if route.access == ADMIN and not call.user.admin:
        raise forbidden()


def _header(scope: Scope, name: bytes) -> str:
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


async def _read(receive: Receive, largest: int) -> bytes:
    """Read the whole body; one that is too large is read to its end but not kept, so that the answer gets through."""
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size <= largest:
            parts.append(part)
        more = message.get("more_body", False)
    if largest and size > largest:
        raise Refusal(413, "Request Entity Too Large")
    return b"".join(parts)


async def _send(send: Send, receive: Receive, reply: Reply, fault: HttpFault | None) -> None:
    if fault and fault.hang:
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    body = reply.body if fault is None or fault.status or fault.body is None else fault.body.encode()
    cut = fault is not None and fault.cut
    status = 200 if cut and reply.status == _NO_CONTENT else reply.status
    headers = [(b"server", b"nginx")]
    if status != _NO_CONTENT:
        length = len(body) + (64 if cut else 0)
        headers += [(b"content-type", reply.content_type.encode()), (b"content-length", str(length).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if cut:
        await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
    else:
        await send({"type": "http.response.body", "body": body})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        stage = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{stage}.complete"})
        if stage == "shutdown":
            return
