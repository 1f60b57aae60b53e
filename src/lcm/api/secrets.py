"""Secrets: a text is sealed for whoever puts it into a document, and everything is sealed anew with another key."""

from typing import Final

from lcm.api.answers import Answer, value
from lcm.api.http import Request
from lcm.api.routes import POST, Policy, Route
from lcm.control.ledger import Ledger
from lcm.control.rotation import Rotated, Rotation, RotationWish
from lcm.control.sealing import ClearText, SealedText
from lcm.model.identity import ADMINS, STAFF
from lcm.model.secret import Secret


async def _seal(request: Request) -> Answer:
    text = Secret((await request.read(ClearText)).text)
    return value(SealedText(sealed=request.shared.core.sealing.text(text)))


async def _rotate(request: Request) -> Answer:
    wish = await request.read(RotationWish, empty=RotationWish())
    core = request.shared.core
    ledger = Ledger(core.store, core.clock, request.signed_in, origin=request.origin, record_ids=core.record_ids)
    return value(await Rotation(ledger, core.sealing.need()).run(drop_old=wish.drop_old))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/secrets/seal",
        _seal,
        "sealSecret",
        "Seal a secret for a document",
        policy=Policy(STAFF),
        body=ClearText,
        answer=SealedText,
    ),
    Route(
        POST,
        "/api/secrets/rotate",
        _rotate,
        "rotateSealKeys",
        "Seal all secrets anew with another key",
        policy=Policy(ADMINS),
        body=RotationWish,
        body_needed=False,
        answer=Rotated,
    ),
)
