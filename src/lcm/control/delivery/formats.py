"""An event as receivers want it: CloudEvents 1.0, a line for Slack, an alert for PagerDuty. Pure; used by `courier`.

The body of an event is the same for every attempt; only the headers that `model.signature` makes differ.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.access.webhook import signed
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.event import Event
from lcm.model.base.resource import Part
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.sink import CREDENTIAL, Format, Sink

JSON: Final = "application/json"
CLOUDEVENT: Final = "application/cloudevents+json; charset=utf-8"
ALERT_RAISED: Final = "alert.raised"
ALERT_CLEARED: Final = "alert.cleared"

_LONGEST_LINE: Final = 1000
_LONGEST_KEY: Final = 255
_TELLING: Final = 4
"""So much of a secret's beginning is too much."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SEVERITIES: Final = frozenset({"critical", "error", "warning", "info"})
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Keys:
    """A sink's secrets, at hand for one attempt."""

    signing: Sequence[Secret] = ()
    credential: Secret | None = None

    def hide_in(self, text: str) -> str:
        """Blot all of them out of what a receiver said, also one that was cut off at its end."""
        for secret in (*self.signing, *((self.credential,) if self.credential else ())):
            text = _uncut(secret.hide_in(text), secret.reveal())
        return text


@dataclass(frozen=True, slots=True)
class Request:
    """What is posted. It may hold secrets: in the body for PagerDuty, in the URL for Slack."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str]


class CloudEvent(Part, omit_defaults=True):
    """An event in CloudEvents' structured form; the last four are extensions."""

    id: str
    source: str
    type: str
    subject: str
    time: datetime
    data: msgspec.Raw
    specversion: Literal["1.0"] | None = None
    datacontenttype: Literal["application/json"] | None = None
    ownerid: str | None = None
    workerid: str | None = None
    sessionid: str | None = None
    definitionid: str | None = None


class _Told(msgspec.Struct, frozen=True):
    """What is worth a word in the data of any event; all else in it is for programs."""

    old_phase: str | None = None
    new_phase: str | None = None
    previous_state: str | None = None
    new_state: str | None = None
    phase: str | None = None
    alert: str | None = None
    severity: str | None = None
    reason: str | None = None
    message: str | None = None


class _Details(Part):
    event_id: str
    event_type: str
    data: msgspec.Raw


class _Payload(Part):
    summary: str
    source: str
    severity: str
    timestamp: datetime
    component: str
    custom_details: _Details


class _Alert(Part, omit_defaults=True):
    """A request to PagerDuty's Events API v2."""

    routing_key: str
    event_action: Literal["trigger", "resolve"]
    dedup_key: str
    payload: _Payload | None = None


class _Line(Part):
    """A message for Slack, in which nothing becomes a link, a mention or markup."""

    text: str
    mrkdwn: bool
    parse: Literal["none"]
    unfurl_links: bool
    unfurl_media: bool


def request(sink: Sink, event_id: str, event: Event, keys: Keys, *, source: str, now: datetime) -> Request:
    """Make one attempt's request. Invalid when the sink lacks a secret that its format needs."""
    media_type, write = _FORMATS[sink.format]
    body = write(event_id, event, keys, source)
    headers = {"content-type": media_type, **signed(event_id, body, keys.signing, now=now)}
    return Request(_url(sink, keys), body, headers)


def summary(event: Event) -> str:
    """Tell an event in one line of plain text."""
    told = _told(event)
    before, after = told.old_phase or told.previous_state, told.new_phase or told.new_state or told.phase
    moved = f"{before} → {after}" if before and after else after
    parts = [event.type, subject(event), moved, told.reason, told.message]
    line = " · ".join(_CONTROL.sub(" ", part) for part in parts if part)
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"


def subject(event: Event) -> str:
    """Name the object that an event is about, as its path in the API does."""
    known = KINDS.get(event.kind)
    return known.key(event.namespace, event.name) if known else f"{event.kind}/{event.namespace}/{event.name}"


def _uncut(text: str, secret: str) -> str:
    lengths = range(len(secret) - 1, _TELLING - 1, -1)
    cut = next((length for length in lengths if text.endswith(secret[:length])), 0)
    return f"{text[:-cut]}***" if cut else text


def _url(sink: Sink, keys: Keys) -> str:
    if CREDENTIAL not in sink.url:
        return sink.url
    return sink.url.replace(CREDENTIAL, _credential(keys).reveal())


def _credential(keys: Keys) -> Secret:
    if not keys.credential:
        raise Invalid(Fault("credential", "missing", "say where it is, for example env:SECRET_PAGERDUTY_KEY"))
    return keys.credential


def _cloudevent(event_id: str, event: Event, _: Keys, source: str) -> bytes:
    return _encode(
        CloudEvent(
            specversion="1.0",
            id=event_id,
            source=source,
            type=event.type,
            subject=subject(event),
            time=event.time.astimezone(UTC),
            datacontenttype=JSON,
            data=event.data,
            ownerid=event.owner,
            workerid=event.worker_id,
            sessionid=event.session_id,
            definitionid=event.definition_id,
        )
    )


def _slack(_id: str, event: Event, _: Keys, _source: str) -> bytes:
    text = summary(event).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _encode(_Line(text=text, mrkdwn=False, parse="none", unfurl_links=False, unfurl_media=False))


def _pagerduty(event_id: str, event: Event, keys: Keys, source: str) -> bytes:
    """Raise and clear an alert under one key; anything else is an incident of its own, for information."""
    told, alert = _told(event), event.type in {ALERT_RAISED, ALERT_CLEARED}
    key = f"{subject(event)}/{told.alert or told.reason or 'alert'}" if alert else event_id
    severity = (told.severity or "error").lower() if alert else "info"
    payload = _Payload(
        summary=summary(event),
        source=source,
        severity=severity if severity in _SEVERITIES else "error",
        timestamp=event.time.astimezone(UTC),
        component=subject(event),
        custom_details=_Details(event_id=event_id, event_type=event.type, data=event.data),
    )
    cleared = event.type == ALERT_CLEARED
    return _encode(
        _Alert(
            routing_key=_credential(keys).reveal(),
            event_action="resolve" if cleared else "trigger",
            dedup_key=key[:_LONGEST_KEY],
            payload=None if cleared else payload,
        )
    )


def _told(event: Event) -> _Told:
    try:
        return msgspec.json.decode(event.data, type=_Told)
    except _UNREADABLE:
        return _Told()


_FORMATS: Final[Mapping[Format, tuple[str, Callable[[str, Event, Keys, str], bytes]]]] = {
    Format.CLOUDEVENTS: (CLOUDEVENT, _cloudevent),
    Format.SLACK: (JSON, _slack),
    Format.PAGERDUTY: (JSON, _pagerduty),
}
