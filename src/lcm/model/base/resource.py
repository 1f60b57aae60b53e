"""What every kind has in common: metadata, conditions, the history of phases.

A kind is one plain struct with `api_version`, `kind`, `metadata`, `spec` (what is wanted) and `status` (what was seen).
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
"""Ends a pattern: `$` alone would let a line break follow, and `\\Z` is unknown to those who read our schemas."""

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
MOST_TEXT: Final = 2000
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]
PRINTED: Final = r"^[^\x00-\x1f\x7f-\x9f]*" + END
"""No control characters: what is shown in a terminal must not steer it."""
_SHORT: Final = "characters, none of them a control character; in quotes if it looks like a number"
ShortText = Annotated[str, msgspec.Meta(pattern=PRINTED, max_length=128, description=f"text of at most 128 {_SHORT}")]
ZoneName = Annotated[str, msgspec.Meta(max_length=64, description="a time zone such as Europe/Berlin")]
LabelName = Annotated[
    str, msgspec.Meta(pattern=PRINTED, min_length=1, max_length=128, description=f"text of 1 to 128 {_SHORT}")
]
LabelText = Annotated[str, msgspec.Meta(pattern=PRINTED, max_length=256, description=f"text of at most 256 {_SHORT}")]
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


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An immutable piece of a document; a mis-spelt field is an error, not a silent loss."""


class Owner(Part):
    """The object that made this one."""

    kind: ShortText
    name: Name
    uid: ShortText


class Metadata(Part):
    """Who an object is. Users choose name, namespace, labels and annotations; the rest is bookkeeping."""

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
    """One aspect of an object, and since when it has been so."""

    type: str
    status: Truth
    last_transition_at: Moment
    reason: str = ""
    message: Text = ""


class PhaseChange(Part):
    """One line of an object's story."""

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
    """Set a condition; its moment moves only when its status does."""
    old = condition(conditions, new.type)
    if old is not None and old.status is new.status:
        new = msgspec.structs.replace(new, last_transition_at=old.last_transition_at)
    return (*(one for one in conditions if one.type != new.type), new)


def condition(conditions: Sequence[Condition], name: str) -> Condition | None:
    """Find a condition by its type; None means never said."""
    for one in conditions:
        if one.type == name:
            return one
    return None


def with_change(history: Sequence[PhaseChange], change: PhaseChange) -> tuple[PhaseChange, ...]:
    """Add a line to a story and forget the oldest beyond the limit."""
    return (*history, change)[-HISTORY_LIMIT:]


def story(history: Sequence[PhaseChange]) -> str:
    """Tell an object's story, oldest first, one line a change."""
    lines = (
        f"{change.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ} {change.phase} by {change.by}"
        + (f": {change.reason}" if change.reason else "")
        for change in history
    )
    return "\n".join(map(one_line, lines))


def one_line(text: str) -> str:
    """Write text as one line: nobody's words may look like a line of somebody else."""
    return " ".join(text.splitlines())
