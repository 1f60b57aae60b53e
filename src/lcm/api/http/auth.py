"""Authentication: who calls, how often, and whether the route admits them. Called by `api.http.app` before any handler.

Accepted are a token or key of ours, a token of the configured OpenID Connect issuer (a verified one is remembered until
it expires), and the session cookie of a browser. An invalid bearer token is not made good by a cookie beside it.
The session cookie is out of reach of scripts. A second cookie, which our pages can read, is derived from it: a request
that sends its value back in a header comes from one of our pages. Browsers also say where a request comes from.
"""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from lcm.api.http.answers import Header, Headers
from lcm.api.http.limits import ApiLimits, SignInFailures, TokenBuckets
from lcm.api.http.problems import RATE_LIMITED, UNAUTHORIZED, Declined, ProblemReason
from lcm.api.http.request import Request
from lcm.api.http.routing import Policy
from lcm.control.access.oidc import TokenRefusal
from lcm.control.access.tokens import Credential, Tokens, digest_of
from lcm.model.access.address import address_block
from lcm.model.access.identity import MAX_TOKEN_LENGTH, SEES_ALL, Caller, Role
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Forbidden, Invalid
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER

if TYPE_CHECKING:
    from lcm.control.access.oidc import Verifier


_JWT_DOTS: Final = 2
"""How many dots an issuer's token has; ours have none."""
_CACHE_ENTRIES: Final = 1_000


class IssuedTokens:
    """Verified tokens of an issuer; the least recently used are forgotten first."""

    def __init__(self, verifier: "Verifier", clock: Clock, *, remembered: int = _CACHE_ENTRIES) -> None:
        self._verifier = verifier
        self._clock = clock
        self._most = remembered
        self._known: OrderedDict[str, Credential] = OrderedDict()

    def find_verified(self, digest: str) -> Credential | None:
        """Return what a token proved before, by its hash; None when it must be verified."""
        found = self._known.get(digest)
        if found is None:
            return None
        if found.expires_at is not None and self._clock.now() >= found.expires_at:
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return found

    async def verify(self, presented: str, digest: str) -> Credential | TokenRefusal:
        """Verify a token. Raises Later or Stuck when the issuer could not be asked for its key."""
        found = await self._verifier.verify(presented)
        if isinstance(found, TokenRefusal):
            return found
        credential = Credential(found.caller, found.expires_at, bound=found.bound)
        self._known[digest] = credential
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return credential


CSRF_HEADER: Final = "X-CSRF-Token"
SESSION_COOKIE: Final = b"lcm_session"
CSRF_COOKIE: Final = b"lcm_csrf"
PENDING_COOKIE: Final = b"lcm_sign_in"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST_PREFIX: Final = b"__Host-"
"""Browsers accept a cookie with this prefix only over https, and only if no other host can have set it."""
_SAME_ORIGIN: Final = b"same-origin"


def check_csrf(request: Request, session: str) -> None:
    """Raise Forbidden unless a request that changes something comes from one of our own pages."""
    wanted = _csrf_token(session)
    sent, kept = request.headers.get(CSRF_HEADER.lower().encode(), b""), _cookie_value(request, CSRF_COOKIE)
    if not (hmac.compare_digest(sent, wanted) and hmac.compare_digest(kept, wanted)):
        raise Forbidden(f"send the value of the cookie {CSRF_COOKIE.decode()} in the header {CSRF_HEADER}")
    check_same_origin(request)


def check_same_origin(request: Request) -> None:
    """Raise Forbidden unless a browser says that one of our own pages sends a request."""
    if not _is_same_origin(request):
        raise Forbidden("this must come from a page of ours: neither Origin nor Sec-Fetch-Site says so")


def set_session_cookies(request: Request, session: str, *, now: datetime, expires_at: datetime) -> Headers:
    """Return the headers that set a browser's session cookies."""
    seconds = max(0, int((expires_at - now).total_seconds()))
    return _both_cookies(request, session.encode(), _csrf_token(session), seconds)


def clear_session_cookies(request: Request) -> Headers:
    """Return the headers that remove a browser's session cookies."""
    return _both_cookies(request, b"", b"", 0)


def set_pending_cookie(request: Request, sealed: str, seconds: int) -> Header:
    """Return the header that has a browser keep a sign-in which it begins elsewhere.

    It comes back from there by a link on another's page: a strict cookie would not be sent then.
    """
    rules = b"; Path=/; Max-Age=%d; SameSite=Lax; HttpOnly%s" % (seconds, b"; Secure" if request.is_secure else b"")
    return (b"set-cookie", b"%s=%s%s" % (_cookie_name(request, PENDING_COOKIE), sealed.encode(), rules))


