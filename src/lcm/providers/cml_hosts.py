"""Every worker's CML behind the `Hosts` protocol. Made by `compose`, shared by all who speak to workers.

One `CmlHost` serves a worker, with its connections and its token, as long as address, certificate and credentials are
the same. Another one takes its place when they change.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx

from lcm.model.errors import LcmError
from lcm.model.secret import Secret
from lcm.model.worker import LabWorker
from lcm.providers.cml import CmlHost
from lcm.providers.cml_line import Limits
from lcm.providers.cml_tls import HTTPS_PORT, fetch_certificate
from lcm.providers.labhost import NotReady
from lcm.providers.secrets import Secrets

REVEALED_SECONDS: Final = 300.0
"""How long a password is believed to be the one that its reference leads to."""
RETIRED_SECONDS: Final = 900.0
"""How long somebody may still be using a host that another one replaced: longer than its longest call."""


class _Way(NamedTuple):
    """What leads to a worker's CML."""

    url: str
    certificate: str
    username: str
    password: str
    """Where it is, not what it is."""


@dataclass(slots=True)
class _Kept:
    way: _Way
    password: Secret
    host: CmlHost
    revealed_at: float


def own_address(worker: LabWorker) -> str:
    """Say where a worker itself says that its CML is; "" while it does not."""
    return worker.status.cml.api_url


class CmlHosts:
    """One `CmlHost` per worker."""

    def __init__(
        self,
        secrets: Secrets,
        *,
        limits: Limits | None = None,
        address: Callable[[LabWorker], str] = own_address,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Speak to each worker at `address`; `transport` replaces the network, and shows no certificate to pin."""
        self._secrets = secrets
        self._limits = limits
        self._address = address
        self._transport = transport
        self._kept: dict[str, _Kept] = {}
        self._retired: deque[tuple[float, CmlHost]] = deque()

    async def of(self, worker: LabWorker) -> CmlHost:
        way, uid, now = self._way(worker), worker.metadata.uid, asyncio.get_running_loop().time()
        kept = self._kept.get(uid)
        if kept is not None and kept.way == way and now - kept.revealed_at < REVEALED_SECONDS:
            return kept.host
        password = await self._secrets.reveal(way.password)
        kept = self._kept.get(uid)  # somebody else may have asked meanwhile
        if kept is not None and kept.way == way and kept.password == password:
            kept.revealed_at = now
            return kept.host
        host = CmlHost(
            way.url,
            way.username,
            password,
            pin=way.certificate or None,
            limits=self._limits,
            transport=self._transport,
        )
        await self.forget(worker)
        self._kept[uid] = _Kept(way, password, host, now)
        return host

    async def certificate(self, worker: LabWorker) -> str:
        parts = urlsplit(self._way(worker).url)
        if parts.scheme != "https" or self._transport is not None:
            return ""
        return await fetch_certificate(parts.hostname or "", parts.port or HTTPS_PORT)

    async def forget(self, worker: LabWorker) -> None:
        now = asyncio.get_running_loop().time()
        if kept := self._kept.pop(worker.metadata.uid, None):
            self._retired.append((now + RETIRED_SECONDS, kept.host))
        while self._retired and self._retired[0][0] <= now:
            await self._retired.popleft()[1].close()

    async def close(self) -> None:
        hosts = [kept.host for kept in self._kept.values()] + [host for _, host in self._retired]
        self._kept.clear()
        self._retired.clear()
        for host in hosts:
            await host.close()

    def _way(self, worker: LabWorker) -> _Way:
        url, wanted = self._address(worker), worker.spec.cml
        if not url:
            raise _nowhere(worker)
        return _Way(url, worker.status.cml.certificate, wanted.admin_username, wanted.admin_password)


def _nowhere(worker: LabWorker) -> LcmError:
    return NotReady(f"no address of {worker.metadata.name}'s CML is known yet")
