"""Tokens, and signing in and out with a browser.

People manage their own tokens, administrators all; only the text of a new token is ever shown. A browser exchanges the
code of a sign-in link for session cookies.
"""

import re
from datetime import datetime, timedelta
from typing import Annotated, Final
from urllib.parse import urlencode, urlsplit

from msgspec import UNSET, Meta, UnsetType

from lcm.api.http.answers import HTML, NO_CONTENT, Answer, Headers, json_answer
from lcm.api.http.auth import check_same_origin, clear_session_cookies, set_session_cookies
from lcm.api.http.problems import UNAUTHORIZED
from lcm.api.http.request import Request
from lcm.api.http.routing import DELETE, GET, POST, PUBLIC, SIGNED_IN, Policy, Route
from lcm.control.access.audit import AuditFilter, search_newest_records, search_records
from lcm.control.access.invitations import invite
from lcm.control.access.sealing import ClearText, SealedText
from lcm.control.access.tokens import no_such_token
from lcm.control.plane.bodies import OneQuery
from lcm.control.plane.wire import (
    DEFAULT_LIFE_SECONDS,
    LONGEST_LIFE_SECONDS,
    AuditList,
    Invitation,
    InvitationRequest,
    SignInLink,
    TokenList,
    TokenMade,
    TokenRequest,
    token_info,
)
from lcm.control.upkeep.forgetting import ForgetRequest, Forgetting, Forgotten
from lcm.control.upkeep.rotation import Rotated, Rotation, RotationRequest
from lcm.model.access.identity import ADMINS, BOOKERS, GRANTS, GUESTS, PEOPLE, STAFF, AccessToken, Caller, Reach, Role
from lcm.model.access.mail_address import normalize_address
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Forbidden, Invalid, NoRoom, Refused
from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import LabletSession

FOR_PEOPLE: Final = Policy(PEOPLE)
_SHORTEST_SECONDS: Final = 60
_MOST_TOKENS: Final = 100
_MOST_LINKS: Final = 20


async def _list_tokens(request: Request) -> Answer:
    mine = [token for token in await request.shared.tokens.list() if _may_manage(request.signed_in, token)]
    return json_answer(TokenList(items=tuple(map(token_info, mine))))


async def _create_token(request: Request) -> Answer:
    wish, caller = await request.read(TokenRequest, empty=TokenRequest()), request.signed_in
    name, role = wish.name or caller.name, wish.role or caller.role
    _check_permitted(caller, name, role)
    expires_at = _expiry_of(request, wish.expires_in_seconds)
    check_room(request, name)
    secret, token = await request.shared.tokens.make(
        name,
        role,
        expires_at=expires_at,
        made_by=caller.name,
        made_with=request.credential,
        writer=request.writer,
        reach=_reach_of(caller, wish),
    )
    return json_answer(TokenMade(token=secret.reveal(), info=token_info(token)), 201)


def check_room(request: Request, name: str) -> None:
    """Raise NoRoom when somebody has as many tokens, browser sessions included, as one may have."""
    tokens = request.shared.tokens
    if tokens.count(name, session=False) + tokens.count(name, session=True) >= _MOST_TOKENS:
        raise NoRoom(f"{name} has {_MOST_TOKENS} tokens; revoke one first")


async def _revoke_token(request: Request) -> Answer:
    wanted, tokens = request.params[0], request.shared.tokens
    known = next((token for token in await tokens.list() if token.id == wanted), None)
    if known is None or not _may_manage(request.signed_in, known):
        raise no_such_token(wanted)
    await tokens.revoke(wanted, writer=request.writer)
    return NO_CONTENT


def _may_manage(caller: Caller, token: AccessToken) -> bool:
    is_inviter = bool(token.reach.seat) and not token.session and token.made_by == caller.name
    return caller.role in ADMINS or token.name == caller.name or is_inviter


def _check_permitted(caller: Caller, name: str, role: Role) -> None:
    if role in GUESTS:
        raise Forbidden("a guest has one seat: `lcm invite SESSION` makes the link for it")
    if caller.role in ADMINS:
        return
    if name != caller.name:
        raise Forbidden(f"{caller.name} may not make a token for {name}")
    if role not in GRANTS.get(caller.role, ()):
        raise Forbidden(f"a caller of role {caller.role} may not make a token of role {role}")


