"""Signing in and out with a browser: links, the exchange of one for a session's cookies, and that session's end."""

from typing import Annotated, Final
from urllib.parse import urlencode

from msgspec import Meta

from lcm.api.answers import Answer, Header, value
from lcm.api.cookies import begun, ended
from lcm.api.http import Request
from lcm.api.problems import UNAUTHORIZED, Declined
from lcm.api.routes import GET, POST, PUBLIC, SIGNED_IN, Route
from lcm.api.tokens import FOR_PEOPLE, KIND
from lcm.control.sign_in import SignIns
from lcm.control.tokens import Note
from lcm.control.wire_access import SignInLink
from lcm.model.errors import Refused
from lcm.model.identity import Caller
from lcm.model.resource import Part

PATH: Final = "/sign-in"
LINK: Final = "SignInLink"
"""What the audit calls a link."""
_HOME: Final[Header] = (b"location", b"/")
_NO_REFERRER: Final[Header] = (b"referrer-policy", b"no-referrer")
_OVER: Final = "this link is not valid, or not any more: `lcm sign-in` prints another"


class CodeQuery(Part):
    """The code of a link."""

    code: Annotated[str, Meta(min_length=1, max_length=200, examples=["lcm_nobodys"])]


def link_path(code: str) -> str:
    """Write a link, without the address of the API before it."""
    return f"{PATH}?{urlencode({'code': code})}"


async def _invite(request: Request) -> Answer:
    caller, credential = request.signed_in, request.credential
    note = request.note("create", LINK, caller.name)
    bound = credential.bound if credential else None
    code, expires_at = await _sign_ins(request).invite(caller.name, caller.role, bound=bound, also=[note])
    return value(SignInLink(path=link_path(code.reveal()), expires_at=expires_at))


async def _enter(request: Request) -> Answer:
    code = request.query(CodeQuery).code
    if request.scope["method"] != GET or request.headers.get(b"sec-purpose", b"").startswith(b"prefetch"):
        raise _refused()  # somebody looks ahead: the link is for the one who follows it
    failures = request.shared.failures
    failures.check(request.address)
    made = await _sign_ins(request).exchange(code, _noted(request))
    if made is None:
        raise _without_referrer(failures.count(request.address, UNAUTHORIZED, _OVER))
    secret, token = made
    assert token.expires_at is not None, "a session ends"
    now = request.shared.clock.now()
    cookies = begun(request, secret.reveal(), now=now, expires_at=token.expires_at)
    return Answer(303, headers=(_HOME, _NO_REFERRER, *cookies))


async def _leave(request: Request) -> Answer:
    credential = request.credential
    if credential is None or not credential.session:
        raise Refused("only a browser's session is signed out; `lcm token revoke ID` ends a token")
    note: Note = lambda token: [request.note("sign-out", KIND, token.id)]  # noqa: E731 - a name for its type
    await request.shared.tokens.revoke(credential.id, note=note)
    return Answer(204, headers=ended(request))


def _sign_ins(request: Request) -> SignIns:
    return request.shared.sign_ins


def _noted(request: Request) -> Note:
    return lambda token: [
        request.note("sign-in", KIND, token.id, by=Caller(name=token.name, role=token.role)),
    ]


def _refused() -> Declined:
    return _without_referrer(Declined(UNAUTHORIZED, _OVER))


def _without_referrer(declined: Declined) -> Declined:
    declined.headers = (*declined.headers, _NO_REFERRER)
    return declined


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        PATH,
        _enter,
        "signIn",
        "Begin a browser's session with the code of a link, which is used up by that",
        policy=PUBLIC,
        query=CodeQuery,
        status=303,
        also=(401,),
    ),
    Route(
        POST,
        "/api/sign-in",
        _invite,
        "inviteBrowser",
        "Make a link with which a browser signs in as the caller, once and within ten minutes",
        policy=FOR_PEOPLE,
        answer=SignInLink,
    ),
    Route(
        POST,
        "/api/sign-out",
        _leave,
        "signOut",
        "End the browser's session that asks for it",
        policy=SIGNED_IN,
        status=204,
        also=(409,),
    ),
)
