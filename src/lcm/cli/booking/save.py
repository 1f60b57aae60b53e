"""`lcm save`: save the lab of a running session, to continue from it later with `lcm book --continue`."""

import asyncio
from datetime import timedelta
from typing import Annotated, Final

import typer

from lcm.cli.booking.artifacts import format_size
from lcm.cli.booking.extend import parse_session_name
from lcm.cli.documents.wait import parse_duration
from lcm.cli.output import connection, exit_codes, render
from lcm.cli.output.follow import watch_session
from lcm.cli.output.nouns import naming_missing, title
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace, SessionName
from lcm.control.plane.protocol import Plane, Ref, Save
from lcm.model.base.errors import IllegalStep
from lcm.model.kinds.saved_lab import SaveRequest, check_save_name, file_of_save
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession

_USAGE: Final = "write `lcm save NAME`, such as `lcm save basics-x7k2p`"


def save(
    words: SessionName,
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="SAVE", help="Name of the save; default: a number.")
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="Longest time to wait.")] = (
        f"{SaveRequest.limit // timedelta(seconds=1)}s"
    ),
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """Save the lab of a running session, with the configurations of its nodes. It runs on meanwhile.

    `lcm book --continue SESSION/SAVE` starts from it later. The newest saves of a session are kept; at its end its lab
    is saved anyway.
    """
    ref: Ref[LabletSession] = Ref(LabletSession, parse_session_name(words, _USAGE), namespace)
    limit, name = parse_duration(timeout), None if name is None else check_save_name(name)
    connection.with_plane(lambda plane: _save(plane, ref, name, limit), context)


async def _save(plane: Plane, ref: Ref[LabletSession], name: str | None, limit: timedelta) -> None:
    asked = await _request_save(plane, ref, name)
    request = asked.status.save_request
    assert request is not None, "it was just requested, or is under way"
    try:
        async with asyncio.timeout(limit.total_seconds()):
            session = await _wait_for_answer(plane, asked, request)
    except TimeoutError as error:
        message = f"{title(asked)} was not saved within {render.format_span(limit)}"
        raise exit_codes.WaitTimedOut(f"{message}: the lablet controller did not answer") from error
    saved = next((one for one in session.status.artifacts if one.name == file_of_save(request.name)), None)
    if saved is None:
        raise exit_codes.WaitTimedOut(f"{title(session)}: {session.status.save_error or 'it was not saved'}")
    render.print_text(f"{title(session)} is saved as {request.name}, {format_size(saved.size_bytes)}")
    render.print_message(f"`lcm book --continue {session.metadata.name}/{request.name}` continues from it")


async def _request_save(plane: Plane, ref: Ref[LabletSession], name: str | None) -> LabletSession:
    try:
        with naming_missing(ref):
            return await plane.act(ref, Save(name=name))
    except IllegalStep as error:
        found = await plane.get(ref)
        if found is None:
            raise
        what = f"{title(found)} is {found.status.phase}: only a running session can be saved"
        raise IllegalStep(f"{what}; `lcm artifacts {ref.name}` lists what was saved of it") from error


async def _wait_for_answer(plane: Plane, asked: LabletSession, request: SaveRequest) -> LabletSession:
    """Wait until a request is answered or given up."""
    async for now in watch_session(plane, asked):
        if now.status.save_request is None or now.status.save_request.id != request.id:
            return now
        if now.status.phase in SESSION_MACHINE.final:
            break
    raise exit_codes.Impossible(f"{title(asked)} has ended before it was saved")
