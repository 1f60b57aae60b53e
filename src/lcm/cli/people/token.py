"""`lcm token create|list|revoke`, and links with which browsers sign in: `lcm sign-in`, `lcm invite`."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from lcm.cli.booking.extend import parse_session_name
from lcm.cli.documents.wait import parse_duration
from lcm.cli.output import connection, render, table
from lcm.cli.output.command import LeafCommand, make_group
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace, SessionName
from lcm.model.access.identity import Role
from lcm.model.base.errors import Gone, Refused
from lcm.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lcm.control.plane.transport import ApiConnection
    from lcm.control.plane.wire import TokenInfo
    from lcm.model.access.identity import AccessToken
    from lcm.model.access.secret import Secret


_PATH: Final = "/api/tokens"
_NEVER: Final = "never"
_HEADINGS: Final = ("ID", "NAME", "ROLE", "KIND", "AGE", "EXPIRES", "CREATED BY")
_RANKS: Final = {"EXPIRES": 1, "ROLE": 2, "KIND": 3, "AGE": 4, "CREATED BY": 5}

app = make_group("token", "Create, list and revoke tokens.")
Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Who uses the token; only administrators may name others. Default: you."),
]
AsRole = Annotated[
    Role | None, typer.Option("--role", metavar="ROLE", help="Role of the token, at most your own; default: your role.")
]
Address = Annotated[
    str | None,
    typer.Option("--email", metavar="ADDRESS", help="Whose seats the holder may use (administrators only)."),
]
Tracks = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="TRACK", help="Book on this track only; repeat it for more."),
]
Expires = Annotated[
    str, typer.Option("--expires", metavar="TIME", help="Lifetime: 12h, 30d; or never (administrators only).")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Create the first token directly in the store, without an API.")
]
Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="With --offline: folder of the store.")]
Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID|NAME…", help="Ids of tokens, as shown by `lcm token list`; or the name of who uses it."),
]
All = Annotated[bool, typer.Option("--all", help="With a name: all tokens and browser sessions of that name.")]


@app.command(cls=LeafCommand)
def create(
    name: Name = None,
    *,
    role: AsRole = None,
    email: Address = None,
    track: Tracks = None,
    expires: Expires = "30d",
    context: ContextName = None,
    offline: Offline = False,
    data: Data = None,
) -> None:
    """Create a token and print it. Its text is not stored, so it cannot be shown again."""
    from lcm.control.plane.wire import TokenMade, TokenRequest, token_info  # noqa: PLC0415 - loaded by commands that talk

    life = timedelta() if expires == _NEVER else parse_duration(expires, "--expires")
    if not life and expires != _NEVER:
        raise typer.BadParameter("must be longer than zero; write 12h, 30d or never", param_hint="--expires")
    if offline:
        if email or track:
            raise typer.BadParameter("makes tokens without --email and --track", param_hint="--offline")
        text, token = _make_offline(name, role, life, data)
        made = TokenMade(token=text.reveal(), info=token_info(token))
    else:
        tracks, seconds = tuple(track) if track else None, int(life.total_seconds())
        request = TokenRequest(name=name, role=role, expires_in_seconds=seconds, email=email, tracks=tracks)
        made = connection.request("POST", _PATH, TokenMade, context, request)
    until = render.format_relative(made.info.expires_at, SystemClock().now()) if made.info.expires_at else _NEVER
    render.print_message(f"token {made.info.id} for {made.info.name}, role {made.info.role}, expires {until}")
    render.print_line(made.token)


@app.command("list", cls=LeafCommand)
def list_(context: ContextName = None) -> None:
    """List your tokens and browser sessions; administrators see everybody's."""
    from lcm.control.plane.wire import TokenList  # noqa: PLC0415 - likewise

    found = connection.request("GET", _PATH, TokenList, context)
    table.print_rows(_HEADINGS, map(_token_row, found.items), SystemClock().now(), whole=("ID",), ranks=_RANKS)


