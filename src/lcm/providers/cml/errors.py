"""The one table from CML's refusals, and from what the network does to us, to the error tree. Used by `cml_wire`.

Only CML's own error body, `{"code": …, "description": …}`, speaks for CML. A page that some proxy wrote says that CML
was not reached, whatever its status; so an outage never looks like "no such lab".
"""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Final

import httpx
import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Gone, Later, LcmError, NoRoom, Throttled, Unreachable
from lcm.providers.protocols.labhost import (
    CmlApiError,
    CmlAuthenticationError,
    CmlCertificateError,
    CmlLabCreationError,
    CmlLicensingError,
    NotReady,
)


class Asked(StrEnum):
    """What was asked, where it decides what a refusal means."""

    ANYTHING = "a request"
    SIGN_IN = "the sign-in"
    IMPORT = "the import of a lab"
    START = "the start of a lab"
    LICENCE = "a licence operation"
    DEREGISTER = "the deregistration"


class Failure(msgspec.Struct, frozen=True):
    """An answer that is no success: who was asked for what, and what came back."""

    asked: Asked
    target: str
    status: int
    said: str | None
    """CML's own words; None when it was not CML who answered."""
    retry_after: str | None = None

    def __str__(self) -> str:
        words = self.said if self.said is not None else "an answer that is not CML's"
        return f"{self.target} answered {self.asked} with {self.status}: {words}"


class _Said(msgspec.Struct):
    code: int
    description: str


NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder makes of broken JSON, of text in it that is not UTF-8, and of JSON nested too deeply."""
_BUSY: Final = timedelta(seconds=5)
_LONGEST_RETRY: Final = timedelta(hours=1)
_LONGEST_TEXT: Final = 500
_SECONDS: Final = re.compile(r"[0-9]{1,6}$")
_MISSING: Final = re.compile(r"\b(Lab|Node|Interface|Link) not found\b")
_said: Final = msgspec.json.Decoder(_Said)


def words(body: bytes, hide: Secret | None = None) -> str | None:
    """Read CML's error body, with a secret blotted out of it; None says that this is not one."""
    try:
        said = _said.decode(body).description
    except NOT_JSON:
        return None
    return (hide.hide_in(said) if hide else said)[:_LONGEST_TEXT]


def refused(failure: Failure) -> LcmError:
    """Say what an answer other than success means."""
    if failure.status in _WITHOUT_WORDS:
        return _WITHOUT_WORDS[failure.status](failure)
    meaning = _TABLE.get((failure.asked, failure.status)) or _TABLE.get((Asked.ANYTHING, failure.status))
    if failure.said is None or meaning is None:
        return Unreachable(str(failure))
    return meaning(failure)


def unanswered(target: str, error: httpx.RequestError | OSError) -> LcmError:
    """Say what it means that no answer came, or not all of it."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate(target, cause)
        if isinstance(cause, ConnectionRefusedError):
            return NotReady(f"nothing listens at {target} yet", after=_BUSY)
    return Unreachable(f"no answer from {target}: {str(error) or type(error).__name__}")


def _certificate(target: str, error: ssl.SSLCertVerificationError) -> LcmError:
    return CmlCertificateError(
        "CertificateNotTrusted",
        f"{target} shows a certificate that we do not trust ({error.verify_message}); if none is pinned yet, fetch and "
        "pin it; if it has changed, forget the pinned one only when you know that the machine was rebuilt",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    yield error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    further = error.__cause__ or error.__context__
    if further is not None:
        yield from _causes(further)


def _throttled(failure: Failure) -> LcmError:
    seconds = _SECONDS.match(failure.retry_after or "")
    after = timedelta(seconds=int(seconds.group())) if seconds else _BUSY
    return Throttled(str(failure), after=min(after, _LONGEST_RETRY))


def _too_large(failure: Failure) -> LcmError:
    return (CmlLabCreationError if failure.asked is Asked.IMPORT else CmlApiError)(str(failure))


def _not_found(failure: Failure) -> LcmError:
    found = _MISSING.search(failure.said or "")
    return Gone(failure.said) if found else CmlApiError(str(failure))


def _credentials(failure: Failure) -> LcmError:
    return CmlAuthenticationError("CmlCredentialsRefused", f"{failure}; correct CML's user name and password")


def _forbidden(failure: Failure) -> LcmError:
    return CmlAuthenticationError("CmlUserNotAllowed", f"{failure}; CML's user must be an administrator")


def _token(failure: Failure) -> LcmError:
    return CmlAuthenticationError("CmlTokenRefused", f"{failure}, although it has just given us the token")


def _licensing(failure: Failure) -> LcmError:
    return CmlLicensingError("CmlLicenceRefused", str(failure))


def _later(failure: Failure) -> LcmError:
    return Later(str(failure), after=_BUSY)


def _says(error: Callable[[str], LcmError]) -> Callable[[Failure], LcmError]:
    return lambda failure: error(str(failure))


_WITHOUT_WORDS: Final[Mapping[int, Callable[[Failure], LcmError]]] = {
    413: _too_large,
    429: _throttled,
    502: lambda failure: NotReady(f"CML is not ready behind {failure.target}", after=_BUSY),
}
"""What CML's own front door says in its name, in a page of its own."""

_TABLE: Final[Mapping[tuple[Asked, int], Callable[[Failure], LcmError]]] = {
    (Asked.ANYTHING, 400): _says(CmlApiError),
    (Asked.ANYTHING, 401): _token,
    (Asked.ANYTHING, 403): _forbidden,
    (Asked.ANYTHING, 404): _not_found,
    (Asked.ANYTHING, 405): _says(CmlApiError),
    (Asked.ANYTHING, 409): _later,
    (Asked.ANYTHING, 422): _says(CmlApiError),
    (Asked.SIGN_IN, 401): _credentials,
    (Asked.SIGN_IN, 403): _credentials,
    (Asked.IMPORT, 400): _says(CmlLabCreationError),
    (Asked.IMPORT, 422): _says(CmlLabCreationError),
    (Asked.START, 400): _says(NoRoom),
    (Asked.LICENCE, 400): _licensing,
    (Asked.LICENCE, 403): _licensing,
    (Asked.DEREGISTER, 400): _later,
    (Asked.DEREGISTER, 403): _licensing,
}
"""Whatever stands in neither table (other 4xx, 5xx, redirects) means that CML did not answer."""
