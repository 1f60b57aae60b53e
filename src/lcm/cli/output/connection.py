"""What surrounds every command: the context to use, a plane or a connection, and an exit code for every error.

Contexts are kubectl-style: an API's address and a token, in a file that only its owner can read. `LCM_URL` and
`LCM_TOKEN` override the file, `LCM_CONTEXT` chooses from it.
Exit codes: 0 done · 1 an error · 2 wrong usage · 3 not found · 4 conflict · 5 refused · 6 no answer, or not now ·
7 timed out · 8 the awaited state can no longer be reached · 130 Ctrl-C.
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
from lcm.model.access.identity import parse_token
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
    from lcm.control.plane.transport import ApiConnection


_FILE: Final = "contexts.yaml"
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_OTHERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class ApiContext:
    """An API's address and the token to sign in with."""

    name: str
    url: str
    token: Secret


class StoredContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A context as it is stored in the file."""

    url: str
    token: str


class ContextsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole contexts file."""

    current: str | None = None
    contexts: dict[str, StoredContext] = {}
    own: dict[str, StoredContext] = {}
    """What `lcm up` last wrote for each folder that it ran on."""

    def find_context(self, name: str) -> ApiContext | None:
        """Return a context by its name; None when there is none."""
        stored = self.contexts.get(name)
        return ApiContext(name, stored.url, Secret(stored.token)) if stored else None


def contexts_path() -> Path:
    """Return the path of the contexts file."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "lcm" / _FILE


def current_context(name: str | None = None, environment: Mapping[str, str] = os.environ) -> ApiContext | None:
    """Return the context to use: the one named, else the environment's, else the file's; None when there is none."""
    if name:
        return _find_named(name)
    url, token = environment.get("LCM_URL"), environment.get("LCM_TOKEN")
    if url and token:
        return ApiContext("environment", check_url(url, "LCM_URL"), parse_token(token, "LCM_TOKEN"))
    chosen = environment.get("LCM_CONTEXT")
    kept = _find_named(chosen) if chosen else _find_current()
    if url:
        return _at_address(check_url(url, "LCM_URL"), kept)
    return ApiContext(kept.name, kept.url, parse_token(token, "LCM_TOKEN")) if kept and token else kept


def save_context(name: str, url: str, token: Secret, *, make_current: bool) -> Path:
    """Save a context under a name, replacing an earlier one."""
    entry = StoredContext(check_url(url, "url"), parse_token(token.reveal(), "token").reveal())
    return change_contexts(
        lambda book: msgspec.structs.replace(
            book,
            current=name if make_current or not book.current else book.current,
            contexts={**book.contexts, name: entry},
        )
    )


def read_contexts() -> ContextsFile:
    """Read the file; an absent file is empty. Raise Stuck when it cannot be read."""
    try:
        return msgspec.yaml.decode(contexts_path().read_bytes(), type=ContextsFile)
    except FileNotFoundError:
        return ContextsFile()
    except (OSError, msgspec.MsgspecError) as error:
        raise Stuck("Contexts", f"{contexts_path()} cannot be read: {error}; correct or remove it") from error


def change_contexts(edit: Callable[[ContextsFile], ContextsFile]) -> Path:
    """Write the changed file atomically, readable by its owner alone; a lock serializes concurrent writers."""
    path = contexts_path()
    try:
        path.parent.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        with _lock_folder(path.parent):
            _replace_file(path, msgspec.yaml.encode(edit(read_contexts())))
    except OSError as error:
        raise Stuck("Contexts", f"{path} cannot be written: {error.strerror or error}") from error
    return path


def exposed_file() -> Path | None:
    """Return the file's path if others than its owner may read it; else None."""
    path = contexts_path()
    try:
        return path if path.stat().st_mode & _OTHERS_MODE else None
    except OSError:
        return None


