"""What S3's errors mean to us, in one table. Used by `s3_calls`; the texts hold nothing that S3 or a proxy wrote.

An answer counts as S3's own only if it uses S3's error codes: a bare 404 may come from a proxy.
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

VENDOR_ERRORS: Final = (ClientError, BotoCoreError, aiohttp.ClientError, OSError, ValueError, TypeError, LookupError)
"""What a call can raise besides our own errors.

A time-out is an OSError; the last three are raised by the vendor's parsers over headers and documents that are not
S3's.
"""

_Kind = type[LcmError] | str
"""An error class, or the reason of a Stuck."""

_DENIED: Final = ("AccessDenied", "access is denied; allow {action}, and s3:ListBucket so that a missing key is told")
_BAD_CREDENTIALS: Final = ("Credentials", "the credentials are refused; correct or renew them")
_REGION: Final = ("WrongRegion", "the bucket is in another region; correct the region")
_SLOW: Final = (Throttled, "asks us to slow down")
_FAILED: Final = (Unreachable, "failed")
_CORRUPTED: Final = (Unreachable, "got other bytes than we sent")
_FULL: Final = (Later, "is full")
_NOT_S3: Final = (Unreachable, "gave an answer that is not S3's")

_CODES: Final[Mapping[str, tuple[_Kind, str]]] = {
    "NoSuchKey": (Gone, "has no such object"),
    "NoSuchBucket": ("NoSuchBucket", "has no such bucket; create it or correct its name"),
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "AccountProblem": _DENIED,
    "InvalidAccessKeyId": _BAD_CREDENTIALS,
    "SignatureDoesNotMatch": _BAD_CREDENTIALS,
    "InvalidToken": _BAD_CREDENTIALS,
    "ExpiredToken": _BAD_CREDENTIALS,
    "TokenRefreshRequired": _BAD_CREDENTIALS,
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
    "IncompleteBody": _CORRUPTED,
    "BadDigest": _CORRUPTED,
    "XAmzContentSHA256Mismatch": _CORRUPTED,
    "XAmzContentChecksumMismatch": _CORRUPTED,
}

_STATUSES: Final[Mapping[int, tuple[_Kind, str]]] = {
    301: _REGION,
    403: _DENIED,
    404: _NOT_S3,
    408: _FAILED,
    429: _SLOW,
    503: _SLOW,
}
"""The meaning of an HTTP status whose code is not in the table; HEAD has no code at all."""

_ERROR_CODE: Final = re.compile(r"[A-Za-z0-9.]{1,64}")
_NO_CREDENTIALS: Final = (NoCredentialsError, PartialCredentialsError, ProfileNotFound)


def translate(error: BaseException, action: str, where: str) -> LcmError:
    """Return our error for what went wrong with an action such as s3:GetObject."""
    kind, text, detail = _classify(error)
    message = f"S3 {text.format(action=action)} ({action} on {where}: {detail})"
    return Stuck(kind, message) if isinstance(kind, str) else kind(message)


def status_of(error: ClientError) -> int:
    """Return the HTTP status of an answer, 0 if there was none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _classify(error: BaseException) -> tuple[_Kind, str, str]:
    if isinstance(error, ClientError):
        return _classify_answer(error)
    detail = type(error).__name__
    if isinstance(error, _NO_CREDENTIALS):
        return "Credentials", "cannot be asked without credentials", detail
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "Certificate", "shows a certificate that we do not trust", detail
    return Unreachable, "gave no whole answer", detail


def _classify_answer(error: ClientError) -> tuple[_Kind, str, str]:
    code, status = str(error.response.get("Error", {}).get("Code", "")), status_of(error)
    kind, text = _CODES.get(code) or _STATUSES.get(status) or _classify_status(status)
    if kind is Gone and status != 404:  # noqa: PLR2004
        kind, text = _NOT_S3
    return kind, text, f"HTTP {status} {code}" if _ERROR_CODE.fullmatch(code) else f"HTTP {status}"


def _classify_status(status: int) -> tuple[_Kind, str]:
    return ("Refused", "refused the request") if 400 <= status < 500 else _FAILED  # noqa: PLR2004  the class of 4xx
