"""What the errors of AWS Secrets Manager mean to us, in one table. Used by `secrets`.

The texts hold nothing that AWS or a proxy wrote: an answer that is not understood may hold the secret.
"""

from collections.abc import Mapping
from typing import Final

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
)
from botocore.parsers import ResponseParserError

from lcm.model.base.errors import LcmError, Stuck, Throttled, Unreachable
from lcm.providers.protocols.secrets import MISSING, UNREADABLE

_NO_ANSWER: Final = (BotoCoreError, aiohttp.ClientError, OSError)
_MALFORMED_ANSWER: Final = (ResponseParserError, ValueError, TypeError, AttributeError, LookupError)
VENDOR_ERRORS: Final = (ClientError, *_NO_ANSWER, *_MALFORMED_ANSWER)
"""What a call can raise besides our own errors.

A time-out is an OSError; the vendor's parsers, and our reading of what they parsed, raise others over documents that
are not AWS's.
"""

_Kind = type[Throttled] | type[Unreachable] | str
"""An error class, or the reason of a Stuck."""
_Classification = tuple[_Kind, str]

_BAD_CREDENTIALS: Final = ("Credentials", "does not accept our credentials; correct or renew them")
_SLOW: Final = (Throttled, "asks us to slow down")
_FAILED: Final = (Unreachable, "failed")
_BAD_NAME: Final = (UNREADABLE, "finds this no name of a secret; correct it")

_CODES: Final[Mapping[str, _Classification]] = {
    "ResourceNotFoundException": (MISSING, "has no such secret; create it, or correct name and region"),
    "InvalidRequestException": (MISSING, "is about to delete this secret, or has no value of it yet"),
    "InvalidParameterException": _BAD_NAME,
    "ValidationException": _BAD_NAME,
    "DecryptionFailure": (UNREADABLE, "cannot decrypt this secret; allow kms:Decrypt with its key"),
    "AccessDeniedException": ("AccessDenied", "denies access; allow secretsmanager:GetSecretValue"),
    "AccessDenied": ("AccessDenied", "denies access; allow secretsmanager:GetSecretValue"),
    "UnrecognizedClientException": _BAD_CREDENTIALS,
    "InvalidClientTokenId": _BAD_CREDENTIALS,
    "InvalidSignatureException": _BAD_CREDENTIALS,
    "SignatureDoesNotMatch": _BAD_CREDENTIALS,
    "IncompleteSignature": _BAD_CREDENTIALS,
    "MissingAuthenticationToken": _BAD_CREDENTIALS,
    "MissingAuthenticationTokenException": _BAD_CREDENTIALS,
    "ExpiredToken": _BAD_CREDENTIALS,
    "ExpiredTokenException": _BAD_CREDENTIALS,
    "RequestExpired": _BAD_CREDENTIALS,
    "OptInRequired": _BAD_CREDENTIALS,
    "Throttling": _SLOW,
    "ThrottlingException": _SLOW,
    "RequestLimitExceeded": _SLOW,
    "TooManyRequestsException": _SLOW,
    "LimitExceededException": _SLOW,
    "InternalServiceError": _FAILED,
    "InternalFailure": _FAILED,
    "ServiceUnavailable": _FAILED,
    "ServiceUnavailableException": _FAILED,
    "RequestTimeout": _FAILED,
    "RequestTimeoutException": _FAILED,
}

_NO_CREDENTIALS: Final = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, CredentialRetrievalError)
_TOO_MANY_REQUESTS: Final = 429


def translate(error: BaseException, ref: str) -> LcmError:
    """Return our error for what went wrong with a reference."""
    (kind, text), detail = _classify(error)
    message = f"AWS Secrets Manager {text} ({ref}: {detail})"
    return Stuck(kind, message) if isinstance(kind, str) else kind(message)


def _classify(error: BaseException) -> tuple[_Classification, str]:
    if isinstance(error, ClientError):
        return _classify_answer(error)
    detail = type(error).__name__
    if isinstance(error, _NO_CREDENTIALS):
        return ("Credentials", "cannot be asked without credentials"), detail
    if isinstance(error, NoRegionError):
        return ("Region", "cannot be asked without a region"), detail
    if isinstance(error, ParamValidationError):
        return _BAD_NAME, detail
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ("Certificate", "shows a certificate that we do not trust"), detail
    return (Unreachable, "gave no whole answer"), detail


def _classify_answer(error: ClientError) -> tuple[_Classification, str]:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _CODES:
        return _CODES[code], f"HTTP {status} {code}"
    if status == _TOO_MANY_REQUESTS:
        return _SLOW, f"HTTP {status}"
    # An answer without an AWS code comes from something in between, such as a proxy.
    said_by_aws = code.endswith("Exception") and status < 500  # noqa: PLR2004  the class of 5xx
    return ("Refused", "refused the request") if said_by_aws else _FAILED, f"HTTP {status}"
