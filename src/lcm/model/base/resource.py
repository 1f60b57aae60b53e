"""What every kind has in common: metadata, conditions, the history of phases.

A kind is one plain struct with `api_version`, `kind`, `metadata`, `spec` (what is wanted) and `status` (what was
observed).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, dataclass_transform

import msgspec

API_VERSION: Final = "lcm/v1"
DEFAULT_NAMESPACE: Final = "default"
HISTORY_LIMIT: Final = 20
END: Final = r"$(?!\n)"
"""Ends a pattern. `$` alone would let a line break follow, and not every reader of our schemas knows a Z anchor."""

Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]([a-z0-9.:-]{0,61}[a-z0-9])?" + END,
        max_length=63,
        description="lower-case letters, digits, '.', '-' and, before a version, ':'; at most 63 characters",
        examples=["ccna-worker-1"],
    ),
]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Minutes = Annotated[int, msgspec.Meta(ge=1, le=366 * 24 * 60, description="whole minutes, at most a year")]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Moment = Annotated[datetime, msgspec.Meta(tz=True, examples=["2026-11-02T09:00:00Z"])]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
MAX_TEXT_LENGTH: Final = 2000
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_LENGTH)]
NO_CONTROL_CHARACTERS: Final = r"^[^\x00-\x1f\x7f-\x9f]*" + END
"""Allows no control characters: text shown in a terminal must not control it."""
_SHORT_TEXT_RULE: Final = "characters, none of them a control character; in quotes if it looks like a number"
ShortText = Annotated[
    str,
    msgspec.Meta(pattern=NO_CONTROL_CHARACTERS, max_length=128, description=f"text of at most 128 {_SHORT_TEXT_RULE}"),
]
ZoneName = Annotated[str, msgspec.Meta(max_length=64, description="a time zone such as Europe/Berlin")]
LabelName = Annotated[
    str,
    msgspec.Meta(
        pattern=NO_CONTROL_CHARACTERS, min_length=1, max_length=128, description=f"text of 1 to 128 {_SHORT_TEXT_RULE}"
    ),
]
LabelText = Annotated[
    str,
    msgspec.Meta(pattern=NO_CONTROL_CHARACTERS, max_length=256, description=f"text of at most 256 {_SHORT_TEXT_RULE}"),
]
Labels = Annotated[
    Mapping[LabelName, LabelText], msgspec.Meta(max_length=64, description="at most 64 pairs of short texts")
]
Region = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z]{2,4}(-[a-z]+){1,3}-[0-9]{1,2}" + END, max_length=32, examples=["us-east-1"]),
]
SecretRef = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(env|file|aws|sealed):.+" + END,
        max_length=4096,
        description="where a secret is: env:NAME, file:/path or aws:name; or plain:TEXT, answered as sealed:…",
        examples=["env:CML_LICENSE_TOKEN"],
    ),
]


class SecretUse(StrEnum):
    """What a secret is for: kind and field. A field's type is annotated with its use.

    A secret that is sealed for one use is accepted for no other.
    """

    ADMIN_PASSWORD = "LabWorker.admin_password"  # noqa: S105 - a name
    LICENSE_TOKEN = "LabWorker.license_token"  # noqa: S105 - likewise
    SIGNING_SECRET = "Sink.secret"  # noqa: S105 - likewise
    CREDENTIAL = "Sink.credential"
    SINK_URL = "Sink.url"


def shorten_text(text: str, limit: int = MAX_TEXT_LENGTH) -> str:
    """Return a text of at most `limit` characters; … marks where it was cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An immutable piece of a document. A misspelt field is an error, not a silent loss."""


class Owner(Part):
    """The object that created this one."""

    kind: ShortText
    name: Name
    uid: ShortText


class Metadata(Part):
    """The identity of an object.

    Users choose name, namespace, labels and annotations; the system sets the rest.
    """

    name: Name
    namespace: Name = DEFAULT_NAMESPACE
    labels: Labels = {}
    annotations: Labels = {}
    uid: ShortText = ""
    generation: Count = 0
    resource_version: Count = 0
    created_at: Moment | None = None
    deletion_timestamp: Moment | None = None
    finalizers: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=16)] = ()
    owner: Owner | None = None


class Truth(StrEnum):
    """What is known of a condition. Unknown is not False."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Part):
    """One aspect of an object, and since when it has had this status."""

    type: str
    status: Truth
    last_transition_at: Moment
    reason: str = ""
    message: Text = ""


class PhaseChange(Part):
    """One change of an object's phase: when, by whom and why."""

    phase: str
    at: Moment
    by: str
    reason: Text = ""


class Status(Part):
    """What the status of every kind holds besides its phase."""

    conditions: tuple[Condition, ...] = ()
    observed_generation: Count = 0
    history: tuple[PhaseChange, ...] = ()


def with_condition(conditions: Sequence[Condition], new: Condition) -> tuple[Condition, ...]:
    """Return the conditions with one set. Its transition time changes only when its status does."""
    old = find_condition(conditions, new.type)
    if old is None:
        return (*conditions, new)
    if old.status is new.status:
        new = msgspec.structs.replace(new, last_transition_at=old.last_transition_at)
    return tuple([new if one is old else one for one in conditions])


def find_condition(conditions: Sequence[Condition], name: str) -> Condition | None:
    """Return the condition of this type; None means that it was never set."""
    for one in conditions:  # asked all the time, where a generator would cost more
        if one.type == name:
            return one
    return None


def has_condition(conditions: Sequence[Condition], name: str, status: Truth) -> bool:
    """Return whether a condition is known to have this status."""
    known = find_condition(conditions, name)
    return known is not None and known.status is status


def with_change(history: Sequence[PhaseChange], change: PhaseChange) -> tuple[PhaseChange, ...]:
    """Return the history with one change added, without the oldest beyond the limit."""
    return (*history, change)[-HISTORY_LIMIT:]


def format_history(history: Sequence[PhaseChange]) -> str:
    """Return an object's history as text, oldest first, one line per change."""
    lines = (
        f"{change.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ} {change.phase} by {change.by}"
        + (f": {change.reason}" if change.reason else "")
        for change in history
    )
    return "\n".join(map(to_one_line, lines))


def to_one_line(text: str) -> str:
    """Return text as one line, so that nobody's words can look like another line of a report."""
    return " ".join(text.splitlines())