def _reach_of(caller: Caller, wish: TokenRequest) -> Reach:
    """Return what a new token is matched by and limited to: never more than what it is made with."""
    own, tracks = caller.reach, tuple(dict.fromkeys(wish.tracks or ()))
    if caller.role not in ADMINS:
        if wish.email is not None and normalize_address(wish.email) != own.email:
            raise Forbidden("only an administrator puts an address on a token, as one proves it")
        if own.tracks and not {*tracks} <= {*own.tracks}:
            raise Forbidden(f"this token books on {', '.join(own.tracks)} only, and so does what is made with it")
        return Reach(email=own.email, tracks=tracks or own.tracks)
    address = normalize_address(wish.email)
    if wish.email is not None and not address:
        raise Invalid(Fault("email", "not an address that mail can be sent to", "write for example ada@example.org"))
    return Reach(email=address, tracks=tracks)


def _expiry_of(request: Request, seconds: int | None) -> datetime | None:
    """Return when a new token expires; None for never.

    It ends at the latest with the credential that it is made with. A token that people make for themselves always
    expires.
    """
    seconds = DEFAULT_LIFE_SECONDS if seconds is None else seconds
    if 0 < seconds < _SHORTEST_SECONDS:
        raise Invalid(
            Fault(
                "expires_in_seconds",
                "too short",
                f"use at least {_SHORTEST_SECONDS}, or 0 for a token that never expires",
            )
        )
    if request.signed_in.role not in ADMINS and not 0 < seconds <= LONGEST_LIFE_SECONDS:
        remedy = f"use at most {LONGEST_LIFE_SECONDS}; an administrator can make one that lasts longer"
        raise Invalid(Fault("expires_in_seconds", "too long for your own token", remedy))
    wanted = request.shared.clock.now() + timedelta(seconds=seconds) if seconds else None
    bound = request.credential.bound if request.credential else None
    return min(filter(None, (wanted, bound)), default=None)


TOKEN_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/tokens",
        _list_tokens,
        "listTokens",
        "List your own tokens and the invitations that you made; administrators see all",
        policy=FOR_PEOPLE,
        answer=TokenList,
    ),
    Route(
        POST,
        "/api/tokens",
        _create_token,
        "makeToken",
        "Create a token; its text is shown only once",
        policy=FOR_PEOPLE,
        body=TokenRequest,
        body_needed=False,
        answer=TokenMade,
        status=201,
        also=(409,),
    ),
    Route(
        DELETE,
        "/api/tokens/{id}",
        _revoke_token,
        "revokeToken",
        "Revoke a token, and every token, browser session and sign-in link that was made with it",
        policy=FOR_PEOPLE,
        status=204,
        also=(404,),
    ),
)


