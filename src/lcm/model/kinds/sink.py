"""Event sinks: where events are sent, which ones, in which format, and how far each sink has got.

`Sink` is a kind like any other. `SinkStatus` and `DeadLetter` hold what happened, under keys of their own, so that
deliveries do not conflict with edits: `control.delivery.outbox` writes them, and `api` shows them.
"""

from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

import msgspec

from lcm.model.base.event import NO_ROW, Event
from lcm.model.base.resource import (
    API_VERSION,
    END,
    Count,
    Metadata,
    Moment,
    Name,
    Part,
    SecretRef,
    SecretUse,
    Status,
    Text,
)

CREDENTIAL_MARK: Final = "{credential}"
"""Replaced in a URL by the sink's credential, for receivers whose URLs are secret."""

RESET_TYPE: Final = "reset"
"""The type of the event that tells a sink that events were lost."""

TEST_TYPE: Final = "sink.test"
"""The type of the event that is sent to one sink to test whether it arrives."""

BUILT_IN_PREFIX: Final = "setting."
"""The prefix of the names of sinks that come from the settings."""

HIDDEN: Final = "***"
"""Replaces the part of a URL that may be a secret."""

TypePattern = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9_.*-]{1,100}" + END,
        max_length=100,
        description="an event type; * stands for any part of it",
        examples=["worker.*"],
    ),
]
Filter = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Format(StrEnum):
    """The format in which a sink receives events."""

    CLOUDEVENTS = "cloudevents"
    SLACK = "slack"
    PAGERDUTY = "pagerduty"


class SinkSpec(Part):
    """Where events are sent, which ones, and in which format.

    `secret` signs every request; `previous_secret` does so too while receivers change over. `credential` is
    what the receiver requires: PagerDuty's routing key, or the value of {credential} in the URL. A URL that ends in ***
    is not shown in full; sent back, it stays as it is. `sealed_url` is the whole of it, encrypted by us.
    """

    url: Annotated[str, msgspec.Meta(max_length=2048, examples=["https://hooks.example.org/lcm"])]
    format: Format = Format.CLOUDEVENTS
    event_types: Annotated[tuple[TypePattern, ...], msgspec.Meta(max_length=50)] = ()
    owner_id: Filter | None = None
    worker_id: Filter | None = None
    session_id: Filter | None = None
    definition_id: Filter | None = None
    enabled: bool = True
    secret: Annotated[SecretRef, SecretUse.SIGNING_SECRET] | None = None
    previous_secret: Annotated[SecretRef, SecretUse.SIGNING_SECRET] | None = None
    credential: Annotated[SecretRef, SecretUse.CREDENTIAL] | None = None
    sealed_url: Annotated[SecretRef, SecretUse.SINK_URL] | None = None


class Sink(Part):
    """A receiver of events of all namespaces."""

    metadata: Metadata
    spec: SinkSpec
    api_version: Literal["lcm/v1"] = API_VERSION
    kind: Literal["Sink"] = "Sink"
    status: Status = Status()


class SinkStatus(Part):
    """How far a sink has got: all events up to `revision` are done, and `n` of the next commit that has any.

    `sink` is the revision at which the sink was created, 0 for one from the settings; another sink of the
    same name starts over. `tries` counts how often the next event was refused, `failures` the consecutive
    failures of all deliveries, `dropped` the dead letters for which there was no room. `reset` says why
    events were lost that the sink was not told of yet.
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
    """A stored event, perhaps written by a newer version: unknown fields are ignored, not refused."""


class DeadLetter(Part, forbid_unknown_fields=False):
    """An event that a sink did not accept. With `replay` it waits to be sent once more, under the same id."""

    sink: Name
    event_id: str
    event: StoredEvent
    attempts: Count
    last_error: Text
    at: Moment
    replay: bool = False


_ALL_TYPES: Final = ("*",)
_DEFAULT_TYPES: Final[Mapping[Format, tuple[str, ...]]] = {Format.PAGERDUTY: ("alert.*",)}
"""The event types of a sink that names none. PagerDuty wakes people up, so it gets alerts only."""

_event_decoder: Final = msgspec.json.Decoder(StoredEvent)


def accepts_event(sink: Sink, event: Event) -> bool:
    """Return True if an event passes a sink's filters.

    A test event goes to the sink that it names, whatever the filters.
    """
    if event.type == TEST_TYPE:
        return event.name == sink.metadata.name
    spec = sink.spec
    pairs = (
        (spec.owner_id, event.owner),
        (spec.worker_id, event.worker_id),
        (spec.session_id, event.session_id),
        (spec.definition_id, event.definition_id),
    )
    patterns = spec.event_types or _DEFAULT_TYPES.get(spec.format, _ALL_TYPES)
    return all(wanted is None or wanted == found for wanted, found in pairs) and any(
        fnmatchcase(event.type, pattern) for pattern in patterns
    )


def redact_url(url: str) -> str:
    """Return a sink's URL in a form that may be shown.

    Many receivers' paths are secrets. The path is shown only if {credential} stands for the secret.
    """
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    host, mark, _ = host.partition("?")
    if CREDENTIAL_MARK in url or not (path or mark):
        return url
    return f"{scheme}://{host}{'?' if mark else slash}{HIDDEN}"


def redact_sink(sink: Sink) -> Sink:
    """Return a sink whose URL may be shown."""
    return with_url(sink, redact_url(sink.spec.url), sink.spec.sealed_url)


def with_url(sink: Sink, url: str, sealed_url: str | None) -> Sink:
    """Return a sink with another URL; the same object if it is no other."""
    if (url, sealed_url) == (sink.spec.url, sink.spec.sealed_url):
        return sink
    return msgspec.structs.replace(sink, spec=msgspec.structs.replace(sink.spec, url=url, sealed_url=sealed_url))


def upgrade_sink(flat: dict[str, Any]) -> dict[str, Any]:
    """Return a stored sink of the first schema, in which all fields stood side by side, as a document."""
    spec = {name: value for name, value in flat.items() if name not in {"name", "created_at"}}
    name, created_at = flat.get("name"), flat.get("created_at")
    metadata = {"name": name, "uid": name, "generation": 1, "created_at": created_at}
    return {"kind": "Sink", "metadata": metadata, "spec": spec}


def read_event(raw: bytes) -> StoredEvent:
    """Decode a stored event, without its row: sinks send none. Raises ValueError if it is not one."""
    return msgspec.structs.replace(_event_decoder.decode(raw), row=NO_ROW)


def format_event_id(epoch: str, revision: int, place: int | str) -> str:
    """Return the id of an event, EPOCH.REVISION.N, which is the same wherever it is sent."""
    return f"{epoch}.{revision}.{place}"
