"""`lcm connect`: a console of a session in this terminal, or a port of it on standard input and output.

The console is reached by the API's gateway, so that nothing but the API must be reachable.
"""

import asyncio
import json
import os
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lcm.cli.output import connection, render
from lcm.cli.output.nouns import missing, naming_missing
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace, complete_sessions
from lcm.cli.output.render import join_some
from lcm.control.plane.problems import Problem, error_of
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Fault, Forbidden, Gone, Invalid, LcmError, NotSignedIn, Refused, Unreachable
from lcm.model.kinds.console import Console, ConsoleKind
from lcm.model.kinds.session import LabletSession, SessionPhase

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.exceptions import ConnectionClosed

_LEAVE: Final = b"\x1d"
"""Ctrl-]"""
_CHUNK: Final = 32_768
_LONGEST_MESSAGE: Final = 1_048_576
_OPEN_SECONDS: Final = 15.0
_QUIET_SECONDS: Final = 1.0
"""After the end of what is piped in, the console is left once it says nothing for this long."""
_QUEUE: Final = 16
_SHOWN: Final = 8
_NORMAL: Final = 1000
_REMEDIES: Final = {
    0: "run the command again",
    1001: "run the command again in a moment",
    4401: "sign in again",
    4409: "`lcm explain {}` says why",
    4503: "`lcm explain {}` says how the session does",
}
_BEFORE_RUNNING: Final = frozenset({SessionPhase.PENDING, SessionPhase.SCHEDULED, SessionPhase.INSTANTIATING})
_ERRORS: Final[dict[int, type[LcmError]]] = {4401: NotSignedIn, 4403: Forbidden, 4409: Refused}


