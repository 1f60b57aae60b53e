"""Options and arguments that several commands share."""

from enum import StrEnum
from typing import Annotated

import typer

from lcm.cli import names
from lcm.model.resource import DEFAULT_NAMESPACE


class Output(StrEnum):
    """How results are written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KIND [NAME…]",
        help="A kind, several with commas, and names; or KIND/NAME.",
        autocompletion=names.complete,
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Argument(metavar="KIND NAME", help="One object; KIND/NAME does as well.", autocompletion=names.complete),
]
Namespace = Annotated[str, typer.Option("-n", "--namespace", metavar="NS", help="The objects' namespace.")]
Selector = Annotated[
    str, typer.Option("-l", "--selector", metavar="LABELS", help="Only objects with these labels, such as tier=test.")
]
FieldSelector = Annotated[
    str, typer.Option("--field-selector", metavar="FIELDS", help="Only objects such as status.phase=READY.")
]
ContextName = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Another context than the current one.")
]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait at most: 30s, 10m, 2h; 0 looks once.")
]
Files = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE", help="A file, a folder, or - for standard input; repeatable."),
]
Recursive = Annotated[bool, typer.Option("-R", "--recursive", help="Take the folders in a folder as well.")]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="When: 2026-12-01 09:00, 09:00, tomorrow 9:00, +2h; your clock's time."),
]
For = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="How long: 90m, 2h, 1h30m; else as long as the lab may last."),
]
TimeZone = Annotated[
    str, typer.Option("--time-zone", metavar="ZONE", help="Whose clock times are meant: Europe/Berlin; else yours.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]

__all__ = ["DEFAULT_NAMESPACE"]
