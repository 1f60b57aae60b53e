"""`lcm token create|list|revoke`."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import msgspec
import typer

from lcm.cli.documents.wait import span_of
from lcm.cli.output import connection, render, table
from lcm.cli.output.command import OneCommand
from lcm.cli.output.options import ContextName
from lcm.model.access.identity import Role
from lcm.system.clock import SystemClock

if TYPE_CHECKING:
    from lcm.control.plane.transport import Line
    from lcm.control.plane.wire import SignInLink, TokenInfo, TokenList, TokenMade, TokenWish
    from lcm.model.access.identity import AccessToken
    from lcm.model.access.secret import Secret


_PATH: Final = "/api/tokens"
_NEVER: Final = "never"
_HEADINGS: Final = ("ID", "NAME", "ROLE", "KIND", "AGE", "EXPIRES", "MADE BY")

app = typer.Typer(
    name="token",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Make, list and revoke tokens.",
)
Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Whom it is for; yourself, unless you are an administrator.")
]
AsRole = Annotated[
    Role | None, typer.Option("--role", metavar="ROLE", help="At most your own, which it is by default.")
]
Expires = Annotated[
    str, typer.Option("--expires", metavar="TIME", help="How long it is good: 12h, 30d; never, for administrators.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Make it in the store of the settings itself, without an API: the first one.")
]
Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="With --offline: the store's folder.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID…", help="As `lcm token list` shows them.")]


@app.command(cls=OneCommand)
def create(
    name: Name = None,
    *,
    role: AsRole = None,
    expires: Expires = "30d",
    context: ContextName = None,
    offline: Offline = False,
    data: Data = None,
) -> None:
    """Make a token and print it. Its text is not kept anywhere: this is the only time that it is shown."""
    from lcm.control.plane.wire import TokenMade, TokenWish, shown  # noqa: PLC0415 - loaded by commands that talk

    life = timedelta() if expires == _NEVER else span_of(expires, "--expires")
    if not life and expires != _NEVER:
        raise typer.BadParameter("a token must live for a while; write 12h, 30d or never", param_hint="--expires")
    if offline:
        text, token = _offline(name, role, life, data)
        made = TokenMade(token=text.reveal(), info=shown(token))
    else:
        wish = TokenWish(name=name, role=role, expires_in_seconds=int(life.total_seconds()))
        made = connection.with_line(lambda line: _made(line, wish), context)
    until = render.relative(made.info.expires_at, SystemClock().now()) if made.info.expires_at else _NEVER
    render.say(f"token {made.info.id} for {made.info.name}, role {made.info.role}, expires {until}")
    render.out(made.token)


@app.command("list", cls=OneCommand)
def list_(context: ContextName = None) -> None:
    """List your tokens and browser sessions; administrators see everybody's."""
    found = connection.with_line(_listed, context)
    table.print_rows(_HEADINGS, map(_row, found.items), SystemClock().now())


@app.command(cls=OneCommand)
def revoke(ids: Ids, context: ContextName = None) -> None:
    """End tokens at once; streams that they opened end too."""
    connection.with_line(lambda line: _revoked(line, ids), context)


def _offline(name: str | None, role: Role | None, life: timedelta, data: Path | None) -> "tuple[Secret, AccessToken]":
    from lcm.cli.people import token_offline  # noqa: PLC0415 - likewise
    from lcm.cli.server.up import with_options  # noqa: PLC0415 - likewise
    from lcm.settings import load  # noqa: PLC0415 - likewise
    from lcm.system import log  # noqa: PLC0415 - everything that a server is made of, which takes a while

    if name is None or role is None:
        raise typer.BadParameter("needs NAME and --role: there is nobody whose they could be", param_hint="--offline")
    log.set_up("WARNING")
    return asyncio.run(token_offline.make(with_options(load.load(), data_dir=data), name, role, life))


async def _made(line: "Line", wish: "TokenWish") -> "TokenMade":
    from lcm.control.plane.transport import read  # noqa: PLC0415 - likewise
    from lcm.control.plane.wire import TokenMade  # noqa: PLC0415 - likewise

    return read(await line.ask("POST", _PATH, body=msgspec.json.encode(wish)), TokenMade)


async def _listed(line: "Line") -> "TokenList":
    from lcm.control.plane.transport import read  # noqa: PLC0415 - likewise
    from lcm.control.plane.wire import TokenList  # noqa: PLC0415 - likewise

    return read(await line.ask("GET", _PATH), TokenList)


async def _revoked(line: "Line", ids: list[str]) -> None:
    for one in ids:
        await line.ask("DELETE", f"{_PATH}/{quote(one, safe='')}")
        render.out(f"token {render.clean(one)} revoked")


def _row(one: "TokenInfo") -> tuple[str, ...]:
    now = SystemClock().now()
    until = render.relative(one.expires_at, now) if one.expires_at else _NEVER
    kind = "session" if one.session else "token"
    return one.id, one.name, one.role, kind, render.age(one.created_at, now), until, one.made_by


def sign_in(context: ContextName = None) -> None:
    """Print a link with which a browser signs in as you, once and within ten minutes."""
    url = connection.chosen(context).url
    link = connection.with_line(_link, context)
    render.say(f"Good once, until {render.relative(link.expires_at, SystemClock().now())}. Give it to nobody:")
    render.out(url + link.path)


async def _link(line: "Line") -> "SignInLink":
    from lcm.control.plane.transport import read  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then
    from lcm.control.plane.wire import SignInLink  # noqa: PLC0415 - likewise

    return read(await line.ask("POST", "/api/sign-in"), SignInLink)
