"""The port on which a process without the API answers: whether it lives, whether it is ready, and its metrics.

`compose.process` starts it beside controllers. Health and readiness are open to all; metrics are read with the key of
services, as those of the API are.
"""

import asyncio
import hmac
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from http import HTTPStatus
from typing import Final

import msgspec
import structlog

from lcm.api.http.metrics import MEDIA, ProcessMetrics
from lcm.api.routes.shapes import Health, Readiness, ReadyCheck
from lcm.control.access.tokens import service_keys
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane
from lcm.model.base.clock import Clock, Stopwatch
from lcm.model.base.errors import LcmError, Refused
from lcm.settings.load import Settings
from lcm.system import serving
from lcm.system.limits import ConnectionLimits
from lcm.system.serving import Receive, Scope, Send
from lcm.system.tasks import Supervisor
from lcm.system.tls import CertificateFiles

_LIMITS: Final = ConnectionLimits(most=200, per_address=100, idle_seconds=15.0)
_ASKED_AGAIN_SECONDS: Final = 1.0
_API_TIMEOUT_SECONDS: Final = 2.0
_ANY_LEASE: Final = "scheduler"
"""Whose holder is asked for; the answer does not matter."""
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"
_log: Final = structlog.get_logger()

_Answer = tuple[int, bytes, bytes]
"""The status, the media type and the body of an answer."""
ReadyCheckup = Callable[[], Awaitable[Mapping[str, bool]]]
"""Returns what must hold for a process to be ready, and whether it does."""


class ApiContact:
    """Whether the API answers to controllers that use it over the network. Asked once a second at most."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._plane: Plane | None = None
        self._cache: Cache | None = None
        self._asking: asyncio.Task[bool] | None = None
        self._asked_at = -math.inf

    def begin(self, plane: Plane, cache: Cache) -> None:
        """Ask through a plane from now on; `cache` holds what controllers know."""
        self._plane, self._cache = plane, cache

    async def check(self) -> Mapping[str, bool]:
        """Return what must hold for controllers to work, or to take over."""
        now = self._stopwatch.seconds()
        if self._asking is None or now - self._asked_at >= _ASKED_AGAIN_SECONDS:
            self._asking, self._asked_at = asyncio.create_task(self._ask()), now
        api = await asyncio.shield(self._asking)
        return {"api": api, "cache": self._cache is not None and self._cache.is_ready}

    async def _ask(self) -> bool:
        """Return whether the API answers in time, and accepts our key."""
        if self._plane is None:
            return False
        try:
            async with asyncio.timeout(_API_TIMEOUT_SECONDS):
                await self._plane.lease(_ANY_LEASE)
        except (LcmError, TimeoutError):
            return False
        return True


class StatusPage:
    """The ASGI application of the port."""

    def __init__(
        self,
        metrics: ProcessMetrics,
        check: Callable[[], Awaitable[Mapping[str, bool]]],
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._metrics = metrics
        self._check = check
        self._clock = clock
        self._keys = [_digest(key.encode()) for key in service_keys(settings.control_plane_api_key)]

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer one request."""
        status, media, body = await self._answer(scope)
        headers = [(b"content-type", media), (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
        if status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: Scope) -> _Answer:
        if scope["method"] not in {"GET", "HEAD"}:
            return 405, _TEXT, b"only GET\n"
        match scope["path"]:
            case "/healthz":
                return 200, _JSON, msgspec.json.encode(Health())
            case "/readyz":
                return self._tell_readiness(await self._check())
            case "/metrics" if self._has_key(scope):
                return 200, MEDIA, self._metrics.render(await self._check())
            case "/metrics":
                return 401, _TEXT, b"send CONTROL_PLANE_API_KEY as a bearer token\n"
            case _:
                return 404, _TEXT, b"there are /healthz, /readyz and /metrics; the API is in another process\n"

    def _tell_readiness(self, checks: Mapping[str, bool]) -> _Answer:
        ready = all(checks.values())
        told = Readiness(ready, self._clock.now(), tuple(ReadyCheck(name, ok) for name, ok in checks.items()))
        return 200 if ready else 503, _JSON, msgspec.json.encode(told)

    def _has_key(self, scope: Scope) -> bool:
        """Return whether exactly one credential is given, and it is a key of services."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        known = [hmac.compare_digest(_digest(key), one) for one in self._keys]
        return scheme.lower() == b"bearer" and any(known)


@asynccontextmanager
async def serve_status(page: StatusPage, settings: Settings, usual_port: int, parts: Supervisor) -> AsyncIterator[str]:
    """Answer on the port of the settings while the block runs; yield the address.

    Without LCM_STATUS_PORT that is `usual_port`, or any free one where another process has it. Raise Refused where the
    port of the settings is taken.
    """
    tls = await asyncio.to_thread(_read_certificate, settings)
    listening, stop = _listen(settings, usual_port), asyncio.Event()
    with listening:
        serving_it = parts.start(
            "status", serving.serve(page, listening, tls.context if tls else None, stop, limits=_LIMITS)
        )
        if tls:
            parts.start("certificate", tls.follow())
        scheme, port = "https" if tls else "http", listening.getsockname()[1]
        try:
            yield f"{scheme}://{serving.url_host(settings.status_host)}:{port}"
        finally:
            stop.set()
            await asyncio.wait([serving_it])


def _read_certificate(settings: Settings) -> CertificateFiles | None:
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return CertificateFiles(settings.tls_cert_file, settings.tls_key_file)


def _listen(settings: Settings, usual_port: int) -> socket.socket:
    port = usual_port if settings.status_port is None else settings.status_port
    try:
        return serving.listen(settings.status_host, port)
    except serving.NotLocalAddress as error:
        raise Refused(f"LCM_STATUS_HOST: {error}; choose one of its own, or 0.0.0.0 for all") from error
    except Refused as error:
        if settings.status_port is not None:
            raise Refused(f"LCM_STATUS_PORT: {error}. Stop what listens there, or choose another port") from error
        _log.info("the usual status port is taken", port=usual_port)
        return serving.listen(settings.status_host, 0)


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
