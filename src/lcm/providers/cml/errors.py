"""The one table from CML's refusals, and from network failures, to our errors. Used by `rest` and `connection`.

Only CML's own error body, `{"code": …, "description": …}`, counts as CML's answer. A page that some proxy wrote means
that CML was not reached, whatever its status; so an outage never looks like "no such lab".
"""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Final

import aiohttp
import httpx
import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Gone, Later, LcmError, NoRoom, Throttled, Unreachable
from lcm.model.base.resource import shorten_text
from lcm.providers.protocols.labhost import (
    CmlApiError,
    CmlAuthenticationError,
    CmlCertificateError,
    CmlLabCreationError,
    CmlLicensingError,
    NotReady,
)


class CmlOperation(StrEnum):
    """The kind of request, where it decides what a refusal means."""

    ANYTHING = "a request"
    SIGN_IN = "the sign-in"
    IMPORT = "the import of a lab"
    START = "the start of a lab"
    LICENCE = "a licence operation"
    DEREGISTER = "the deregistration"


class CmlFailure(msgspec.Struct, frozen=True):
    """An answer that is no success: the target, the operation, and what came back."""

    asked: CmlOperation
    target: str
    status: int
    said: str | None
    """CML's own text; None when the answer was not CML's."""
    retry_after: str | None = None

    def __str__(self) -> str:
        words = self.said if self.said is not None else "an answer that is not CML's"
        return f"{self.target} answered {self.asked} with {self.status}: {words}"


class _ErrorBody(msgspec.Struct):
    code: int
    description: str


JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder raises for broken JSON, for text in it that is not UTF-8, and for JSON nested too deeply."""
_RETRY_AFTER: Final = timedelta(seconds=5)
_LONGEST_RETRY: Final = timedelta(hours=1)
_MAX_TEXT: Final = 500
_SECONDS: Final = re.compile(r"[0-9]{1,6}")
_MISSING: Final = re.compile(r"\b(Lab|Node|Interface|Link) not found\b")
_error_body: Final = msgspec.json.Decoder(_ErrorBody)


def error_text(body: bytes, hide: Secret | None = None) -> str | None:
    """Read CML's error body, with a secret removed from it; None means that this is not one."""
    try:
        said = _error_body.decode(body).description
    except JSON_ERRORS:
        return None
    return shorten_text(hide.hide_in(said) if hide else said, _MAX_TEXT)


def translate_refusal(failure: CmlFailure) -> LcmError:
    """Return our error for an answer other than success."""
    if failure.status in _FRONT_END_STATUSES:
        return _FRONT_END_STATUSES[failure.status](failure)
    meaning = _REFUSALS.get((failure.asked, failure.status)) or _REFUSALS.get((CmlOperation.ANYTHING, failure.status))
    if failure.said is None or meaning is None:
        return Unreachable(str(failure))
    return meaning(failure)


def translate_no_answer(target: str, error: httpx.RequestError | aiohttp.ClientError | OSError) -> LcmError:
    """Return our error for an answer that did not come, or not all of it."""
    for cause in _causes(error):
        # What aiohttp makes of such an error is one too, but does not say what was wrong; its cause does.
        if isinstance(cause, ssl.SSLCertVerificationError) and not isinstance(cause, aiohttp.ClientError):
            return CmlCertificateError(
                "CertificateNotTrusted",
                f"{target} shows a certificate that we do not trust ({cause.verify_message}); if none is pinned yet, "
                "fetch and pin it; if it has changed, forget the pinned one only when you know that the machine was "
                "rebuilt",
            )
        if isinstance(cause, ConnectionRefusedError):
            return NotReady(f"nothing listens at {target} yet", after=_RETRY_AFTER)
    return Unreachable(f"no answer from {target}: {str(error) or type(error).__name__}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    yield error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    further = error.__cause__ or error.__context__
    if further is not None:
        yield from _causes(further)


def _to_throttled(failure: CmlFailure) -> LcmError:
    seconds = _SECONDS.fullmatch(failure.retry_after or "")
    after = timedelta(seconds=int(seconds.group())) if seconds else _RETRY_AFTER
    return Throttled(str(failure), after=min(after, _LONGEST_RETRY))


def _to_not_found(failure: CmlFailure) -> LcmError:
    found = _MISSING.search(failure.said or "")
    return Gone(failure.said) if found else CmlApiError(str(failure))


def _to_authentication_error(reason: str, meaning: str) -> Callable[[CmlFailure], LcmError]:
    return lambda failure: CmlAuthenticationError(reason, f"{failure}{meaning}")


def _to_licensing_error(failure: CmlFailure) -> LcmError:
    return CmlLicensingError("CmlLicenceRefused", str(failure))


def _to_later(failure: CmlFailure) -> LcmError:
    return Later(str(failure), after=_RETRY_AFTER)


def _to_error(error: Callable[[str], LcmError]) -> Callable[[CmlFailure], LcmError]:
    return lambda failure: error(str(failure))


_FRONT_END_STATUSES: Final[Mapping[int, Callable[[CmlFailure], LcmError]]] = {
    413: lambda failure: (CmlLabCreationError if failure.asked is CmlOperation.IMPORT else CmlApiError)(str(failure)),
    429: _to_throttled,
    502: lambda failure: NotReady(f"CML is not ready behind {failure.target}", after=_RETRY_AFTER),
}
"""What CML's own web server answers in CML's name, with a page of its own."""

_to_bad_credentials: Final = _to_authentication_error("CmlCredentialsRefused", "; correct CML's user name and password")
_REFUSALS: Final[Mapping[tuple[CmlOperation, int], Callable[[CmlFailure], LcmError]]] = {
    (CmlOperation.ANYTHING, 400): _to_error(CmlApiError),
    (CmlOperation.ANYTHING, 401): _to_authentication_error(
        "CmlTokenRefused", ", although it has just given us the token"
    ),
    (CmlOperation.ANYTHING, 403): _to_authentication_error(
        "CmlUserNotAllowed", "; CML's user must be an administrator"
    ),
    (CmlOperation.ANYTHING, 404): _to_not_found,
    (CmlOperation.ANYTHING, 405): _to_error(CmlApiError),
    (CmlOperation.ANYTHING, 409): _to_later,
    (CmlOperation.ANYTHING, 422): _to_error(CmlApiError),
    (CmlOperation.SIGN_IN, 401): _to_bad_credentials,
    (CmlOperation.SIGN_IN, 403): _to_bad_credentials,
    (CmlOperation.IMPORT, 400): _to_error(CmlLabCreationError),
    (CmlOperation.IMPORT, 422): _to_error(CmlLabCreationError),
    (CmlOperation.START, 400): _to_error(NoRoom),
    (CmlOperation.LICENCE, 400): _to_licensing_error,
    (CmlOperation.LICENCE, 403): _to_licensing_error,
    (CmlOperation.DEREGISTER, 400): _to_later,
    (CmlOperation.DEREGISTER, 403): _to_licensing_error,
}
"""What refusals mean. Whatever is in neither table (other 4xx, 5xx, redirects) means that CML did not answer."""
