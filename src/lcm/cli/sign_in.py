"""`lcm sign-in`: a link with which a browser signs in."""

from typing import TYPE_CHECKING

from lcm.cli import render, run
from lcm.cli.options import ContextName
from lcm.system import SystemClock

if TYPE_CHECKING:
    from lcm.control.client_line import Line
    from lcm.control.wire_access import SignInLink


def sign_in(context: ContextName = None) -> None:
    """Print a link with which a browser signs in as you, once and within ten minutes."""
    url = run.chosen(context).url
    link = run.with_line(_link, context)
    render.say(f"Good once, until {render.relative(link.expires_at, SystemClock().now())}. Give it to nobody:")
    render.out(url + link.path)


async def _link(line: "Line") -> "SignInLink":
    from lcm.control.client_line import read  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then
    from lcm.control.wire_access import SignInLink  # noqa: PLC0415 - likewise

    return read(await line.ask("POST", "/api/sign-in"), SignInLink)
