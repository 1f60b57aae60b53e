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
from lcm.model.base.resource import END, Moment, Part, ShortText

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
    INSTRUCTOR = "instructor"
    USER = "user"
    VIEWER = "viewer"
    SERVICE = "service"
    GUEST = "guest"


class Verb(StrEnum):
    """What is done with an object: `step` reports an observation of it, `act` requests one of its actions."""

    READ = "read"
    WRITE = "write"
    ACT = "act"
    STEP = "step"


class Reach(Part):
    """What a credential says besides name and role: whose seats it may use, and what it is limited to."""

    email: str = ""
    """A verified address, as `normalize_address` writes it; empty matches nobody."""
    tracks: tuple[ShortText, ...] = ()
    """The only tracks on which its holder books; none means all."""
    seat: str = ""
    """The uid of the one session that a guest sees, while it is for `email`."""
    calendar: str = ""
    """What a calendar feed shows: OWN_CALENDAR, or the uid of a class. Its secret opens this feed and nothing else."""


NO_REACH: Final = Reach()
OWN_CALENDAR: Final = "own"
"""The feed of all that is its holder's."""


class Caller(Part):
    """Somebody whose identity is proven. `actor` is the name under which steps are taken."""

    name: Subject
    role: Role
    actor: str = USER
    reach: Reach = NO_REACH


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
    reach: Reach = NO_REACH


class SignInCode(Part):
    """The stored part of a sign-in link: who is signed in by it, and until when it can be used."""

    name: Subject
    role: Role
    expires_at: Moment
    bound: Moment | None = None
    """When everything that comes of it must end: with the token it was made with."""
    lineage: tuple[str, ...] = ()
    """Likewise."""
    reach: Reach = NO_REACH


class UsedSignIn(Part):
    """A note that somebody signed in at a provider, kept until it could not be tried again."""

    expires_at: Moment


RANKS: Final = (Role.ADMIN, Role.OPERATOR, Role.AUTHOR, Role.INSTRUCTOR, Role.USER, Role.VIEWER)
"""The roles of people, in the order in which one of several is chosen. `service` is for our own processes, which have
keys, and `guest` for whoever was invited to one seat."""
EVERYONE: Final = frozenset(Role)
PEOPLE: Final = frozenset(RANKS)
ADMINS: Final = frozenset({Role.ADMIN})
STAFF: Final = frozenset({Role.ADMIN, Role.OPERATOR})
SERVICE: Final = frozenset({Role.SERVICE})
GUESTS: Final = frozenset({Role.GUEST})
SEES_ALL: Final = STAFF | SERVICE
"""Roles that ownership does not limit. All others see and change only their own sessions and reservations."""
BOOKERS: Final = SEES_ALL | {Role.AUTHOR, Role.INSTRUCTOR, Role.USER}
COST_READERS: Final = SEES_ALL | {Role.VIEWER}
FLEET_READERS: Final = SEES_ALL | {Role.AUTHOR, Role.INSTRUCTOR, Role.VIEWER}

GRANTS: Final[Mapping[Role, frozenset[Role]]] = {
    Role.ADMIN: EVERYONE - GUESTS,
    Role.OPERATOR: PEOPLE - ADMINS,
    Role.AUTHOR: frozenset({Role.AUTHOR, Role.USER}),
    Role.INSTRUCTOR: frozenset({Role.INSTRUCTOR, Role.USER}),
    Role.USER: frozenset({Role.USER}),
    Role.VIEWER: frozenset({Role.VIEWER}),
}
"""The roles of the tokens that a role makes: none of them may do what the role itself may not."""

_FLEET_PERMISSIONS: Final = {
    Verb.READ: FLEET_READERS,
    Verb.WRITE: SEES_ALL,
    Verb.ACT: STAFF,
    Verb.STEP: SERVICE,
}
PERMISSIONS: Final[Mapping[str, Mapping[Verb, frozenset[Role]]]] = {
    "LabWorker": _FLEET_PERMISSIONS,
    "LabWorkerPool": _FLEET_PERMISSIONS,
    "WorkerTemplate": _FLEET_PERMISSIONS,
    "LabletDefinition": {
        Verb.READ: BOOKERS | {Role.VIEWER},
        Verb.WRITE: SEES_ALL | {Role.AUTHOR},
        Verb.ACT: STAFF | {Role.AUTHOR},
        Verb.STEP: SERVICE,
    },
    "LabletSession": {Verb.READ: BOOKERS | GUESTS, Verb.WRITE: BOOKERS, Verb.ACT: BOOKERS | GUESTS, Verb.STEP: SERVICE},
    "Reservation": {Verb.READ: BOOKERS, Verb.WRITE: BOOKERS, Verb.ACT: BOOKERS, Verb.STEP: SERVICE},
    "SystemSettings": {Verb.READ: SEES_ALL, Verb.WRITE: STAFF, Verb.ACT: STAFF, Verb.STEP: SERVICE},
    "Sink": {Verb.READ: SEES_ALL, Verb.WRITE: ADMINS, Verb.ACT: STAFF, Verb.STEP: SERVICE},
}
"""The roles that may do each verb, by kind. What a learner may do with a session is less: `model.access.learner`."""


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
