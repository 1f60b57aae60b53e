"""AWS's clients, one per service and region, made when first needed. `ec2` and `cloudwatch` make every call through it.

The library's own timeouts begin anew with every byte that comes: only `limit` ends a call.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, overload

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from lcm.providers.aws.errors import genuine, translated
from lcm.providers.protocols.permit import permit

if TYPE_CHECKING:
    from types_aiobotocore_cloudwatch import CloudWatchClient
    from types_aiobotocore_ec2 import EC2Client


T = TypeVar("T")

ATTEMPTS: Final = 2
"""How often the library itself tries; whoever called us decides about the rest."""
LIMIT: Final = timedelta(minutes=2)
"""How long a call, or all pages of a list, may take: longer than the library's attempts in peace."""
_LOOKING: Final = ("Describe", "Get", "List")
"""How the names of actions begin that change nothing."""
PAGES: Final = 1000
"""How many pages a list may have. One that goes on after that does not end."""


@dataclass(frozen=True)
class Keys:
    """Credentials of one account. Without them the usual chain of AWS applies: environment, files, instance role."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class Identity(NamedTuple):
    """Whose credentials are used: the number of an account, and the name of a user or a role in it."""

    account: str
    arn: str


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
        limit: timedelta = LIMIT,
        most_pages: int = PAGES,
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
        self._limit_seconds = limit.total_seconds()
        self._most_pages = most_pages
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = asyncio.Lock()
        self._open = AsyncExitStack()

    async def ec2(self, region: str) -> "EC2Client":
        return await self._client("ec2", region)

    async def cloudwatch(self, region: str) -> "CloudWatchClient":
        return await self._client("cloudwatch", region)

    async def identity(self, region: str) -> Identity:
        """Ask AWS who these credentials are."""
        client = await self._client("sts", region)
        answer = await self.asked("sts:GetCallerIdentity", client.get_caller_identity())
        with translated("sts:GetCallerIdentity"):
            return Identity(answer["Account"], answer["Arn"])

    async def asked(self, action: str, answer: Awaitable[T], *, machine: str = "") -> T:
        """Wait for an answer of AWS, but not for ever."""
        with translated(action, machine):
            async with asyncio.timeout(self._limit_seconds):
                return genuine(await answer)

    async def all_pages(self, action: str, pages: AsyncIterable[T]) -> list[T]:
        """Read every page of a list, or fail: half a list would look as if the rest were gone."""
        with translated(action):
            async with asyncio.timeout(self._limit_seconds):
                return [genuine(page) async for page in _ending(pages, self._most_pages)]

    async def close(self) -> None:
        """Let go of connections. May be repeated."""
        async with self._lock:
            self._clients.clear()
            await self._open.aclose()

    @overload
    async def _client(self, service: Literal["ec2"], region: str) -> "EC2Client": ...
    @overload
    async def _client(self, service: Literal["cloudwatch"], region: str) -> "CloudWatchClient": ...
    @overload
    async def _client(self, service: Literal["sts"], region: str) -> Any: ...  # noqa: ANN401  one call needs no stubs
    async def _client(self, service: Literal["ec2", "cloudwatch", "sts"], region: str) -> Any:
        async with self._lock:
            if (service, region) not in self._clients:
                with translated(f"a client of {service} in {region}"):
                    async with asyncio.timeout(self._limit_seconds):
                        self._clients[service, region] = await self._make(service, region)
            return self._clients[service, region]

    async def _make(self, service: Literal["ec2", "cloudwatch", "sts"], region: str) -> Any:  # noqa: ANN401  the callers know
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
        client.meta.events.register("before-send", _ask_permit)
        return client


def _ask_permit(event_name: str, **_: object) -> None:
    """Be called by the library when a request is about to leave, and again before each of its own repetitions."""
    if not event_name.rpartition(".")[2].startswith(_LOOKING):
        permit()


async def _ending(pages: AsyncIterable[T], most: int) -> AsyncIterator[T]:
    number = 0
    async for page in pages:
        number += 1
        if number > most:
            raise LookupError(f"it has more than {most} pages")
        yield page
