"""A browser's session as cookies, and how requests that carry it prove to be our own pages'. Used by `auth`, `sign_in`.

The session's cookie is out of reach of scripts. A second one, which our pages read, follows from it: who can send its
value back in a header can read our cookies, and so is ours. Browsers say besides where a request comes from.
"""

import hashlib
import hmac
from datetime import datetime
from typing import Final

from lcm.api.answers import Header, Headers
from lcm.api.http import Request
from lcm.model.errors import Forbidden

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
