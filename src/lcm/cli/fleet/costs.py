"""`lcm cost`: what sessions cost by owner, class, track and more, what nobody used, and what is booked ahead."""

import csv
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

import typer
from msgspec.structs import replace

from lcm.cli.output import connection, render, table
from lcm.cli.output.options import ContextName, Output, TimeZone
from lcm.cli.output.printer import print_value
from lcm.cli.output.times import parse_moment
from lcm.cli.output.zone import choose_zone
from lcm.control.plane.bodies import LedgerQuery
from lcm.control.plane.protocol import Plane
from lcm.model.money.ledger import MAX_ROWS_PER_PAGE, CostGroup, CostLedger, CostRow
from lcm.system.clock import SystemClock

_CENT = Decimal("0.01")


class CostFormat(StrEnum):
    """The format in which costs are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"


def cost(
    by: Annotated[CostGroup, typer.Option("--by", help="What to group costs by.")] = CostGroup.TRACK,
    *,
    month: Annotated[
        str, typer.Option("--month", metavar="MONTH", help="A month: 2026-11; default: the present one.")
    ] = "",
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="From this time on, instead of a month.")] = "",
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="Before this time; default: now.")] = "",
    owner: Annotated[str, typer.Option("--owner", metavar="OWNER", help="Only sessions of this owner.")] = "",
    time_zone: TimeZone = "",
    output: Annotated[CostFormat, typer.Option("-o", "--output", help="Output format.")] = CostFormat.TABLE,
    context: ContextName = None,
) -> None:
    """Show what sessions cost, by owner, class, track, definition, pool, worker, session or day.

    `lcm cost --by owner --month 2026-11`, `lcm cost --by class -o csv`. The lines and what nobody used add up to the
    bill. FORECAST is what is booked for the rest of the time.
    """
    zone, now = choose_zone(time_zone), SystemClock().now()
    if month and (since or until):
        raise typer.BadParameter("cannot be used with --since or --until", param_hint="--month")
    if not (since or until or month):
        month = f"{zone.local(now):%Y-%m}"
    asked = LedgerQuery(
        month=month,
        since=parse_moment(since, now, zone, "--since", whole_days=True) if since else None,
        until=parse_moment(until, now, zone, "--until", whole_days=True) if until else None,
        time_zone=zone.name,
        owner=owner,
    )
    ledger = connection.with_plane(lambda plane: read_all_pages(plane, by, asked), context)
    _print_ledger(ledger, output, now)


async def read_all_pages(plane: Plane, by: CostGroup, asked: LedgerQuery) -> CostLedger:
    """Return the ledger with the rows of all its pages."""
    page = await _read_page(plane, by, asked, "")
    rows = [*page.rows]
    while page.next:
        page = await _read_page(plane, by, asked, page.next)
        rows += page.rows
    return replace(page, rows=tuple(rows))


async def _read_page(plane: Plane, by: CostGroup, asked: LedgerQuery, cursor: str) -> CostLedger:
    return await plane.ledger(
        by=by,
        month=asked.month,
        since=asked.since,
        until=asked.until,
        time_zone=asked.time_zone,
        owner=asked.owner,
        limit=MAX_ROWS_PER_PAGE,
        cursor=cursor,
    )


def _print_ledger(ledger: CostLedger, output: CostFormat, now: datetime) -> None:
    match output:
        case CostFormat.JSON | CostFormat.YAML:
            print_value(ledger, Output(output))
        case CostFormat.CSV:
            write = csv.writer(sys.stdout, lineterminator="\n").writerow
            write((ledger.by, "usd", "unused_usd", "forecast_usd"))
            for row in (*ledger.rows, unused_row(ledger)):
                write((_safe_cell(row.name), row.usd, row.unused_usd, row.forecast_usd))
        case _:
            days = ledger.by is CostGroup.DAY  # which stay in their order
            ordered = [*ledger.rows] if days else sorted(ledger.rows, key=_table_order)
            table.print_rows(_headings(ledger), _table_rows(ledger, ordered), now, whole=("USD",))
            for note in _notes(ledger):
                render.print_message(note)


def unused_row(ledger: CostLedger) -> CostRow:
    """Return what nobody used as a row of its own."""
    return CostRow(name="unused", usd=ledger.unused_usd, forecast_usd=ledger.forecast_unused_usd)


def _table_order(row: CostRow) -> tuple[Decimal, Decimal, str]:
    return -row.usd, -row.forecast_usd, row.name


def _headings(ledger: CostLedger) -> tuple[str, ...]:
    idle = ("UNUSED",) if any(row.unused_usd for row in ledger.rows) else ()
    return (ledger.by.upper(), "USD", *idle, *(("FORECAST",) if _has_forecast(ledger) else ()))


def _table_rows(ledger: CostLedger, rows: list[CostRow]) -> Iterator[tuple[str, ...]]:
    idle, ahead = any(row.unused_usd for row in rows), _has_forecast(ledger)
    total = CostRow(name="total", usd=ledger.total_usd, forecast_usd=ledger.forecast_usd + ledger.forecast_unused_usd)
    for place, row in enumerate((*rows, unused_row(ledger), total)):
        named = row.name or "(none)"
        own = (_format(row.unused_usd) if place < len(rows) else "",) if idle else ()
        yield named, _format(row.usd), *own, *((_format(row.forecast_usd),) if ahead else ())


def _has_forecast(ledger: CostLedger) -> bool:
    return bool(ledger.forecast_usd or ledger.forecast_unused_usd)


def _notes(ledger: CostLedger) -> Iterator[str]:
    known = ledger.stays_since
    if known is None or known > ledger.since:
        since = f"before {known.astimezone(UTC):%Y-%m}" if known else "so far"
        yield f"who used the machines is not known {since}; all of that is in unused"
    if ledger.unpriced_seconds:
        hours = round(ledger.unpriced_seconds / 3600, 1)
        yield f"{hours} machine-hours have no known price and are not counted; set PRICE_BOOK"


def _format(usd: Decimal) -> str:
    return f"{usd.quantize(_CENT)}"


def _safe_cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in {"=", "+", "-", "@"} else text
