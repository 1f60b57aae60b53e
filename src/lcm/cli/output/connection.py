"""What happens around every command: a plane to work with, and an exit code and a next step for every error.

Exit codes: 0 done · 1 an error · 2 wrong usage · 3 not there · 4 somebody was faster · 5 refused · 6 no answer, or not
now · 7 time is up · 8 what was waited for can no longer happen · 130 Ctrl-C.
"""

import asyncio
import fcntl
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from lcm.cli.output import render
from lcm.control.plane.protocol import Plane
from lcm.model.access.identity import bearer
from lcm.model.access.secret import Secret
from lcm.model.base.errors import (
    Conflict,
    Deposed,
    Fault,
    Forbidden,
    Gone,
    Invalid,
    Later,
    LcmError,
    Refused,
    Relist,
    Stuck,
    Throttled,
)

if TYPE_CHECKING:
    from lcm.control.plane.transport import Line


_FILE: Final = "contexts.yaml"
_ONLY_MINE: Final = 0o600
_FOLDER_ONLY_MINE: Final = 0o700
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Context:
    """An API, and who one is there."""

    name: str
    url: str
    token: Secret


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A context as it stands in the file."""

    url: str
    token: str


class Book(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    current: str | None = None
    contexts: dict[str, Stored] = {}
    own: dict[str, Stored] = {}
    """What `lcm up` wrote last for each folder that it ran on."""

    def find(self, name: str) -> Context | None:
        """Give a context by its name."""
        stored = self.contexts.get(name)
        return Context(name, stored.url, Secret(stored.token)) if stored else None


def file() -> Path:
    """Say where contexts are kept."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "lcm" / _FILE


def current(name: str | None = None, environment: Mapping[str, str] = os.environ) -> Context | None:
    """Give the context to use, None when there is none: the one named, else the environment's, else the file's."""
    if name:
        return _named(name)
    url, token = environment.get("LCM_URL"), environment.get("LCM_TOKEN")
    if url and token:
        return Context("environment", checked_url(url, "LCM_URL"), bearer(token, "LCM_TOKEN"))
    chosen = environment.get("LCM_CONTEXT")
    kept = _named(chosen) if chosen else _kept()
    if url:
        return _at(checked_url(url, "LCM_URL"), kept)
    return Context(kept.name, kept.url, bearer(token, "LCM_TOKEN")) if kept and token else kept


def remember(name: str, url: str, token: Secret, *, make_current: bool) -> Path:
    """Keep a context under a name; what was kept under it is replaced."""
    entry = Stored(checked_url(url, "url"), bearer(token.reveal(), "token").reveal())
    return change(
        lambda book: msgspec.structs.replace(
            book,
            current=name if make_current or not book.current else book.current,
            contexts={**book.contexts, name: entry},
        )
    )


def read() -> Book:
    """Read the file; an empty book when there is none. Stuck when it cannot be read."""
    try:
        return msgspec.yaml.decode(file().read_bytes(), type=Book)
    except FileNotFoundError:
        return Book()
    except (OSError, msgspec.MsgspecError) as error:
        raise Stuck("Contexts", f"{file()} cannot be read: {error}; correct or remove it") from error


def change(edit: Callable[[Book], Book]) -> Path:
    """Write a changed book in one piece, readable by its owner alone, whoever else writes at the same time."""
    path = file()
    try:
        path.parent.mkdir(_FOLDER_ONLY_MINE, parents=True, exist_ok=True)
        with _alone(path.parent):
            _replace(path, msgspec.yaml.encode(edit(read())))
    except OSError as error:
        raise Stuck("Contexts", f"{path} cannot be written: {error.strerror or error}") from error
    return path


def seen_by_others() -> Path | None:
    """Give the file when others than its owner may read it."""
    path = file()
    try:
        return path if path.stat().st_mode & _OTHERS else None
    except OSError:
        return None


def checked_url(url: str, path: str) -> str:
    """Give a URL as it is used, or raise Invalid."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or "?" in url or "#" in url:
        raise Invalid(Fault(path, f"{url!r} is no address of an API", "write for example http://127.0.0.1:8080"))
    return url.rstrip("/")


def _named(name: str) -> Context:
    book = read()
    found = book.find(name)
    if found is None:
        known = ", ".join(sorted(book.contexts)) or "there are none"
        raise Invalid(Fault("context", f"there is no {name!r}", f"`lcm context list` shows them: {known}"))
    return _sendable(found)


def _kept() -> Context | None:
    book = read()
    found = book.find(book.current) if book.current else None
    return _sendable(found) if found else None


def _sendable(found: Context) -> Context:
    return Context(found.name, found.url, bearer(found.token.reveal(), f"token of context {found.name}"))


def _at(url: str, kept: Context | None) -> Context:
    """Use an address with the token kept for that very address: another's must not be sent there."""
    if kept is None or kept.url != url:
        raise Invalid(Fault("LCM_TOKEN", f"missing, and no token is kept for {url}", "set it along with LCM_URL"))
    return kept


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        os.fchmod(number, _FOLDER_ONLY_MINE)
        yield
    finally:
        os.close(number)


def _replace(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _ONLY_MINE)
    with os.fdopen(number, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)


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
    found = current(name)
    if found is None:
        raise NoContext
    if exposed := seen_by_others():
        render.say(f"warning: others can read your tokens; run `chmod 600 {exposed}`", colour="yellow")
    return found


@asynccontextmanager
async def connect(context: Context, *, who: bool = False) -> AsyncIterator[Plane]:
    """Open the plane of a context. Who the caller is need mostly not be known, so nothing is asked before the work."""
    from lcm.control.plane.client import HttpPlane  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then

    plane = HttpPlane.open(context.url, context.token)
    async with AsyncExitStack() as ending:
        ending.push_async_callback(plane.close)
        if who:
            await ending.enter_async_context(plane)
        yield plane


async def _with_line(work: "Callable[[Line], Awaitable[T]]", context: Context) -> T:
    from lcm.control.plane.transport import Limits, Line  # noqa: PLC0415 - likewise

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
