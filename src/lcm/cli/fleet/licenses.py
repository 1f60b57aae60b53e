"""`lcm licenses list|free`: licence seats and their holders; `lcm alerts`: open alerts, most serious first."""

from typing import Annotated

import typer

from lcm.cli.output import connection, render, table
from lcm.cli.output.command import LeafCommand, make_group
from lcm.cli.output.nouns import title_of
from lcm.cli.output.options import ContextName, ListFormat, ListOutput
from lcm.cli.output.printer import print_json
from lcm.control.plane.protocol import Plane
from lcm.model.base.errors import Gone
from lcm.model.kinds.registry import KINDS
from lcm.model.money.licences import LicenceLedger, SeatState
from lcm.model.telemetry.alert import Severity
from lcm.system.clock import SystemClock

app = make_group("licenses", "List licence seats; free orphaned ones.", alone=True)


@app.callback()
def licenses(ctx: typer.Context, output: ListOutput = ListFormat.TABLE, context: ContextName = None) -> None:
    """List licence seats; free orphaned ones."""
    if ctx.invoked_subcommand is None:
        _show_ledger(output, context)


@app.command("list", cls=LeafCommand)
def list_(output: ListOutput = ListFormat.TABLE, context: ContextName = None) -> None:
    """List licence tokens, their seats and the workers that hold them."""
    _show_ledger(output, context)


@app.command(cls=LeafCommand)
def free(
    worker: Annotated[str, typer.Argument(metavar="WORKER_ID", help="Id of the worker, as shown by `lcm licenses`.")],
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
        print_json(ledger, indent=2)
    elif not ledger.tokens:
        render.print_message("no licence seat is taken")
    else:
        _print_ledger(ledger)


def _print_ledger(ledger: LicenceLedger) -> None:
    now = SystemClock().now()
    tokens = [
        (one.token, str(one.used), *("?" if number is None else str(number) for number in (one.free, one.seats)))
        for one in ledger.tokens
    ]
    table.print_rows(("TOKEN", "USED", "FREE", "SEATS"), tokens, now)
    if all(one.seats is None for one in ledger.tokens):
        render.print_message("the number of seats is not known; set CML_LICENSE_SEATS to limit them")
    if not ledger.seats:
        return
    render.print_line()
    several = len(ledger.tokens) > 1
    headings = ("WORKER", "STATE", "FLAVOUR", "AGE", *(("TOKEN",) if several else ()), "WORKER_ID")
    rows = []
    for one in ledger.seats:
        token = (one.token,) if several else ()
        rows.append((one.worker_name, one.state, one.flavour, render.format_age(one.since, now), *token, one.worker_id))
    orphaned = any(one.state is SeatState.ORPHANED for one in ledger.seats)
    ranks = {"AGE": 1, "FLAVOUR": 2, "TOKEN": 3} | ({} if orphaned else {"WORKER_ID": 4})
    table.print_rows(headings, rows, now, whole=("WORKER_ID",), ranks=ranks)
    if orphaned:
        render.print_message(
            "an orphaned seat's worker is gone: free it at the licence server, then `lcm licenses free WORKER_ID`"
        )


def alerts(output: ListOutput = ListFormat.TABLE, context: ContextName = None) -> None:
    """List open alerts, most serious first. An alert clears when its cause is over."""
    found = connection.with_plane(lambda plane: plane.alerts(), context)
    if output is ListFormat.JSON:
        print_json({"items": found}, indent=2)
        return
    if not found:
        render.print_message("no open alerts")
        return
    now = SystemClock().now()
    rows = []
    for one in sorted(found, key=lambda one: (one.severity is not Severity.CRITICAL, one.since)):
        about = title_of(KINDS[one.kind].struct, one.name) if one.kind in KINDS else f"{one.kind}/{one.name}"
        rows.append((one.severity, one.alert, about, render.format_age(one.since, now), one.message))
    heading, *lines = table.table_of_texts(("SEVERITY", "ALERT", "ABOUT", "AGE"), ranks={"AGE": 1}).lines(rows, now)
    render.print_line(heading)
    for line, row in zip(lines, rows, strict=True):
        render.print_line(line)
        render.print_text(f"  {row[-1]}")  # in full: it says what to do