def connect(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a session.", autocompletion=complete_sessions)],
    node: Annotated[
        str, typer.Argument(metavar="[NODE|PORT]", help="A node, NODE:PORT for a TCP port, or the name of a console.")
    ] = "",
    *,
    raw: Annotated[bool, typer.Option("--raw", help="Pass bytes as they are, such as for ssh's ProxyCommand.")] = False,
    look: Annotated[bool, typer.Option("--look", help="Look along without typing; its owner is told.")] = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """Open a console of a running session in this terminal. Ctrl-] leaves it.

    With --raw, for example: ssh -o ProxyCommand='lcm connect --raw mine PC:22' admin@PC
    """
    ref: Ref[LabletSession] = Ref(LabletSession, name, namespace)

    async def work(plane: Plane) -> None:
        with naming_missing(ref):
            found = await plane.consoles(ref)
            session = await plane.get(ref)
        if session is None:
            raise missing(ref)
        if session.status.phase is not SessionPhase.RUNNING:
            raise _not_running(session)
        console = choose_console(found, name, node, raw=raw)
        await _open(console, session, context, raw=raw, look=look)

    connection.with_plane(work, context)


def _not_running(session: LabletSession) -> Refused:
    called, phase = _called(session), session.status.phase
    if phase in _BEFORE_RUNNING:
        return Refused(
            f"session {called} is {phase} and has no consoles yet: `lcm wait session {called} --for phase=RUNNING` "
            f"waits for them, `lcm explain {called}` says what it waits for"
        )
    return Refused(f"session {called} is {phase}, its consoles are closed: `lcm explain {called}` says why")


def _called(session: LabletSession) -> str:
    """Return what to call a session by in a command."""
    metadata = session.metadata
    return metadata.name + (f" -n {metadata.namespace}" if metadata.namespace != DEFAULT_NAMESPACE else "")


def choose_console(found: Sequence[Console], session: str, wanted: str, *, raw: bool) -> Console:
    """Return the console that is meant: by its name, by its node, or the first one. Raise Gone when there is none."""
    usual = [one for one in found if one.kind is (ConsoleKind.TCP if raw else ConsoleKind.SERIAL)]
    label, _, port = wanted.partition(":")
    named = [one for one in found if one.name == wanted]
    on_node = [one for one in usual if one.node == label and port in ("", str(one.inside))]
    numbered = [one for one in usual if wanted and wanted == str(one.inside)]
    fitting = named or on_node or numbered if wanted else usual
    if not fitting:
        names = join_some([one.name for one in found], _SHOWN) or "none"
        raise Gone(f"session {session} has no console {wanted!r}; it has: {names}")
    if raw and len(fitting) > 1:
        names = join_some([one.name for one in fitting], _SHOWN)
        raise Invalid(Fault("PORT", "not clear which one is meant", f"name one of {names}"))
    if not raw and fitting[0].kind is not ConsoleKind.SERIAL:
        problem = f"{fitting[0].name} is no terminal"
        raise Invalid(Fault("NODE", problem, "add --raw to pass its bytes to another program"))
    return fitting[0]


async def _open(console: Console, session: LabletSession, context: str | None, *, raw: bool, look: bool) -> None:
    from websockets.asyncio.client import connect as open_socket  # noqa: PLC0415 - only this command needs it
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus  # noqa: PLC0415 - likewise

    found = connection.find_context(context)
    where = f"{console.name} (node {console.node} of session {session.metadata.name})"
    address = found.url.replace("http", "ws", 1) + console.path
    address += ("&" if "?" in address else "?") + "look=true" if look else ""
    try:
        async with open_socket(
            address,
            additional_headers={"Authorization": f"Bearer {found.token.reveal()}"},
            ssl=connection.find_authority() if address.startswith("wss:") else None,
            max_size=_LONGEST_MESSAGE,
            open_timeout=_OPEN_SECONDS,
            compression=None,
            proxy=None,
        ) as socket:
            await _converse(socket, console.name, raw=raw)
    except InvalidStatus as error:
        raise _refusal(error.response.status_code, bytes(error.response.body or b""), where) from error
    except ConnectionClosed as error:
        _report_end(error, where, _called(session))
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise Unreachable(
            f"{where} cannot be opened at {found.url}: {str(error) or type(error).__name__}; try again in a minute"
        ) from error


def _refusal(status: int, body: bytes, where: str) -> LcmError:
    try:
        return error_of(msgspec.json.decode(body, type=Problem))
    except ValueError:
        return Unreachable(
            f"{where} cannot be opened: the answer was {status}, and not the API's own; "
            "a proxy on the way must pass WebSockets on"
        )


def _report_end(error: "ConnectionClosed", where: str, called: str) -> None:
    """Return when the node closed the console; raise what else ended it, with what to do."""
    code, reason = (error.rcvd.code, error.rcvd.reason) if error.rcvd else (0, "the connection was lost")
    if code == _NORMAL:
        render.print_message(reason)
        return
    text = f"{where}: {reason or f'closed with code {code}'}"
    if code in _REMEDIES:
        text += f"; {_REMEDIES[code].format(called)}"
    raise _ERRORS.get(code, Unreachable)(text)


async def _converse(socket: "ClientConnection", name: str, *, raw: bool) -> None:
    is_terminal = sys.stdin.isatty() and not raw
    if is_terminal:
        render.print_message(f"{name}: connected. Ctrl-] leaves.")
    with _raw_terminal(enabled=is_terminal):
        shown = asyncio.Event()
        showing = asyncio.create_task(_show(socket, shown, raw=raw))
        typing = asyncio.create_task(_type(socket, shown, is_terminal=is_terminal, raw=raw))
        try:
            await asyncio.wait([showing, typing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (showing, typing):
                task.cancel()
            await asyncio.wait([showing, typing])
    for task in (showing, typing):
        if not task.cancelled() and (error := task.exception()):
            raise error


@contextmanager
def _raw_terminal(*, enabled: bool) -> Iterator[None]:
    """Pass every key as it is pressed; the terminal is as before afterwards, whatever happens."""
    if not enabled:
        yield
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setraw(number)
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
        sys.stderr.write("\n")


async def _show(socket: "ClientConnection", shown: asyncio.Event, *, raw: bool) -> None:
    out = sys.stdout.buffer
    while True:
        message = await socket.recv()
        if isinstance(message, bytes):
            out.write(message)
            out.flush()
            shown.set()
        elif not raw:
            sys.stderr.write(f"\r\n[{_describe_notice(message)}]\r\n")


def _describe_notice(text: str) -> str:
    notice = json.loads(text)
    deed = {"joined": "looks along" if notice.get("looking") else "has joined", "left": "has left"}
    return f"{notice.get('who')} ({notice.get('role')}) {deed.get(notice.get('type'), '')} at {notice.get('console')}"


async def _type(socket: "ClientConnection", shown: asyncio.Event, *, is_terminal: bool, raw: bool) -> None:
    keys = _read_input()
    while data := await keys.get():
        left, leave, _ = data.partition(_LEAVE) if is_terminal else (data, b"", b"")
        typed = left if raw or is_terminal else left.replace(b"\n", b"\r")
        if typed:
            await socket.send(typed)
        if leave:
            return
    with suppress(TimeoutError):
        while not is_terminal:
            shown.clear()
            await asyncio.wait_for(shown.wait(), _QUIET_SECONDS)


def _read_input() -> "asyncio.Queue[bytes]":
    """Read standard input in a thread, as no loop can wait for a file; what is not taken is not read ahead."""
    keys: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE)
    loop, number = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        data = b"-"
        while data:
            data = os.read(number, _CHUNK)  # not by sys.stdin, whose lock a waiting thread would hold at the exit
            try:
                asyncio.run_coroutine_threadsafe(keys.put(data), loop).result()
            except (RuntimeError, asyncio.CancelledError):
                return  # the console is closed

    threading.Thread(target=read, daemon=True).start()
    return keys
