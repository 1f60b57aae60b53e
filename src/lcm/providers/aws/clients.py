"""AWS clients, one per service and region, made when first needed. `ec2` and `cloudwatch` make every call through it.

The library's own timeouts start again with every byte that comes: only `limit` ends a call.
"""

import asyncio
from collections.abc import AsyncIterable, Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, overload

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from lcm.model.base.errors import Stuck
from lcm.providers.aws.errors import require_aws_answer, translate_errors
from lcm.providers.protocols.permit import check_permit

if TYPE_CHECKING:
    from types_aiobotocore_cloudwatch import CloudWatchClient
    from types_aiobotocore_ec2 import EC2Client


T = TypeVar("T")

_ServiceName = Literal["ec2", "cloudwatch", "sts", "service-quotas"]
ATTEMPTS: Final = 2
"""How often the library itself tries. Further retries are up to the caller."""
CALL_LIMIT: Final = timedelta(minutes=2)
"""How long a call, or all pages of a list, may take: longer than the library's own attempts need."""
_READ_PREFIXES: Final = ("Describe", "Get", "List")
"""Prefixes of actions that change nothing."""
MAX_PAGES: Final = 1000
"""How many pages a list may have. A longer one is taken to be endless."""


@dataclass(frozen=True)
class AwsKeys:
    """Credentials of one account. Without them AWS's usual chain applies: environment, files, instance role."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class AwsIdentity(NamedTuple):
    """The owner of the credentials in use: an account number, and the name of a user or role in it."""

    account: str
    arn: str


class AwsClients:
    """AWS clients of one account."""

    def __init__(
        self,
        *,
        session: AioSession | None = None,
        keys: AwsKeys | None = None,
        endpoint_url: str | None = None,
        connect_timeout: timedelta = timedelta(seconds=5),
        read_timeout: timedelta = timedelta(seconds=30),
        attempts: int = ATTEMPTS,
        limit: timedelta = CALL_LIMIT,
        most_pages: int = MAX_PAGES,
    ) -> None:
        self._session = session or AioSession()
        self._keys = keys
        self._endpoint_url = endpoint_url
        # Without TLS there is nothing to verify, and loading the certificate authorities takes a while.
        self._verify = False if endpoint_url and endpoint_url.startswith("http://") else None
        self._config = AioConfig(
            connect_timeout=connect_timeout.total_seconds(),
            read_timeout=read_timeout.total_seconds(),
            retries={"mode": "standard", "total_max_attempts": attempts},
            warm_up_loader_caches=True,  # the library's data files are megabytes; this reads them in a thread
        )
        self._limit_seconds = limit.total_seconds()
        self._most_pages = most_pages
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = asyncio.Lock()
        self._open = AsyncExitStack()

    async def ec2(self, region: str) -> "EC2Client":
        return await self._client("ec2", region)

    async def cloudwatch(self, region: str) -> "CloudWatchClient":
        return await self._client("cloudwatch", region)

    async def identity(self, region: str) -> AwsIdentity:
        """Return whose credentials these are, as AWS says."""
        client = await self._client("sts", region)
        answer = await self.call("sts:GetCallerIdentity", client.get_caller_identity())
        with translate_errors("sts:GetCallerIdentity"):
            return AwsIdentity(answer["Account"], answer["Arn"])

    async def quota(self, region: str, service: str, code: str) -> int | None:
        """Return the value of a quota; None if AWS does not know it, or does not let us ask."""
        client = await self._client("service-quotas", region)
        try:
            asking = client.get_service_quota(ServiceCode=service, QuotaCode=code)
            answer = await self.call("servicequotas:GetServiceQuota", asking)
        except Stuck:
            return None
        with translate_errors("servicequotas:GetServiceQuota"):
            return int(answer["Quota"]["Value"])

    async def call(self, action: str, answer: Awaitable[T], *, subject: str = "") -> T:
        """Await an answer of AWS about a subject, within the time limit, and translate its errors."""
        with translate_errors(action, subject):
            async with asyncio.timeout(self._limit_seconds):
                return require_aws_answer(await answer)

    async def all_pages(self, action: str, pages: AsyncIterable[T]) -> list[T]:
        """Read every page of a list, or fail: half a list would look as if the rest were gone."""
        with translate_errors(action):
            async with asyncio.timeout(self._limit_seconds):
                found: list[T] = []
                async for page in pages:
                    if len(found) == self._most_pages:
                        raise LookupError(f"it has more than {self._most_pages} pages")
                    found.append(require_aws_answer(page))
                return found

    async def close(self) -> None:
        """Close connections. May be repeated."""
        async with self._lock:
            self._clients.clear()
            await self._open.aclose()

    @overload
    async def _client(self, service: Literal["ec2"], region: str) -> "EC2Client": ...
    @overload
    async def _client(self, service: Literal["cloudwatch"], region: str) -> "CloudWatchClient": ...
    @overload
    async def _client(self, service: Literal["sts", "service-quotas"], region: str) -> Any: ...  # noqa: ANN401  one call needs no stubs
    async def _client(self, service: "_ServiceName", region: str) -> Any:
        async with self._lock:
            if (service, region) not in self._clients:
                with translate_errors(f"a client of {service} in {region}"):
                    async with asyncio.timeout(self._limit_seconds):
                        self._clients[service, region] = await self._make_client(service, region)
            return self._clients[service, region]

    async def _make_client(self, service: "_ServiceName", region: str) -> Any:  # noqa: ANN401  the callers know
        keys = self._keys
        client = await self._open.enter_async_context(
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
        client.meta.events.register("before-send", _check_permit)
        return client


def _check_permit(event_name: str, **_: object) -> None:
    """Check the permit. The library calls this before each request leaves, its own retries included."""
    if not event_name.rpartition(".")[2].startswith(_READ_PREFIXES):
        check_permit()
