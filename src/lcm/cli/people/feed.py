"""`lcm feed create|list|revoke`: addresses at which calendar programs read what is booked."""

from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from lcm.cli.documents.wait import parse_duration
from lcm.cli.output import connection, render, table
from lcm.cli.output.command import LeafCommand, make_group
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace
from lcm.model.access.identity import OWN_CALENDAR
from lcm.model.base.errors import Gone
from lcm.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lcm.control.plane.transport import ApiConnection
    from lcm.control.plane.wire import TokenInfo

_PATH: Final = "/api/tokens"
_HEADINGS: Final = ("ID", "SHOWS", "AGE", "EXPIRES", "NAME")
_RANKS: Final = {"SHOWS": 1, "EXPIRES": 2, "AGE": 3, "NAME": 4}

app = make_group("feed", "Subscribe a calendar program to your labs or a class.")
Class = Annotated[
    str | None,
    typer.Argument(metavar="[RESERVATION]", help="The class to show. Default: all that is yours or booked for you."),
]
Expires = Annotated[str, typer.Option("--expires", metavar="TIME", help="Lifetime, such as 90d; at most 366d.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID…", help="Ids of feeds, as shown by `lcm feed list`.")]


@app.command(cls=LeafCommand)
def create(
    reservation: Class = None,
    *,
    expires: Expires = "366d",
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """Print the private address of a calendar feed. It is not stored, so it cannot be shown again.

    It ends when it expires or is revoked, or with the token or sign-in that you make it with.
    """
    from lcm.control.plane.wire import FeedMade, FeedRequest  # noqa: PLC0415 - loaded by commands that talk

    seconds = int(parse_duration(expires, "--expires").total_seconds())
    wish = FeedRequest(reservation=reservation, namespace=namespace, expires_in_seconds=seconds)
    made = connection.request("POST", "/api/feeds", FeedMade, context, wish)
    assert made.info.expires_at is not None, "a feed ends"
    until = render.format_relative(made.info.expires_at, SystemClock().now())
    render.print_message(f"Works until {until}; `lcm feed revoke {made.info.id}` ends it. Whoever has it reads it:")
    render.print_line(connection.find_context(context).url + made.path)


@app.command("list", cls=LeafCommand)
def list_(context: ContextName = None) -> None:
    """List your calendar feeds; administrators see everybody's."""
    from lcm.control.plane.wire import TokenList  # noqa: PLC0415 - likewise

    found = connection.request("GET", _PATH, TokenList, context)
    rows = map(_feed_row, (one for one in found.items if one.calendar))
    table.print_rows(_HEADINGS, rows, SystemClock().now(), whole=("ID",), ranks=_RANKS)


@app.command(cls=LeafCommand)
def revoke(ids: Ids, *, context: ContextName = None) -> None:
    """Revoke calendar feeds at once."""
    from lcm.control.plane.transport import read_answer  # noqa: PLC0415 - likewise
    from lcm.control.plane.wire import TokenList  # noqa: PLC0415 - likewise

    async def work(line: "ApiConnection") -> None:
        known = read_answer(await line.request("GET", _PATH), TokenList).items
        for one in _check_feeds(ids, known):
            await line.request("DELETE", f"{_PATH}/{quote(one, safe='')}")
            render.print_line(f"feed {render.sanitize(one)} revoked")

    connection.with_connection(work, context)


def _check_feeds(ids: "Sequence[str]", known: "Sequence[TokenInfo]") -> "Sequence[str]":
    """Return ids that are all those of feeds. Raise Gone for the first that is not."""
    feeds = {one.id for one in known if one.calendar}
    for word in ids:
        if word not in feeds:
            raise Gone(f"there is no calendar feed {word}; `lcm feed list` lists them")
    return list(dict.fromkeys(ids))


def _feed_row(one: "TokenInfo") -> tuple[str, ...]:
    now = SystemClock().now()
    until = f"in {render.format_wait(one.expires_at - now)}" if one.expires_at else "never"
    shows = "own labs" if one.calendar == OWN_CALENDAR else f"class {one.calendar}"
    return one.id, shows, render.format_age(one.created_at, now), until, one.name
