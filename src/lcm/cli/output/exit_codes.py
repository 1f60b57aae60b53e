"""Exit codes: which error ends a command with which code, and what to do next.

Used by every command; `docs` and `lcm --help` name the codes.
"""

from typing import Final

from lcm.cli.output import render
from lcm.model.base.errors import (
    Conflict,
    Deposed,
    Forbidden,
    Gone,
    Invalid,
    Later,
    LcmError,
    NotSignedIn,
    Refused,
    Relist,
    StoreFull,
    Throttled,
    WentBack,
)


class NoContext(LcmError):
    """No API is configured to talk to."""


class WaitTimedOut(LcmError):
    """The awaited state was not reached in time."""


class Impossible(LcmError):
    """The awaited state can no longer be reached."""


_SIGN_IN: Final = (
    "its token was revoked, has expired, or is of another API; `lcm context list` shows which context you use, and "
    "`lcm context set` saves another token"
)
_EXIT_CODES: Final[tuple[tuple[type[LcmError], int, str], ...]] = (
    (NoContext, 1, "start one here with `lcm up`, or set LCM_URL and LCM_TOKEN"),
    (WaitTimedOut, 7, ""),
    (Impossible, 8, ""),
    (Gone, 3, ""),
    (Conflict, 4, "somebody else changed it first: check it, then repeat the command"),
    (Relist, 4, "repeat the command"),
    (Deposed, 4, ""),
    (NotSignedIn, 5, _SIGN_IN),
    (Forbidden, 5, "`lcm context list` shows which context you use; ask an administrator for a token with more rights"),
    (Invalid, 5, ""),
    (Refused, 5, ""),
    (WentBack, 9, "“A store that goes back” in docs/operate.md says more"),
    (StoreFull, 6, "its operator must make room: “A full store” in docs/operate.md"),
    (Throttled, 6, "wait a little, then repeat the command"),
    (Later, 6, "is the API running? `lcm up` starts one here; `lcm context list` shows which address is used"),
    (LcmError, 1, ""),
)
"""Exit code and next step by error. A class comes before those it derives from."""


def report_error(error: LcmError) -> int:
    """Print what went wrong and what to do next; return the exit code."""
    code, hint = next((code, hint) for kind, code, hint in _EXIT_CODES if isinstance(error, kind))
    if isinstance(error, Invalid) and len(error.faults) > 1:
        render.print_message(f"error: {len(error.faults)} faults", colour="red")
        render.print_message("\n".join(map(str, error.faults)))
    else:
        render.print_message(f"error: {error}", colour="red")
    if hint:
        render.print_message(hint)
    return code
