"""`lcm licenses list|free`: the fleet's licence seats, who holds them, and which nobody gives back."""

from datetime import datetime
from typing import Annotated

import msgspec
import typer

from lcm.cli.fleet.events import Form
from lcm.cli.output import connection, render, table
from lcm.cli.output.command import OneCommand
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

Output = Annotated[Form, typer.Option("-o", "--output", help="How to write them.")]


@app.callback()
def licenses(ctx: typer.Context, output: Output = Form.TABLE, context: ContextName = None) -> None:
    """List licence seats, and free orphaned ones."""
    if ctx.invoked_subcommand is None:
        _list(output, context)


@app.command("list", cls=OneCommand)
def list_(output: Output = Form.TABLE, context: ContextName = None) -> None:
    """List tokens with their seats, and who holds which."""
    _list(output, context)


@app.command(cls=OneCommand)
def free(
    worker: Annotated[str, typer.Argument(metavar="WORKER_ID", help="The worker's id, as the list shows it.")],
    context: ContextName = None,
) -> None:
    """Take note that you freed an orphaned seat at the licence server.

    Its worker is gone and did not give it back: remove the product instance there first.
    """

    async def work(plane: Plane) -> None:
        try:
            await plane.free_licence(worker)
        except Gone:
            raise Gone(f"there is no orphaned seat of {worker}; `lcm licenses` lists seats") from None

    connection.with_plane(work, context)
    render.out(f"the seat of {worker} is free")


def _list(output: Form, context: str | None) -> None:
    ledger = connection.with_plane(lambda plane: plane.licences(), context)
    if output is Form.JSON:
        render.out(render.escaped(msgspec.json.format(msgspec.json.encode(ledger), indent=2).decode()))
    elif not ledger.tokens:
        render.say("no licence seat is taken")
    else:
        _print(ledger)


def _print(ledger: LicenceLedger) -> None:
    now = SystemClock().now()
    tokens = [(one.token, str(one.used), _count(one.free), _count(one.seats)) for one in ledger.tokens]
    table.print_rows(("TOKEN", "USED", "FREE", "SEATS"), tokens, now)
    if all(one.seats is None for one in ledger.tokens):
        render.say("CML_LICENSE_SEATS can say how many seats there are; until then as many are taken as ask")
    if not ledger.seats:
        return
    render.out()
    several = len(ledger.tokens) > 1
    headings = ("WORKER", "STATE", "FLAVOUR", "AGE", *(("TOKEN",) if several else ()), "WORKER_ID")
    rows = [_seat(one, now, with_token=several) for one in ledger.seats]
    table.print_rows(headings, rows, now, whole=("WORKER_ID",))
    if any(one.state is SeatState.ORPHANED for one in ledger.seats):
        render.say(
            "an orphaned seat's worker is gone: free it at the licence server, then `lcm licenses free WORKER_ID`"
        )


def _seat(seat: LicenceSeat, now: datetime, *, with_token: bool) -> tuple[str, ...]:
    token = (seat.token,) if with_token else ()
    return (seat.worker_name, seat.state, seat.flavour, render.age(seat.since, now), *token, seat.worker_id)


def _count(number: int | None) -> str:
    return "?" if number is None else str(number)


def alerts(
    output: Annotated[Form, typer.Option("-o", "--output", help="How to write them.")] = Form.TABLE,
    context: ContextName = None,
) -> None:
    """List what needs somebody's attention: each is raised once, and goes when its cause is over."""
    found = connection.with_plane(lambda plane: plane.alerts(), context)
    if output is Form.JSON:
        body = msgspec.json.format(msgspec.json.encode({"items": found}), indent=2)
        render.out(render.escaped(body.decode()))
        return
    if not found:
        render.say("nothing needs attention")
        return
    now = SystemClock().now()
    worst = sorted(found, key=lambda one: (one.severity is not Severity.CRITICAL, one.since))
    rows = [(one.severity, one.alert, about(one), render.age(one.since, now), one.message) for one in worst]
    table.print_rows(("SEVERITY", "ALERT", "ABOUT", "AGE", "MESSAGE"), rows, now)


def about(alert: Alert) -> str:
    """Name what an alert is about."""
    return title_of(KINDS[alert.kind].struct, alert.name) if alert.kind in KINDS else f"{alert.kind}/{alert.name}"
