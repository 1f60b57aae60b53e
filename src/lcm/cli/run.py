"""What happens around every command: a plane to work with, and an exit code and a next step for every error.

Exit codes: 0 done · 1 an error · 2 wrong usage · 3 not there · 4 somebody was faster · 5 refused · 6 no answer, or not
now · 7 time is up · 8 what was waited for can no longer happen · 130 Ctrl-C.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from lcm.cli import contexts, render
from lcm.cli.contexts import Context
from lcm.control.plane import Plane
from lcm.model.errors import Conflict, Deposed, Forbidden, Gone, Invalid, Later, LcmError, Refused, Relist, Throttled

if TYPE_CHECKING:
    from lcm.control.client_line import Line

T = TypeVar("T")


class NoContext(LcmError):
    """Nobody has said which API to talk to."""

    def __init__(self) -> None:
        super().__init__("there is no API to talk to")


class TimeIsUp(LcmError):
    """What was waited for did not happen in time."""


class Impossible(LcmError):
    """What was waited for cannot happen any more."""


_LISTS: Final = "`lcm get KIND -A` lists what is there"
_ROWS: Final[tuple[tuple[type[LcmError], int, str], ...]] = (
    (NoContext, 1, "start one here with `lcm up`, or set LCM_URL and LCM_TOKEN"),
    (TimeIsUp, 7, "`lcm story KIND NAME` tells what happened so far"),
    (Impossible, 8, "`lcm describe KIND NAME` tells why"),
    (Gone, 3, _LISTS),
    (Conflict, 4, "somebody was faster: look again, then repeat the command"),
    (Relist, 4, "repeat the command"),
    (Deposed, 4, ""),
    (Forbidden, 5, "`lcm context list` shows as whom you ask; an administrator can give you a token for more"),
    (Invalid, 5, ""),
    (Refused, 5, ""),
    (Throttled, 6, "wait a little, then repeat the command"),
    (Later, 6, "is it running? `lcm up` starts one here; `lcm context list` shows where you look for it"),
    (LcmError, 1, ""),
)
"""Exit code and next step by error; a class stands before those it derives from."""


def report(error: LcmError) -> int:
    """Tell a person what went wrong and what to do next; returns the exit code."""
    code, hint = next((code, hint) for kind, code, hint in _ROWS if isinstance(error, kind))
    if isinstance(error, Invalid) and len(error.faults) > 1:
        render.say(f"error: {len(error.faults)} faults", colour="red")
        render.say("\n".join(map(str, error.faults)))
    else:
        render.say(f"error: {error}", colour="red")
    if hint:
        render.say(hint)
    return code


def with_plane(
    work: Callable[[Plane], Awaitable[T]],
    context: str | None = None,
    *,
    within_seconds: float | None = None,
    who: bool = False,
) -> T:
    """Do a command's work with the plane of a context: of the one named, else of the current one.

    With `who` the plane knows its caller, for which the API is asked first.
    """
    return asyncio.run(_with_plane(work, chosen(context), within_seconds, who=who))


def with_line(work: "Callable[[Line], Awaitable[T]]", context: str | None = None) -> T:
    """Do a command's work by requests of its own, where the plane has no verb for it."""
    return asyncio.run(_with_line(work, chosen(context)))


def chosen(name: str | None) -> Context:
    """Find the context to use; NoContext when there is none."""
    found = contexts.current(name)
    if found is None:
        raise NoContext
    if exposed := contexts.seen_by_others():
        render.say(f"warning: others can read your tokens; run `chmod 600 {exposed}`", colour="yellow")
    return found


@asynccontextmanager
async def connect(context: Context, *, who: bool = False) -> AsyncIterator[Plane]:
    """Open the plane of a context. Who the caller is need mostly not be known, so nothing is asked before the work."""
    from lcm.control.client import HttpPlane  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then

    plane = HttpPlane.open(context.url, context.token)
    async with AsyncExitStack() as ending:
        ending.push_async_callback(plane.close)
        if who:
            await ending.enter_async_context(plane)
        yield plane


async def _with_line(work: "Callable[[Line], Awaitable[T]]", context: Context) -> T:
    from lcm.control.client_line import Limits, Line  # noqa: PLC0415 - likewise

    line = Line(context.url, context.token, actor="", limits=Limits(), trust=None, transport=None)
    try:
        return await work(line)
    finally:
        await line.close()


async def _with_plane(
    work: Callable[[Plane], Awaitable[T]], context: Context, within_seconds: float | None, *, who: bool
) -> T:
    async with asyncio.timeout(within_seconds), connect(context, who=who) as plane:
        return await work(plane)
