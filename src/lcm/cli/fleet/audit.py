"""`lcm audit`: who wrote what, when and from where."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lcm.cli.documents.wait import parse_duration
from lcm.cli.output import connection, render, table
from lcm.cli.output.options import ContextName, ListFormat, ListOutput
from lcm.cli.output.printer import print_json
from lcm.cli.output.zone import current_zone
from lcm.system.clock import SystemClock

if TYPE_CHECKING:
    from lcm.control.access.audit import AuditRecord
    from lcm.control.plane.transport import ApiConnection


_HEADINGS: Final = ("WHEN", "WHO", "ROLE", "DID", "FROM", "REVISION", "REQUEST")
_RANKS: Final = {"WHO": 1, "FROM": 2, "ROLE": 3, "REVISION": 4, "REQUEST": 5}
_LEAST_DID: Final = 32
_SHOWN: Final = 3


Since = Annotated[
    str,
    typer.Option(
        "--since", metavar="TIME", help="Start: 90m, 24h or 7d ago; a time such as 2026-12-01T09:00Z; or all."
    ),
]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="End, in the same form; default: now.")]
Who = Annotated[str, typer.Option("--who", metavar="NAME", help="Only changes by this caller.")]
OfKind = Annotated[str, typer.Option("--kind", metavar="KIND", help="Only changes of this kind: LabWorker, …")]
OfName = Annotated[str, typer.Option("--name", metavar="NAME", help="Only changes of objects with this name.")]


def audit(
    *,
    since: Since = "24h",
    until: Until = "",
    who: Who = "",
    kind: OfKind = "",
    name: OfName = "",
    output: ListOutput = ListFormat.TABLE,
    context: ContextName = None,
) -> None:
    """List who changed what, when and from where, newest last. For administrators."""
    asked = {
        "since": "" if since == "all" else _parse_moment(since, "--since"),
        "until": _parse_moment(until, "--until"),
        "who": who,
        "kind": kind,
        "name": name,
    }
    query = {key: text for key, text in asked.items() if text}
    found = connection.with_connection(lambda line: read_audit(line, query), context)
    if output is ListFormat.JSON:
        for record in found:
            print_json(record)
    elif found:
        table.print_rows(
            _HEADINGS, map(_row, found), SystemClock().now(), whole=("WHEN",), ranks=_RANKS, least={"DID": _LEAST_DID}
        )
    else:
        render.print_message("nothing was changed in this time")


async def read_audit(line: "ApiConnection", query: Mapping[str, str]) -> Sequence["AuditRecord"]:
    """Read all records that a query selects, oldest first."""
    from lcm.control.plane.transport import read_answer  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then
    from lcm.control.plane.wire import AuditList  # noqa: PLC0415 - likewise

    found: list[AuditRecord] = []
    cursor: str | None = ""
    while cursor is not None:
        asked = {**query, "limit": "500"} | ({"cursor": cursor} if cursor else {})
        page = read_answer(await line.request("GET", "/api/audit", query=asked), AuditList)
        found += page.items
        cursor = page.next
    return found


def _parse_moment(text: str, hint: str) -> str:
    if not text:
        return ""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=current_zone().rules)
    except ValueError:
        moment = SystemClock().now() - parse_duration(text, hint)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _row(record: "AuditRecord") -> tuple[str, ...]:
    deeds = [f"{deed.verb} {deed.kind}/{deed.name}" for deed in record.deeds[:_SHOWN]]
    more = len(record.deeds) - len(deeds)
    did = ", ".join(deeds) + (f" and {more} more" if more else "")
    if record.detail:
        did += f" ({record.detail})"
    if record.refused:
        did = f"refused: {did} ({record.refused})" + (f", {record.left_out} more before" if record.left_out else "")
    revision = "" if record.revision is None else str(record.revision)
    when = render.format_second(record.at)
    return when, record.who, record.role, did, record.address or "here", revision, record.request
