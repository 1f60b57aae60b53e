"""The small framework of the simulator's REST face: routes as a table, a call, a reply.

CML answers bare JSON scalars, raw YAML and its own error bodies, which ready-made frameworks would fight.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import Refusal, bad, forbidden, missing
from lcm.sim.cml.parts import Interface, Lab, Link, Node
from lcm.sim.cml.topology import ALL_FILES, MAIN_FILE, NO_FILES
from lcm.sim.cml.users import User
from lcm.sim.cml.wiring import interface_of, link_of

T = TypeVar("T")

ANYBODY, USER, ADMIN = "anybody", "user", "admin"
"""Who may make a call: nobody needs to sign in, everybody who has signed in, administrators."""

SMALL: Final = 100 * 1024
LARGE: Final = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not simply a JSON value with status 200."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"


DONE: Final = Reply(204)


@dataclass(slots=True)
class Call:
    """One request, after routing and sign-in."""

    cml: Cml
    params: list[str]
    query: dict[str, str]
    body: bytes
    token: str = ""
    signed_in: User | None = None

    @property
    def user(self) -> User:
        assert self.signed_in is not None, "the route needs no sign-in"
        return self.signed_in

    @property
    def age(self) -> float:
        return self.cml.pace.age()

    def read(self, shape: type[T]) -> T:
        """Read the body as this shape, or refuse."""
        try:
            return msgspec.json.decode(self.body, type=shape)
        except msgspec.DecodeError as error:
            raise bad(str(error)) from error

    def flag(self, name: str) -> bool | None:
        """Read a boolean of the query; None when it is absent or empty."""
        text = self.query.get(name, "").lower()
        return None if text == "" else text in {"true", "1", "yes"}

    def lab(self, right: str = "lab_view") -> Lab:
        """Find the lab of the path, as far as this user may see and do this."""
        lab = self.cml.labs.get(self.params[0])
        held = self.cml.users.permissions(self.user, lab)
        if not held:
            raise missing("Lab", lab.id)
        if right not in held:
            raise forbidden()
        return lab

    def node(self, right: str = "lab_view") -> tuple[Lab, Node]:
        """Find the lab and the node of the path."""
        lab = self.lab(right)
        return lab, self.cml.labs.node(lab, self.params[1])

    def interface(self, right: str = "lab_view") -> tuple[Lab, Interface]:
        """Find the lab and the interface of the path."""
        lab = self.lab(right)
        return lab, interface_of(lab, self.params[1])

    def link(self, right: str = "lab_view") -> tuple[Lab, Link]:
        """Find the lab and the link of the path."""
        lab = self.lab(right)
        return lab, link_of(lab, self.params[1])

    def visible(self) -> list[Lab]:
        """List the labs that this user may see."""
        return [lab for lab in self.cml.labs if self.cml.users.permissions(self.user, lab)]

    def configurations(self) -> str:
        """Say in which form configurations are wanted."""
        return {True: NO_FILES, False: ALL_FILES, None: MAIN_FILE}[self.flag("exclude_configurations")]


Handler = Callable[[Call], object]


@dataclass(frozen=True, slots=True)
class Route:
    """A path with `{}` for its variables, and who answers it for whom."""

    method: str
    path: str
    handler: Handler
    access: str = USER
    largest_body: int = SMALL


@dataclass(slots=True)
class _Place:
    """A place in the tree of paths."""

    named: dict[str, "_Place"] = field(default_factory=dict)
    variable: "_Place | None" = None
    routes: dict[str, Route] = field(default_factory=dict)


class Routes:
    """A tree of paths."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Place()
        for route in routes:
            self._place(route.path).routes[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, list[str]]:
        """Find the route of a request and the variables in its path, or refuse."""
        place, params = self._root, list[str]()
        for part in path.strip("/").split("/"):
            known = place.named.get(part)
            if known is None and place.variable is not None:
                params.append(part)
                known = place.variable
            if known is None:
                raise Refusal(404, "404: Not Found")
            place = known
        if method not in place.routes:
            raise Refusal(405, "405: Method Not Allowed") if place.routes else Refusal(404, "404: Not Found")
        return place.routes[method], params

    def _place(self, path: str) -> _Place:
        place = self._root
        for part in path.strip("/").split("/"):
            if part == "{}":
                place.variable = place.variable or _Place()
                place = place.variable
            else:
                place = place.named.setdefault(part, _Place())
        return place


def text(body: str, content_type: str = "text/yaml") -> Reply:
    """Answer a text as it is."""
    return Reply(200, body.encode(), content_type)


def reply_of(result: object) -> Reply:
    """Make an answer of what a handler returned."""
    return result if isinstance(result, Reply) else Reply(200, msgspec.json.encode(result))


def error(status: int, description: str) -> Reply:
    """Make CML's answer to a request that failed."""
    return Reply(status, msgspec.json.encode({"code": status, "description": description}))


def query_of(raw: bytes) -> dict[str, str]:
    """Read a query string."""
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True)) if raw else {}


Json = dict[str, Any]
