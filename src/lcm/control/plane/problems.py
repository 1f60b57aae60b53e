"""Errors as problem documents (RFC 9457) and back: a caller over HTTP gets the same error as a local one.

`api` answers with them and `control.plane.client` reads them; one table serves both directions. Programs look at
`reason`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from lcm.control.access.oidc import TokenRefusalReason
from lcm.model.base.errors import (
    Conflict,
    Deposed,
    Fault,
    Forbidden,
    Gone,
    IllegalStep,
    Invalid,
    Later,
    LcmError,
    NoRoom,
    NotSignedIn,
    Refused,
    Relist,
    StoreFull,
    Stuck,
    Taken,
    Throttled,
    TooLarge,
    Unreachable,
    WentBack,
)
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.placement import Slot

MEDIA_TYPE: Final = "application/problem+json"
_PRECONDITION_FAILED: Final = 412
_SERVER_ERROR: Final = 500
_LONGEST_WAIT: Final = timedelta(hours=1)
_MOST_FAULTS: Final = 501
"""As many as an apply reports, and one that says there are more."""
_LONGEST_TEXT: Final = 1_000
_LONGEST_DETAIL: Final = 20_000
_SUMMARY_LINES: Final = 5
_LONGEST_SUMMARY: Final = 2_000
"""For the summary of faults, which are also listed one by one."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed."""

    title: str
    status: int
    detail: str
    reason: str
    type: str = "about:blank"
    faults: tuple[Fault, ...] | UnsetType = UNSET
    key: str | UnsetType = UNSET
    wanted: int | UnsetType = UNSET
    found: int | UnsetType = UNSET
    retry_after_seconds: float | UnsetType = UNSET
    stuck: str | UnsetType = UNSET
    """What needs a person's help."""
    why: str | UnsetType = UNSET
    """The reason why a booking has no room, as one word."""
    nearest: tuple[Slot, ...] | UnsetType = UNSET
    """Slots that would be accepted."""


@dataclass(frozen=True, slots=True)
class _ErrorRow:
    error: type[LcmError]
    reason: str
    status: int
    title: str


_EXISTS_ROW: Final = _ErrorRow(Conflict, "AlreadyExists", 409, "Already exists")
_ERROR_ROWS: Final = (
    _ErrorRow(Conflict, "Conflict", 409, "Changed by another request"),
    _ErrorRow(Relist, "Relist", 410, "That history is gone"),
    _ErrorRow(Deposed, "Deposed", 409, "The lease's term is over"),
    _ErrorRow(Gone, "NotFound", 404, "Not found"),
    _ErrorRow(Invalid, "Invalid", 422, "Not valid"),
    _ErrorRow(TooLarge, "TooLarge", 413, "Too large"),
    _ErrorRow(IllegalStep, "IllegalStep", 409, "No such step"),
    _ErrorRow(NotSignedIn, "Unauthorized", 401, "Sign in first"),
    _ErrorRow(Forbidden, "Forbidden", 403, "Not allowed"),
    _ErrorRow(NoRoom, "NoRoom", 409, "No room"),
    _ErrorRow(Throttled, "Throttled", 503, "Slow down"),
    _ErrorRow(StoreFull, "StoreFull", 503, "The store is full"),
    _ErrorRow(Unreachable, "Unreachable", 503, "No answer from a part of the system"),
    _ErrorRow(Stuck, "Stuck", 500, "A person must help"),
    _ErrorRow(Later, "Later", 503, "Try again later"),
    _ErrorRow(Refused, "Refused", 409, "Refused"),
)
"""A class stands before the classes it derives from."""


def problem_of(error: LcmError, *, matched: bool = False) -> Problem:
    """Return the problem document of an error. `matched` says that the request named a revision by If-Match."""
    row = next(row for row in _ERROR_ROWS if isinstance(error, row.error))
    if isinstance(error, Conflict):
        row = row if error.wanted else _EXISTS_ROW
        known = not isinstance(error, Taken)
        return Problem(
            title=row.title,
            status=_PRECONDITION_FAILED if matched else row.status,
            detail=str(error),
            reason=row.reason,
            key=error.key if known else UNSET,
            wanted=error.wanted,
            found=error.found if known else UNSET,
        )
    return Problem(
        title=row.title,
        status=row.status,
        detail=_summary(error.faults) if isinstance(error, Invalid) else shorten_text(str(error), _LONGEST_DETAIL),
        reason=row.reason,
        faults=tuple(map(_shorten_fault, error.faults[:_MOST_FAULTS])) if isinstance(error, Invalid) else UNSET,
        retry_after_seconds=error.after.total_seconds() if isinstance(error, Later) else UNSET,
        stuck=error.reason if isinstance(error, Stuck) else UNSET,
        why=error.why or UNSET if isinstance(error, NoRoom) else UNSET,
        nearest=tuple(Slot(start=a, end=b) for a, b in error.nearest) or UNSET if isinstance(error, NoRoom) else UNSET,
    )


