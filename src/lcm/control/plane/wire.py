"""The request and answer bodies that the API and its clients exchange, where no model type serves already.

`api` reads what `control.plane.client` writes, and the other way round: one set of structs, so that they cannot differ.
It covers objects, watches, leases, sinks and events, and access; `control.plane.bodies` covers the operations.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple, get_args

import msgspec

from lcm.control.access.audit import AuditRecord
from lcm.control.plane.problems import Problem
from lcm.control.plane.protocol import Action, Applied, Document, ReservationAction, SessionAction, WorkerAction
from lcm.model.access.identity import AccessToken, Role, Subject
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import (
    DEFAULT_NAMESPACE,
    Count,
    Moment,
    Name,
    Part,
    Positive,
    ShortText,
    Text,
    shorten_text,
)
from lcm.model.kinds.session import Email
from lcm.model.kinds.sink import SinkSpec, SinkStatus
from lcm.store.base import Lease

ACTOR_HEADER: Final = "Lcm-Actor"
FENCE_HEADER: Final = "Lcm-Fence"
BUILD_HEADER: Final = "Lcm-Build"
"""On the first request of a process: its build and its schema, as in `0.5.0+3f0c5a9e1b7d 2`."""
EPOCH_HEADER: Final = "Lcm-Epoch"
"""On the answer to a watch: the history that its revisions belong to."""
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
IDEMPOTENCY_KEY_PATTERN: Final = "[!-~]{1,200}"
"""The form of an idempotency key."""
ACTIONS: Final[Mapping[str, tuple[type[Action], ...]]] = {
    "LabWorker": get_args(WorkerAction),
    "LabletSession": get_args(SessionAction),
    "Reservation": get_args(ReservationAction),
}
"""The actions of each kind. Each action is a sub-path of its object."""
NDJSON: Final = "application/x-ndjson"
"""The media type of the answer to a watch."""
KEEPALIVE_SECONDS: Final = 5.0
"""A watch without changes sends a sign of life this often."""
SILENCE_LIMIT_SECONDS: Final = 15.0
"""A watch that has been silent for this long counts as dead."""

EventId = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=128, description="EPOCH.REVISION.N", examples=["9f3c1a2b.42.0"]),
]


class ObjectPage(msgspec.Struct, frozen=True):
    """A page of a list. Its items have the type that was asked for."""

    items: list[msgspec.Raw]
    revision: int
    next: str | None = None


class Documents(Part):
    """The documents to apply."""

    documents: Sequence[Document]


class Results(msgspec.Struct, frozen=True):
    """The outcomes of an apply, in the order of its documents."""

    results: tuple[Applied, ...]


class StatusReport(Part):
    """The status of an object, observed at exactly this revision. It has the type of its kind's status."""

    resource_version: Count
    status: msgspec.Raw
    reason: Text = ""


class LeaseRequest(Part):
    """Who requests a lease, and for how long after each renewal."""

    holder: str
    ttl_seconds: Positive


class LeaseTerm(Part):
    """The term of a lease that a request is about."""

    term: Count


class LeaseAnswer(msgspec.Struct, frozen=True):
    """The lease; null when nobody holds it."""

    lease: Lease | None


class Who(msgspec.Struct, frozen=True):
    """The caller's name and role."""

    name: Subject
    role: Role


class ShownSink(SinkSpec, kw_only=True):
    """A sink with its delivery, as it is shown, and as it may be sent back; its bookkeeping fields are then ignored.

    `built_in` sinks are made by the settings.
    """

    name: Name
    created_at: Moment | None = None
    resource_version: Count = 0
    built_in: bool = False
    status: SinkStatus | None = None


class ShownSinks(msgspec.Struct, frozen=True):
    """All sinks. They always fit into one page, so that `next` is always null."""

    items: tuple[ShownSink, ...]
    next: str | None = None


class ReplayRequest(Part):
    """The events whose dead letters are to be sent again; without any, all of them."""

    event_ids: Annotated[tuple[EventId, ...], msgspec.Meta(max_length=1000)] = ()


class Replayed(msgspec.Struct, frozen=True):
    """How many dead letters will be sent again that were not queued for it already."""

    count: Count


class Queued(msgspec.Struct, frozen=True):
    """The event that will be sent."""

    event_id: EventId


class ListedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it is listed."""

    id: EventId
    type: str
    time: Moment
    kind: str
    name: str
    namespace: str
    data: msgspec.Raw
    owner_id: str | None = None
    session_id: str | None = None
    worker_id: str | None = None
    definition_id: str | None = None


class ListedEvents(msgspec.Struct, frozen=True):
    """Events in the order in which they happened. `last` is where to continue; `more` says that more follow."""

    items: tuple[ListedEvent, ...]
    last: EventId
    more: bool = False


class ListedDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter as it is listed."""

    event: ListedEvent
    attempts: int
    last_error: str
    at: Moment
    replay: bool = False


