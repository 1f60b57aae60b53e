"""A route and its policy, and how a request finds its route.

Every table of `api.routes` is made of these. `api.routes.table` puts the tables together, `api.http.app` dispatches
by them, `api.openapi.description` describes them.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from lcm.api.http.answers import JSON, Answer, Stream
from lcm.api.http.problems import NO_ROUTE, Declined
from lcm.api.http.request import Request
from lcm.api.http.sockets import Socket
from lcm.model.access.identity import BOOKERS, EVERYONE, PERMISSIONS, SERVICE, STAFF, Role, Verb
from lcm.model.base.resource import Part
from lcm.model.kinds.registry import Kind, Resource

Handler = Callable[[Request], Awaitable[Answer | Stream]]
SocketHandler = Callable[[Request, Socket], Awaitable[None]]

GET, POST, PUT, PATCH, DELETE = "GET", "POST", "PUT", "PATCH", "DELETE"
_LONGEST_PATH: Final = 2048
_MOST_REMEMBERED: Final = 2_000


@dataclass(frozen=True, slots=True)
class Policy:
    """Who may call a route. Without roles nobody may: that is the default of a route that names no policy."""

    roles: frozenset[Role] = frozenset()
    public: bool = False
    """No sign-in is needed."""
    limited: bool = True
    """How often an address may ask is limited, if no sign-in is needed."""
    read_only: bool = False
    """Nothing is changed, whatever the method: it does not count as one of a caller's changes."""


DENY: Final = Policy()
PUBLIC: Final = Policy(EVERYONE, public=True)
HEALTH: Final = Policy(EVERYONE, public=True, limited=False)
"""For probes, which share an address with everybody else behind a proxy and must not fail because of them."""
SIGNED_IN: Final = Policy(EVERYONE)
FOR_BOOKERS: Final = Policy(BOOKERS)
STAFF_AND_SERVICES: Final = Policy(STAFF | SERVICE)
SERVICES: Final = Policy(SERVICE)


def policy_for(kind: Kind, verb: Verb) -> Policy:
    """Return the policy for a verb on a kind, from the table that the control plane itself uses."""
    return Policy(PERMISSIONS[kind.name][verb])


@dataclass(frozen=True, slots=True)
class Patch:
    """The type of a merge patch (RFC 7396) for a kind: every field of it, each optional, null to unset it."""

    of: type[Resource]


class NoQuery(Part):
    """A query string without parameters."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path: its handler, who may call it, and the types of its input and output.

    `kind` is the kind of the object that `{id}` names; `answer` and `body` are the types in the OpenAPI document.
    """

    method: str
    path: str
    handler: Handler
    operation: str
    summary: str
    policy: Policy = DENY
    kind: Kind | None = None
    query: type[Part] = NoQuery
    body: Any = None
    body_media: tuple[bytes, ...] = (JSON,)
    body_needed: bool = True
    large: bool = False
    answer: Any = None
    answer_media: bytes = JSON
    status: int = 200
    headers: tuple[str, ...] = ()
    """Request headers that this route uses, besides those of every route."""
    also: tuple[int, ...] = ()
    """Statuses that it may answer, besides those that follow from its other fields."""
    socket: SocketHandler | None = None
    """Serves those who open it as a WebSocket; `handler` answers all others."""

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.method != GET


@dataclass(slots=True)
class RouteNode:
    """A node in the tree of paths."""

    named: dict[bytes, "RouteNode"] = field(default_factory=dict)
    variable: "RouteNode | None" = None
    routes: dict[str, Route] = field(default_factory=dict)
    allow: bytes = b""
    """The methods that exist here, as the value of the Allow header."""

    async def options(self, _: Request) -> Answer:
        """Answer which methods exist here."""
        return Answer(204, headers=((b"allow", self.allow),))


class Router:
    """A tree of paths, split at slashes. An encoded slash is part of a name, never a separator."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = RouteNode()
        self._find = lru_cache(maxsize=_MOST_REMEMBERED)(self._walk)
        for route in routes:
            place = self._node_for(route.path)
            assert route.method not in place.routes, f"{route.method} {route.path} is there twice"
            place.routes[route.method] = route
            methods = {*place.routes, "OPTIONS", *(("HEAD",) if GET in place.routes else ())}
            place.allow = ", ".join(sorted(methods)).encode()

    def find(self, path: bytes) -> tuple[RouteNode, Sequence[str]]:
        """Return the node of a path, and the variables in it. Raises Declined when there is none."""
        return self._find(path)

    def _walk(self, path: bytes) -> tuple[RouteNode, Sequence[str]]:
        place, names = self._root, list[str]()
        if len(path) > _LONGEST_PATH:
            raise no_route()
        for part in path.split(b"/")[1:]:
            known = place.named.get(part)
            if known is None:
                known = place.variable
                if known is None or not part:
                    raise no_route()
                names.append(_decode_segment(part))
            place = known
        if not place.routes:
            raise no_route()
        return place, tuple(names)

    def _node_for(self, path: str) -> RouteNode:
        place = self._root
        for part in path.split("/")[1:]:
            if part.startswith("{"):
                place.variable = place.variable or RouteNode()
                place = place.variable
            else:
                place = place.named.setdefault(part.encode(), RouteNode())
        return place


def no_route() -> Declined:
    """Return the error for a path under which nothing is served."""
    return Declined(NO_ROUTE, "nothing is served here; /api/openapi.json lists what is")


def _decode_segment(part: bytes) -> str:
    try:
        return (unquote_to_bytes(part) if b"%" in part else part).decode()
    except UnicodeDecodeError as error:
        raise no_route() from error
