"""`lcm secret seal|rotate`. Both ask the API: the keys are there, and stay there."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lcm.cli.output import connection, render
from lcm.cli.output.command import LeafCommand
from lcm.cli.output.options import ContextName
from lcm.model.access.secret import Secret

if TYPE_CHECKING:
    from lcm.control.plane.transport import ApiConnection
    from lcm.control.upkeep.rotation import Rotated


_ROTATION_SECONDS: Final = 600.0
"""How long a rotation may take."""

app = typer.Typer(
    name="secret",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Seal secrets for documents, and change the key.",
)
DropOld = Annotated[bool, typer.Option("--drop-old", help="Add no key, but forget those that nothing needs any more.")]


@app.command(cls=LeafCommand)
def seal(context: ContextName = None) -> None:
    """Encrypt a secret, so that a document can hold it.

    The secret is asked for, or read from standard input; one line break at its end is ignored.
    """
    secret = _read_secret()
    if not secret:
        raise typer.BadParameter("there is nothing to seal", param_hint="the secret")
    render.print_line(connection.with_connection(lambda line: _seal(line, secret), context))


@app.command(cls=LeafCommand)
def rotate(*, drop_old: DropOld = False, context: ContextName = None) -> None:
    """Seal with a new key from now on, and reseal everything that is stored with it.

    The old key still opens what backups hold, until --drop-old, ten minutes later or more. May be repeated at any time.
    """
    done = connection.with_connection(lambda line: _rotate(line, drop_old=drop_old), context)
    if done.new_key:
        render.print_line(f"key {done.key} is new, and seals from now on")
    else:
        render.print_line(f"key {done.key} seals")
    render.print_line(f"{done.resealed} sealed anew, {done.dropped} old keys forgotten")
    for key in done.unopened:
        render.print_message(f"{key}: sealed with a key that is not there; write its secret again", colour="yellow")


async def _seal(line: "ApiConnection", secret: Secret) -> str:
    from lcm.control.access.sealing import ClearText, SealedText  # noqa: PLC0415 - likewise
    from lcm.control.plane.transport import read_answer  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then

    body = msgspec.json.encode(ClearText(text=secret.reveal()))
    return read_answer(await line.request("POST", "/api/secrets/seal", body=body), SealedText).sealed


async def _rotate(line: "ApiConnection", *, drop_old: bool) -> "Rotated":
    from lcm.control.plane.transport import read_answer  # noqa: PLC0415 - likewise
    from lcm.control.upkeep.rotation import Rotated, RotationRequest  # noqa: PLC0415 - likewise

    body = msgspec.json.encode(RotationRequest(drop_old=drop_old))
    return read_answer(await line.request("POST", "/api/secrets/rotate", body=body, seconds=_ROTATION_SECONDS), Rotated)


def _read_secret() -> Secret:
    if sys.stdin.isatty():
        return Secret(typer.prompt("Secret", hide_input=True, err=True))
    return Secret(sys.stdin.read().removesuffix("\n").removesuffix("\r"))
