"""The door: who asks, how often, and whether the route lets them in. Called by `app` before any handler.

Three things are accepted: a token or key of ours, a token of the configured issuer, and the cookie of a browser that
signed in. A bearer that is not good is not made good by a cookie beside it.
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
from lcm.api.http.limits import Buckets, Failures, Limits
from lcm.api.http.problems import RATE_LIMITED, UNAUTHORIZED, Declined, Reason
from lcm.api.http.request import Request
from lcm.api.http.routing import Policy
from lcm.control.access.oidc import Refusal
from lcm.control.access.tokens import Credential, Tokens, digest_of
from lcm.model.access.identity import LONGEST, Role
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Forbidden, Invalid
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER

if TYPE_CHECKING:
    from lcm.control.access.oidc import Verifier


_DOTS: Final = 2
_REMEMBERED: Final = 1_000


class Issued:
    """What tokens of an issuer prove; the longest unused are forgotten first."""

    def __init__(self, verifier: "Verifier", clock: Clock, *, remembered: int = _REMEMBERED) -> None:
        self._verifier = verifier
        self._clock = clock
        self._most = remembered
        self._known: OrderedDict[str, Credential] = OrderedDict()

    def known(self, digest: str) -> Credential | None:
        """Find what a token proved before, by its hash; None when it must be verified."""
        found = self._known.get(digest)
        if found is None:
            return None
        if found.expires_at is not None and self._clock.now() >= found.expires_at:
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return found

    async def verify(self, presented: str, digest: str) -> Credential | Refusal:
        """Verify a token. Raises Later or Stuck when the issuer could not be asked for its key."""
        found = await self._verifier.verify(presented)
        if isinstance(found, Refusal):
            return found
        credential = Credential(found.caller, found.expires_at)
        self._known[digest] = credential
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return credential


def looks_issued(presented: str) -> bool:
    """Tell whether a token could be an issuer's; ours have no dots."""
    return presented.count(".") == _DOTS


CSRF_HEADER: Final = "X-CSRF-Token"
SESSION: Final = b"lcm_session"
CSRF: Final = b"lcm_csrf"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST_ONLY: Final = b"__Host-"
"""Browsers keep a cookie of this name only if it came by https and no other host can have set it."""
_SAME: Final = b"same-origin"


def session_in(request: Request) -> str:
    """Read the session of a request; empty when there is none, or more than one."""
    return _value(request, SESSION).decode("latin-1")


def check_own(request: Request, session: str) -> None:
    """Raise Forbidden unless a request that changes something comes from a page of ours."""
    wanted = _csrf(session)
    sent, kept = request.headers.get(CSRF_HEADER.lower().encode(), b""), _value(request, CSRF)
    if not (hmac.compare_digest(sent, wanted) and hmac.compare_digest(kept, wanted)):
        raise Forbidden(f"send the value of the cookie {CSRF.decode()} in the header {CSRF_HEADER}")
    if not _is_from_here(request):
        raise Forbidden("this must come from a page of ours: neither Origin nor Sec-Fetch-Site says so")


def begun(request: Request, session: str, *, now: datetime, expires_at: datetime) -> Headers:
    """Give a browser its session."""
    seconds = max(0, int((expires_at - now).total_seconds()))
    return _both(request, session.encode(), _csrf(session), seconds)


def ended(request: Request) -> Headers:
    """Take a browser's session away."""
    return _both(request, b"", b"", 0)


def _both(request: Request, session: bytes, csrf: bytes, seconds: int) -> Headers:
    secure = _is_secure(request)
    return (
        _set(SESSION, session, seconds, b"; HttpOnly", secure=secure),
        _set(CSRF, csrf, seconds, b"", secure=secure),
    )


def _set(name: bytes, value: bytes, seconds: int, more: bytes, *, secure: bool) -> Header:
    safety = b"; SameSite=Strict" + (b"; Secure" if secure else b"") + more
    return (b"set-cookie", b"%s=%s; Path=/; Max-Age=%d%s" % (_named(name, secure=secure), value, seconds, safety))


def _named(name: bytes, *, secure: bool) -> bytes:
    return _HOST_ONLY + name if secure else name


def _value(request: Request, name: bytes) -> bytes:
    wanted = _named(name, secure=_is_secure(request))
    pairs = (part.strip().partition(b"=") for part in request.headers.get(b"cookie", b"").split(b";"))
    values = [value for found, _, value in pairs if found == wanted]
    # Two of a name: one was set by somebody who cannot read the other, and nobody knows which.
    return values[0] if len(values) == 1 else b""


def _csrf(session: str) -> bytes:
    return hashlib.sha256(b"csrf:" + session.encode()).hexdigest().encode()


def _is_from_here(request: Request) -> bool:
    site, origin = request.headers.get(b"sec-fetch-site"), request.headers.get(b"origin")
    if site is None and origin is None:
        return False
    return site in (None, _SAME) and (origin is None or _is_our_origin(request, origin))


def _is_our_origin(request: Request, origin: bytes) -> bool:
    scheme, _, place = origin.lower().partition(b"://")
    # Whoever ends TLS for us may not say so; then only the host can be compared.
    schemes = (b"https",) if _is_secure(request) else (b"http", b"https")
    return scheme in schemes and bool(place) and place == request.headers.get(b"host", b"").lower()


