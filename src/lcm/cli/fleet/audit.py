"""`lcm audit`: who wrote what, when and from where."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lcm.cli.documents.wait import span_of
from lcm.cli.output import connection, render, table
from lcm.cli.output.options import ContextName
from lcm.system.clock import SystemClock

if TYPE_CHECKING:
    from lcm.control.access.audit import AuditRecord
    from lcm.control.plane.transport import Line


_HEADINGS: Final = ("WHEN", "WHO", "ROLE", "DID", "FROM", "REVISION", "REQUEST")
_SHOWN: Final = 3
_ALL: Final = "all"


class Output(StrEnum):
    """How records are written."""

    TABLE = "table"
    JSON = "json"


Since = Annotated[
    str, typer.Option("--since", metavar="TIME", help="How long ago at most: 90m, 24h, 7d; a moment; or all.")
]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="How long ago at least, or a moment.")]
Who = Annotated[str, typer.Option("--who", metavar="NAME", help="What this caller did only.")]
OfKind = Annotated[str, typer.Option("--kind", metavar="KIND", help="What was done to this kind only: LabWorker, …")]
OfName = Annotated[str, typer.Option("--name", metavar="NAME", help="What was done to things of this name only.")]


def audit(
    *,
    since: Since = "24h",
    until: Until = "",
    who: Who = "",
    kind: OfKind = "",
    name: OfName = "",
    output: Annotated[Output, typer.Option("-o", "--output", help="How to write them.")] = Output.TABLE,
    context: ContextName = None,
) -> None:
    """List who wrote what, when and from where, newest last. For administrators."""
    moments = {"since": "" if since == _ALL else _moment(since, "--since"), "until": _moment(until, "--until")}
    query = {**moments, "who": who, "kind": kind, "name": name, "limit": "500"}
    asked = {key: text for key, text in query.items() if text}
    found = connection.with_line(lambda line: _all(line, asked), context)
    if output is Output.JSON:
        for record in found:
            render.out(render.escaped(msgspec.json.encode(record).decode()))
    elif found:
        table.print_rows(_HEADINGS, map(_row, found), SystemClock().now())
    else:
        render.say("nothing was written in this time")


async def _all(line: "Line", query: Mapping[str, str]) -> Sequence["AuditRecord"]:
    from lcm.control.plane.transport import read  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then
    from lcm.control.plane.wire import AuditList  # noqa: PLC0415 - likewise

    page = read(await line.ask("GET", "/api/audit", query=query), AuditList)
    found = list(page.items)
    while page.next is not None:
        page = read(await line.ask("GET", "/api/audit", query={**query, "cursor": page.next}), AuditList)
        found += page.items
    return found


def _moment(text: str, hint: str) -> str:
    if not text:
        return ""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = SystemClock().now() - span_of(text, hint)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _row(record: "AuditRecord") -> tuple[str, ...]:
    deeds = [f"{deed.verb} {deed.kind}/{deed.name}" for deed in record.deeds[:_SHOWN]]
    more = len(record.deeds) - len(deeds)
    did = ", ".join(deeds) + (f" and {more} more" if more else "")
    revision = "" if record.revision is None else str(record.revision)
    when = f"{record.at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    return when, record.who, record.role, did, record.address or "here", revision, record.request