def check_url(url: str, path: str) -> str:
    """Return a URL in the form in which it is used; raise Invalid when it is not an API's address."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or "?" in url or "#" in url:
        raise Invalid(Fault(path, f"{url!r} is no address of an API", "write for example http://127.0.0.1:8080"))
    return url.rstrip("/")


def _find_named(name: str) -> ApiContext:
    book = read_contexts()
    found = book.find_context(name)
    if found is None:
        known = ", ".join(sorted(book.contexts)) or "there are none"
        raise Invalid(Fault("context", f"there is no {name!r}", f"`lcm context list` shows them: {known}"))
    return _with_checked_token(found)


def _find_current() -> ApiContext | None:
    book = read_contexts()
    found = book.find_context(book.current) if book.current else None
    return _with_checked_token(found) if found else None


def _with_checked_token(found: ApiContext) -> ApiContext:
    return ApiContext(found.name, found.url, parse_token(found.token.reveal(), f"token of context {found.name}"))


def _at_address(url: str, kept: ApiContext | None) -> ApiContext:
    """Return the stored context if it is for this very address; its token must not be sent to another one."""
    if kept is None or kept.url != url:
        raise Invalid(Fault("LCM_TOKEN", f"missing, and no token is kept for {url}", "set it along with LCM_URL"))
    return kept


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        os.fchmod(number, _FOLDER_MODE)
        yield
    finally:
        os.close(number)


def _replace_file(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    with os.fdopen(number, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)


T = TypeVar("T")


class NoContext(LcmError):
    """No API is configured to talk to."""

    def __init__(self) -> None:
        super().__init__("there is no API to talk to")


class WaitTimedOut(LcmError):
    """The awaited state was not reached in time."""


class Impossible(LcmError):
    """The awaited state can no longer be reached."""


_LIST_HINT: Final = "`lcm get KIND -A` lists what is there"
_EXIT_CODES: Final[tuple[tuple[type[LcmError], int, str], ...]] = (
    (NoContext, 1, "start one here with `lcm up`, or set LCM_URL and LCM_TOKEN"),
    (WaitTimedOut, 7, "`lcm story KIND NAME` tells what happened so far"),
    (Impossible, 8, "`lcm describe KIND NAME` tells why"),
    (Gone, 3, _LIST_HINT),
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


def with_plane(
    work: Callable[[Plane], Awaitable[T]],
    context: str | None = None,
    *,
    within_seconds: float | None = None,
    who: bool = False,
) -> T:
    """Run a command's work with the plane of a context: the named one, else the current one.

    With `who` the plane knows its caller, for which the API is asked first.
    """
    return asyncio.run(_with_plane(work, find_context(context), within_seconds, who=who))


def with_connection(work: "Callable[[ApiConnection], Awaitable[T]]", context: str | None = None) -> T:
    """Run a command's work with raw requests, where the plane has no method for it."""
    return asyncio.run(_with_connection(work, find_context(context)))


def find_context(name: str | None) -> ApiContext:
    """Return the context to use; raise NoContext when there is none."""
    found = current_context(name)
    if found is None:
        raise NoContext
    if exposed := exposed_file():
        render.print_message(f"warning: others can read your tokens; run `chmod 600 {exposed}`", colour="yellow")
    return found


@asynccontextmanager
async def connect(context: ApiContext, *, who: bool = False) -> AsyncIterator[Plane]:
    """Open the plane of a context. Most commands need not know the caller, so nothing is asked before the work."""
    from lcm.control.plane.client import HttpPlane  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then

    plane = HttpPlane.open(context.url, context.token)
    async with AsyncExitStack() as ending:
        ending.push_async_callback(plane.close)
        if who:
            await ending.enter_async_context(plane)
        yield plane


async def _with_connection(work: "Callable[[ApiConnection], Awaitable[T]]", context: ApiContext) -> T:
    from lcm.control.plane.transport import ApiConnection, ClientTimeouts  # noqa: PLC0415 - likewise

    line = ApiConnection(context.url, context.token, actor="", limits=ClientTimeouts(), trust=None, transport=None)
    try:
        return await work(line)
    finally:
        await line.close()


async def _with_plane(
    work: Callable[[Plane], Awaitable[T]], context: ApiContext, within_seconds: float | None, *, who: bool
) -> T:
    async with asyncio.timeout(within_seconds), connect(context, who=who) as plane:
        return await work(plane)
