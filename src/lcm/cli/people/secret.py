"""`lcm secret seal|rotate`. Both ask the API: the keys are there, and stay there."""

import sys
from typing import Annotated, Final

import typer

from lcm.cli.output import connection, render
from lcm.cli.output.command import LeafCommand, make_group
from lcm.cli.output.options import ContextName
from lcm.model.access.secret import Secret
from lcm.model.base.resource import SecretUse

_ROTATION_SECONDS: Final = 600.0
"""How long a rotation may take."""

app = make_group("secret", "Encrypt secrets for documents, and change the key.")
Use = Annotated[SecretUse, typer.Argument(metavar="KIND.FIELD", help=f"The field: {', '.join(SecretUse)}.")]
DropOld = Annotated[bool, typer.Option("--drop-old", help="Create no key; delete old keys that are no longer used.")]


@app.command(cls=LeafCommand)
def seal(use: Use, context: ContextName = None) -> None:
    """Encrypt a secret for one field, so that a document can hold it there.

    You are asked for the secret, or it is read from standard input; one line break at its end is ignored.
    """
    from lcm.control.access.sealing import ClearText, SealedText  # noqa: PLC0415 - loaded by commands that talk

    if sys.stdin.isatty():
        secret = Secret(typer.prompt("Secret", hide_input=True, err=True))
    else:
        secret = Secret(sys.stdin.read().removesuffix("\n").removesuffix("\r"))
    if not secret:
        raise typer.BadParameter("the secret is empty", param_hint="the secret")
    sealed = connection.request(
        "POST", "/api/secrets/seal", SealedText, context, ClearText(text=secret.reveal(), use=use)
    )
    render.print_line(sealed.sealed)


@app.command(cls=LeafCommand)
def rotate(*, drop_old: DropOld = False, context: ContextName = None) -> None:
    """Create a new key and encrypt every stored secret with it.

    The old key still decrypts the secrets in backups, until you run it with --drop-old, at least ten minutes later.
    You may repeat it at any time.
    """
    from lcm.control.upkeep.rotation import Rotated, RotationRequest  # noqa: PLC0415 - likewise

    wish = RotationRequest(drop_old=drop_old)
    done = connection.request("POST", "/api/secrets/rotate", Rotated, context, wish, seconds=_ROTATION_SECONDS)
    if done.new_key:
        render.print_line(f"key {done.key} is new and encrypts from now on")
    else:
        render.print_line(f"key {done.key} encrypts")
    render.print_line(f"{done.resealed} secrets encrypted again, {done.dropped} old keys deleted")
    for key in done.unopened:
        render.print_message(f"{key}: encrypted with a key that is missing; set its secret again", colour="yellow")
