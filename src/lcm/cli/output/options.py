"""Options and arguments that several commands share, and completion of names from the API.

Completion must be quick: it asks the API with a short time limit and completes nothing when that fails.
"""

from enum import StrEnum
from typing import Annotated, Final

import typer

from lcm.cli.output.nouns import ALL, CALENDAR, NOUNS, find_noun
from lcm.control.plane.protocol import LONGEST_PAGE, Plane
from lcm.model.base.errors import LcmError
from lcm.model.base.resource import DEFAULT_NAMESPACE

_TIMEOUT_SECONDS: Final = 1.0


def complete_targets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a kind, then names of that kind."""
    given = list(ctx.params.get("targets") or ctx.params.get("target") or ())
    try:
        if given:
            return _fetch_names(given[0], ctx)
        kind, slash, _ = incomplete.partition("/")
        if slash:
            return [f"{kind}/{name}" for name in _fetch_names(kind, ctx)]
    except (LcmError, TimeoutError, typer.BadParameter):
        return []
    more = [CALENDAR] if ctx.info_name == "get" else []
    return [*dict.fromkeys(one.plural for one in NOUNS), ALL, *more]


def complete_workers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of workers."""
    return _complete_kind("worker", ctx, incomplete)


def complete_definitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of definitions."""
    return _complete_kind("definition", ctx, incomplete)


def complete_sessions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of sessions."""
    return _complete_kind("session", ctx, incomplete)


def _complete_kind(kind: str, ctx: typer.Context, incomplete: str) -> list[str]:
    try:
        return [name for name in _fetch_names(kind, ctx) if name.startswith(incomplete)]
    except (LcmError, TimeoutError):
        return []


def _fetch_names(kind: str, ctx: typer.Context) -> list[str]:
    from lcm.cli.output import connection  # noqa: PLC0415 - a shell that completes a kind needs no connection

    namespace = None if ctx.params.get("all_namespaces") else ctx.params.get("namespace")
    struct = find_noun(kind).struct

    async def ask(plane: Plane) -> list[str]:
        listing = await plane.list(struct, namespace=namespace, limit=LONGEST_PAGE)
        return [one.metadata.name for one in listing.items]

    return connection.with_plane(ask, ctx.params.get("context"), within_seconds=_TIMEOUT_SECONDS)


class Output(StrEnum):
    """The format in which results are printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class ListFormat(StrEnum):
    """The format in which a list is printed."""

    TABLE = "table"
    JSON = "json"


ListOutput = Annotated[ListFormat, typer.Option("-o", "--output", help="Output format.")]
Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KIND [NAME…]",
        help="A kind (or several, separated by commas) and names; or KIND/NAME.",
        autocompletion=complete_targets,
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Argument(metavar="KIND NAME", help="One object; KIND/NAME works too.", autocompletion=complete_targets),
]
SessionName = Annotated[
    list[str], typer.Argument(metavar="[session] NAME", help="Name of a session.", autocompletion=complete_sessions)
]
Namespace = Annotated[str, typer.Option("-n", "--namespace", metavar="NS", help="Namespace of the objects.")]
Selector = Annotated[
    str, typer.Option("-l", "--selector", metavar="LABELS", help="Only objects with these labels, such as tier=test.")
]
FieldSelector = Annotated[
    str, typer.Option("--field-selector", metavar="FIELDS", help="Only objects such as status.phase=READY.")
]
ContextName = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Use this context instead of the current one.")
]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="Longest time to wait: 30s, 10m, 2h; 0 checks once.")
]
Files = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE", help="A file, a folder, or - for standard input; repeatable."),
]
Recursive = Annotated[bool, typer.Option("-R", "--recursive", help="Include subfolders.")]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="Start: 2026-12-01 09:00, 9am, tomorrow 14:30, tue 9:00, in 2h; in your time zone."
    ),
]
For = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="Duration: 90m, 2h, 1h30m; default: the longest the lab allows."),
]
TimeZone = Annotated[
    str,
    typer.Option("--time-zone", metavar="ZONE", help="Time zone of the times given: Europe/Berlin; default: yours."),
]
Count = Annotated[
    int, typer.Option("--count", metavar="N", help="Number of sessions at the same time.", min=1, max=400)
]
Track = Annotated[str, typer.Option("--track", metavar="TRACK", help="Use this track instead of the lab's.")]
Region = Annotated[str | None, typer.Option("--region", metavar="REGION", help="Only in this region.")]
PreferredRegion = Annotated[
    str | None,
    typer.Option("--prefer-region", metavar="REGION", help="In this region rather than in another."),
]
AllowSpot = Annotated[
    bool, typer.Option("--spot", help="Also on a cheaper machine that the cloud may take away; then it is tried again.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]

__all__ = ["DEFAULT_NAMESPACE"]
