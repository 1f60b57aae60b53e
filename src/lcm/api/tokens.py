"""Tokens over HTTP: everybody has their own in hand, administrators have all. Only a new token's text is ever shown."""

from datetime import datetime, timedelta
from typing import Final

from lcm.api.answers import NOTHING, Answer, value
from lcm.api.http import Request
from lcm.api.routes import DELETE, GET, POST, Policy, Route
from lcm.control.tokens import no_token
from lcm.control.wire_access import (
    LONGEST_LIFE_SECONDS,
    USUAL_LIFE_SECONDS,
    TokenList,
    TokenMade,
    TokenWish,
    shown,
)
from lcm.model.errors import Fault, Forbidden, Invalid, NoRoom
from lcm.model.identity import ADMINS, PEOPLE, RANKS, AccessToken, Caller, Role

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


ROUTES: Final[tuple[Route, ...]] = (
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