def _summary(faults: Sequence[Fault]) -> str:
    lines = [str(_shorten_fault(fault)) for fault in faults[:_SUMMARY_LINES]]
    if len(faults) > _SUMMARY_LINES:
        lines.append(f"and {len(faults) - _SUMMARY_LINES} more")
    return shorten_text("\n".join(lines), _LONGEST_SUMMARY)


def _shorten_fault(fault: Fault) -> Fault:
    """Shorten the texts of a fault: what it repeats of a request may be of any length."""
    if max(len(fault.path), len(fault.problem), len(fault.remedy)) <= _LONGEST_TEXT:
        return fault
    return Fault(*(shorten_text(text, _LONGEST_TEXT) for text in (fault.path, fault.problem, fault.remedy)))


def error_of(problem: Problem) -> LcmError:
    """Return the error that a problem was made of; an unknown reason becomes the most similar error of ours."""
    make = _ERROR_MAKERS.get(problem.reason)
    if make is not None:
        return make(problem)
    if problem.status >= _SERVER_ERROR:
        return Stuck(problem.reason, problem.detail)
    return Refused(f"{problem.reason}: {problem.detail}")


def _conflict_error(problem: Problem) -> LcmError:
    if not problem.wanted and isinstance(problem.found, UnsetType):
        return Taken(problem.detail)
    return Conflict(problem.key or "", wanted=problem.wanted or 0, found=problem.found or 0, message=problem.detail)


def _invalid_error(problem: Problem) -> LcmError:
    return Invalid(*(problem.faults or (Fault("request", problem.detail),)))


def _stuck_error(problem: Problem) -> LcmError:
    if problem.stuck == WentBack.REASON:
        return WentBack(problem.detail)
    return Stuck(problem.stuck or problem.reason, problem.detail)


def _error_maker(kind: type[LcmError]) -> Callable[[Problem], LcmError]:
    return lambda problem: kind(problem.detail)


def _later_error_maker(kind: type[Later]) -> Callable[[Problem], LcmError]:
    return lambda problem: kind(problem.detail, after=_retry_after(problem))


def _retry_after(problem: Problem) -> timedelta:
    seconds = problem.retry_after_seconds
    if isinstance(seconds, UnsetType) or not 0 <= seconds <= _LONGEST_WAIT.total_seconds():
        return timedelta(seconds=1)
    return timedelta(seconds=seconds)


_ERROR_MAKERS: Final[Mapping[str, Callable[[Problem], LcmError]]] = {
    **{row.reason: _error_maker(row.error) for row in _ERROR_ROWS if row.error in {Relist, Deposed, Gone, Refused}},
    **{row.reason: _error_maker(row.error) for row in _ERROR_ROWS if row.error in {TooLarge, IllegalStep, Forbidden}},
    "NoRoom": lambda problem: NoRoom(
        problem.detail, why=problem.why or "", nearest=[(slot.start, slot.end) for slot in problem.nearest or ()]
    ),
    "Conflict": _conflict_error,
    "AlreadyExists": _conflict_error,
    "Invalid": _invalid_error,
    "Malformed": _invalid_error,
    "Stuck": _stuck_error,
    "NoRoute": _stuck_error,
    "Later": _later_error_maker(Later),
    "Throttled": _later_error_maker(Throttled),
    "StoreFull": _later_error_maker(StoreFull),
    "RateLimited": _later_error_maker(Throttled),
    "Unreachable": _later_error_maker(Unreachable),
    "RequestTimeout": _later_error_maker(Unreachable),
    "Unauthorized": _error_maker(NotSignedIn),
    **{reason.value: _error_maker(NotSignedIn) for reason in TokenRefusalReason},
}
