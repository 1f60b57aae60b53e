"""`lcm token create|list|revoke`."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import msgspec
import typer

from lcm.cli import render, run, table
from lcm.cli.command import OneCommand
from lcm.cli.options import ContextName
from lcm.cli.wait import span_of
from lcm.model.identity import Role
from lcm.system import SystemClock

if TYPE_CHECKING:
    from lcm.control.client_line import Line
    from lcm.control.wire_access import TokenInfo, TokenList, TokenMade, TokenWish
    from lcm.model.identity import AccessToken
    from lcm.model.secret import Secret

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
    from lcm.control.wire_access import TokenMade, TokenWish, shown  # noqa: PLC0415 - loaded by commands that talk

    life = timedelta() if expires == _NEVER else span_of(expires, "--expires")
    if not life and expires != _NEVER:
        raise typer.BadParameter("a token must live for a while; write 12h, 30d or never", param_hint="--expires")
    if offline:
        text, token = _offline(name, role, life, data)
        made = TokenMade(token=text.reveal(), info=shown(token))
    else:
        wish = TokenWish(name=name, role=role, expires_in_seconds=int(life.total_seconds()))
        made = run.with_line(lambda line: _made(line, wish), context)
    until = render.relative(made.info.expires_at, SystemClock().now()) if made.info.expires_at else _NEVER
    render.say(f"token {made.info.id} for {made.info.name}, role {made.info.role}, expires {until}")
    render.out(made.token)


@app.command("list", cls=OneCommand)
def list_(context: ContextName = None) -> None:
    """List your tokens and browser sessions; administrators see everybody's."""
    found = run.with_line(_listed, context)
    table.print_rows(_HEADINGS, map(_row, found.items), SystemClock().now())


@app.command(cls=OneCommand)
def revoke(ids: Ids, context: ContextName = None) -> None:
    """End tokens at once; streams that they opened end too."""
    run.with_line(lambda line: _revoked(line, ids), context)


def _offline(name: str | None, role: Role | None, life: timedelta, data: Path | None) -> "tuple[Secret, AccessToken]":
    from lcm import config, log  # noqa: PLC0415 - everything that a server is made of, which takes a while
    from lcm.cli import token_offline  # noqa: PLC0415 - likewise
    from lcm.cli.up import with_options  # noqa: PLC0415 - likewise

    if name is None or role is None:
        raise typer.BadParameter("needs NAME and --role: there is nobody whose they could be", param_hint="--offline")
    log.set_up("WARNING")
    return asyncio.run(token_offline.make(with_options(config.load(), data_dir=data), name, role, life))


async def _made(line: "Line", wish: "TokenWish") -> "TokenMade":
    from lcm.control.client_line import read  # noqa: PLC0415 - likewise
    from lcm.control.wire_access import TokenMade  # noqa: PLC0415 - likewise

    return read(await line.ask("POST", _PATH, body=msgspec.json.encode(wish)), TokenMade)


async def _listed(line: "Line") -> "TokenList":
    from lcm.control.client_line import read  # noqa: PLC0415 - likewise
    from lcm.control.wire_access import TokenList  # noqa: PLC0415 - likewise

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