class ListedDeadLetters(msgspec.Struct, frozen=True):
    """A page of dead letters."""

    items: tuple[ListedDeadLetter, ...]
    next: str | None = None


class WatchedObject(msgspec.Struct, frozen=True):
    """An object in a line of a watch; null when it is gone."""

    kind: str
    namespace: str
    name: str
    object: msgspec.Raw


class WatchFrame(msgspec.Struct, frozen=True):
    """A line of a watch: a commit, a sign of life (nothing seen), or a problem that ends the watch."""

    revision: int = 0
    seen: tuple[WatchedObject, ...] = ()
    problem: Problem | None = None


class BuildInfo(NamedTuple):
    """A build of this software, as another process names it."""

    version: str
    schema: int


def parse_build(text: str) -> BuildInfo | None:
    """Parse the value of the header; None if it is none, as with processes that do not name their build."""
    found = re.fullmatch(r"([!-~]{1,100}) ([0-9]{1,6})", text)
    return BuildInfo(found[1], int(found[2])) if found else None


def check_idempotency_key(given: str) -> None:
    """Raise Invalid for a text that cannot be an idempotency key."""
    if not re.fullmatch(IDEMPOTENCY_KEY_PATTERN, given):
        remedy = "use 1 to 200 visible ASCII characters without spaces"
        raise Invalid(Fault(IDEMPOTENCY_KEY, f"{shorten_text(given, 80)!r} is no key", remedy))


LONGEST_LIFE_SECONDS: Final = 90 * 86_400
"""For tokens that people make for themselves."""
DEFAULT_LIFE_SECONDS: Final = 30 * 86_400
MOST_TRACKS: Final = 32
_MOST_SECONDS: Final = 100 * 365 * 86_400
_FEED_SECONDS: Final = 366 * 86_400


class TokenRequest(Part):
    """A token to create: by default for the caller, with the caller's role, for thirty days.

    Only administrators make tokens for others, or tokens that last for more than ninety days; 0 means no expiry. Only
    they put an address on it: its holder uses the sessions that are for this learner. A token with `tracks` books on
    these only; what is made with it has the same address, and no other tracks.
    """

    name: Subject | None = None
    role: Role | None = None
    expires_in_seconds: Annotated[int, msgspec.Meta(ge=0, le=_MOST_SECONDS, examples=[2_592_000])] | None = None
    email: Email | None = None
    tracks: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MOST_TRACKS)] | None = None


class TokenInfo(Part):
    """A token as it may be shown, without its text and its hash. `session` marks the token of a browser's sign-in.

    `seat` is the uid of the session that an invitation is for; `calendar` what a feed shows, if it is one's: "own", or
    the uid of a class.
    """

    id: str
    name: Subject
    role: Role
    created_at: Moment
    expires_at: Moment | None
    session: bool
    made_by: str
    email: str = ""
    tracks: tuple[str, ...] = ()
    seat: str = ""
    calendar: str = ""


class TokenMade(Part):
    """A new token. Its text is not stored and never shown again."""

    token: str
    info: TokenInfo


class TokenList(Part):
    """Tokens, oldest first."""

    items: tuple[TokenInfo, ...]


class SignInLink(Part):
    """A path below the API's address at which a browser can sign in once."""

    path: str
    expires_at: Moment


class InvitationRequest(Part):
    """For how long a session's learner is invited; by default until the session is cleaned up."""

    expires_in_seconds: Annotated[int, msgspec.Meta(ge=60, le=_MOST_SECONDS, examples=[7200])] | None = None


class Invitation(Part):
    """A path below the API's address at which a browser can use one session until it expires; it is shown only once."""

    path: str
    info: TokenInfo


class FeedRequest(Part):
    """A calendar feed to make: of a class, or else of all that is the caller's. It ends after a year at the latest."""

    reservation: Name | None = None
    namespace: Name = DEFAULT_NAMESPACE
    expires_in_seconds: Annotated[int, msgspec.Meta(ge=60, le=_FEED_SECONDS, examples=[_FEED_SECONDS])] = _FEED_SECONDS


class FeedMade(Part):
    """A path below the API's address at which a calendar program reads a feed until it expires. It is shown once."""

    path: str
    info: TokenInfo


class AuditList(Part):
    """A page of the audit, newest last; `next` is null on the last page."""

    items: tuple[AuditRecord, ...]
    next: str | None


def token_info(token: AccessToken) -> TokenInfo:
    """Return the parts of a token that may be shown."""
    shown = msgspec.structs.asdict(token) | msgspec.structs.asdict(token.reach)
    return TokenInfo(**{name: shown[name] for name in TokenInfo.__struct_fields__})
