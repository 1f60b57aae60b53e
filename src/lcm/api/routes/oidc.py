"""Signing in with a browser at an OpenID Connect provider.

`GET /api/sign-in/oidc` sends a browser there, with a sealed cookie that says what was begun; the provider sends it back
to the callback, which exchanges the code, begins a session as a sign-in link does, and leads to the page that was
wanted. A sign-in that comes to nothing leads to the sign-in page, which says why in words: whoever is on the way is a
person with a browser.
"""

import asyncio
from datetime import datetime
from functools import partial
from typing import Annotated, Final
from urllib.parse import parse_qs, urlencode

import msgspec
from msgspec import Meta

from lcm.api.http.answers import Answer, Headers, json_answer
from lcm.api.http.auth import clear_pending_cookie, pending_cookie, set_pending_cookie, set_session_cookies
from lcm.api.http.problems import RATE_LIMITED, UNAUTHORIZED
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, PUBLIC, Route
from lcm.api.routes.access import check_room, own_address
from lcm.control.access.oidc_browser import (
    PENDING_LIFE,
    BrowserSignIn,
    PendingSignIn,
    ProviderAnswer,
    SignInFailedError,
    SignInFailure,
)
from lcm.control.access.sign_in import SignInUse
from lcm.model.access.address import address_block
from lcm.model.access.secret import Secret, use_of
from lcm.model.base.errors import LcmError, NoRoom, Refused, Stuck
from lcm.model.base.resource import END, Part

SIGN_IN_OIDC_PATH: Final = "/api/sign-in/oidc"
CALLBACK_PATH: Final = f"{SIGN_IN_OIDC_PATH}/callback"
_COOKIE_USE: Final = "Browser.sign_in"
_LONGEST_QUERY: Final = 8192
_PATH: Final = r"^/(?![/\\])[!#-\[\]-~]*" + END
"""A path of ours, in printable ASCII without quotes and backslashes: two slashes would name another host."""


class SignInProvider(Part):
    """Where people sign in with a browser, besides links."""

    name: str
    path: str
    """The address at which a browser begins to sign in; `path` in its query is the page to show afterwards."""


class SignInWays(Part):
    """How one may sign in with a browser."""

    link: bool
    """With a link that works once."""
    provider: SignInProvider | None = None


class BeginQuery(Part):
    """Where a sign-in leads."""

    path: Annotated[str, Meta(pattern=_PATH, max_length=1024, description="the page to show afterwards")] = "/"


class AnswerQuery(Part):
    """What the provider has the browser bring back; it may say more."""

    code: Annotated[str, Meta(description="what we exchange for who it is")] = ""
    state: Annotated[str, Meta(description="which sign-in this answers")] = ""
    error: Annotated[str, Meta(description="why there is no code")] = ""
    iss: Annotated[str, Meta(description="the issuer that answers")] = ""


async def _list_ways(request: Request) -> Answer:
    found = request.shared.provider
    provider = SignInProvider(name=found.client.label, path=SIGN_IN_OIDC_PATH) if found else None
    return json_answer(SignInWays(link=True, provider=provider))


async def _begin(request: Request) -> Answer:
    path = request.query(BeginQuery).path
    try:
        provider = _provider_of(request)
        url, pending = await provider.begin(redirect_url=own_address(request) + CALLBACK_PATH, path=path)
        sealed = _seal(request, pending)
    except (SignInFailedError, LcmError) as error:
        return _lead_to(_failure_path(request, error), ())
    cookie = set_pending_cookie(request, sealed, int(PENDING_LIFE.total_seconds()))
    return Answer(303, headers=((b"location", url.encode()), cookie))


async def _finish(request: Request) -> Answer:
    pending = _unseal(request, pending_cookie(request))
    try:
        secret, expires_at = await _begin_session(request, _provider_of(request), pending)
    except (SignInFailedError, LcmError) as error:
        is_other = isinstance(error, SignInFailedError) and error.failure is SignInFailure.UNFINISHED
        # An answer to another sign-in leaves ours as it is: whoever makes a link to the callback would end it.
        return _lead_to(_failure_path(request, error), () if is_other else (clear_pending_cookie(request),))
    assert pending is not None, "without it there is no session"
    cookies = set_session_cookies(request, secret.reveal(), now=request.shared.clock.now(), expires_at=expires_at)
    return _lead_to(pending.path, (*cookies, clear_pending_cookie(request)))