@app.command(cls=LeafCommand)
def revoke(ids: Ids, *, every: All = False, context: ContextName = None) -> None:
    """Revoke tokens at once, with all that was made with them, and end the streams that they opened."""
    from lcm.control.plane.transport import read_answer  # noqa: PLC0415 - likewise
    from lcm.control.plane.wire import TokenList  # noqa: PLC0415 - likewise

    async def work(line: "ApiConnection") -> None:
        known = read_answer(await line.request("GET", _PATH), TokenList).items
        for one in dict.fromkeys(id_ for word in ids for id_ in _find_ids(word, known, every=every)):
            with suppress(Gone):  # it was revoked with the token that it was made with
                await line.request("DELETE", f"{_PATH}/{quote(one, safe='')}")
            render.print_line(f"token {render.sanitize(one)} revoked")

    connection.with_connection(work, context)


def _find_ids(word: str, known: "Sequence[TokenInfo]", *, every: bool) -> list[str]:
    """Return the ids that an id or a name means; raise Gone if there is none, Refused if a name means several."""
    if word in {one.id for one in known}:
        return [word]
    found = [one.id for one in known if one.name == word]
    if not found:
        close = get_close_matches(word, sorted({one.name for one in known}), n=1)
        remedy = f"did you mean {close[0]}?" if close else "`lcm token list` lists them"
        raise Gone(f"there is no token {word}, by id or name; {remedy}")
    if len(found) > 1 and not every:
        raise Refused(f"{word} has {len(found)} tokens: {', '.join(found)}; name the ids, or add --all")
    return found


def _make_offline(
    name: str | None, role: Role | None, life: timedelta, data: Path | None
) -> "tuple[Secret, AccessToken]":
    from lcm.cli.people import token_offline  # noqa: PLC0415 - likewise
    from lcm.cli.server.up import with_options  # noqa: PLC0415 - likewise
    from lcm.settings import load  # noqa: PLC0415 - likewise
    from lcm.system import log  # noqa: PLC0415 - loads the whole server, which takes a while

    if name is None or role is None:
        raise typer.BadParameter("needs NAME and --role", param_hint="--offline")
    log.configure_logging("WARNING")
    return asyncio.run(
        token_offline.make_offline_token(with_options(load.load_settings(), data_dir=data), name, role, life)
    )


def _token_row(one: "TokenInfo") -> tuple[str, ...]:
    now = SystemClock().now()
    until = f"in {render.format_wait(one.expires_at - now)}" if one.expires_at else _NEVER
    kind = "session" if one.session else "invitation" if one.seat else "feed" if one.calendar else "token"
    return one.id, one.name, one.role, kind, render.format_age(one.created_at, now), until, one.made_by


def invite(
    words: SessionName,
    *,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="Lifetime: 2h, 1d; at most until the session is over.")
    ] = "",
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """Print a link with which a learner uses one session in a browser, and nothing else.

    It works until the session is over. `lcm token list` shows it, `lcm token revoke` ends it.
    """
    from lcm.control.plane.wire import Invitation, InvitationRequest  # noqa: PLC0415 - likewise

    name = parse_session_name(words, "write `lcm invite NAME`, such as `lcm invite basics-x7k2p`")
    seconds = int(parse_duration(expires, "--expires").total_seconds()) if expires else None
    path = f"/api/lablet-sessions/{quote(name, safe='')}/invitation?namespace={quote(namespace, safe='')}"
    made = connection.request("POST", path, Invitation, context, InvitationRequest(expires_in_seconds=seconds))
    assert made.info.expires_at is not None, "an invitation ends"
    until = render.format_relative(made.info.expires_at, SystemClock().now())
    render.print_message(f"Works until {until}; `lcm token revoke {made.info.id}` ends it. Whoever has it uses {name}:")
    render.print_line(connection.find_context(context).url + made.path)


def sign_in(context: ContextName = None) -> None:
    """Print a link that signs a browser in as you. It works once, for ten minutes."""
    from lcm.control.plane.wire import SignInLink  # noqa: PLC0415 - likewise

    url = connection.find_context(context).url
    link = connection.request("POST", "/api/sign-in", SignInLink, context)
    render.print_message(
        f"Works once, until {render.format_relative(link.expires_at, SystemClock().now())}. Do not share it:"
    )
    render.print_line(url + link.path)
