"""An operation of the plane: a method that is declared once, with who may call it and how it travels over HTTP.

`control.plane.operations` declares them all, each as a method without a body. From a declaration follow the request
that `control.plane.client` sends, the route that `api.routes.operations` serves, and the check of permission that
`control.plane.local` makes. A new operation therefore needs its declaration, its work in
`control.plane.local_operations`, and, where it brings types of its own, those and an example of each.
"""

import inspect
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from lcm.control.plane.bodies import OneQuery
from lcm.model.access.identity import PERMISSIONS, Role, Verb
from lcm.model.base.resource import Part
from lcm.model.kinds.registry import Resource

M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, object]])

Value = Any
"""An argument or a result: only the declaration knows its type."""

GET, POST, DELETE = "GET", "POST", "DELETE"
VARIABLE: Final = re.compile(r"{\w+}")
"""A variable in a path."""
_REVISION: Final = "resource_version"


class Permission(NamedTuple):
    """The roles that may perform an operation, and its name in the refusal that others get."""

    roles: frozenset[Role]
    deed: str


def may(verb: Verb, kind: type[Resource]) -> Permission:
    """Return the permission of those who may do this with objects of this kind."""
    return Permission(PERMISSIONS[kind.__name__][verb], f"{verb} {kind.__name__} objects")


class OperationGroup:
    """Operations about one topic. A plane performs them all in one way of its own."""

    async def perform(self, operation: "Operation", /, *given: object, **named: object) -> object:
        """Perform an operation with the arguments of its method."""
        raise NotImplementedError(operation.name)


@dataclass(eq=False)
class Operation:
    """A decorator that makes a declared method an operation.

    Each variable of the path is one of the method's first arguments; `{id}` of a `kind` is a reference to an object, or
    the object itself when its revision travels in the body. Of the other arguments, those that the query knows are
    there; the rest is the body's fields of these names, or one argument is the whole body.
    """

    method: str
    path: str
    operation_id: str
    summary: str
    permission: Permission
    kind: type[Resource] | None = None
    """The kind of the object that `{id}` names."""
    query: type[Part] | None = None
    """Without it there is none, except for the namespace of the object that `{id}` names."""
    body: Any = None
    body_needed: bool = True
    large: bool = False
    """Whether the body may be as large as one for `/api/apply`."""
    pack: Callable[[Any], msgspec.Struct] | None = None
    """Makes the body of an argument that looks different in HTTP; `unpack` is the reverse."""
    unpack: Callable[[Any], object] | None = None
    answer: Any = None
    answer_field: str = ""
    """The field of the answer that holds what the method returns, if that is not the whole answer."""
    missing: str = ""
    """The problem in whose place the method returns None, with `{name}` and `{namespace}` of the object."""
    also: tuple[int, ...] = ()
    """Statuses that it may answer, besides those that follow from its other fields."""
    read_only: bool = False
    """A POST that changes nothing."""
    name: str = field(default="", init=False)
    signature: inspect.Signature = field(default_factory=inspect.Signature, init=False)
    in_path: tuple[str, ...] = field(default=(), init=False)
    in_query: tuple[str, ...] = field(default=(), init=False)
    in_body: tuple[str, ...] = field(default=(), init=False)

    def __call__(self, declared: M) -> M:
        """Make a method, whose body is empty, perform this operation."""
        self.query = self.query or (OneQuery if self.kind else None)
        self.name = declared.__name__
        _, *parameters = inspect.signature(declared).parameters.values()
        self.signature = inspect.Signature(parameters)
        names, variables = tuple(self.signature.parameters), len(VARIABLE.findall(self.path))
        known = self.query.__struct_fields__ if self.query else ()
        self.in_path = names[:variables]
        self.in_query = tuple(name for name in names[variables:] if name in known)
        self.in_body = tuple(name for name in names[variables:] if name not in known)

        @wraps(declared)
        async def call(plane: OperationGroup, *given: object, **named: object) -> object:
            return await plane.perform(self, *given, **named)

        _DECLARED[call] = self
        return cast("M", call)

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.method != GET and not self.read_only

    @property
    def has_revision(self) -> bool:
        """Whether it is about an object at exactly one revision."""
        return _REVISION in self._body_fields

    def bind(self, *given: object, **named: object) -> dict[str, Any]:
        """Return the arguments of a call by name, with defaults for those that are left out."""
        bound = self.signature.bind(*given, **named)
        bound.apply_defaults()
        return bound.arguments

    def unbind(self, arguments: Mapping[str, object]) -> inspect.BoundArguments:
        """Return arguments by name as those of a call: the reverse of `bind`."""
        ordered = {name: arguments[name] for name in self.signature.parameters if name in arguments}
        return inspect.BoundArguments(self.signature, ordered)

    def body_of(self, arguments: Mapping[str, Any]) -> object:
        """Return the body that carries arguments."""
        if self.pack is not None:
            return self.pack(arguments[self.in_body[0]])
        if not self._is_spread:
            return arguments[self.in_body[0]]
        subject = arguments[self.in_path[0]]
        revision = {_REVISION: subject.metadata.resource_version} if self.has_revision else {}
        return self.body(**revision, **{name: arguments[name] for name in self.in_body})

    def arguments_in(self, body: object) -> dict[str, object]:
        """Return the arguments that a body carries: the reverse of `body_of`."""
        if self.unpack is not None:
            return {self.in_body[0]: self.unpack(body)}
        return {name: getattr(body, name) for name in self.in_body} if self._is_spread else {self.in_body[0]: body}

    @property
    def _is_spread(self) -> bool:
        return {*self.in_body} <= {*self._body_fields}

    @property
    def _body_fields(self) -> tuple[str, ...]:
        return getattr(self.body, "__struct_fields__", ())


_DECLARED: Final[dict[Callable[..., object], Operation]] = {}


def operations_of(group: type[OperationGroup]) -> tuple[Operation, ...]:
    """Return the operations that a class declares or inherits and does not override, in the order of declaration."""
    return tuple(operation for call, operation in _DECLARED.items() if getattr(group, operation.name, None) is call)
