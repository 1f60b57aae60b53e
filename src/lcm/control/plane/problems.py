"""Errors as problem documents (RFC 9457) and back, so that a caller over HTTP gets the very error a local one would.

`api` answers with them, `control.client` reads them; one table serves both ways. `reason` is what programs look at.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from lcm.control.access.oidc import Reason
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
    Refused,
    Relist,
    Stuck,
    Taken,
    Throttled,
    TooLarge,
    Unreachable,
)
from lcm.model.kinds.placement import Slot

MEDIA_TYPE: Final = "application/problem+json"
_PRECONDITION_FAILED: Final = 412
_SERVER: Final = 500
_LONGEST_WAIT: Final = timedelta(hours=1)
_MOST_FAULTS: Final = 501
"""As many as an apply tells, and that there are more."""
_LONGEST_TEXT: Final = 1_000
_LONGEST_DETAIL: Final = 20_000
_SUMMARY_LINES: Final = 5
_LONGEST_SUMMARY: Final = 2_000
"""Of faults, which are told one by one beside it."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not done."""

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
    """With what a person can help."""
    why: str | UnsetType = UNSET
    """What is in the way of a booking, in a word."""
    nearest: tuple[Slot, ...] | UnsetType = UNSET
    """Slots that would work."""


@dataclass(frozen=True, slots=True)
class _Row:
    error: type[LcmError]
    reason: str
    status: int
    title: str


_EXISTS: Final = _Row(Conflict, "AlreadyExists", 409, "It exists already")
_ROWS: Final = (
    _Row(Conflict, "Conflict", 409, "Somebody was faster"),
    _Row(Relist, "Relist", 410, "That history is gone"),
    _Row(Deposed, "Deposed", 409, "The lease's term is over"),
    _Row(Gone, "NotFound", 404, "Not found"),
    _Row(Invalid, "Invalid", 422, "Not valid"),
    _Row(TooLarge, "TooLarge", 413, "Too large"),
    _Row(IllegalStep, "IllegalStep", 409, "No such step"),
    _Row(Forbidden, "Forbidden", 403, "Not allowed"),
    _Row(NoRoom, "NoRoom", 409, "No room"),
    _Row(Throttled, "Throttled", 503, "Slow down"),
    _Row(Unreachable, "Unreachable", 503, "No answer from a part of the system"),
    _Row(Stuck, "Stuck", 500, "A person must help"),
    _Row(Later, "Later", 503, "Try again later"),
    _Row(Refused, "Refused", 409, "Refused"),
)
"""A class stands before those it derives from."""


def problem_of(error: LcmError, *, matched: bool = False) -> Problem:
    """Write an error; `matched` says that the request named a revision by If-Match."""
    row = next(row for row in _ROWS if isinstance(error, row.error))
    if isinstance(error, Conflict):
        row = row if error.wanted else _EXISTS
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
        detail=_summary(error.faults) if isinstance(error, Invalid) else _cut(str(error), _LONGEST_DETAIL),
        reason=row.reason,
        faults=tuple(map(_bounded, error.faults[:_MOST_FAULTS])) if isinstance(error, Invalid) else UNSET,
        retry_after_seconds=error.after.total_seconds() if isinstance(error, Later) else UNSET,
        stuck=error.reason if isinstance(error, Stuck) else UNSET,
        why=error.why or UNSET if isinstance(error, NoRoom) else UNSET,
        nearest=tuple(Slot(start=a, end=b) for a, b in error.nearest) or UNSET if isinstance(error, NoRoom) else UNSET,
    )


def _summary(faults: Sequence[Fault]) -> str:
    lines = [str(_bounded(fault)) for fault in faults[:_SUMMARY_LINES]]
    if len(faults) > _SUMMARY_LINES:
        lines.append(f"and {len(faults) - _SUMMARY_LINES} more")
    return _cut("\n".join(lines), _LONGEST_SUMMARY)


def _bounded(fault: Fault) -> Fault:
    """Cut what a fault repeats of a request, which may be as long as somebody likes."""
    if max(len(fault.path), len(fault.problem), len(fault.remedy)) <= _LONGEST_TEXT:
        return fault
    return Fault(*(_cut(text, _LONGEST_TEXT) for text in (fault.path, fault.problem, fault.remedy)))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def error_of(problem: Problem) -> LcmError:
    """Read the error that a problem was made of; one that has none of ours becomes its nearest kin."""
    make = _MAKERS.get(problem.reason)
    if make is not None:
        return make(problem)
    if problem.status >= _SERVER:
        return Stuck(problem.reason, problem.detail)
    return Refused(f"{problem.reason}: {problem.detail}")


def _conflict(problem: Problem) -> LcmError:
    if not problem.wanted and isinstance(problem.found, UnsetType):
        return Taken(problem.detail)
    return Conflict(problem.key or "", wanted=problem.wanted or 0, found=problem.found or 0, message=problem.detail)


def _invalid(problem: Problem) -> LcmError:
    return Invalid(*(problem.faults or (Fault("request", problem.detail),)))


def _stuck(problem: Problem) -> LcmError:
    return Stuck(problem.stuck or problem.reason, problem.detail)


def _no_room(problem: Problem) -> LcmError:
    slots = [(slot.start, slot.end) for slot in problem.nearest or ()]
    return NoRoom(problem.detail, why=problem.why or "", nearest=slots)


def _plain(kind: type[LcmError]) -> Callable[[Problem], LcmError]:
    return lambda problem: kind(problem.detail)


def _later(kind: type[Later]) -> Callable[[Problem], LcmError]:
    return lambda problem: kind(problem.detail, after=_wait(problem))


def _wait(problem: Problem) -> timedelta:
    seconds = problem.retry_after_seconds
    if isinstance(seconds, UnsetType) or not 0 <= seconds <= _LONGEST_WAIT.total_seconds():
        return timedelta(seconds=1)
    return timedelta(seconds=seconds)


_MAKERS: Final[Mapping[str, Callable[[Problem], LcmError]]] = {
    **{row.reason: _plain(row.error) for row in _ROWS if row.error in {Relist, Deposed, Gone, Refused}},
    **{row.reason: _plain(row.error) for row in _ROWS if row.error in {TooLarge, IllegalStep, Forbidden}},
    "NoRoom": _no_room,
    "Conflict": _conflict,
    "AlreadyExists": _conflict,
    "Invalid": _invalid,
    "Malformed": _invalid,
    "Stuck": _stuck,
    "NoRoute": _stuck,
    "Later": _later(Later),
    "Throttled": _later(Throttled),
    "RateLimited": _later(Throttled),
    "Unreachable": _later(Unreachable),
    "RequestTimeout": _later(Unreachable),
    "Unauthorized": _plain(Forbidden),
    **{reason.value: _plain(Forbidden) for reason in Reason},
}
