"""The door: who asks, how often, and whether the route lets them in. Called by `app` before any handler."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from lcm.api.http import Request
from lcm.api.limits import Buckets, Limits
from lcm.api.problems import RATE_LIMITED, UNAUTHORIZED, Declined
from lcm.api.routes import Policy
from lcm.control.tokens import Tokens
from lcm.model.errors import Fault, Forbidden, Invalid
from lcm.model.identity import Caller, Role
from lcm.model.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER

ACTORS: Final = {name.encode(): name for name in (SCHEDULER, WORKER_CONTROLLER, LABLET_CONTROLLER, POOL_CONTROLLER)}
_BEARER: Final = b"bearer "
_START: Final = len(_BEARER)


class Door:
    """Lets callers in."""

    def __init__(self, tokens: Tokens, limits: Limits) -> None:
        self._tokens = tokens
        self._callers = Buckets(limits)
        self._strangers = Buckets(limits)
        self._visitors = Buckets(limits)

    def admit(self, request: Request, policy: Policy, now: float) -> Caller | None:
        """Tell who asks; None for anybody at all on a public route. Raises Declined, Forbidden or Invalid."""
        if policy.public:
            # Apart from strangers: behind one proxy, those must not make health checks fail.
            _slow_down(self._visitors.take(_address(request), now))
            return None
        caller = find_caller(self._tokens, request.headers)
        if caller is None:
            _slow_down(self._strangers.take(_address(request), now))
            raise Declined(UNAUTHORIZED, "send a valid token: Authorization: Bearer TOKEN")
        if caller.role is not Role.SERVICE:
            _slow_down(self._callers.take(caller.name, now))
            if b"lcm-actor" in request.headers:
                raise Forbidden("only services act under a name: leave Lcm-Actor out")
        if caller.role not in policy.roles:
            raise Forbidden(f"a caller of role {caller.role} may not do this")
        return caller


def find_caller(tokens: Tokens, headers: Mapping[bytes, bytes]) -> Caller | None:
    """Tell whose token a request carries; None for no token, or none that is valid now."""
    presented = _presented(headers)
    if not presented:
        return None
    actor = headers.get(b"lcm-actor")
    name = "" if actor is None else ACTORS.get(actor)
    caller = tokens.find(presented, name or "")
    if caller is not None and name is None:
        raise Invalid(Fault("Lcm-Actor", "nobody acts under this name", f"use one of {', '.join(ACTORS.values())}"))
    return caller


def _address(request: Request) -> str:
    client = request.scope.get("client")
    return client[0] if client else ""


def _presented(headers: Mapping[bytes, bytes]) -> str:
    value = headers.get(b"authorization")
    return _bearer(value) if value is not None else headers.get(b"x-api-key", b"").decode("latin-1").strip()


@lru_cache(maxsize=1024)
def _bearer(value: bytes) -> str:
    return value[_START:].decode("latin-1").strip() if value[:_START].lower() == _BEARER else ""


def _slow_down(wait: float) -> None:
    if wait:
        raise Declined(RATE_LIMITED, "more requests than allowed; slow down", wait=wait)