SIGN_IN_PATH: Final = "/sign-in"
_CONFIRM_POLICY: Final = b"default-src 'none'; form-action 'self'; frame-ancestors 'none'"
_CONFIRM_PAGE: Final = b"""\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Lablet Cloud Manager</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"></head>
<body><h1>Lablet Cloud Manager</h1><p>Sign in with this browser?</p>
<form method="post"><button>Sign in</button></form></body></html>
"""
"""The form is sent to the page's own address, so that the code is nowhere in the page."""
_HOST: Final = re.compile(rb"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_LINK_INVALID: Final = "this link is not valid or has expired: `lcm sign-in` prints a new one, `lcm invite` for others"


class CodeQuery(Part):
    """The code of a sign-in link."""

    code: Annotated[str, Meta(min_length=1, max_length=200, examples=["lcm_nobodys"])]


def link_path(code: str) -> str:
    """Return the path of a sign-in link, without the address of the API."""
    return f"{SIGN_IN_PATH}?{urlencode({'code': code})}"


async def _create_link(request: Request) -> Answer:
    caller, sign_ins = request.signed_in, request.shared.sign_ins
    check_room(request, caller.name)
    if await sign_ins.count_links(caller.name) >= _MOST_LINKS:
        raise NoRoom(f"{caller.name} has {_MOST_LINKS} sign-in links: use one, or wait until they expire")
    code, expires_at = await sign_ins.make_code(
        caller.name, caller.role, writer=request.writer, made_with=request.credential, reach=caller.reach
    )
    return json_answer(SignInLink(path=link_path(code.reveal()), expires_at=expires_at))


async def _invite(request: Request) -> Answer:
    query = request.query(OneQuery)
    wish = await request.read(InvitationRequest, empty=InvitationRequest())
    session = await request.writer.read(request.ref(LabletSession, query.namespace))
    secret, token = await invite(
        request.shared.tokens,
        session,
        writer=request.writer,
        made_with=request.credential,
        life=timedelta(seconds=wish.expires_in_seconds) if wish.expires_in_seconds else None,
    )
    return json_answer(Invitation(path=link_path(secret.reveal()), info=token_info(token)), 201)


async def _show_sign_in(request: Request) -> Answer:
    """Answer a page that asks for confirmation: opening a link changes nothing, whoever opens it."""
    request.query(CodeQuery)
    return Answer(body=_CONFIRM_PAGE, media=HTML, page_policy=_CONFIRM_POLICY)


async def _sign_in(request: Request) -> Answer:
    code = request.query(CodeQuery).code
    check_same_origin(request)
    made = await request.shared.sign_ins.exchange(code, request.writer_for)
    if made is None:
        raise request.shared.failures.count(request.address, UNAUTHORIZED, _LINK_INVALID)
    secret, token = made
    assert token.expires_at is not None, "a session ends"
    now = request.shared.clock.now()
    cookies = set_session_cookies(request, secret.reveal(), now=now, expires_at=token.expires_at)
    return Answer(303, headers=((b"location", b"/"), *cookies))


async def _sign_out(request: Request) -> Answer:
    credential = request.credential
    if credential is None or not credential.session:
        raise Refused("only a browser's session is signed out; `lcm token revoke ID` ends a token")
    tokens = request.shared.tokens
    made_by = next((one.made_by for one in await tokens.list() if one.id == credential.id), "")
    await tokens.revoke(credential.id, writer=request.writer, verb="sign-out", alone=True)
    onwards = await _provider_sign_out(request, made_by)  # it may take seconds: the session is over before
    return Answer(204, headers=(*clear_session_cookies(request), *onwards))


async def _provider_sign_out(request: Request, made_by: str) -> Headers:
    """Return the header that says where a browser signs out at the provider by which it signed in, if that is known."""
    provider = request.shared.provider
    if provider is None or not provider.client.ends_session or made_by != provider.client.issuer:
        return ()
    try:
        url = await provider.sign_out_url(f"{own_address(request)}/")
    except Refused:
        return ()
    return ((b"location", url.encode()),) if url else ()


def own_address(request: Request) -> str:
    """Return the address under which browsers know us: that of OIDC_REDIRECT_URL, or else the one that was asked.

    Raise Refused when the request does not name it.
    """
    provider = request.shared.provider
    if provider is not None and provider.client.redirect_url:
        known = urlsplit(provider.client.redirect_url)
        return f"{known.scheme}://{known.netloc}"
    host = request.headers.get(b"host", b"")
    if not _HOST.fullmatch(host):
        raise Refused("the request names no host to come back to: set OIDC_REDIRECT_URL")
    return f"{'https' if request.is_secure else 'http'}://{host.decode()}"


SIGN_IN_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        SIGN_IN_PATH,
        _show_sign_in,
        "showSignIn",
        "Show the page that asks whether to sign in with the code of a link",
        policy=PUBLIC,
        query=CodeQuery,
        answer=str,
        answer_media=HTML,
    ),
    Route(
        POST,
        SIGN_IN_PATH,
        _sign_in,
        "signIn",
        "Begin a browser's session with the code of a sign-in link, which works once, or of an invitation",
        policy=PUBLIC,
        query=CodeQuery,
        status=303,
        also=(401, 403),
    ),
    Route(
        POST,
        "/api/sign-in",
        _create_link,
        "inviteBrowser",
        "Make a link with which a browser signs in as the caller, once and within ten minutes",
        policy=FOR_PEOPLE,
        answer=SignInLink,
        also=(409,),
    ),
    Route(
        POST,
        "/api/lablet-sessions/{id}/invitation",
        _invite,
        "inviteLearner",
        "Make a link with which a browser uses this session and nothing else, until it is over or the link is revoked",
        policy=Policy(BOOKERS & PEOPLE),
        kind=KINDS["LabletSession"],
        query=OneQuery,
        body=InvitationRequest,
        body_needed=False,
        answer=Invitation,
        status=201,
        also=(409,),
    ),
    Route(
        POST,
        "/api/sign-out",
        _sign_out,
        "signOut",
        "End the caller's browser session; Location, if there, is where to sign out at the provider as well",
        policy=SIGNED_IN,
        status=204,
        also=(409,),
    ),
)


