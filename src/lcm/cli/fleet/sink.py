"""`lcm sink list|create|delete|test|dead|replay`: who is sent events, and what did not reach them."""

from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from lcm.cli.output import connection, render, table
from lcm.cli.output.command import LeafCommand, make_group
from lcm.cli.output.options import ContextName, ListFormat, ListOutput
from lcm.cli.output.printer import print_json
from lcm.model.kinds.sink import Format
from lcm.system.clock import SystemClock

if TYPE_CHECKING:
    from lcm.control.plane.wire import ShownSink

_PATH: Final = "/api/sinks"
app = make_group("sink", "Set where events are sent; resend those that failed.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The sink's name.")]


@app.command("list", cls=LeafCommand)
def list_(output: ListOutput = ListFormat.TABLE, context: ContextName = None) -> None:
    """List the sinks that events are sent to, and the state of each."""
    from lcm.control.plane import wire  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then

    found = connection.request("GET", _PATH, wire.ShownSinks, context).items
    if output is ListFormat.JSON:
        print_json({"items": found}, indent=2)
    elif found:
        headings = ("NAME", "FORMAT", "URL", "TYPES", "STATE", "LAST SUCCESS", "DEAD")
        table.print_rows(
            headings,
            [_sink_row(one) for one in found],
            SystemClock().now(),
            ranks={"URL": 1, "DEAD": 2, "LAST SUCCESS": 3, "TYPES": 4, "FORMAT": 5},
            least={"URL": 20, "TYPES": 10},
        )
        for one in found:
            if one.status and one.status.failures:
                render.print_text(f"{one.name}: {one.status.last_error}")
    else:
        render.print_message("there are no sinks; `lcm sink create NAME URL` creates one")


@app.command(cls=LeafCommand)
def create(
    name: Name,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="URL to post to; {credential} is replaced by the sink's credential.")
    ],
    *,
    format_: Annotated[Format, typer.Option("--format", help="Format of the requests.")] = Format.CLOUDEVENTS,
    types: Annotated[
        str, typer.Option("--types", metavar="TYPES", help="Only these event types, such as worker.*,alert.*.")
    ] = "",
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="NAME", help="Only events of this person's objects.")
    ] = None,
    worker: Annotated[str | None, typer.Option("--worker", metavar="ID", help="Only events of this worker.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only events of this session.")] = None,
    definition: Annotated[
        str | None, typer.Option("--definition", metavar="NAME", help="Only events of sessions of this lab.")
    ] = None,
    secret: Annotated[
        str | None, typer.Option("--secret", metavar="REF", help="Signing key: env:NAME, file:/path, aws:name.")
    ] = None,
    credential: Annotated[
        str | None,
        typer.Option("--credential", metavar="REF", help="Credential that the receiver expects; same forms."),
    ] = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Create it, but send nothing yet.")] = False,
    context: ContextName = None,
) -> None:
    """Create a sink and send events to it."""
    from lcm.control.plane import wire  # noqa: PLC0415 - likewise

    sink = wire.ShownSink(
        name=name,
        url=url,
        format=format_,
        event_types=tuple(one.strip() for one in types.split(",") if one.strip()),
        owner_id=owner,
        worker_id=worker,
        session_id=session,
        definition_id=definition,
        secret=secret,
        credential=credential,
        enabled=not disabled,
    )
    made = connection.request("POST", _PATH, wire.ShownSink, context, sink).name
    render.print_line(f"sink {made} created; `lcm sink test {made}` sends it a test event")


@app.command(cls=LeafCommand)
def delete(name: Name, context: ContextName = None) -> None:
    """Stop sending to a sink, and delete its dead letters."""
    from lcm.control.plane import wire  # noqa: PLC0415 - likewise

    connection.request("DELETE", _path(name), wire.ShownSink, context)
    render.print_line(f"sink {name} deleted")


@app.command("test", cls=LeafCommand)
def send_test(name: Name, context: ContextName = None) -> None:
    """Send one test event to a sink; `lcm sink list` shows whether it arrived."""
    from lcm.control.plane import wire  # noqa: PLC0415 - likewise

    number = connection.request("POST", _path(name, "/test"), wire.Queued, context).event_id
    render.print_line(f"event {number} is queued for {name}, after earlier events")


@app.command(cls=LeafCommand)
def dead(name: Name, output: ListOutput = ListFormat.TABLE, context: ContextName = None) -> None:
    """List the events that a sink did not accept."""
    from lcm.control.plane import wire  # noqa: PLC0415 - likewise

    path = _path(name, "/dead-letters")
    page = connection.request("GET", path, wire.ListedDeadLetters, context)
    letters = list(page.items)
    while page.next is not None:
        page = connection.request("GET", path, wire.ListedDeadLetters, context, cursor=page.next)
        letters += page.items
    if output is ListFormat.JSON:
        print_json({"items": letters}, indent=2)
    elif letters:
        now = SystemClock().now()
        rows = [
            (
                letter.event.id,
                letter.event.type,
                letter.event.name,
                render.format_age(letter.at, now),
                str(letter.attempts),
                "queued" if letter.replay else letter.last_error,
            )
            for letter in letters
        ]
        table.print_rows(
            ("EVENT", "TYPE", "ABOUT", "AGE", "TRIES", "WHY"),
            rows,
            now,
            ranks={"TYPE": 1, "ABOUT": 2, "TRIES": 3, "AGE": 4},
            least={"WHY": 20},
        )
    else:
        render.print_message(f"{name} refused no event so far; `lcm sink list` shows whether it answers")


@app.command(cls=LeafCommand)
def replay(
    name: Name,
    events: Annotated[
        list[str] | None, typer.Argument(metavar="[EVENT…]", help="Ids of events, as shown by `lcm sink dead`.")
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Resend all dead letters of this sink.")] = False,
    context: ContextName = None,
) -> None:
    """Send dead letters again: those named, or all with --all."""
    if bool(events) is every:
        raise typer.BadParameter("name events, or add --all", param_hint="EVENT")

    from lcm.control.plane import wire  # noqa: PLC0415 - likewise

    wish = wire.ReplayRequest(event_ids=tuple(events or ()))
    count = connection.request("POST", _path(name, "/dead-letters/replay"), wire.Replayed, context, wish).count
    render.print_line(f"{count} dead letter{'' if count == 1 else 's'} of {name} will be sent again")


def _path(name: str, action: str = "") -> str:
    return f"{_PATH}/{quote(name, safe='')}{action}"


def _sink_row(sink: "ShownSink") -> tuple[str, ...]:
    status, now = sink.status, SystemClock().now()
    return (
        sink.name,
        sink.format,
        sink.url,
        ",".join(sink.event_types) or "all",
        _sink_state(sink),
        f"{render.format_age(status.last_success_at, now)} ago" if status and status.last_success_at else "never",
        str(status.dead_letters if status else 0),
    )


def _sink_state(sink: "ShownSink") -> str:
    if not sink.enabled:
        return "disabled"
    if sink.status is None:
        return "new"
    return "failing" if sink.status.failures else "ok"
