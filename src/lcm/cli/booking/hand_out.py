"""`lcm hand-out`: who goes where in a class, as text, as a page to print, or as a table.

Names and addresses are written by others: in HTML they are escaped, in CSV none of them can be a formula.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from pathlib import Path
from typing import Annotated, Final

import typer

from lcm.cli.booking.classes import ClassName, parse_class_name
from lcm.cli.booking.roster import RosterRow, read_learners, read_roster
from lcm.cli.output import connection, render
from lcm.cli.output.nouns import missing
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace
from lcm.cli.output.times import format_slot
from lcm.cli.output.zone import Zone, choose_zone
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.kinds.reservation import Reservation

_FORMULA_SIGNS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_HEADINGS: Final = ("When", "Seat", "Learner", "Name", "Session", "State", "Worker", "Addresses")
_LINKS: Final = ("http://", "https://")
_STYLE: Final = (
    "body{font-family:sans-serif;margin:2em}table{border-collapse:collapse}"
    "th,td{border:1px solid #999;padding:.3em .6em;text-align:left;vertical-align:top}tr{break-inside:avoid}"
)


class HandOutFormat(StrEnum):
    """The format of a hand-out."""

    TEXT = "text"
    HTML = "html"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class HandOut:
    """A class with its seats, the names of its learners by address in lower case, and the zone of its times."""

    whole: Reservation
    rows: Sequence[RosterRow]
    names: Mapping[str, str]
    zone: Zone

    @property
    def title(self) -> str:
        """What the class is, in one line."""
        return f"{self.whole.metadata.name}: {self.whole.spec.definition}, {self.whole.spec.count} seats"

    def cells(self, row: RosterRow) -> tuple[str, ...]:
        """Return the cells of a row, without its addresses."""
        when = format_slot(*row.slot, self.zone)
        seat = str(row.place) if row.place else ""
        return when, seat, row.learner, self.names.get(row.learner.lower(), ""), row.session, row.state, row.worker


def hand_out(
    words: ClassName,
    *,
    output: Annotated[HandOutFormat, typer.Option("-o", "--output", help="Output format.")] = HandOutFormat.TEXT,
    names: Annotated[
        Path | None, typer.Option("--names", metavar="FILE", help="CSV file with the columns email and name.")
    ] = None,
    occurrence: Annotated[
        int | None, typer.Option("--occurrence", metavar="N", min=1, help="Only this occurrence of a series.")
    ] = None,
    time_zone: Annotated[
        str,
        typer.Option("--time-zone", metavar="ZONE", help="Time zone of the times; default: the class's, else yours."),
    ] = "",
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """Print who goes where in a class: learner, seat, session, start, state and addresses.

    `lcm hand-out reservation routing -o html --names class.csv > routing.html`
    """
    ref: Ref[Reservation] = Ref(Reservation, parse_class_name(words), namespace)
    known = {email.lower(): name for email, name in read_learners(names).items()} if names else {}

    async def work(plane: Plane) -> None:
        whole = await plane.get(ref)
        if whole is None:
            raise missing(ref)
        series = whole.spec.recurrence
        zone = choose_zone(time_zone or (series.time_zone if series else ""))
        rows = [one for one in await read_roster(plane, whole) if occurrence in (None, one.occurrence)]
        for line in _WRITERS[output](HandOut(whole, rows, known, zone)):
            render.print_line(line)

    connection.with_plane(work, context)


def write_text(one: HandOut) -> Iterator[str]:
    """Yield the lines of a hand-out as text, by slot."""
    yield render.sanitize(one.title)
    last = ""
    for row in one.rows:
        when, seat, learner, name, session, state, worker = one.cells(row)
        if when != last:
            yield ""
            yield render.sanitize(when)
            last = when
        who = " ".join(filter(None, [learner, f"({name})" if name else ""])) or "-"
        where = ", ".join(filter(None, [session, state, worker and f"on {worker}"]))
        yield render.sanitize(f"  {seat or '-':>3}  {who}: {where}")
        for label, url in sorted(row.urls.items()):
            yield render.sanitize(f"       {label}  {url}")


def write_html(one: HandOut) -> Iterator[str]:
    """Yield the lines of a hand-out as a page that prints well and loads nothing."""
    title = escape(one.title)
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1><table><thead><tr>"
    yield "".join(f"<th>{heading}</th>" for heading in _HEADINGS) + "</tr></thead><tbody>"
    for row in one.rows:
        cells = "".join(f"<td>{_escape(cell)}</td>" for cell in one.cells(row))
        links = "<br>".join(_write_link(label, url) for label, url in sorted(row.urls.items()))
        yield f"<tr>{cells}<td>{links}</td></tr>"
    yield "</tbody></table></body></html>"


def _escape(text: str) -> str:
    return escape(render.UNSAFE.sub("�", text))


def _write_link(label: str, url: str) -> str:
    shown = _escape(url)
    address = f'<a href="{shown}">{shown}</a>' if url.lower().startswith(_LINKS) else shown
    return f"{_escape(label)}: {address}"


def write_csv(one: HandOut) -> Iterator[str]:
    """Yield the lines of a hand-out as CSV; no cell of it is a formula to a spreadsheet."""
    yield _write_row(heading.lower() for heading in _HEADINGS)
    for row in one.rows:
        urls = " ".join(f"{label}={url}" for label, url in sorted(row.urls.items()))
        yield _write_row((*one.cells(row), urls))


def _write_row(cells: Iterator[str] | Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([_defuse(cell) for cell in cells])
    return out.getvalue()


def _defuse(cell: str) -> str:
    plain = render.UNSAFE.sub("�", " ".join(cell.splitlines()))
    return f"'{plain}" if cell.startswith(_FORMULA_SIGNS) else plain


_WRITERS: Final = {HandOutFormat.TEXT: write_text, HandOutFormat.HTML: write_html, HandOutFormat.CSV: write_csv}
