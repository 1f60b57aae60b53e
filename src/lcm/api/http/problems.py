"""Every error as an answer: those of the control plane by `control.plane.problems`, and those that only HTTP has.

A 5xx answer says what is inside only to those who run the system; it goes to the log, and equal ones only now and then.
Called by `api.http.request`; Declined is raised all over `api`.
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
class ProblemReason:
    """A reason for a problem that exists only at the HTTP level."""

    name: str
    status: int
    title: str


AMBIGUOUS: Final = ProblemReason("Ambiguous", 400, "A header is there twice")
MALFORMED: Final = ProblemReason("Malformed", 400, "Not JSON")
UNAUTHORIZED: Final = ProblemReason("Unauthorized", 401, "Sign in first")
NOT_FOUND: Final = ProblemReason("NotFound", 404, "Not found")
NO_ROUTE: Final = ProblemReason("NoRoute", 404, "Nothing is here")
"""Distinct from NotFound: a client of another version must not take it for an object that is gone."""
NO_METHOD: Final = ProblemReason("MethodNotAllowed", 405, "No such method here")
TOO_SLOW: Final = ProblemReason("RequestTimeout", 408, "The body took too long")
NO_MEDIA: Final = ProblemReason("UnsupportedMediaType", 415, "No such media type here")
UPGRADE_NEEDED: Final = ProblemReason("UpgradeRequired", 426, "Only a WebSocket is served here")
NO_SOCKET: Final = ProblemReason("NoRoute", 404, "No WebSocket is here")
RATE_LIMITED: Final = ProblemReason("RateLimited", 429, "Too many requests")
BUSY: Final = ProblemReason("Throttled", 503, "Too busy")
NOT_BUILT: Final = ProblemReason("NotBuilt", 503, "Not built yet")
BUG: Final = ProblemReason("Bug", 500, "Our mistake")
_INTERNAL_ERROR: Final = "an error of the server; see its log"
_QUIET_SECONDS: Final = 60.0
_MOST_KNOWN: Final = 200
_AUTHENTICATE: Final[Header] = (b"www-authenticate", b"Bearer")


class Declined(Refused):
    """A request that is refused at the HTTP level."""

    def __init__(self, reason: ProblemReason, detail: str, *, headers: Headers = (), wait: float | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.headers = headers
        self.wait = wait


def error_answer(error: LcmError, problem: Problem) -> Answer:
    """Return the answer for an error and its problem document."""
    headers: list[Header] = [*error.headers] if isinstance(error, Declined) else []
    if not isinstance(problem.retry_after_seconds, UnsetType):
        headers.append((b"retry-after", b"%d" % max(1, ceil(problem.retry_after_seconds))))
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers.append(_AUTHENTICATE)
    if problem.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        headers.append(CLOSE)  # the rest of the body may still be on its way
    return Answer(problem.status, _encode(problem), headers, PROBLEM)


def public_problem(error: LcmError, *, matched: bool, trusted: bool) -> Problem:
    """Return the problem document of an error. The details of a 5xx error are for trusted callers only."""
    if isinstance(error, Declined):
        reason, wait = error.reason, UNSET if error.wait is None else error.wait
        return Problem(
            title=reason.title, status=reason.status, detail=str(error), reason=reason.name, retry_after_seconds=wait
        )
    problem = problem_of(error, matched=matched)
    if problem.status < HTTPStatus.INTERNAL_SERVER_ERROR or trusted:
        return problem
    return msgspec.structs.replace(problem, detail=_INTERNAL_ERROR)


class ProblemLog:
    """Logs requests that could not be done: equal ones once a minute, with how many were left out since."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[float, int]] = {}
        """For each line, when it may be logged again and how often it was left out. The oldest come first."""

    def log(self, *line: str, now: float) -> None:
        """Log a method, a route, a reason and an error, unless that was done less than a minute ago."""
        due, left_out = self._known.pop(line, (now, 0))
        if now < due:
            self._known[line] = (due, left_out + 1)
            return
        self._known[line] = (now + _QUIET_SECONDS, 0)
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        method, route, reason, error = line
        more = {"left_out": left_out} if left_out else {}
        _log.warning("request could not be done", method=method, route=route, reason=reason, error=error, **more)


def bug_answer() -> Answer:
    """Return the answer for a bug of our own."""
    bug = Declined(BUG, _INTERNAL_ERROR)
    return error_answer(bug, public_problem(bug, matched=False, trusted=False))


REASONS: Final[Mapping[int, str]] = {
    400: "Malformed, or Ambiguous for a header that is there twice",
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
    426: "UpgradeRequired: open it as a WebSocket",
    429: "RateLimited; `Retry-After` says for how long",
    500: "Bug or Stuck",
    503: "Later, Throttled, StoreFull, Unreachable or NotBuilt; `Retry-After` says for how long",
}
"""The reasons that an answer of each status may carry."""