def clear_pending_cookie(request: Request) -> Header:
    """Return the header that has a browser forget a sign-in that it began."""
    return set_pending_cookie(request, "", 0)


def pending_cookie(request: Request) -> str:
    """Return the sign-in that a browser began; empty if there is none."""
    return _cookie_value(request, PENDING_COOKIE).decode("latin-1")


def _both_cookies(request: Request, session: bytes, csrf: bytes, seconds: int) -> Headers:
    rules = b"; Path=/; Max-Age=%d; SameSite=Strict%s" % (seconds, b"; Secure" if request.is_secure else b"")
    return (
        (b"set-cookie", b"%s=%s%s; HttpOnly" % (_cookie_name(request, SESSION_COOKIE), session, rules)),
        (b"set-cookie", b"%s=%s%s" % (_cookie_name(request, CSRF_COOKIE), csrf, rules)),
    )


def _cookie_name(request: Request, name: bytes) -> bytes:
    return _HOST_PREFIX + name if request.is_secure else name


def _cookie_value(request: Request, name: bytes) -> bytes:
    wanted = _cookie_name(request, name)
    pairs = (part.strip().partition(b"=") for part in request.headers.get(b"cookie", b"").split(b";"))
    values = [value for found, _, value in pairs if found == wanted]
    # Of two cookies with one name, one was set by somebody who cannot read the other; we cannot tell which.
    return values[0] if len(values) == 1 else b""


def _csrf_token(session: str) -> bytes:
    return hashlib.sha256(b"csrf:" + session.encode()).hexdigest().encode()


def _is_same_origin(request: Request) -> bool:
    site, origin = request.headers.get(b"sec-fetch-site"), request.headers.get(b"origin")
    if origin is None or site not in (None, _SAME_ORIGIN):
        return site == _SAME_ORIGIN
    scheme, _, place = origin.lower().partition(b"://")
    # A proxy that terminates TLS may not say so; then only the host can be compared.
    schemes = (b"https",) if request.is_secure else (b"http", b"https")
    return scheme in schemes and bool(place) and place == request.headers.get(b"host", b"").lower()


ACTORS: Final = {name.encode(): name for name in (SCHEDULER, WORKER_CONTROLLER, LABLET_CONTROLLER, POOL_CONTROLLER)}
_BEARER: Final = b"bearer "
_BEARER_LENGTH: Final = len(_BEARER)
_LONGEST_HEADER: Final = _BEARER_LENGTH + MAX_TOKEN_LENGTH
_ANONYMOUS: Final = "-"
"""Stands for a value that is too long to be a token, so that it is neither hashed nor remembered."""
_SIGN_IN_REMEDY: Final = "send a valid token: Authorization: Bearer TOKEN"
_SESSION_OVER: Final = "the session is over: sign in again"