def _is_secure(request: Request) -> bool:
    forwarded = request.headers.get(b"x-forwarded-proto", b"").lower()
    return request.scope.get("scheme") == "https" or forwarded == b"https"


ACTORS: Final = {name.encode(): name for name in (SCHEDULER, WORKER_CONTROLLER, LABLET_CONTROLLER, POOL_CONTROLLER)}
_BEARER: Final = b"bearer "
_START: Final = len(_BEARER)
_LONGEST: Final = _START + LONGEST
_NOBODYS: Final = "-"
"""Stands for what is too long to be a token, so that it is neither hashed nor remembered."""
_WANTED: Final = "send a valid token: Authorization: Bearer TOKEN"


class Door:
    """Lets callers in."""

    def __init__(self, tokens: Tokens, limits: Limits, failures: Failures, issued: Issued | None = None) -> None:
        self._tokens = tokens
        self._failures = failures
        self._issued = issued
        self._callers = Buckets(limits)
        self._strangers = Buckets(limits)
        self._visitors = Buckets(limits)

    def admit(self, request: Request, policy: Policy, now: float) -> bool:
        """Find out who asks, or raise Declined, Forbidden or Invalid; False when their token must be verified first."""
        if policy.public:
            # Apart from strangers: behind one proxy, those must not make health checks fail.
            _slow_down(self._visitors.take(request.address, now))
            return True
        presented = _presented(request.headers)
        if presented:
            credential = self._ours(presented, request) or self._issuers(presented, request)
        else:
            credential = self._browsers(request, now)
        if credential is None:
            return False
        request.credential = credential
        caller = request.caller = credential.caller
        if caller.role is not Role.SERVICE:
            _slow_down(self._callers.take(caller.name, now))
            if b"lcm-actor" in request.headers:
                raise Forbidden("only services act under a name: leave Lcm-Actor out")
        if caller.role not in policy.roles:
            raise Forbidden(f"a caller of role {caller.role} may not do this")
        return True

    async def verify(self, request: Request) -> None:
        """Verify an issuer's token, so that it is known from now on; raises Declined when it is refused, or Later."""
        assert self._issued is not None, "there is nobody to verify it"
        self._failures.check(request.address)
        presented = _presented(request.headers)
        found = await self._issued.verify(presented, digest_of(presented))
        if isinstance(found, Refusal):
            reason = Reason(found.reason, HTTPStatus.UNAUTHORIZED, UNAUTHORIZED.title)
            raise self._failures.count(request.address, reason, found.message)

    def _ours(self, presented: str, request: Request) -> Credential | None:
        actor = request.headers.get(b"lcm-actor")
        name = "" if actor is None else ACTORS.get(actor)
        found = self._tokens.look(presented, name or "")
        if found is None or found.session:
            return None
        if name is None:
            raise Invalid(Fault("Lcm-Actor", "nobody acts under this name", f"use one of {', '.join(ACTORS.values())}"))
        return found

    def _issuers(self, presented: str, request: Request) -> Credential | None:
        if self._issued is None or not looks_issued(presented):
            raise self._failures.count(request.address, UNAUTHORIZED, _WANTED)
        return self._issued.known(digest_of(presented))

    def _browsers(self, request: Request, now: float) -> Credential:
        session = session_in(request) if b"cookie" in request.headers else ""
        if not session:
            _slow_down(self._strangers.take(request.address, now))
            raise Declined(UNAUTHORIZED, _WANTED)
        found = self._tokens.look(session)
        if found is None or not found.session:
            raise self._failures.count(request.address, UNAUTHORIZED, "the session is over: sign in again")
        if request.scope["method"] not in SAFE:
            check_own(request, session)
        return found


class Vigil:
    """Watches over the token of a stream, which ends when that does."""

    __slots__ = ("_clock", "_credential", "_tokens", "_version")

    def __init__(self, request: Request) -> None:
        assert request.credential is not None, "a stream for everybody needs no vigil"
        self._credential = request.credential
        self._tokens = request.shared.tokens
        self._clock = request.shared.clock
        self._version = -1
        """Of the tokens when this one was last looked up; one that nothing can revoke is not looked up at all."""

    def lasts(self) -> bool:
        """Tell whether the stream's caller may still be there; costs two comparisons while no token changes."""
        version = self._tokens.version
        if version != self._version:
            if not self._tokens.holds(self._credential):
                return False
            self._version = version
        until = self._credential.expires_at
        return until is None or self._clock.now() < until

    def check(self) -> None:
        """Raise Declined when the token is over."""
        if not self.lasts():
            raise Declined(UNAUTHORIZED, "the token is no longer valid")


def _presented(headers: Mapping[bytes, bytes]) -> str:
    value = headers.get(b"authorization")
    if value is not None:
        return _bearer(value) if len(value) <= _LONGEST else _NOBODYS
    key = headers.get(b"x-api-key", b"")
    return key.decode("latin-1").strip() if len(key) <= _LONGEST else _NOBODYS


@lru_cache(maxsize=1024)
def _bearer(value: bytes) -> str:
    return value[_START:].decode("latin-1").strip() if value[:_START].lower() == _BEARER else ""


def _slow_down(wait: float) -> None:
    if wait:
        raise Declined(RATE_LIMITED, "more requests than allowed; slow down", wait=wait)
