"""The door: who asks, how often, and whether the route lets them in. Called by `app` before any handler.

Three things are accepted: a token or key of ours, a token of the configured issuer, and the cookie of a browser that
signed in. A bearer that is not good is not made good by a cookie beside it.
"""

from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from lcm.api.cookies import SAFE, check_own, session_in
from lcm.api.failures import Failures
from lcm.api.http import Request
from lcm.api.issued import Issued, looks_issued
from lcm.api.limits import Buckets, Limits
from lcm.api.problems import RATE_LIMITED, UNAUTHORIZED, Declined, Reason
from lcm.api.routes import Policy
from lcm.control.oidc_claims import Refusal
from lcm.control.tokens import Credential, Tokens, digest_of
from lcm.model.bearer import LONGEST
from lcm.model.errors import Fault, Forbidden, Invalid
from lcm.model.identity import Role
from lcm.model.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER

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
