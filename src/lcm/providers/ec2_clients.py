"""AWS's clients, one per service and region, made when first needed. Used by `ec2` and `cloudwatch`."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from lcm.providers.ec2_errors import translated

if TYPE_CHECKING:
    from types_aiobotocore_cloudwatch import CloudWatchClient
    from types_aiobotocore_ec2 import EC2Client

ATTEMPTS: Final = 2
"""How often the library itself tries; whoever called us decides about the rest."""


@dataclass(frozen=True)
class Keys:
    """Credentials of one account. Without them the usual chain of AWS applies: environment, files, instance role."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class AwsClients:
    """Clients of one account."""

    def __init__(
        self,
        *,
        session: AioSession | None = None,
        keys: Keys | None = None,
        endpoint_url: str | None = None,
        connect_timeout: timedelta = timedelta(seconds=5),
        read_timeout: timedelta = timedelta(seconds=30),
        attempts: int = ATTEMPTS,
    ) -> None:
        self._session = session or AioSession()
        self._keys = keys
        self._endpoint_url = endpoint_url
        # Without TLS there is nothing to verify, and reading the world's certificates takes a while.
        self._verify = False if endpoint_url and endpoint_url.startswith("http://") else None
        self._config = AioConfig(
            connect_timeout=connect_timeout.total_seconds(),
            read_timeout=read_timeout.total_seconds(),
            retries={"mode": "standard", "total_max_attempts": attempts},
            warm_up_loader_caches=True,  # the library's files are megabytes, and are read in a thread
        )
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = asyncio.Lock()
        self._open = AsyncExitStack()

    async def ec2(self, region: str) -> "EC2Client":
        return await self._client("ec2", region)

    async def cloudwatch(self, region: str) -> "CloudWatchClient":
        return await self._client("cloudwatch", region)

    async def close(self) -> None:
        """Let go of connections. May be repeated."""
        async with self._lock:
            self._clients.clear()
            await self._open.aclose()

    @overload
    async def _client(self, service: Literal["ec2"], region: str) -> "EC2Client": ...
    @overload
    async def _client(self, service: Literal["cloudwatch"], region: str) -> "CloudWatchClient": ...
    async def _client(self, service: Literal["ec2", "cloudwatch"], region: str) -> Any:
        async with self._lock:
            if (service, region) not in self._clients:
                with translated(f"a client of {service} in {region}"):
                    self._clients[service, region] = await self._make(service, region)
            return self._clients[service, region]

    async def _make(self, service: Literal["ec2", "cloudwatch"], region: str) -> Any:  # noqa: ANN401  the callers know
        keys = self._keys
        return await self._open.enter_async_context(
            self._session.create_client(
                service,
                region_name=region,
                endpoint_url=self._endpoint_url,
                verify=self._verify,
                config=self._config,
                aws_access_key_id=keys.access_key_id if keys else None,
                aws_secret_access_key=keys.secret_access_key if keys else None,
                aws_session_token=keys.session_token if keys else None,
            )
        )
