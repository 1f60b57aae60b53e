"""Roles, callers, access tokens and the one table of permissions.

`control` checks every call against the table, and the routes of `api` take their policies from it, so the two cannot
differ. Also what a bearer token must look like before it may be sent: HTTP libraries repeat a header that they cannot
send in their error, so a bad token must be refused earlier.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.machine import USER
from lcm.model.base.resource import END, Moment, Part
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession

Subject = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}" + END,
        description="a person's or program's name: letters, digits and . _ @ + -, at most 128",
        examples=["ada@example.org"],
    ),
]


class Role(StrEnum):
    """What somebody may do, in one word."""

    ADMIN = "admin"
    OPERATOR = "operator"
    AUTHOR = "author"
    USER = "user"
    SERVICE = "service"


class Verb(StrEnum):
    """What is done with an object: `step` reports an observation of it, `act` requests one of its actions."""

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
    """The stored part of a bearer token. Only its holder knows the token itself."""

    id: str
    name: Subject
    role: Role
    sha256: str
    created_at: Moment
    expires_at: Moment | None = None
    session: bool = False
    """True for a browser's token, which is presented as a cookie."""
    bound: Moment | None = None
    """Nothing made with this token outlives this moment."""
    made_by: str = ""
    lineage: tuple[str, ...] = ()
    """The ids of the tokens that this one goes back to, the oldest first: with any of them it is revoked."""


class SignInCode(Part):
    """The stored part of a sign-in link: who is signed in by it, and until when it can be used."""

    name: Subject
    role: Role
    expires_at: Moment
    bound: Moment | None = None
    """When everything that comes of it must end: with the token it was made with."""
    lineage: tuple[str, ...] = ()
    """Likewise."""


class UsedSignIn(Part):
    """A note that somebody signed in at a provider, kept until it could not be tried again."""

    expires_at: Moment


RANKS: Final = (Role.ADMIN, Role.OPERATOR, Role.AUTHOR, Role.USER)
"""The roles of people, highest first. `service` is for our own processes, which have keys."""
EVERYONE: Final = frozenset(Role)
PEOPLE: Final = frozenset(RANKS)
ADMINS: Final = frozenset({Role.ADMIN})
STAFF: Final = frozenset({Role.ADMIN, Role.OPERATOR})
SERVICE: Final = frozenset({Role.SERVICE})
SEES_ALL: Final = STAFF | SERVICE
"""Roles that ownership does not limit. All others see and change only their own sessions and reservations."""

_FLEET_PERMISSIONS: Final = {
    Verb.READ: SEES_ALL | {Role.AUTHOR},
    Verb.WRITE: SEES_ALL,
    Verb.ACT: STAFF,
    Verb.STEP: SERVICE,
}
_OWNED_PERMISSIONS: Final = {Verb.READ: EVERYONE, Verb.WRITE: EVERYONE, Verb.ACT: EVERYONE, Verb.STEP: SERVICE}
PERMISSIONS: Final[Mapping[str, Mapping[Verb, frozenset[Role]]]] = {
    "LabWorker": _FLEET_PERMISSIONS,
    "LabWorkerPool": _FLEET_PERMISSIONS,
    "WorkerTemplate": _FLEET_PERMISSIONS,
    "LabletDefinition": {
        Verb.READ: EVERYONE,
        Verb.WRITE: SEES_ALL | {Role.AUTHOR},
        Verb.ACT: STAFF | {Role.AUTHOR},
        Verb.STEP: SERVICE,
    },
    "LabletSession": _OWNED_PERMISSIONS,
    "Reservation": _OWNED_PERMISSIONS,
    "SystemSettings": {Verb.READ: SEES_ALL, Verb.WRITE: STAFF, Verb.ACT: STAFF, Verb.STEP: SERVICE},
    "Sink": {Verb.READ: SEES_ALL, Verb.WRITE: ADMINS, Verb.ACT: STAFF, Verb.STEP: SERVICE},
}
"""The roles that may do each verb, by kind."""


def owner_of(resource: Resource) -> str | None:
    """Return the name of an object's owner; None for kinds that have no owner."""
    return resource.spec.owner if isinstance(resource, LabletSession | Reservation) else None


def can_see(caller: Caller, resource: Resource) -> bool:
    """Return True if this caller may see the object.

    An object that the caller may not see is answered exactly like one that does not exist.
    """
    owner = owner_of(resource)
    return caller.role in PERMISSIONS[resource.kind][Verb.READ] and (
        caller.role in SEES_ALL or owner is None or owner == caller.name
    )


MAX_TOKEN_LENGTH: Final = 16_384
"""Tokens of identity providers are long, but none is longer than this."""


def parse_token(text: str, path: str) -> Secret:
    """Return a typed or pasted token as a Secret.

    Raises Invalid, without repeating the text, when it cannot be a token.
    """
    token = text.strip()
    if problem := find_token_problem(token):
        raise Invalid(Fault(path, problem, "copy the token again, all of it and nothing else"))
    return Secret(token)


def find_token_problem(token: str) -> str:
    """Return what is wrong with a token, in words that do not reveal it; empty when nothing is."""
    if not token:
        return "empty"
    if len(token) > MAX_TOKEN_LENGTH:
        return f"{len(token)} characters, of which a token has at most {MAX_TOKEN_LENGTH}"
    if not (token.isascii() and token.isprintable() and " " not in token):
        return "holds a blank or a character that no token has"
    return ""
