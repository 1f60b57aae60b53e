"""The route of a session's consoles: who may open one, what the audit says of it, and who is told.

A console is for whoever sees its session: its owner, its learner, and staff. What is another's is answered like what
is not there.
"""

import asyncio
from functools import partial
from typing import Annotated, Final

import structlog
from msgspec import Meta

from lcm.api.gateway.registry import OpenConsole
from lcm.api.gateway.relay import Relay
from lcm.api.http.answers import Answer
from lcm.api.http.auth import TokenWatch
from lcm.api.http.problems import UPGRADE_NEEDED, Declined
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, Policy, Route
from lcm.api.http.sockets import Socket
from lcm.control.access.audit import AuditedAction
from lcm.control.delivery.events import announce_console
from lcm.control.objects.consoles import ConsoleTarget, find_console, find_running
from lcm.control.objects.writer import Writer
from lcm.control.plane.bodies import OneQuery
from lcm.model.access.identity import GUESTS, PEOPLE, STAFF, Caller, Role
from lcm.model.access.learner import is_owner, learner_of
from lcm.model.base.errors import Fault, Forbidden, Invalid, LcmError
from lcm.model.base.event import encode_event
from lcm.model.kinds.console import CONSOLES_PATH, ConsoleKind
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import LabletSession

_AUDIT_SECONDS: Final = 2.0
_log: Final = structlog.get_logger()


class ConsoleQuery(OneQuery):
    """How to open a console."""

    look: Annotated[
        bool, Meta(description="look along without typing; for staff and who booked it for a learner, who is told")
    ] = False


async def _explain_upgrade(request: Request) -> Answer:
    """Answer a plain request as an upgrade would be, if it is refused; else say that it must be one."""
    await _find_target(request)
    raise Declined(UPGRADE_NEEDED, "open it as a WebSocket", headers=((b"upgrade", b"websocket"),))


async def _open_console(request: Request, socket: Socket) -> None:
    target, looking = await _find_target(request), request.query(ConsoleQuery).look
    session, caller, name = target.session, request.signed_in, target.console.name
    ref = request.ref(LabletSession, request.query(ConsoleQuery).namespace)
    console = OpenConsole(
        session,
        caller,
        name,
        looking=looking,
        is_token_valid=TokenWatch(request).is_valid,
        find_session=partial(find_running, request.writer.store, ref, session.metadata.uid),
    )
    relay = Relay(socket, console, target.console.kind)
    consoles = request.shared.consoles
    consoles.enter(console)
    began = asyncio.get_running_loop().time()
    try:
        await _record(request.writer, target, console, "open-console", f"{name}{', looking' if looking else ''}")
        try:
            await socket.accept()
            await relay.run(target.host, target.port)
        finally:
            consoles.leave(console)
            await _record_end(request.writer, target, relay, console, asyncio.get_running_loop().time() - began)
    finally:
        consoles.leave(console)


async def _find_target(request: Request) -> ConsoleTarget:
    query = request.query(ConsoleQuery)
    target = await find_console(request.writer, request.ref(LabletSession, query.namespace), request.params[1])
    if query.look and not _may_look(request.signed_in, target.session):
        raise Forbidden("only staff, and who booked it for a learner, look along; open the console without look")
    if query.look and target.console.kind is ConsoleKind.TCP:
        raise Invalid(Fault("look", "nobody can look along at a TCP port", "open a serial console or a screen"))
    return target


def _may_look(caller: Caller, session: LabletSession) -> bool:
    return caller.role in STAFF or (is_owner(caller, session) and bool(learner_of(session)))


async def _record(writer: Writer, target: ConsoleTarget, console: OpenConsole, verb: str, detail: str) -> None:
    """Write the audit, and the event for those whose session it is if it is not the console of whom it is for."""
    session, events = target.session, list[bytes]()
    if not console.is_own:
        event = announce_console(
            session,
            console.caller,
            console.name,
            looking=console.looking,
            is_open=verb == "open-console",
            now=writer.clock.now(),
        )
        events.append(encode_event(event))
    metadata = session.metadata
    deed = AuditedAction(verb=verb, kind=session.kind, name=metadata.name, namespace=metadata.namespace)
    await writer.submit([], events, deeds=[deed], detail=detail)


async def _record_end(
    writer: Writer, target: ConsoleTarget, relay: Relay, console: OpenConsole, seconds: float
) -> None:
    end = relay.outcome
    detail = f"{console.name}: {end.to_port} bytes typed, {end.to_client} shown, {seconds:.0f} s; {end.reason}"
    try:
        async with asyncio.timeout(_AUDIT_SECONDS):
            await _record(writer, target, console, "close-console", detail)
    except (LcmError, TimeoutError) as error:
        _log.warning("end of a console not recorded", session=console.session_id, detail=detail, error=str(error))


CONSOLE_USERS: Final = (PEOPLE | GUESTS) - {Role.VIEWER}

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        f"{CONSOLES_PATH}/{{port}}",
        _explain_upgrade,
        "openLabletSessionConsole",
        "Open a console as a WebSocket: binary messages are its bytes; text messages tell an owner who else is there",
        policy=Policy(CONSOLE_USERS),
        kind=KINDS["LabletSession"],
        query=ConsoleQuery,
        status=101,
        also=(409, 426),
        socket=_open_console,
    ),
)
