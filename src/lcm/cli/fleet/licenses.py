"""`lcm licenses list|free`: licence seats and their holders; `lcm alerts`: open alerts, most serious first."""

from datetime import datetime
from typing import Annotated

import msgspec
import typer

from lcm.cli.fleet.events import ListFormat
from lcm.cli.output import connection, render, table
from lcm.cli.output.command import LeafCommand
from lcm.cli.output.nouns import title_of
from lcm.cli.output.options import ContextName
from lcm.control.plane.protocol import Plane
from lcm.model.base.errors import Gone
from lcm.model.kinds.registry import KINDS
from lcm.model.money.licences import LicenceLedger, LicenceSeat, SeatState
from lcm.model.telemetry.alert import Alert, Severity
from lcm.system.clock import SystemClock

app = typer.Typer(
    name="licenses",
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="List licence seats, and free orphaned ones.",
)

FormatOption = Annotated[ListFormat, typer.Option("-o", "--output", help="How to write them.")]


@app.callback()
def licenses(ctx: typer.Context, output: FormatOption = ListFormat.TABLE, context: ContextName = None) -> None:
    """List licence seats, and free orphaned ones."""
    if ctx.invoked_subcommand is None:
        _show_ledger(output, context)


@app.command("list", cls=LeafCommand)
def list_(output: FormatOption = ListFormat.TABLE, context: ContextName = None) -> None:
    """List tokens with their seats, and who holds which."""
    _show_ledger(output, context)


@app.command(cls=LeafCommand)
def free(
    worker: Annotated[str, typer.Argument(metavar="WORKER_ID", help="The worker's id, as the list shows it.")],
    context: ContextName = None,
) -> None:
    """Record that you freed an orphaned seat at the licence server.

    Its worker is gone and did not return it: remove the product instance there first.
    """

    async def work(plane: Plane) -> None:
        try:
            await plane.free_licence(worker)
        except Gone:
            raise Gone(f"there is no orphaned seat of {worker}; `lcm licenses` lists seats") from None

    connection.with_plane(work, context)
    render.print_line(f"the seat of {worker} is free")


def _show_ledger(output: ListFormat, context: str | None) -> None:
    ledger = connection.with_plane(lambda plane: plane.licences(), context)
    if output is ListFormat.JSON:
        render.print_line(render.escape_json(msgspec.json.format(msgspec.json.encode(ledger), indent=2).decode()))
    elif not ledger.tokens:
        render.print_message("no licence seat is taken")
    else:
        _print_ledger(ledger)


def _print_ledger(ledger: LicenceLedger) -> None:
    now = SystemClock().now()
    tokens = [(one.token, str(one.used), _count_text(one.free), _count_text(one.seats)) for one in ledger.tokens]
    table.print_rows(("TOKEN", "USED", "FREE", "SEATS"), tokens, now)
    if all(one.seats is None for one in ledger.tokens):
        render.print_message("CML_LICENSE_SEATS can say how many seats there are; until then as many are taken as ask")
    if not ledger.seats:
        return
    render.print_line()
    several = len(ledger.tokens) > 1
    headings = ("WORKER", "STATE", "FLAVOUR", "AGE", *(("TOKEN",) if several else ()), "WORKER_ID")
    rows = [_seat_row(one, now, with_token=several) for one in ledger.seats]
    table.print_rows(headings, rows, now, whole=("WORKER_ID",))
    if any(one.state is SeatState.ORPHANED for one in ledger.seats):
        render.print_message(
            "an orphaned seat's worker is gone: free it at the licence server, then `lcm licenses free WORKER_ID`"
        )


def _seat_row(seat: LicenceSeat, now: datetime, *, with_token: bool) -> tuple[str, ...]:
    token = (seat.token,) if with_token else ()
    return (seat.worker_name, seat.state, seat.flavour, render.format_age(seat.since, now), *token, seat.worker_id)


def _count_text(number: int | None) -> str:
    return "?" if number is None else str(number)


def alerts(
    output: Annotated[ListFormat, typer.Option("-o", "--output", help="How to write them.")] = ListFormat.TABLE,
    context: ContextName = None,
) -> None:
    """List what needs attention: each alert is raised once and clears when its cause is over."""
    found = connection.with_plane(lambda plane: plane.alerts(), context)
    if output is ListFormat.JSON:
        body = msgspec.json.format(msgspec.json.encode({"items": found}), indent=2)
        render.print_line(render.escape_json(body.decode()))
        return
    if not found:
        render.print_message("nothing needs attention")
        return
    now = SystemClock().now()
    worst = sorted(found, key=lambda one: (one.severity is not Severity.CRITICAL, one.since))
    rows = [
        (one.severity, one.alert, alert_subject(one), render.format_age(one.since, now), one.message) for one in worst
    ]
    table.print_rows(("SEVERITY", "ALERT", "ABOUT", "AGE", "MESSAGE"), rows, now)


def alert_subject(alert: Alert) -> str:
    """Return the name of the object that an alert is about."""
    return title_of(KINDS[alert.kind].struct, alert.name) if alert.kind in KINDS else f"{alert.kind}/{alert.name}"
