"""What S3's errors mean to us, in one table. `s3_wire` asks it; the texts hold nothing that S3 or a proxy wrote.

An answer counts as S3's own only if it uses S3's words: a bare 404 may come from whatever stands before it.
"""

import re
from collections.abc import Mapping
from typing import Final

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
)

from lcm.model.base.errors import Gone, Later, LcmError, Stuck, Throttled, TooLarge, Unreachable

VENDOR: Final = (ClientError, BotoCoreError, aiohttp.ClientError, OSError, ValueError, TypeError, LookupError)
"""What a call can raise besides our own errors: a time-out is an OSError, and over headers and documents that are not
S3's the vendor's own parsers stumble with the last three."""

_Kind = type[LcmError] | str
"""An error, or the reason of a Stuck."""

_DENIED: Final = ("AccessDenied", "access is denied; allow {action}, and s3:ListBucket so that a missing key is told")
_KEYS: Final = ("Credentials", "the credentials are refused; correct or renew them")
_REGION: Final = ("WrongRegion", "the bucket is in another region; correct the region")
_SLOW: Final = (Throttled, "asks us to slow down")
_FAILED: Final = (Unreachable, "failed")
_MANGLED: Final = (Unreachable, "got other bytes than we sent")
_FULL: Final = (Later, "is full")
_NOT_S3: Final = (Unreachable, "gave an answer that is not S3's")

_CODES: Final[Mapping[str, tuple[_Kind, str]]] = {
    "NoSuchKey": (Gone, "has no such object"),
    "NoSuchBucket": ("NoSuchBucket", "has no such bucket; create it or correct its name"),
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "AccountProblem": _DENIED,
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "InvalidToken": _KEYS,
    "ExpiredToken": _KEYS,
    "TokenRefreshRequired": _KEYS,
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "RequestTimeTooSkewed": ("ClockSkew", "finds our clock wrong; correct it"),
    "InvalidObjectState": ("Archived", "has the object in an archive; restore it"),
    "EntityTooLarge": (TooLarge, "finds the object too large"),
    "XMinioStorageFull": _FULL,
    "XMinioAdminBucketQuotaExceeded": _FULL,
    "QuotaExceeded": _FULL,
    "SlowDown": _SLOW,
    "SlowDownRead": _SLOW,
    "SlowDownWrite": _SLOW,
    "Throttling": _SLOW,
    "ThrottlingException": _SLOW,
    "RequestLimitExceeded": _SLOW,
    "RequestTimeout": _FAILED,
    "OperationAborted": _FAILED,
    "IncompleteBody": _MANGLED,
    "BadDigest": _MANGLED,
    "XAmzContentSHA256Mismatch": _MANGLED,
    "XAmzContentChecksumMismatch": _MANGLED,
}

_STATUSES: Final[Mapping[int, tuple[_Kind, str]]] = {
    301: _REGION,
    403: _DENIED,
    404: _NOT_S3,
    408: _FAILED,
    429: _SLOW,
    503: _SLOW,
}
"""What a code that is not in the table means; HEAD has no code at all."""

_WORD: Final = re.compile(r"[A-Za-z0-9.]{1,64}")
_NO_KEYS: Final = (NoCredentialsError, PartialCredentialsError, ProfileNotFound)


def translate(error: BaseException, action: str, where: str) -> LcmError:
    """Say in our words what went wrong with an action such as s3:GetObject."""
    kind, text, detail = _meaning(error)
    message = f"S3 {text.format(action=action)} ({action} on {where}: {detail})"
    return Stuck(kind, message) if isinstance(kind, str) else kind(message)


def status_of(error: ClientError) -> int:
    """Return the HTTP status of an answer, 0 if there was none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _meaning(error: BaseException) -> tuple[_Kind, str, str]:
    if isinstance(error, ClientError):
        return _answer(error)
    detail = type(error).__name__
    if isinstance(error, _NO_KEYS):
        return "Credentials", "cannot be asked without credentials", detail
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "Certificate", "shows a certificate that we do not trust", detail
    return Unreachable, "gave no whole answer", detail


def _answer(error: ClientError) -> tuple[_Kind, str, str]:
    code, status = str(error.response.get("Error", {}).get("Code", "")), status_of(error)
    kind, text = _CODES.get(code) or _STATUSES.get(status) or _other(status)
    if kind is Gone and status != 404:  # noqa: PLR2004
        kind, text = _NOT_S3
    return kind, text, f"HTTP {status} {code}" if _WORD.fullmatch(code) else f"HTTP {status}"


def _other(status: int) -> tuple[_Kind, str]:
    return ("Refused", "refused the request") if 400 <= status < 500 else _FAILED  # noqa: PLR2004  the class of 4xx