async def _begin_session(
    request: Request, provider: BrowserSignIn, pending: PendingSignIn | None
) -> tuple[Secret, datetime]:
    """Begin the session of whom the provider names, and return when it ends. Raises SignInFailedError or NoRoom."""
    found = await provider.finish(pending, _read_answer(request), admit=partial(_admit_exchange, request))
    assert pending is not None, "without it nothing is finished"
    check_room(request, found.caller.name)
    use = SignInUse(provider.client.issuer, pending.state, pending.expires_at)
    made = await request.shared.sign_ins.begin_session(found.caller, found.bound, use, request.writer_for)
    if made is None:
        raise SignInFailedError(SignInFailure.USED, "this sign-in was finished before")
    secret, token = made
    assert token.expires_at is not None, "a session ends"
    return secret, token.expires_at


def _admit_exchange(request: Request) -> None:
    """Raise SignInFailedError when too many sign-ins came back from an address: each has us ask the provider."""
    if request.shared.exchanges.take(address_block(request.address), asyncio.get_running_loop().time()):
        raise SignInFailedError(SignInFailure.BUSY, "too many sign-ins from one address")


def _provider_of(request: Request) -> BrowserSignIn:
    if request.shared.provider is None:
        raise SignInFailedError(SignInFailure.SETUP, "there is no provider: OIDC_CLIENT_ID is not set")
    return request.shared.provider


def _read_answer(request: Request) -> ProviderAnswer:
    """Read what the provider says. It may say more than we know; nothing counts that it says twice."""
    raw: bytes = request.scope["query_string"]
    try:
        given = parse_qs(raw.decode("ascii"), errors="strict", max_num_fields=50) if len(raw) <= _LONGEST_QUERY else {}
    except ValueError:
        given = {}
    values = {name: texts[0] for name, texts in given.items() if len(texts) == 1}
    return ProviderAnswer(
        values.get("code", ""), values.get("state", ""), values.get("error", ""), values.get("iss", "")
    )


def _seal(request: Request, pending: PendingSignIn) -> str:
    text = msgspec.json.encode(pending).decode()
    return request.shared.core.sealing.need_sealer().seal(Secret(text), _COOKIE_USE)


def _unseal(request: Request, text: str) -> PendingSignIn | None:
    """Return what a browser's sign-in began with; None if there is none, or it is not ours."""
    if use_of(text) != _COOKIE_USE:
        return None
    try:
        clear = request.shared.core.sealing.need_sealer().unseal(text).reveal()
        return msgspec.json.decode(clear, type=PendingSignIn)
    except (LcmError, msgspec.DecodeError):
        return None


def _failure_path(request: Request, error: SignInFailedError | LcmError) -> str:
    """Return the address of the sign-in page that says why.

    Of the failures only those count for the address that are an attempt to be somebody else: a provider that is down,
    and links on pages of others, would else use up what everybody behind the address has.
    """
    failure = _failure_of(error)
    now = asyncio.get_running_loop().time()  # anybody may have us log this, so equal lines come now and then only
    request.shared.problems.log(GET, request.scope["path"], failure, str(error), now=now)
    if failure is SignInFailure.IDENTITY:
        refusal = request.shared.failures.count(request.address, UNAUTHORIZED, str(error))
        failure = SignInFailure.BUSY if refusal.reason is RATE_LIMITED else failure
    return f"/?{urlencode({'sign_in': failure})}"


def _failure_of(error: SignInFailedError | LcmError) -> SignInFailure:
    match error:
        case SignInFailedError():
            return error.failure
        case NoRoom():
            return SignInFailure.FULL
        case Refused() | Stuck():
            return SignInFailure.SETUP
        case _:
            return SignInFailure.BUSY


def _lead_to(path: str, headers: Headers) -> Answer:
    return Answer(303, headers=((b"location", path.encode()), *headers))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/sign-in/ways",
        _list_ways,
        "listSignInWays",
        "List how one may sign in with a browser",
        policy=PUBLIC,
        answer=SignInWays,
    ),
    Route(
        GET,
        SIGN_IN_OIDC_PATH,
        _begin,
        "beginProviderSignIn",
        "Send a browser to the OpenID Connect provider to sign in",
        policy=PUBLIC,
        query=BeginQuery,
        status=303,
    ),
    Route(
        GET,
        CALLBACK_PATH,
        _finish,
        "finishProviderSignIn",
        "Begin a browser's session with the provider's answer, which works once; it leads to a page in any case",
        policy=PUBLIC,
        query=AnswerQuery,
        status=303,
    ),
)
