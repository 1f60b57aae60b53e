"""`lcm context list|use|set|token|delete`: choose which API to talk to, and as whom."""

import sys
from typing import Annotated

import msgspec
import typer

from lcm.cli.output import connection, render, table
from lcm.cli.output.command import LeafCommand, make_group
from lcm.cli.output.options import ContextName
from lcm.model.access.secret import Secret
from lcm.system.clock import SystemClock

app = make_group("context", "Set which API to use, and with which token.")


def complete_contexts(incomplete: str) -> list[str]:
    """Complete a context's name."""
    return [name for name in connection.read_contexts().contexts if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_contexts)]


@app.command("list", cls=LeafCommand)
def list_() -> None:
    """List the contexts; a star marks the current one."""
    book = connection.read_contexts()
    used = connection.current_context()
    rows = [("*" if used and used.name == name else "", name, one.url) for name, one in sorted(book.contexts.items())]
    if used and used.name not in book.contexts:
        rows.append(("*", f"({used.name})", used.url))
    if not rows:
        render.print_message("no contexts yet; create one with `lcm up` or `lcm context set NAME --url URL`")
        return
    table.print_rows(("CURRENT", "NAME", "URL"), rows, SystemClock().now())


@app.command(cls=LeafCommand)
def use(name: Name) -> None:
    """Make a context the current one."""
    connection.change_contexts(lambda book: msgspec.structs.replace(book, current=book.check_name(name)))
    render.print_line(f"context {name} is current")


@app.command("set", cls=LeafCommand)
def set_(
    name: Name,
    *,
    url: Annotated[str, typer.Option(help="Address of the API, such as http://127.0.0.1:8080.", metavar="URL")],
    token: Annotated[
        str | None, typer.Option(help="The token; - reads it from standard input; without it, you are asked.")
    ] = None,
    keep_current: Annotated[bool, typer.Option("--keep-current", help="Do not make this context current.")] = False,
) -> None:
    """Save an API's address and a token under a name, and make it current."""
    if token is None:
        token = typer.prompt("Token", hide_input=True, err=True)
    elif token == "-":  # noqa: S105 - a dash stands for standard input
        token = sys.stdin.readline().strip()
    path = connection.save_context(name, url, Secret(token), make_current=not keep_current)
    render.print_line(f"context {name} set in {path}")


@app.command(cls=LeafCommand)
def token(context: ContextName = None) -> None:
    """Print the token in use: export TOKEN=$(lcm context token)."""
    render.print_line(connection.find_context(context).token.reveal())


@app.command(cls=LeafCommand)
def delete(name: Name) -> None:
    """Delete a context."""
    connection.change_contexts(
        lambda book: msgspec.structs.replace(
            book,
            current=None if book.current == book.check_name(name) else book.current,
            contexts={one: kept for one, kept in book.contexts.items() if one != name},
        )
    )
    render.print_line(f"context {name} deleted")
