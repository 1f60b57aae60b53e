"""S3's five calls that we need, with few attempts, limits on everything, and errors of our own tree.

Used by `s3`. The vendor's own retries are off: they would hide how long a call takes.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError

from lcm.model.base.errors import Fault, Gone, Invalid, Later, Unreachable
from lcm.model.base.resource import Part
from lcm.providers.aws.s3_errors import VENDOR, status_of, translate
from lcm.providers.protocols.artifacts import Content, check_size

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client


T = TypeVar("T")

_CHUNK: Final = 1 << 18
_RECORD: Final = "sha256"
_REFUSALS: Final = range(400, 500)
_REMOVED: Final = 204
_REGION: Final = re.compile(r"[a-z0-9-]{1,64}")


class Patience(Part):
    """How long S3 may take, and how often it is asked."""

    attempts: int = 3
    pause_seconds: float = 0.2
    connect_seconds: float = 5.0
    silence_seconds: float = 20.0
    request_seconds: float = 120.0
    at_once: int = 8


class Place(NamedTuple):
    """A bucket and a key in it."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class Facts(NamedTuple):
    """What S3 says of an object without showing it; the digest is the one that we recorded, if we did."""

    place: Place
    size_bytes: int
    stored_at: datetime
    recorded: str = ""


class Page(NamedTuple):
    """A part of a list, and what to ask for the next part with."""

    found: list[Facts]
    token: str


