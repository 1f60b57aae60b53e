"""A route and its policy, and how a request finds its route.

Every table of `api` is made of these; `table` puts them together, `app` dispatches by them, `openapi` describes them.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from lcm.api.http.answers import JSON, Answer, Stream
from lcm.api.http.problems import NO_ROUTE, Declined
from lcm.api.http.request import Request
from lcm.model.access.identity import EVERYONE, PERMITTED, SERVICE, STAFF, Role, Verb
from lcm.model.base.resource import Part
from lcm.model.kinds.registry import Kind, Resource

Handler = Callable[[Request], Awaitable[Answer | Stream]]

GET, POST, PUT, PATCH, DELETE = "GET", "POST", "PUT", "PATCH", "DELETE"
_LONGEST_PATH: Final = 2048


@dataclass(frozen=True, slots=True)
class Policy:
    """Who may call a route. Without roles nobody may: that is what a route gets that says nothing."""

    roles: frozenset[Role] = frozenset()
    public: bool = False
    """Nobody needs to sign in."""


DENY: Final = Policy()
PUBLIC: Final = Policy(EVERYONE, public=True)
SIGNED_IN: Final = Policy(EVERYONE)
WATCHMEN: Final = Policy(STAFF | SERVICE)
SERVICES: Final = Policy(SERVICE)


def permitted(kind: Kind, verb: Verb) -> Policy:
    """Take the policy from the table that the plane itself goes by."""
    return Policy(PERMITTED[kind.name][verb])


@dataclass(frozen=True, slots=True)
class Patch:
    """The type of a merge patch (RFC 7396) for a kind: every field of it, each optional, null to unset it."""

    of: type[Resource]


class NoQuery(Part):
    """A query string without parameters."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path: who answers it, for whom, and what goes in and comes out.

    `kind` is what `{id}` names an object of; `answer` and `body` are the types that stand in the description.
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
    """Request headers that mean something here besides those of every route."""
    also: tuple[int, ...] = ()
    """Statuses that it may answer besides those that follow from the rest."""

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.method != GET


@dataclass(slots=True)
class Place:
    """A place in the tree of paths."""

    named: dict[bytes, "Place"] = field(default_factory=dict)
    variable: "Place | None" = None
    routes: dict[str, Route] = field(default_factory=dict)
    allow: bytes = b""
    """The methods that exist here, as the header says them."""

    async def options(self, _: Request) -> Answer:
        """Tell which methods exist here."""
        return Answer(204, headers=((b"allow", self.allow),))


class Router:
    """A tree of paths, by the bytes between slashes: an encoded slash is part of a name, never of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = Place()
        self._exact: dict[bytes, Place] = {}
        self._last: dict[bytes, Place] = {}
        for route in routes:
            place = self._place(route.path)
            assert route.method not in place.routes, f"{route.method} {route.path} is there twice"
            place.routes[route.method] = route
            place.allow = _allow(place)
            self._shorten(route.path, place)

    def find(self, path: bytes) -> tuple[Place, Sequence[str]]:
        """Find the place of a path and the variables in it. Raises Declined when there is none."""
        place = self._exact.get(path)
        if place is not None:
            return place, ()
        collection, _, part = path.rpartition(b"/")
        place = self._last.get(collection)
        if place is not None and part and len(part) <= _LONGEST_PATH:
            return place, (_decoded(part),)
        return self._walk(path)

    def _walk(self, path: bytes) -> tuple[Place, Sequence[str]]:
        place, names = self._root, list[str]()
        if len(path) > _LONGEST_PATH:
            raise nowhere()
        for part in path.split(b"/")[1:]:
            known = place.named.get(part)
            if known is None:
                known = place.variable
                if known is None or not part:
                    raise nowhere()
                names.append(_decoded(part))
            place = known
        if not place.routes:
            raise nowhere()
        return place, names

    def _shorten(self, path: str, place: Place) -> None:
        """Keep the two commonest forms of a path where one look finds them: no variable, or one at the very end."""
        collection, _, part = path.rpartition("/")
        if "{" not in path:
            self._exact[path.encode()] = place
        elif "{" not in collection and part.startswith("{"):
            self._last[collection.encode()] = place

    def _place(self, path: str) -> Place:
        place = self._root
        for part in path.split("/")[1:]:
            if part.startswith("{"):
                place.variable = place.variable or Place()
                place = place.variable
            else:
                place = place.named.setdefault(part.encode(), Place())
        return place


def nowhere() -> Declined:
    """Say that nothing is served under a path."""
    return Declined(NO_ROUTE, "nothing is served here; /api/openapi.json lists what is")


def _decoded(part: bytes) -> str:
    try:
        return (unquote_to_bytes(part) if b"%" in part else part).decode()
    except UnicodeDecodeError as error:
        raise nowhere() from error


def _allow(place: Place) -> bytes:
    methods = {*place.routes, "OPTIONS", *(("HEAD",) if GET in place.routes else ())}
    return ", ".join(sorted(methods)).encode()
