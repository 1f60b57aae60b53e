"""What the errors of AWS Secrets Manager mean to us, in one table. `secrets_aws` asks it.

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
_ODD_ANSWER: Final = (ResponseParserError, ValueError, TypeError, AttributeError, LookupError)
VENDOR: Final = (ClientError, *_NO_ANSWER, *_ODD_ANSWER)
"""What a call can raise besides our own errors: a time-out is an OSError, and over documents that are not AWS's the
vendor's parsers, and our reading of what they parsed, stumble."""

_Kind = type[Throttled] | type[Unreachable] | str
"""An error, or the reason of a Stuck."""
_Meaning = tuple[_Kind, str]

_KEYS: Final = ("Credentials", "does not accept our credentials; correct or renew them")
_SLOW: Final = (Throttled, "asks us to slow down")
_FAILED: Final = (Unreachable, "failed")
_NAME: Final = (UNREADABLE, "finds this no name of a secret; correct it")

_CODES: Final[Mapping[str, _Meaning]] = {
    "ResourceNotFoundException": (MISSING, "has no such secret; create it, or correct name and region"),
    "InvalidRequestException": (MISSING, "is about to delete this secret, or has no value of it yet"),
    "InvalidParameterException": _NAME,
    "ValidationException": _NAME,
    "DecryptionFailure": (UNREADABLE, "cannot decrypt this secret; allow kms:Decrypt with its key"),
    "AccessDeniedException": ("AccessDenied", "denies access; allow secretsmanager:GetSecretValue"),
    "AccessDenied": ("AccessDenied", "denies access; allow secretsmanager:GetSecretValue"),
    "UnrecognizedClientException": _KEYS,
    "InvalidClientTokenId": _KEYS,
    "InvalidSignatureException": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "IncompleteSignature": _KEYS,
    "MissingAuthenticationToken": _KEYS,
    "MissingAuthenticationTokenException": _KEYS,
    "ExpiredToken": _KEYS,
    "ExpiredTokenException": _KEYS,
    "RequestExpired": _KEYS,
    "OptInRequired": _KEYS,
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

_NO_KEYS: Final = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, CredentialRetrievalError)
_TOO_MANY: Final = 429


def translate(error: BaseException, ref: str) -> LcmError:
    """Say in our words what went wrong with a reference."""
    (kind, text), detail = _meaning(error)
    message = f"AWS Secrets Manager {text} ({ref}: {detail})"
    return Stuck(kind, message) if isinstance(kind, str) else kind(message)


def _meaning(error: BaseException) -> tuple[_Meaning, str]:
    if isinstance(error, ClientError):
        return _answer(error)
    detail = type(error).__name__
    if isinstance(error, _NO_KEYS):
        return ("Credentials", "cannot be asked without credentials"), detail
    if isinstance(error, NoRegionError):
        return ("Region", "cannot be asked without a region"), detail
    if isinstance(error, ParamValidationError):
        return _NAME, detail
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ("Certificate", "shows a certificate that we do not trust"), detail
    return (Unreachable, "gave no whole answer"), detail


def _answer(error: ClientError) -> tuple[_Meaning, str]:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _CODES:
        return _CODES[code], f"HTTP {status} {code}"
    if status == _TOO_MANY:
        return _SLOW, f"HTTP {status}"
    # Without a code of AWS it was something in between that spoke.
    said_by_aws = code.endswith("Exception") and status < 500  # noqa: PLR2004  the class of 5xx
    return ("Refused", "refused the request") if said_by_aws else _FAILED, f"HTTP {status}"
