"""The simulator's REST interface: an ASGI application for any CML client, in memory or behind a server.

`CmlApp` serves one machine; `CmlFleet` serves many, by path (`/w/<name>/api/v0/…`) or by host name.
"""

import asyncio
import ipaddress
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import CmlDown, CmlRefusal, HttpFault, forbidden
from lcm.sim.cml.rest import admin, labs, nodes, people, system
from lcm.sim.cml.rest.routing import (
    ADMIN,
    ANYBODY,
    DONE,
    Call,
    CmlRoute,
    CmlRoutes,
    Reply,
    error_reply,
    parse_query,
    to_reply,
)
from lcm.system.serving import Receive, Scope, Send
from lcm.system.tls import Certificate

REFUSABLE: Final = "lcm.refusable"
"""The extension by which a transport says that it can refuse a connection: then `CmlDown` is raised instead of 502."""

_API: Final = "/api/v0/"
_ADMIN: Final = "/sim"
_ROUTES: Final = CmlRoutes((*labs.ROUTES, *nodes.ROUTES, *system.ROUTES, *people.ROUTES))
_ADMIN_ROUTES: Final = CmlRoutes(admin.ROUTES)
_NO_CONTENT: Final = 204
_NOT_READY: Final = Reply(502, b"<html><body><h1>502 Bad Gateway</h1></body></html>", "text/html")


class _ClientLeft(Exception):
    """The connection ended in the middle of a request, so there is nothing to answer."""


class CmlApp:
    """One machine's REST interface."""

    def __init__(self, cml: Cml) -> None:
        self.cml = cml

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _run_lifespan(receive, send)
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
            except CmlDown as down:
                if not down.listening and REFUSABLE in scope.get("extensions", {}):
                    raise
                reply = _NOT_READY
            await _send_reply(send, receive, reply, fault)

    async def _reply(self, scope: Scope, receive: Receive, path: str, fault: HttpFault | None, *, admin: bool) -> Reply:
        if fault and fault.delay_seconds:
            await asyncio.sleep(fault.delay_seconds)
            self.cml.check_up()
        if fault and fault.status:
            await _read_body(receive, 0)
            return error_reply(fault.status, fault.body or "An injected fault.")
        try:
            route, params = _find_route(scope["method"], path)
            body = await _read_body(receive, route.largest_body)
            if not admin:
                self.cml.check_up()  # an upload takes a while, so check again
            call = Call(self.cml, params, parse_query(scope["query_string"]), body)
            if route.access != ANYBODY:
                _sign_in(call, scope, route)
            answer = route.handler(call)
            return DONE if answer is None else to_reply(answer)
        except CmlRefusal as refusal:
            return error_reply(refusal.status, refusal.description)


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
            await _run_lifespan(receive, send)
        elif scope["type"] == "http":
            app, path = self._find_app(scope)
            if app is None:
                with suppress(_ClientLeft):
                    await _read_body(receive, 0)
                    await _send_reply(send, receive, _NOT_READY, None)
            else:
                await app.answer(scope, receive, send, path)

    def _find_app(self, scope: Scope) -> tuple[CmlApp | None, str]:
        path: str = scope["path"]
        if path.startswith("/w/"):
            name, _, rest = path[3:].partition("/")
            return self._apps.get(name), f"/{rest}"
        host = _header(scope, b"host").partition(":")[0]
        return self._apps.get(host), path


def _find_route(method: str, path: str) -> tuple[CmlRoute, list[str]]:
    if path.startswith(_API):
        return _ROUTES.find(method, path[len(_API) :])
    if path.startswith(_ADMIN):
        return _ADMIN_ROUTES.find(method, path)
    raise CmlRefusal(404, "404: Not Found")


def _sign_in(call: Call, scope: Scope, route: CmlRoute) -> None:
    scheme, _, token = _header(scope, b"authorization").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise CmlRefusal(401, "Unauthorized")
    call.token, call.signed_in = token, call.cml.users.find_by_token(token)
    if route.access == ADMIN and not call.user.admin:
        raise forbidden()


def _header(scope: Scope, name: bytes) -> str:
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


async def _read_body(receive: Receive, largest: int) -> bytes:
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
        raise CmlRefusal(413, "Request Entity Too Large")
    return b"".join(parts)


async def _send_reply(send: Send, receive: Receive, reply: Reply, fault: HttpFault | None) -> None:
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


async def _run_lifespan(receive: Receive, send: Send) -> None:
    while True:
        stage = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{stage}.complete"})
        if stage == "shutdown":
            return


_VALID: Final = timedelta(days=365)


def make_certificate(host: str, now: datetime) -> Certificate:
    """Make a self-signed certificate for a host."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cml-controller")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), _general_name(host)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(certificate.public_bytes(serialization.Encoding.PEM), encoded)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
