"""Who asks, and what they may do: roles, callers, tokens, and the one table of permissions.

`control` holds every call against it; the routes of `api` take their policies from it, so that the two cannot differ.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.machine import USER
from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession

Subject = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$(?!\n)",
        description="a person's or program's name: letters, digits and . _ @ + -, at most 128",
        examples=["ada@example.org"],
    ),
]


class Role(StrEnum):
    """What somebody is allowed to do, in one word."""

    ADMIN = "admin"
    OPERATOR = "operator"
    AUTHOR = "author"
    USER = "user"
    SERVICE = "service"


class Verb(StrEnum):
    """What is done with an object. `step` reports what was seen of it, and `act` asks for one of its actions."""

    READ = "read"
    WRITE = "write"
    ACT = "act"
    STEP = "step"


class Caller(Part):
    """Somebody whose identity is proven. `actor` is the name under which steps are taken."""

    name: Subject
    role: Role
    actor: str = USER


class AccessToken(Part):
    """What is kept of a bearer token; the token itself is known to its holder only."""

    id: str
    name: Subject
    role: Role
    sha256: str
    created_at: Moment
    expires_at: Moment | None = None
    session: bool = False
    """A browser's, which presents it as a cookie."""
    bound: Moment | None = None
    """What is made with it does not outlive this moment."""
    made_by: str = ""


RANKS: Final = (Role.ADMIN, Role.OPERATOR, Role.AUTHOR, Role.USER)
"""The roles of people, highest first. `service` is for our own processes, which have keys."""
EVERYONE: Final = frozenset(Role)
PEOPLE: Final = frozenset(RANKS)
ADMINS: Final = frozenset({Role.ADMIN})
STAFF: Final = frozenset({Role.ADMIN, Role.OPERATOR})
SERVICE: Final = frozenset({Role.SERVICE})
SEES_ALL: Final = STAFF | SERVICE
"""Roles for which ownership does not matter; the others see and touch their own sessions and reservations only."""

_FLEET: Final = {Verb.READ: SEES_ALL | {Role.AUTHOR}, Verb.WRITE: SEES_ALL, Verb.ACT: STAFF, Verb.STEP: SERVICE}
_OWN: Final = {Verb.READ: EVERYONE, Verb.WRITE: EVERYONE, Verb.ACT: EVERYONE, Verb.STEP: SERVICE}
PERMITTED: Final[Mapping[str, Mapping[Verb, frozenset[Role]]]] = {
    "LabWorker": _FLEET,
    "LabWorkerPool": _FLEET,
    "WorkerTemplate": _FLEET,
    "LabletDefinition": {
        Verb.READ: EVERYONE,
        Verb.WRITE: SEES_ALL | {Role.AUTHOR},
        Verb.ACT: STAFF | {Role.AUTHOR},
        Verb.STEP: SERVICE,
    },
    "LabletSession": _OWN,
    "Reservation": _OWN,
    "SystemSettings": {Verb.READ: SEES_ALL, Verb.WRITE: STAFF, Verb.ACT: STAFF, Verb.STEP: SERVICE},
}
"""Which roles may do what with which kind."""


def owner_of(resource: Resource) -> str | None:
    """Name the person an object belongs to; None for objects that belong to nobody in particular."""
    return resource.spec.owner if isinstance(resource, LabletSession | Reservation) else None


def sees(caller: Caller, resource: Resource) -> bool:
    """Tell whether an object exists for this caller; what does not is answered like what is missing."""
    owner = owner_of(resource)
    return caller.role in PERMITTED[resource.kind][Verb.READ] and (
        caller.role in SEES_ALL or owner is None or owner == caller.name
    )


LONGEST: Final = 16_384
"""Those of issuers are long; what is longer is nobody's."""


def bearer(text: str, path: str) -> Secret:
    """Take a token as it was typed or pasted; Invalid, without repeating it, when it cannot be one."""
    token = text.strip()
    if problem := trouble(token):
        raise Invalid(Fault(path, problem, "copy the token again, all of it and nothing else"))
    return Secret(token)


def trouble(token: str) -> str:
    """Say what is wrong with a token, in words that do not give it away; empty when nothing is."""
    if not token:
        return "empty"
    if len(token) > LONGEST:
        return f"{len(token)} characters, of which a token has at most {LONGEST}"
    if not (token.isascii() and token.isprintable() and " " not in token):
        return "holds a blank or a character that no token has"
    return ""
