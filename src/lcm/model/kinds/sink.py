"""Sinks: where events are sent to, which ones, in which form, and how far each sink has got.

What an operator wants stands in `Sink`; what happens, in `SinkStatus` and `DeadLetter` under keys of their own, so that
deliveries do not collide with edits. Written by `control.sinks` and `control.outbox`, shown by `api`.
"""

from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Final

import msgspec

from lcm.model.base.event import Event
from lcm.model.base.resource import Count, Moment, Name, Part, SecretRef, Text

CREDENTIAL: Final = "{credential}"
"""Stands in a URL for the sink's credential, for receivers whose URLs are secret."""

RESET: Final = "reset"
"""The type of the event that tells a sink that some were lost."""

TEST: Final = "sink.test"
"""The type of the event that somebody sends to one sink to see whether it arrives."""

BUILT_IN: Final = "setting."
"""How the names begin of sinks that the settings make."""

HIDDEN: Final = "***"
"""Stands for the part of a URL that may be a secret."""

TypePattern = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9_.*-]{1,100}$(?!\n)",
        description="an event type; * stands for any part of it",
        examples=["worker.*"],
    ),
]
Filter = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Format(StrEnum):
    """The form in which a sink takes events."""

    CLOUDEVENTS = "cloudevents"
    SLACK = "slack"
    PAGERDUTY = "pagerduty"


class Sink(Part):
    """A receiver of events.

    `secret` signs every request; `previous_secret` does so too while receivers change over. `credential` is what the
    receiver wants to be shown: PagerDuty's routing key, or what {credential} in the URL stands for.
    """

    name: Name
    url: Annotated[str, msgspec.Meta(max_length=2048, examples=["https://hooks.example.org/lcm"])]
    format: Format = Format.CLOUDEVENTS
    event_types: Annotated[tuple[TypePattern, ...], msgspec.Meta(max_length=50)] = ()
    owner_id: Filter | None = None
    worker_id: Filter | None = None
    session_id: Filter | None = None
    definition_id: Filter | None = None
    enabled: bool = True
    secret: SecretRef | None = None
    previous_secret: SecretRef | None = None
    credential: SecretRef | None = None
    created_at: Moment | None = None


class SinkStatus(Part):
    """How far a sink has got: all events up to `revision` are done, and `n` of the next commit that has any.

    `sink` is the revision at which the sink was made: another sink of the same name begins anew; 0 for one that the
    settings make. `tries` counts how
    often the next event was refused, `failures` how often in a row nothing got through, `dropped` the dead letters for
    which there was no room. `reset` says why events were lost that the sink is yet to be told of.
    """

    epoch: str
    revision: Count
    at: Moment
    n: Count = 0
    sink: Count = 0
    tries: Count = 0
    failures: Count = 0
    dead_letters: Count = 0
    dropped: Count = 0
    last_success_at: Moment | None = None
    last_error: Text = ""
    last_error_at: Moment | None = None
    reset: Text = ""
    last_reset_at: Moment | None = None


class StoredEvent(Event, forbid_unknown_fields=False):
    """An event as perhaps a newer version wrote it: what is not known here is left out, not refused."""


class DeadLetter(Part, forbid_unknown_fields=False):
    """An event that a sink did not take. With `replay` it waits to be sent once more, under the same id."""

    sink: Name
    event_id: str
    event: StoredEvent
    attempts: Count
    last_error: Text
    at: Moment
    replay: bool = False


_ALL: Final = ("*",)
_DEFAULTS: Final[Mapping[Format, tuple[str, ...]]] = {Format.PAGERDUTY: ("alert.*",)}
"""What a sink gets that names no types: PagerDuty wakes people up, so it gets alerts only."""

_events: Final = msgspec.json.Decoder(StoredEvent)


def wants(sink: Sink, event: Event) -> bool:
    """Tell whether an event passes a sink's filters; a test is for the sink that it names, whatever its filters."""
    if event.type == TEST:
        return event.name == sink.name
    pairs = (
        (sink.owner_id, event.owner),
        (sink.worker_id, event.worker_id),
        (sink.session_id, event.session_id),
        (sink.definition_id, event.definition_id),
    )
    patterns = sink.event_types or _DEFAULTS.get(sink.format, _ALL)
    return all(wanted is None or wanted == found for wanted, found in pairs) and any(
        fnmatchcase(event.type, pattern) for pattern in patterns
    )


def shown_url(url: str) -> str:
    """Write a sink's URL as it may be shown: many receivers' paths are secrets, unless {credential} stands for them."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    host, mark, _ = host.partition("?")
    if CREDENTIAL in url or not (path or mark):
        return url
    return f"{scheme}://{host}{'?' if mark else slash}{HIDDEN}"


def read_event(raw: bytes) -> StoredEvent:
    """Read an event of the store. Raises ValueError if it is none."""
    return _events.decode(raw)


def event_id(epoch: str, revision: int, place: int | str) -> str:
    """Name an event: EPOCH.REVISION.N, the same wherever it is sent."""
    return f"{epoch}.{revision}.{place}"
