"""Tokens over HTTP: everybody has their own in hand, administrators have all. Only a new token's text is ever shown."""

from datetime import datetime, timedelta
from typing import Annotated, Final
from urllib.parse import urlencode

from msgspec import Meta

from lcm.api.http.answers import NOTHING, Answer, Header, value
from lcm.api.http.auth import begun, ended
from lcm.api.http.problems import UNAUTHORIZED, Declined
from lcm.api.http.request import Request
from lcm.api.http.routing import DELETE, GET, POST, PUBLIC, SIGNED_IN, Policy, Route
from lcm.control.access.sign_in import SignIns
from lcm.control.access.tokens import Note, no_token
from lcm.control.plane.wire import (
    LONGEST_LIFE_SECONDS,
    USUAL_LIFE_SECONDS,
    SignInLink,
    TokenList,
    TokenMade,
    TokenWish,
    shown,
)
from lcm.model.access.identity import ADMINS, PEOPLE, RANKS, AccessToken, Caller, Role
from lcm.model.base.errors import Fault, Forbidden, Invalid, NoRoom, Refused
from lcm.model.base.resource import Part

KIND: Final = "AccessToken"
"""What the audit calls a token."""
FOR_PEOPLE: Final = Policy(PEOPLE)
_SHORTEST_SECONDS: Final = 60
_MOST_OF_ONE: Final = 100
_USUAL: Final = TokenWish()


async def _list(request: Request) -> Answer:
    mine = [token for token in await request.shared.tokens.list() if _may_touch(request.signed_in, token)]
    return value(TokenList(items=tuple(map(shown, mine))))


async def _make(request: Request) -> Answer:
    wish, caller = await request.read(TokenWish, empty=_USUAL), request.signed_in
    name, role = wish.name or caller.name, wish.role or caller.role
    _permit(caller, name, role)
    expires_at = _until(request, wish.expires_in_seconds)
    await _check_room(request, name)
    secret, token = await request.shared.tokens.make(
        name,
        role,
        expires_at=expires_at,
        made_by=caller.name,
        note=lambda made: [request.note("create", KIND, made.id)],
    )
    return value(TokenMade(token=secret.reveal(), info=shown(token)), 201)


async def _revoke(request: Request) -> Answer:
    wanted, tokens = request.params[0], request.shared.tokens
    known = next((token for token in await tokens.list() if token.id == wanted), None)
    if known is None or not _may_touch(request.signed_in, known):
        raise no_token(wanted)
    await tokens.revoke(wanted, note=lambda token: [request.note("revoke", KIND, token.id)])
    return NOTHING


def _may_touch(caller: Caller, token: AccessToken) -> bool:
    return caller.role in ADMINS or token.name == caller.name


def _permit(caller: Caller, name: str, role: Role) -> None:
    if caller.role in ADMINS:
        return
    if name != caller.name:
        raise Forbidden(f"{caller.name} may not make a token for {name}")
    if role not in RANKS or RANKS.index(role) < RANKS.index(caller.role):
        raise Forbidden(f"a caller of role {caller.role} may not make a token of role {role}")


def _until(request: Request, seconds: int | None) -> datetime | None:
    """Tell when a token is to end. Those that people make for themselves end, and with what they were made with."""
    seconds = USUAL_LIFE_SECONDS if seconds is None else seconds
    if 0 < seconds < _SHORTEST_SECONDS:
        raise Invalid(Fault("expires_in_seconds", "too short", f"use at least {_SHORTEST_SECONDS}, or 0 for ever"))
    wanted = request.shared.clock.now() + timedelta(seconds=seconds)
    if request.signed_in.role in ADMINS:
        return wanted if seconds else None
    if not 0 < seconds <= LONGEST_LIFE_SECONDS:
        remedy = f"use at most {LONGEST_LIFE_SECONDS}; an administrator can make one that lasts longer"
        raise Invalid(Fault("expires_in_seconds", "too long for a token of one's own", remedy))
    bound = request.credential.bound if request.credential else None
    return wanted if bound is None else min(wanted, bound)


async def _check_room(request: Request, name: str) -> None:
    if sum(token.name == name for token in await request.shared.tokens.list()) >= _MOST_OF_ONE:
        raise NoRoom(f"{name} has {_MOST_OF_ONE} tokens; revoke one first")


TOKEN_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/tokens",
        _list,
        "listTokens",
        "List one's own tokens; administrators see all",
        policy=FOR_PEOPLE,
        answer=TokenList,
    ),
    Route(
        POST,
        "/api/tokens",
        _make,
        "makeToken",
        "Make a token, whose text is shown this once",
        policy=FOR_PEOPLE,
        body=TokenWish,
        body_needed=False,
        answer=TokenMade,
        status=201,
        also=(409,),
    ),
    Route(
        DELETE,
        "/api/tokens/{id}",
        _revoke,
        "revokeToken",
        "End a token at once",
        policy=FOR_PEOPLE,
        status=204,
        also=(404,),
    ),
)


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


SIGN_IN_ROUTES: Final[tuple[Route, ...]] = (
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
