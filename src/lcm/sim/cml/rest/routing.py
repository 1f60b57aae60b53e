"""The small framework of the simulator's REST interface: routes as a table, a call, a reply.

CML answers bare JSON scalars, raw YAML and its own error bodies, which ready-made frameworks would not allow easily.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import CmlRefusal, bad_request, find_known, forbidden, not_found
from lcm.sim.cml.parts import Interface, LabLink, Node, SimLab
from lcm.sim.cml.topology import ALL_FILES, MAIN_FILE, NO_FILES
from lcm.sim.cml.users import User
from lcm.sim.cml.wiring import find_interface

T = TypeVar("T")

ANYBODY, USER, ADMIN = "anybody", "user", "admin"
"""Who may make a call: anybody without sign-in, every signed-in user, administrators."""

SMALL: Final = 100 * 1024
LARGE: Final = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer other than a JSON value with status 200."""

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
        """Decode the body as this type; refuse an invalid one."""
        try:
            return msgspec.json.decode(self.body, type=shape)
        except msgspec.DecodeError as error:
            raise bad_request(str(error)) from error

    def flag(self, name: str) -> bool | None:
        """Return a boolean of the query; None when it is absent or empty."""
        text = self.query.get(name, "").lower()
        return None if text == "" else text in {"true", "1", "yes"}

    def lab(self, right: str = "lab_view") -> SimLab:
        """Return the lab of the path; refuse if this user may not see it or lacks the right."""
        lab = self.cml.labs.get(self.params[0])
        held = self.cml.users.permissions(self.user, lab)
        if not held:
            raise not_found("Lab", lab.id)
        if right not in held:
            raise forbidden()
        return lab

    def node(self, right: str = "lab_view") -> tuple[SimLab, Node]:
        """Return the lab and the node of the path."""
        lab = self.lab(right)
        return lab, self.cml.labs.node(lab, self.params[1])

    def interface(self, right: str = "lab_view") -> tuple[SimLab, Interface]:
        """Return the lab and the interface of the path."""
        lab = self.lab(right)
        return lab, find_interface(lab, self.params[1])

    def link(self, right: str = "lab_view") -> tuple[SimLab, LabLink]:
        """Return the lab and the link of the path."""
        lab = self.lab(right)
        return lab, find_known("Link", lab.links, self.params[1])

    def visible_labs(self) -> list[SimLab]:
        """Return the labs that this user may see."""
        return [lab for lab in self.cml.labs if self.cml.users.permissions(self.user, lab)]

    def configuration_form(self) -> str:
        """Return in which form configurations are wanted."""
        return {True: NO_FILES, False: ALL_FILES, None: MAIN_FILE}[self.flag("exclude_configurations")]


Handler = Callable[[Call], object]
"""Returns a Reply, a value that is sent as JSON, or None when there is nothing to send."""


@dataclass(frozen=True, slots=True)
class CmlRoute:
    """A path with `{}` for its variables, its handler, and who may call it."""

    method: str
    path: str
    handler: Handler
    access: str = USER
    largest_body: int = SMALL


@dataclass(slots=True)
class _PathNode:
    """A node in the tree of paths."""

    named: dict[str, "_PathNode"] = field(default_factory=dict)
    variable: "_PathNode | None" = None
    routes: dict[str, CmlRoute] = field(default_factory=dict)


class CmlRoutes:
    """A tree of paths."""

    def __init__(self, routes: Iterable[CmlRoute]) -> None:
        self._root = _PathNode()
        for route in routes:
            place = self._root
            for part in route.path.strip("/").split("/"):
                if part == "{}":
                    place.variable = place.variable or _PathNode()
                    place = place.variable
                else:
                    place = place.named.setdefault(part, _PathNode())
            place.routes[route.method] = route

    def find(self, method: str, path: str) -> tuple[CmlRoute, list[str]]:
        """Return the route of a request and the variables in its path; refuse an unknown one."""
        place, params = self._root, list[str]()
        for part in path.strip("/").split("/"):
            known = place.named.get(part)
            if known is None and place.variable is not None:
                params.append(part)
                known = place.variable
            if known is None:
                raise CmlRefusal(404, "404: Not Found")
            place = known
        if method not in place.routes:
            raise CmlRefusal(405, "405: Method Not Allowed") if place.routes else CmlRefusal(404, "404: Not Found")
        return place.routes[method], params


def text_reply(body: str, content_type: str = "text/yaml") -> Reply:
    """Answer a text as it is."""
    return Reply(200, body.encode(), content_type)


def to_reply(result: object) -> Reply:
    """Make an answer of what a handler returned."""
    return result if isinstance(result, Reply) else Reply(200, msgspec.json.encode(result))


def error_reply(status: int, description: str) -> Reply:
    """Make CML's answer to a request that failed."""
    return Reply(status, msgspec.json.encode({"code": status, "description": description}))


def parse_query(raw: bytes) -> dict[str, str]:
    """Parse a query string."""
    return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True)) if raw else {}
