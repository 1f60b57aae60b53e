"""`lcm secret seal|rotate`. Both ask the API: the keys are there, and stay there."""

import sys
from typing import Annotated, Final

import typer

from lcm.cli.output import connection, render
from lcm.cli.output.command import LeafCommand, make_group
from lcm.cli.output.options import ContextName
from lcm.model.access.secret import Secret

_ROTATION_SECONDS: Final = 600.0
"""How long a rotation may take."""

app = make_group("secret", "Seal secrets for documents, and change the key.")
DropOld = Annotated[bool, typer.Option("--drop-old", help="Add no key, but forget those that nothing needs any more.")]


@app.command(cls=LeafCommand)
def seal(context: ContextName = None) -> None:
    """Encrypt a secret, so that a document can hold it.

    The secret is asked for, or read from standard input; one line break at its end is ignored.
    """
    from lcm.control.access.sealing import ClearText, SealedText  # noqa: PLC0415 - loaded by commands that talk

    if sys.stdin.isatty():
        secret = Secret(typer.prompt("Secret", hide_input=True, err=True))
    else:
        secret = Secret(sys.stdin.read().removesuffix("\n").removesuffix("\r"))
    if not secret:
        raise typer.BadParameter("there is nothing to seal", param_hint="the secret")
    sealed = connection.request("POST", "/api/secrets/seal", SealedText, context, ClearText(text=secret.reveal()))
    render.print_line(sealed.sealed)


@app.command(cls=LeafCommand)
def rotate(*, drop_old: DropOld = False, context: ContextName = None) -> None:
    """Seal with a new key from now on, and reseal everything that is stored with it.

    The old key still opens what backups hold, until --drop-old, ten minutes later or more. May be repeated at any time.
    """
    from lcm.control.upkeep.rotation import Rotated, RotationRequest  # noqa: PLC0415 - likewise

    wish = RotationRequest(drop_old=drop_old)
    done = connection.request("POST", "/api/secrets/rotate", Rotated, context, wish, seconds=_ROTATION_SECONDS)
    if done.new_key:
        render.print_line(f"key {done.key} is new, and seals from now on")
    else:
        render.print_line(f"key {done.key} seals")
    render.print_line(f"{done.resealed} sealed anew, {done.dropped} old keys forgotten")
    for key in done.unopened:
        render.print_message(f"{key}: sealed with a key that is not there; write its secret again", colour="yellow")