LONGEST_PAGE: Final = 500
_Text = Annotated[str, Meta(max_length=512)]


class AuditQuery(Part):
    """Which audit records to list."""

    since: Annotated[Moment, Meta(description="from this moment on")] | UnsetType = UNSET
    until: Annotated[Moment, Meta(description="before this moment")] | UnsetType = UNSET
    who: Annotated[_Text, Meta(description="of this caller only")] = ""
    kind: Annotated[_Text, Meta(description="about things of this kind only", examples=["LabWorker"])] = ""
    name: Annotated[_Text, Meta(description="about things of this name only")] = ""
    newest: Annotated[bool, Meta(description="begin with the newest; otherwise with the oldest")] = False
    limit: Annotated[int, Meta(ge=1, le=LONGEST_PAGE, description="records in a page, at most")] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=256, description="`next` of the page before")] | UnsetType = (
        UNSET
    )


async def _list_audit(request: Request) -> Answer:
    query = request.query(AuditQuery)
    wish = AuditFilter(
        since=query.since or None,
        until=query.until or None,
        who=query.who,
        kind=query.kind,
        name=query.name,
    )
    store, after = request.shared.core.store, query.cursor or None
    if query.newest:
        now = request.shared.clock.now()
        found = await search_newest_records(store, wish, limit=query.limit, now=now, after=after)
    else:
        found = await search_records(store, wish, limit=query.limit, after=after)
    return json_answer(AuditList(items=tuple(found.records), next=found.next))


AUDIT_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/audit",
        _list_audit,
        "listAudit",
        "List who wrote what, oldest first unless the newest are asked for",
        policy=Policy(ADMINS),
        query=AuditQuery,
        answer=AuditList,
    ),
)


async def _seal_secret(request: Request) -> Answer:
    wish = await request.read(ClearText)
    return json_answer(SealedText(sealed=request.shared.core.sealing.seal_text(Secret(wish.text), wish.use)))


async def _rotate_keys(request: Request) -> Answer:
    wish = await request.read(RotationRequest, empty=RotationRequest())
    rotation = Rotation(request.writer, request.shared.core.sealing.need_sealer())
    return json_answer(await rotation.run(drop_old=wish.drop_old))


async def _forget(request: Request) -> Answer:
    wish = await request.read(ForgetRequest)
    core = request.shared.core
    forgetting = Forgetting(request.writer, request.write_plane, request.shared.tokens, core.library.artifacts)
    return json_answer(await forgetting.run(wish))


FORGET_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/forget",
        _forget,
        "forgetPerson",
        "Replace a person by a pseudonym in all that is over, and remove what is theirs; repeat it until it is done",
        policy=Policy(ADMINS),
        body=ForgetRequest,
        answer=Forgotten,
        also=(409,),
    ),
)


SECRET_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/secrets/seal",
        _seal_secret,
        "sealSecret",
        "Seal a secret for a document",
        policy=Policy(STAFF),
        body=ClearText,
        answer=SealedText,
    ),
    Route(
        POST,
        "/api/secrets/rotate",
        _rotate_keys,
        "rotateSealKeys",
        "Seal all secrets again with a new key",
        policy=Policy(ADMINS),
        body=RotationRequest,
        body_needed=False,
        answer=Rotated,
    ),
)
