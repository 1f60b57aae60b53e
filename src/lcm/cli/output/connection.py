"""What surrounds every command: the context to use, a plane or a connection, and an exit code for every error.

Contexts are kubectl-style: an API's address and a token, in a file that only its owner can read. `LCM_URL` and
`LCM_TOKEN` override the file, `LCM_CONTEXT` chooses from it.
Exit codes: 0 done · 1 an error · 2 wrong usage · 3 not found · 4 conflict · 5 refused · 6 no answer, or not now ·
7 timed out · 8 the awaited state can no longer be reached · 9 the store went back · 130 Ctrl-C.
"""

import asyncio
import fcntl
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
import typer

from lcm.cli.output import render
from lcm.cli.output.exit_codes import NoContext, report_error
from lcm.cli.output.lookup import suggest, with_suggestions
from lcm.cli.output.nouns import MissingObject
from lcm.control.plane.protocol import Plane
from lcm.model.access.identity import parse_token
from lcm.model.access.secret import Secret
from lcm.model.base.errors import (
    Conflict,
    Fault,
    Gone,
    Invalid,
    Refused,
    Stuck,
)

if TYPE_CHECKING:
    import ssl

    from lcm.control.plane.transport import ApiConnection


_FOLDER_MODE: Final = 0o700


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

    def check_name(self, name: str) -> str:
        """Return the name of a context; raise Invalid when there is none."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "there are none"
            raise Invalid(Fault("context", f"there is no {name!r}", f"`lcm context list` shows them: {known}"))
        return name

    def find_context(self, name: str) -> ApiContext:
        """Return a context by its name; raise Invalid when there is none, or its token cannot be one."""
        stored = self.contexts[self.check_name(name)]
        return ApiContext(name, stored.url, parse_token(stored.token, f"token of context {name}"))


def contexts_path() -> Path:
    """Return the path of the contexts file."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "lcm" / "contexts.yaml"


def current_context(name: str | None = None, environment: Mapping[str, str] = os.environ) -> ApiContext | None:
    """Return the context to use: the one named, else the environment's, else the file's; None when there is none."""
    if name:
        return read_contexts().find_context(name)
    url, token = environment.get("LCM_URL"), environment.get("LCM_TOKEN")
    if url and token:
        return ApiContext("environment", check_url(url, "LCM_URL"), parse_token(token, "LCM_TOKEN"))
    book = read_contexts()
    chosen = environment.get("LCM_CONTEXT") or (book.current if book.current in book.contexts else None)
    kept = book.find_context(chosen) if chosen else None
    if url:
        url = check_url(url, "LCM_URL")
        if kept is None or kept.url != url:  # a token must not be sent to another address than its own
            raise Invalid(Fault("LCM_TOKEN", f"missing, and no token is stored for {url}", "set it along with LCM_URL"))
        return kept
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


def check_url(url: str, path: str) -> str:
    """Return a URL in the form in which it is used; raise Invalid when it is not an API's address."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or "?" in url or "#" in url:
        raise Invalid(Fault(path, f"{url!r} is not the address of an API", "write for example http://127.0.0.1:8080"))
    return url.rstrip("/")


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
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)


T = TypeVar("T")
A = TypeVar("A", bound=msgspec.Struct)


def with_plane(
    work: Callable[[Plane], Awaitable[T]],
    context: str | None = None,
    *,
    within_seconds: float | None = None,
    who: bool = False,
) -> T:
    """Run a command's work with the plane of a context: the named one, else the current one.

    With `who` the plane knows its caller, for which the API is asked first; most commands need not know it.
    """
    found = find_context(context)

    async def run() -> T:
        async with asyncio.timeout(within_seconds), AsyncExitStack() as ending:
            from lcm.control.plane.client import HttpPlane  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then

            plane = HttpPlane.open(found.url, found.token, trust=find_authority())
            ending.push_async_callback(plane.close)
            if who:
                await ending.enter_async_context(plane)
            return await with_suggestions(plane, work)

    return asyncio.run(run())


def act_on_each(
    items: Iterable[T], act: Callable[[Plane, T], Awaitable[str]], context: str | None, *, dry_run: bool
) -> None:
    """Do something to each of several objects and print what became of it.

    An error is reported and the others are still done; the first error's exit code is that of the command.
    """

    async def work(plane: Plane) -> None:
        code = 0
        for one in items:
            try:
                render.print_text(await act(plane, one))
            except (Conflict, Gone, Refused) as error:
                failure = report_error(await suggest(plane, error) if isinstance(error, MissingObject) else error)
                code = code or failure
        if dry_run:
            render.print_message("nothing was done: --dry-run")
        if code:
            raise typer.Exit(code)

    with_plane(work, context)


def with_connection(work: "Callable[[ApiConnection], Awaitable[T]]", context: str | None = None) -> T:
    """Run a command's work with raw requests, where the plane has no method for it."""
    found = find_context(context)

    async def run() -> T:
        from lcm.control.plane.transport import ApiConnection, ClientTimeouts  # noqa: PLC0415 - likewise

        line = ApiConnection(
            found.url, found.token, actor="", limits=ClientTimeouts(), trust=find_authority(), transport=None
        )
        try:
            return await work(line)
        finally:
            await line.close()

    return asyncio.run(run())


def request(
    method: str,
    path: str,
    answer: type[A],
    context: str | None,
    body: msgspec.Struct | None = None,
    *,
    seconds: float | None = None,
    **query: str,
) -> A:
    """Send one request where the plane has no method for it, and read the answer."""

    async def work(line: "ApiConnection") -> A:
        from lcm.control.plane.transport import read_answer  # noqa: PLC0415 - likewise

        sent = None if body is None else msgspec.json.encode(body)
        return read_answer(await line.request(method, path, query=query, body=sent, seconds=seconds), answer)

    return with_connection(work, context)


def find_authority() -> "ssl.SSLContext | None":
    """Return the authority that LCM_CA_FILE names for the API's certificate; None for the public ones."""
    file = os.environ.get("LCM_CA_FILE")
    if not file:
        return None
    from lcm.system.tls import trusted_authority  # noqa: PLC0415 - few commands need it

    return trusted_authority(Path(file).expanduser())


def find_context(name: str | None) -> ApiContext:
    """Return the context to use; raise NoContext when there is none."""
    found = current_context(name)
    if found is None:
        raise NoContext("no API is configured")
    path = contexts_path()
    with suppress(OSError):
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            render.print_message(f"warning: others can read your tokens; run `chmod 600 {path}`", colour="yellow")
    return found
