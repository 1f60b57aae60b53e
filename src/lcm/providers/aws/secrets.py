"""Secrets in AWS Secrets Manager: `aws:NAME` or, for one text of a JSON object, `aws:NAME#key`. NAME may be an ARN.

A source of `protocols.secrets`, made by `compose`. Answers are cached for a few minutes, so that a hundred workers do
not mean a hundred calls; a failure is cached for some seconds, for those who asked at the same time.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import LcmError, Stuck
from lcm.providers.aws.errors import translate_errors
from lcm.providers.protocols.secrets import MISSING, NOT_ALLOWED, UNREADABLE, nonempty_secret

if TYPE_CHECKING:
    from types_aiobotocore_secretsmanager import SecretsManagerClient


CACHED_FOR: Final = timedelta(minutes=5)
FAILURE_CACHED_FOR: Final = timedelta(seconds=5)
MAX_CACHED: Final = 256

_MAX_NAME: Final = 2048
_CALL_SECONDS: Final = 20.0
_CONFIG: Final = AioConfig(
    connect_timeout=5,
    read_timeout=10,
    retries={"mode": "standard", "total_max_attempts": 2},
    warm_up_loader_caches=True,  # the library's data files are megabytes; this reads them in a thread
)


class _CachedSecret(NamedTuple):
    outcome: Secret | LcmError
    asked_at: datetime
    until: datetime


class AwsSecrets:
    """The secrets of one account and region whose names match one of the allowed patterns.

    Without keys (an id and its secret), credentials are the session's.
    """

    def __init__(
        self,
        *,
        region: str,
        clock: Clock,
        allowed: Iterable[str] = (),
        session: AioSession | None = None,
        keys: tuple[Secret, Secret] | None = None,
        endpoint_url: str = "",
        kept: timedelta = CACHED_FOR,
        call_seconds: float = _CALL_SECONDS,
    ) -> None:
        self._allowed = tuple(allowed)
        self._region = region
        self._clock = clock
        self._session = session or AioSession()
        if keys is not None:
            self._session.set_credentials(*(one.reveal() for one in keys))
        self._endpoint_url = endpoint_url
        self._cached_for = kept
        self._call_seconds = call_seconds
        self._cached: dict[str, _CachedSecret] = {}
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._client: SecretsManagerClient | None = None
        self._opening = asyncio.Lock()
        self._open = AsyncExitStack()

    async def reveal(self, ref: str) -> Secret:
        name, _, key = ref.removeprefix("aws:").partition("#")
        if not name or len(name) > _MAX_NAME or not ref.isprintable():
            raise Stuck(UNREADABLE, "aws: is not followed by a secret's name")
        if not any(fnmatchcase(name, pattern) for pattern in self._allowed):
            allowed = ", ".join(self._allowed) or "none"
            raise Stuck(NOT_ALLOWED, f"aws:{name} may not be used as a secret; SECRET_AWS_ALLOWED allows {allowed}")
        whole = await self._read_whole(name)
        return _pick_key(whole, key, ref) if key else whole

    async def close(self) -> None:
        """Close connections and drop the cache. May be repeated."""
        async with self._opening:
            self._cached.clear()
            self._client = None
            await self._open.aclose()

    async def _read_whole(self, name: str) -> Secret:
        async with self._asking.setdefault(name, asyncio.Lock()):
            kept = self._cached.get(name)
            known = kept.outcome if kept and kept.asked_at <= self._clock.now() < kept.until else None
            if known is None:
                known = await self._fetch(name)
                self._put_cached(name, known)
        if isinstance(known, LcmError):
            raise known.with_traceback(None) from None
        return known

    def _put_cached(self, name: str, outcome: Secret | LcmError) -> None:
        now = self._clock.now()
        self._cached.pop(name, None)
        while len(self._cached) >= MAX_CACHED:
            del self._cached[next(iter(self._cached))]
        span = FAILURE_CACHED_FOR if isinstance(outcome, LcmError) else self._cached_for
        self._cached[name] = _CachedSecret(outcome, now, now + span)

    async def _fetch(self, name: str) -> Secret | LcmError:
        ref = f"aws:{name}"
        try:
            with translate_errors("secretsmanager:GetSecretValue", ref):
                async with asyncio.timeout(self._call_seconds):
                    answer: Any = await (await self._get_client()).get_secret_value(SecretId=name)
                return _text_of(answer, ref)
        except LcmError as error:
            return error

    async def _get_client(self) -> "SecretsManagerClient":
        async with self._opening:
            if self._client is None:
                # At DEBUG this logger writes whole answers, secrets included.
                logging.getLogger("botocore.parsers").setLevel(logging.INFO)
                creating = self._session.create_client(
                    "secretsmanager",
                    region_name=self._region,
                    endpoint_url=self._endpoint_url or None,
                    # Without TLS there is nothing to verify, and loading the certificate authorities takes a while.
                    verify=False if self._endpoint_url.startswith("http://") else None,
                    config=_CONFIG,
                )
                self._client = await self._open.enter_async_context(creating)
            return self._client


def _text_of(answer: Any, ref: str) -> Secret:  # noqa: ANN401  the vendor's types promise what a proxy may leave out
    text = answer.get("SecretString")
    if isinstance(text, str):
        return nonempty_secret(ref, text)
    if "SecretBinary" in answer:
        raise Stuck(UNREADABLE, f"{ref} is not a text")
    raise LookupError("an answer without a secret is not AWS's")


def _pick_key(whole: Secret, key: str, ref: str) -> Secret:
    try:
        texts = msgspec.json.decode(whole.reveal(), type=dict[str, object])
    except msgspec.MsgspecError:
        texts = None
    if texts is None:
        raise Stuck(UNREADABLE, f"{ref} is not in a JSON object")
    if key not in texts:
        raise Stuck(MISSING, f"{ref} is not there: its JSON object has no such key")
    if not isinstance(text := texts[key], str):
        raise Stuck(UNREADABLE, f"{ref} is not a text")
    return nonempty_secret(ref, text)
