"""The error tree. Each class is named after what its receiver must do.

LcmError
├── Conflict      somebody else was faster: read again, decide again
│   └── Taken        the name belongs to somebody else: choose another
├── Relist        the requested history is gone: list, then watch from the list's revision
├── Deposed       the lease's term is over: stop leading, campaign again
├── Gone          the requested object does not exist; success for a delete
├── Refused       the caller must change the request (4xx)
│   ├── Invalid      the document or argument is wrong; `faults` says where and what to do
│   ├── TooLarge     over a limit of the contract; split or shrink it
│   ├── IllegalStep  the state machine has no such step
│   ├── Forbidden    the caller is not allowed to do this
│   │   └── NotSignedIn  the caller is not known: send a valid token
│   └── NoRoom       it would not fit; another time, place or size may
├── Later         try again after `after`; nothing is known to be wrong with the request
│   ├── Throttled    the other side asked us to slow down
│   ├── Unreachable  no answer: the effect may or may not have happened
│   └── StoreFull    the store takes no writes until somebody makes room
└── Stuck         only a person can help; `reason` says with what
    └── WentBack     the store is not the one that this process knows: end the process

An `AssertionError` is our own bug. "No placement" is a value, not an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar


class LcmError(Exception):
    """Root of all errors that this software raises on purpose."""


class Conflict(LcmError):
    """A precondition did not hold. Nothing was written."""

    def __init__(self, key: str, *, wanted: int, found: int, message: str = "") -> None:
        super().__init__(message or _describe_conflict(key, wanted, found))
        self.key = key
        self.wanted = wanted
        self.found = found


class Taken(Conflict):
    """A name is used by an object about which the caller may learn nothing more."""

    def __init__(self, message: str) -> None:
        super().__init__("", wanted=0, found=0, message=message)


class Relist(LcmError):
    """The requested revision was compacted, or the reader fell too far behind."""


class Deposed(LcmError):
    """The write was fenced off: this term no longer holds the lease."""


class Gone(LcmError):
    """The object does not exist, or no longer exists."""


class Refused(LcmError):
    """The request itself cannot be accepted; repeating it changes nothing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a document: where, what, and what to do about it."""

    path: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        """Return the fault as one line for a terminal."""
        text = f"{self.path}: {self.problem}"
        return f"{text}; {self.remedy}" if self.remedy else text


class Invalid(Refused):
    """The document or argument is wrong; every fault found is listed."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


class TooLarge(Refused):
    """A limit of the contract would be exceeded."""


class IllegalStep(Refused):
    """The state machine has no such step, or its conditions do not hold."""


class Forbidden(Refused):
    """The caller is not allowed to do this."""


class NotSignedIn(Forbidden):
    """The caller is not known: there is no token, or it is not valid here."""


class NoRoom(Refused):
    """The requested capacity is not available.

    `why` names the obstacle in a word; `nearest` are slots that would be accepted. `remedy` is the end of the message
    that says what helps, where that is more than `why` tells.
    """

    def __init__(
        self, message: str, *, why: str = "", nearest: Sequence[tuple[datetime, datetime]] = (), remedy: str = ""
    ) -> None:
        super().__init__(message)
        self.why = why
        self.remedy = remedy
        self.nearest = tuple(nearest)


class Later(LcmError):
    """A temporary failure: try again after `after`."""

    def __init__(self, message: str, *, after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message)
        self.after = after


class Throttled(Later):
    """The other side asked us to slow down."""


class Unreachable(Later):
    """No answer came: a write may or may not have happened."""


class StoreFull(Later):
    """The store takes no writes until somebody makes room. Nothing was written."""

    def __init__(self, message: str, *, after: timedelta = timedelta(seconds=10)) -> None:
        super().__init__(message, after=after)


class Stuck(LcmError):
    """Only a person can help."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WentBack(Stuck):
    """The store is not the one that this process knows, so all that it remembers may be wrong: it must end."""

    REASON: ClassVar = "store-went-back"

    def __init__(self, message: str) -> None:
        super().__init__(self.REASON, message)


def to_fault(error: Exception, root: str, remedy: str = "") -> Fault:
    """Return what msgspec found as a fault; `root` is its path if the document itself is wrong.

    The value is not repeated: it may be a secret that slipped in from the next line.
    """
    problem, _, path = str(error).partition(" - at `")
    problem = problem.replace("`", "")
    if " matching regex " in problem:
        problem = "not of the expected form"
    if " enum value " in problem:
        problem = "none of its values"
    return Fault(path.rstrip("`").removeprefix("$").lstrip(".") or root, problem[:1].lower() + problem[1:], remedy)


def _describe_conflict(key: str, wanted: int, found: int) -> str:
    if not wanted:
        return f"{key} exists already, at revision {found}"
    return f"{key} was expected at revision {wanted} but is {f'at revision {found}' if found else 'gone'}"
