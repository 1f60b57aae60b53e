"""The five S3 calls that `s3` needs, with few attempts, limits on everything, and our own errors.

The vendor's own retries are off: they would hide how long a call takes.
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
from lcm.providers.aws.errors import status_of, translate_errors
from lcm.providers.protocols.artifacts import Content, check_size

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client


T = TypeVar("T")

_CHUNK: Final = 1 << 18
_DIGEST_KEY: Final = "sha256"
_REFUSALS: Final = range(400, 500)
_NO_CONTENT: Final = 204
_REGION: Final = re.compile(r"[a-z0-9-]{1,64}")


class S3Limits(Part):
    """How long S3 may take, and how often it is asked."""

    attempts: int = 3
    pause_seconds: float = 0.2
    connect_seconds: float = 5.0
    silence_seconds: float = 20.0
    request_seconds: float = 120.0
    at_once: int = 8


class S3ObjectLocation(NamedTuple):
    """A bucket and a key in it."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class S3Object(NamedTuple):
    """What S3 says of an object without its bytes. `recorded` is the digest that we recorded, if we did."""

    place: S3ObjectLocation
    size_bytes: int
    stored_at: datetime
    recorded: str = ""


class S3Connection:
    """A connection to one S3-like endpoint."""

    def __init__(self, client: "S3Client", stack: AsyncExitStack, patience: S3Limits) -> None:
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
        patience: S3Limits | None = None,
    ) -> Self:
        """Prepare to call AWS, or the endpoint given; nothing is sent yet.

        Credentials are the keys, else the session's.
        """
        patience, session = patience or S3Limits(), session or AioSession()
        _check_endpoint(region, endpoint_url)
        if keys:
            session.set_credentials(*keys)
        stack = AsyncExitStack()
        creating = session.create_client(
            "s3",
            region_name=region,
            endpoint_url=endpoint_url or None,
            config=_client_config(patience, own=bool(endpoint_url)),
        )
        client = await stack.enter_async_context(creating)
        client.meta.events.register("before-call.s3.HeadBucket", _forbid_redirects)
        return cls(client, stack, patience)

    async def put(self, place: S3ObjectLocation, data: bytes, digest: str) -> None:
        """Store an object; S3 checks that it got the bytes that have the digest."""
        hexadecimal = digest.partition(":")[2]
        checksum = base64.b64encode(bytes.fromhex(hexadecimal)).decode()

        async def once() -> None:
            await self._client.put_object(
                Bucket=place.bucket,
                Key=place.key,
                Body=data,
                ChecksumSHA256=checksum,
                ContentType="application/octet-stream",
                Metadata={_DIGEST_KEY: hexadecimal},
            )

        await self._call("s3:PutObject", place, once)

    async def find(self, place: S3ObjectLocation) -> S3Object | None:
        """Read an object's metadata; None means that S3 said that this key does not exist."""

        async def once() -> S3Object:
            try:
                return _parse_object(place, await self._client.head_object(Bucket=place.bucket, Key=place.key))
            except ClientError as error:
                if status_of(error) not in _REFUSALS:
                    raise
            # A refused HEAD has no error code: it may be the key, the bucket, a permission, or not S3 at all. GET
            # tells.
            answer = await self._client.get_object(Bucket=place.bucket, Key=place.key)
            answer["Body"].close()
            return _parse_object(place, answer)

        try:
            return await self._call("s3:GetObject", place, once)
        except Gone:
            return None

    async def read(self, place: S3ObjectLocation, limit_bytes: int) -> Content:
        """Read a whole object. Raises Gone, TooLarge."""

        async def once() -> Content:
            answer = await self._client.get_object(Bucket=place.bucket, Key=place.key)
            async with answer["Body"] as body:
                facts = _parse_object(place, answer)
                check_size(str(place), facts.size_bytes, limit_bytes)
                digest, parts, size = hashlib.sha256(), [], 0
                while part := await body.read(_CHUNK):
                    size += len(part)
                    check_size(str(place), size, limit_bytes)
                    digest.update(part)
                    parts.append(part)
                return Content(b"".join(parts), f"sha256:{digest.hexdigest()}", facts.recorded)

        return await self._call("s3:GetObject", place, once)

    async def remove(self, place: S3ObjectLocation) -> None:
        """Remove an object. Not there is success."""

        async def once() -> None:
            answer: Any = await self._client.delete_object(Bucket=place.bucket, Key=place.key)
            if answer["ResponseMetadata"]["HTTPStatusCode"] != _NO_CONTENT:  # a proxy's page has 200
                raise _not_s3("s3:DeleteObject", place)

        await self._call("s3:DeleteObject", place, once)

    async def list_page(self, prefix: S3ObjectLocation, token: str) -> tuple[list[S3Object], str]:
        """List a part of what is below a prefix; return it with the token of the next part, empty after the last."""

        async def once() -> tuple[list[S3Object], str]:
            more: Any = {"ContinuationToken": token} if token else {}
            answer: Any = await self._client.list_objects_v2(Bucket=prefix.bucket, Prefix=prefix.key, **more)
            if "IsTruncated" not in answer or (answer["IsTruncated"] and not answer.get("NextContinuationToken")):
                raise _not_s3("s3:ListBucket", prefix)
            found = [_parse_entry(prefix, one) for one in answer.get("Contents", ())]
            return found, answer["NextContinuationToken"] if answer["IsTruncated"] else ""

        return await self._call("s3:ListBucket", prefix, once)

    async def close(self) -> None:
        """Close all connections. May be repeated."""
        await self._stack.aclose()

    async def _call(self, action: str, place: S3ObjectLocation, once: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(self._patience.attempts - 1):
            with suppress(Later):
                return await self._call_once(action, place, once)
            await asyncio.sleep(self._patience.pause_seconds * 2**attempt)
        return await self._call_once(action, place, once)

    async def _call_once(self, action: str, place: S3ObjectLocation, once: Callable[[], Awaitable[T]]) -> T:
        with translate_errors(action, str(place)):
            # The time limit does not include the wait for a slot.
            async with self._slots, asyncio.timeout(self._patience.request_seconds):
                return await once()


def _forbid_redirects(params: dict[str, Any], **_: object) -> None:
    # After a redirect the vendor asks the bucket for its region; if that is redirected too, it asks without end.
    params["context"]["s3_redirect"]["redirected"] = True


def _parse_object(place: S3ObjectLocation, answer: Any) -> S3Object:  # noqa: ANN401  the vendor's types promise what a proxy may leave out
    if "LastModified" not in answer or "ContentLength" not in answer:
        raise _not_s3("s3:GetObject", place)
    recorded = answer.get("Metadata", {}).get(_DIGEST_KEY, "")
    return S3Object(place, answer["ContentLength"], answer["LastModified"], recorded and f"sha256:{recorded}")


def _parse_entry(prefix: S3ObjectLocation, entry: Any) -> S3Object:  # noqa: ANN401
    try:
        return S3Object(S3ObjectLocation(prefix.bucket, entry["Key"]), entry["Size"], entry["LastModified"])
    except KeyError:
        raise _not_s3("s3:ListBucket", prefix) from None


def _not_s3(action: str, place: S3ObjectLocation) -> Unreachable:
    return Unreachable(f"S3 gave an answer that is not S3's ({action} on {place})")


def _check_endpoint(region: str, endpoint_url: str) -> None:
    faults = []
    if not _REGION.fullmatch(region):
        faults.append(Fault("region", "not a region's name", "write one such as eu-central-1"))
    try:
        url = urlsplit(endpoint_url)
        named = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
        whole = named and not (url.path.strip("/") or url.query or url.fragment)
    except ValueError:
        whole = False
    if endpoint_url and not whole:
        faults.append(Fault("endpoint_url", "not an address", "write one such as https://minio.example:9000"))
    elif "@" in endpoint_url:
        faults.append(Fault("endpoint_url", "holds credentials", "set them in the environment or in a profile"))
    if faults:
        raise Invalid(*faults)


def _client_config(patience: S3Limits, *, own: bool) -> AioConfig:
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
