"""Every error as an answer: those of the plane by `control.problems`, and those that only HTTP knows.

An answer of 5xx says nothing of what is inside: that goes to the log, once. Called by `app`; raised all over `api`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from typing import Final

import msgspec
import structlog
from msgspec import UNSET, UnsetType

from lcm.api.http.answers import CLOSE, PROBLEM, Answer, Header, Headers
from lcm.control.plane.problems import Problem, problem_of
from lcm.model.base.errors import LcmError, Refused

_log: Final = structlog.get_logger()
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason that only HTTP knows."""

    name: str
    status: int
    title: str


MALFORMED: Final = Reason("Malformed", 400, "Not JSON")
UNAUTHORIZED: Final = Reason("Unauthorized", 401, "Sign in first")
NO_ROUTE: Final = Reason("NoRoute", 404, "Nothing is here")
"""Apart from NotFound: a client of another version must not take it for an object that is gone."""
NO_METHOD: Final = Reason("MethodNotAllowed", 405, "No such method here")
TOO_SLOW: Final = Reason("RequestTimeout", 408, "The body took too long")
NO_MEDIA: Final = Reason("UnsupportedMediaType", 415, "No such media type here")
RATE_LIMITED: Final = Reason("RateLimited", 429, "Too many requests")
BUG: Final = Reason("Bug", 500, "Our mistake")
_OURS: Final = "something went wrong on this side; the log says what"
_SIGN_IN: Final[Header] = (b"www-authenticate", b"Bearer")


class Declined(Refused):
    """A request that HTTP itself turns down."""

    def __init__(self, reason: Reason, detail: str, *, headers: Headers = (), wait: float | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.headers = headers
        self.wait = wait


def answer_of(error: LcmError, *, matched: bool = False) -> Answer:
    """Write an error as an answer; `matched` says that the request named a revision by If-Match."""
    problem = told(error, matched=matched)
    headers: list[Header] = [*error.headers] if isinstance(error, Declined) else []
    if not isinstance(problem.retry_after_seconds, UnsetType):
        headers.append((b"retry-after", b"%d" % max(1, ceil(problem.retry_after_seconds))))
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers.append(_SIGN_IN)
    if problem.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        headers.append(CLOSE)  # the rest of the body may still be on its way
    return Answer(problem.status, _encode(problem), headers, PROBLEM)


def told(error: LcmError, *, matched: bool = False) -> Problem:
    """Write an error as a problem, without what is nobody's business outside."""
    if isinstance(error, Declined):
        reason = error.reason
        wait = UNSET if error.wait is None else error.wait
        return _problem(reason, str(error), wait)
    problem = problem_of(error, matched=matched)
    if problem.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return problem
    _log.warning("request could not be done", reason=problem.reason, error=str(error))
    return msgspec.structs.replace(problem, detail=_OURS)


def bug() -> Answer:
    """Answer for a mistake of our own."""
    return Answer(BUG.status, _encode(_problem(BUG, _OURS)), (), PROBLEM)


def _problem(reason: Reason, detail: str, wait: float | UnsetType = UNSET) -> Problem:
    return Problem(
        title=reason.title, status=reason.status, detail=detail, reason=reason.name, retry_after_seconds=wait
    )


REASONS: Final[Mapping[int, str]] = {
    400: "Malformed",
    401: "Unauthorized, or why an issuer's token is refused: TokenExpired, TokenAudience, TokenSignature …",
    403: "Forbidden",
    404: "NotFound, or NoRoute where nothing is served",
    408: "RequestTimeout",
    409: "Conflict, AlreadyExists, IllegalStep, NoRoom, Refused or Deposed",
    410: "Relist",
    412: "Conflict: the object is not at the revision of If-Match",
    413: "TooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid; `faults` names each",
    429: "RateLimited; `Retry-After` says for how long",
    500: "Bug or Stuck",
    503: "Later, Throttled or Unreachable; `Retry-After` says for how long",
}
"""Which reasons an answer of this status may carry."""