class S3Wire:
    """A connection to one S3-like endpoint."""

    def __init__(self, client: "S3Client", stack: AsyncExitStack, patience: Patience) -> None:
        self._client = client
        self._stack = stack
        self._patience = patience
        self._slots = asyncio.Semaphore(patience.at_once)

    @classmethod
    async def open(
        cls,
        *,
        region: str,
        endpoint_url: str = "",
        session: AioSession | None = None,
        keys: tuple[str, str] | None = None,
        patience: Patience | None = None,
    ) -> Self:
        """Prepare to ask AWS, or the endpoint given; nothing is sent yet. Credentials: the keys, else the session's."""
        patience, session = patience or Patience(), session or AioSession()
        _check(region, endpoint_url)
        if keys:
            session.set_credentials(*keys)
        stack = AsyncExitStack()
        creating = session.create_client(
            "s3",
            region_name=region,
            endpoint_url=endpoint_url or None,
            config=_config(patience, own=bool(endpoint_url)),
        )
        client = await stack.enter_async_context(creating)
        client.meta.events.register("before-call.s3.HeadBucket", _stay)
        return cls(client, stack, patience)

    async def put(self, place: Place, data: bytes, digest: str) -> None:
        """Store an object; S3 checks that it got the bytes which have the digest."""
        hexadecimal = digest.partition(":")[2]
        checksum = base64.b64encode(bytes.fromhex(hexadecimal)).decode()

        async def once() -> None:
            await self._client.put_object(
                Bucket=place.bucket,
                Key=place.key,
                Body=data,
                ChecksumSHA256=checksum,
                ContentType="application/octet-stream",
                Metadata={_RECORD: hexadecimal},
            )

        await self._ask("s3:PutObject", place, once)

    async def look(self, place: Place) -> Facts | None:
        """Tell what is there; None means that S3 said that this key is not."""

        async def once() -> Facts:
            try:
                return _facts(place, await self._client.head_object(Bucket=place.bucket, Key=place.key))
            except ClientError as error:
                if status_of(error) not in _REFUSALS:
                    raise
            # HEAD says neither what is missing, the key or the bucket, nor why else, nor whether it was S3 who said so.
            answer = await self._client.get_object(Bucket=place.bucket, Key=place.key)
            answer["Body"].close()
            return _facts(place, answer)

        try:
            return await self._ask("s3:GetObject", place, once)
        except Gone:
            return None

    async def read(self, place: Place, limit_bytes: int) -> Content:
        """Read an object whole. Raises Gone, TooLarge."""

        async def once() -> Content:
            answer = await self._client.get_object(Bucket=place.bucket, Key=place.key)
            async with answer["Body"] as body:
                facts = _facts(place, answer)
                check_size(str(place), facts.size_bytes, limit_bytes)
                digest, parts, size = hashlib.sha256(), [], 0
                while part := await body.read(_CHUNK):
                    size += len(part)
                    check_size(str(place), size, limit_bytes)
                    digest.update(part)
                    parts.append(part)
                return Content(b"".join(parts), f"sha256:{digest.hexdigest()}", facts.recorded)

        return await self._ask("s3:GetObject", place, once)

    async def remove(self, place: Place) -> None:
        """Remove an object. Not there is success."""

        async def once() -> None:
            answer: Any = await self._client.delete_object(Bucket=place.bucket, Key=place.key)
            if answer["ResponseMetadata"]["HTTPStatusCode"] != _REMOVED:  # a proxy's page has 200
                raise _unlike_s3("s3:DeleteObject", place)

        await self._ask("s3:DeleteObject", place, once)

    async def page(self, prefix: Place, token: str) -> Page:
        """List a part of what is below a prefix."""

        async def once() -> Page:
            more: Any = {"ContinuationToken": token} if token else {}
            answer: Any = await self._client.list_objects_v2(Bucket=prefix.bucket, Prefix=prefix.key, **more)
            if "IsTruncated" not in answer or (answer["IsTruncated"] and not answer.get("NextContinuationToken")):
                raise _unlike_s3("s3:ListBucket", prefix)
            found = [_entry(prefix, one) for one in answer.get("Contents", ())]
            return Page(found, answer["NextContinuationToken"] if answer["IsTruncated"] else "")

        return await self._ask("s3:ListBucket", prefix, once)

    async def close(self) -> None:
        """Close all connections. May be repeated."""
        await self._stack.aclose()

    async def _ask(self, action: str, place: Place, once: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(self._patience.attempts - 1):
            with suppress(Later):
                return await self._once(action, place, once)
            await asyncio.sleep(self._patience.pause_seconds * 2**attempt)
        return await self._once(action, place, once)

    async def _once(self, action: str, place: Place, once: Callable[[], Awaitable[T]]) -> T:
        try:
            # The wait for a slot does not count.
            async with self._slots, asyncio.timeout(self._patience.request_seconds):
                return await once()
        except VENDOR as error:
            # Without its cause: the vendor's text may hold what a proxy echoed of our request.
            raise translate(error, action, str(place)) from None


def _stay(params: dict[str, Any], **_: object) -> None:
    # Sent elsewhere, the vendor asks the bucket for its region; sent elsewhere by that too, it asks again without end.
    params["context"]["s3_redirect"]["redirected"] = True


def _facts(place: Place, answer: Any) -> Facts:  # noqa: ANN401  the vendor's types promise what a proxy may leave out
    if "LastModified" not in answer or "ContentLength" not in answer:
        raise _unlike_s3("s3:GetObject", place)
    recorded = answer.get("Metadata", {}).get(_RECORD, "")
    return Facts(place, answer["ContentLength"], answer["LastModified"], recorded and f"sha256:{recorded}")


def _entry(prefix: Place, entry: Any) -> Facts:  # noqa: ANN401
    try:
        return Facts(Place(prefix.bucket, entry["Key"]), entry["Size"], entry["LastModified"])
    except KeyError:
        raise _unlike_s3("s3:ListBucket", prefix) from None


def _unlike_s3(action: str, place: Place) -> Unreachable:
    return Unreachable(f"S3 gave an answer that is not S3's ({action} on {place})")


def _check(region: str, endpoint_url: str) -> None:
    faults = []
    if not _REGION.fullmatch(region):
        faults.append(Fault("region", "not a region's name", "write one such as eu-central-1"))
    if endpoint_url:
        faults += _endpoint_faults(endpoint_url)
    if faults:
        raise Invalid(*faults)


def _endpoint_faults(endpoint_url: str) -> list[Fault]:
    try:
        url = urlsplit(endpoint_url)
        whole = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        return [Fault("endpoint_url", "not an address", "write one such as https://minio.example:9000")]
    if not whole or url.path.strip("/") or url.query or url.fragment:
        return [Fault("endpoint_url", "not an address", "write one such as https://minio.example:9000")]
    if "@" in url.netloc:
        return [Fault("endpoint_url", "holds credentials", "give them by the environment or a profile")]
    return []


def _config(patience: Patience, *, own: bool) -> AioConfig:
    return AioConfig(
        connect_timeout=patience.connect_seconds,
        read_timeout=patience.silence_seconds,
        max_pool_connections=patience.at_once,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path" if own else "auto"},
        # We send and check SHA-256 ourselves; the vendor's newer checksums are refused by older S3-like stores.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