class Authenticator:
    """Authenticates callers, limits their request rate, and applies a route's policy."""

    def __init__(
        self, tokens: Tokens, limits: ApiLimits, failures: SignInFailures, issued: IssuedTokens | None = None
    ) -> None:
        self._tokens = tokens
        self._failures = failures
        self._issued = issued
        self._callers = TokenBuckets(limits)
        self._anonymous = TokenBuckets(limits)
        self._public = TokenBuckets(limits)

    def admit(self, request: Request, policy: Policy, now: float) -> bool:
        """Identify the caller. Return False when the token must be verified first.

        Raises Declined, Forbidden or Invalid when the caller is not admitted.
        """
        if policy.public:
            if policy.limited:
                _check_rate(self._public.take(address_block(request.address), now))
            return True
        presented = _token_in_headers(request.headers)
        if presented:
            credential = self._find_own_token(presented, request)
            if credential is None:
                if self._issued is None or presented.count(".") != _JWT_DOTS:
                    raise self._failures.count(request.address, UNAUTHORIZED, _SIGN_IN_REMEDY)
                credential = self._issued.find_verified(digest_of(presented))
        else:
            credential = self._find_browser_session(request, now)
        if credential is None:
            return False
        request.credential = credential
        caller = request.caller = credential.caller
        if caller.role is not Role.SERVICE:
            changes = not policy.read_only and request.scope["method"] not in SAFE_METHODS
            self._check_rates(request, caller, now, changes=changes)
            if b"lcm-actor" in request.headers:
                raise Forbidden("only services may send Lcm-Actor: leave it out")
        if caller.role not in policy.roles:
            raise Forbidden(f"a caller of role {caller.role} may not do this")
        return True

    def admit_socket(self, request: Request, now: float) -> None:
        """Check what holds for a WebSocket besides: that no page of others opens it, and not too often.

        Raise Forbidden or Declined. A browser says where a page is from; with a cookie it must.
        """
        assert request.credential is not None, "its caller was admitted"
        if request.credential.session and b"origin" not in request.headers:
            raise Forbidden("this must come from a page of ours: there is no Origin")
        if b"origin" in request.headers:
            check_same_origin(request)
        caller = request.signed_in
        if caller.role not in SEES_ALL:
            _check_rate(request.shared.writes.take(caller.name, now), "more changes than allowed; slow down")

    def _check_rates(self, request: Request, caller: Caller, now: float, *, changes: bool) -> None:
        _check_rate(self._callers.take(caller.name, now))
        if caller.role not in SEES_ALL and changes:
            _check_rate(request.shared.writes.take(caller.name, now), "more changes than allowed; slow down")

    async def verify(self, request: Request) -> None:
        """Verify an issuer's token, so that it is known from now on. Raises Declined when it is refused, or Later."""
        assert self._issued is not None, "there is nobody to verify it"
        presented = _token_in_headers(request.headers)
        found = await self._issued.verify(presented, digest_of(presented))
        if isinstance(found, TokenRefusal):
            reason = ProblemReason(found.reason, HTTPStatus.UNAUTHORIZED, UNAUTHORIZED.title)
            raise self._failures.count(request.address, reason, found.message)

    def _find_own_token(self, presented: str, request: Request) -> Credential | None:
        actor = request.headers.get(b"lcm-actor")
        name = "" if actor is None else ACTORS.get(actor)
        found = self._tokens.find_credential(presented, name or "")
        if found is None or found.session:
            return None
        if name is None:
            raise Invalid(Fault("Lcm-Actor", "unknown service name", f"use one of {', '.join(ACTORS.values())}"))
        return found

    def _find_browser_session(self, request: Request, now: float) -> Credential:
        session = _cookie_value(request, SESSION_COOKIE).decode("latin-1")
        if not session:
            _check_rate(self._anonymous.take(address_block(request.address), now))
            raise Declined(UNAUTHORIZED, _SIGN_IN_REMEDY)
        found = self._tokens.find_credential(session)
        if found is None or not found.session:
            # It counts as a guess, but a page hears that its session is over, whatever others at its address tried.
            self._failures.count(request.address, UNAUTHORIZED, _SESSION_OVER)
            raise Declined(UNAUTHORIZED, _SESSION_OVER)
        if request.scope["method"] not in SAFE_METHODS:
            check_csrf(request, session)
        return found


class TokenWatch:
    """Checks that the token of a stream is still valid; the stream ends when the token does."""

    __slots__ = ("_clock", "_credential", "_tokens", "_version")

    def __init__(self, request: Request) -> None:
        assert request.credential is not None, "a stream for everybody needs no vigil"
        self._credential = request.credential
        self._tokens = request.shared.tokens
        self._clock = request.shared.clock
        self._version = -1
        """Version of all tokens at the last lookup of this one; a token that nothing can revoke is not looked up."""

    def is_valid(self) -> bool:
        """Return whether the stream's caller may go on reading. Costs two comparisons while no token changes."""
        version = self._tokens.version
        if version != self._version:
            if not self._tokens.is_unchanged(self._credential):
                return False
            self._version = version
        until = self._credential.expires_at
        return until is None or self._clock.now() < until

    def check(self) -> None:
        """Raise Declined when the token is no longer valid."""
        if not self.is_valid():
            raise Declined(UNAUTHORIZED, "the token is no longer valid")


def _token_in_headers(headers: Mapping[bytes, bytes]) -> str:
    value = headers.get(b"authorization")
    if value is not None:
        return _bearer(value) if len(value) <= _LONGEST_HEADER else _ANONYMOUS
    key = headers.get(b"x-api-key", b"")
    return key.decode("latin-1").strip() if len(key) <= _LONGEST_HEADER else _ANONYMOUS


@lru_cache(maxsize=1024)
def _bearer(value: bytes) -> str:
    return value[_BEARER_LENGTH:].decode("latin-1").strip() if value[:_BEARER_LENGTH].lower() == _BEARER else ""


def _check_rate(wait: float, problem: str = "more requests than allowed; slow down") -> None:
    if wait:
        raise Declined(RATE_LIMITED, problem, wait=wait)
