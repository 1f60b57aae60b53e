"""An event in the format of its receiver: CloudEvents 1.0, a Slack message, a PagerDuty alert. Pure; used by `courier`.

The body of an event is the same for every attempt; only the signature headers of `model.access.webhook` differ.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.access.webhook import sign_request
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.event import Event
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.sink import CREDENTIAL_MARK, Format, SinkSpec

JSON: Final = "application/json"
CLOUDEVENT: Final = "application/cloudevents+json; charset=utf-8"
ALERT_RAISED: Final = "alert.raised"
ALERT_CLEARED: Final = "alert.cleared"

_MAX_LINE_LENGTH: Final = 1000
_MAX_DEDUP_KEY_LENGTH: Final = 255
_MIN_HIDDEN_LENGTH: Final = 4
"""A cut-off beginning of a secret is hidden from this length on."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SEVERITIES: Final = frozenset({"critical", "error", "warning", "info"})
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class SinkSecrets:
    """The secrets of a sink, revealed for one attempt."""

    signing: Sequence[Secret] = ()
    credential: Secret | None = None

    def hide_in(self, text: str) -> str:
        """Mask all of them in a receiver's text, also one that is cut off at the end of the text."""
        for secret in (*self.signing, *((self.credential,) if self.credential else ())):
            text, clear = secret.hide_in(text), secret.reveal()
            lengths = range(len(clear) - 1, _MIN_HIDDEN_LENGTH - 1, -1)
            cut = next((length for length in lengths if text.endswith(clear[:length])), 0)
            text = f"{text[:-cut]}***" if cut else text
        return text


@dataclass(frozen=True, slots=True)
class SinkRequest:
    """The request that is posted. It may contain secrets: in the body for PagerDuty, in the URL for Slack."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str]


class _EventText(msgspec.Struct, frozen=True):
    """The fields of an event's data that are worth showing to people; the others are for programs."""

    old_phase: str | None = None
    new_phase: str | None = None
    previous_state: str | None = None
    new_state: str | None = None
    phase: str | None = None
    alert: str | None = None
    severity: str | None = None
    reason: str | None = None
    message: str | None = None


def build_request(
    spec: SinkSpec, event_id: str, event: Event, keys: SinkSecrets, *, source: str, now: datetime
) -> SinkRequest:
    """Build the request of one attempt; raises Invalid when the sink lacks a secret that its format needs."""
    media_type, write = _FORMATS[spec.format]
    body = write(event_id, event, keys, source)
    headers = {"content-type": media_type, **sign_request(event_id, body, keys.signing, now=now)}
    url = spec.url
    if CREDENTIAL_MARK in url:
        url = url.replace(CREDENTIAL_MARK, _need_credential(keys).reveal())
    return SinkRequest(url, body, headers)


def summarize(event: Event) -> str:
    """Return an event as one line of plain text."""
    told = _read_text(event)
    before, after = told.old_phase or told.previous_state, told.new_phase or told.new_state or told.phase
    moved = f"{before} → {after}" if before and after else after
    parts = [event.type, subject_of(event), moved, told.reason, told.message]
    line = " · ".join(_CONTROL.sub(" ", part) for part in parts if part)
    return shorten_text(line, _MAX_LINE_LENGTH)


def subject_of(event: Event) -> str:
    """Return the name of the object that an event is about, as in its API path."""
    known = KINDS.get(event.kind)
    if known is None or known.global_root:
        return f"{event.kind}/{event.namespace}/{event.name}"
    return known.key(event.namespace, event.name)


def _need_credential(keys: SinkSecrets) -> Secret:
    if not keys.credential:
        raise Invalid(Fault("credential", "missing", "write where it is, for example env:SECRET_PAGERDUTY_KEY"))
    return keys.credential


def _cloudevent_body(event_id: str, event: Event, _: SinkSecrets, source: str) -> bytes:
    extensions = {
        "ownerid": event.owner,
        "workerid": event.worker_id,
        "sessionid": event.session_id,
        "definitionid": event.definition_id,
    }
    return _encode(
        {
            "id": event_id,
            "source": source,
            "type": event.type,
            "subject": subject_of(event),
            "time": event.time.astimezone(UTC),
            "data": event.data,
            "specversion": "1.0",
            "datacontenttype": JSON,
            **{name: value for name, value in extensions.items() if value is not None},
        }
    )


def _slack_body(_id: str, event: Event, _: SinkSecrets, _source: str) -> bytes:
    text = summarize(event).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Nothing in the text becomes a link, a mention or markup.
    return _encode({"text": text, "mrkdwn": False, "parse": "none", "unfurl_links": False, "unfurl_media": False})


def _pagerduty_body(event_id: str, event: Event, keys: SinkSecrets, source: str) -> bytes:
    """Raise and clear an alert under one key; any other event is an incident of its own, for information."""
    told, alert = _read_text(event), event.type in {ALERT_RAISED, ALERT_CLEARED}
    key = f"{subject_of(event)}/{told.alert or told.reason or 'alert'}" if alert else event_id
    severity = (told.severity or "error").lower() if alert else "info"
    payload = {
        "summary": summarize(event),
        "source": source,
        "severity": severity if severity in _SEVERITIES else "error",
        "timestamp": event.time.astimezone(UTC),
        "component": subject_of(event),
        "custom_details": {"event_id": event_id, "event_type": event.type, "data": event.data},
    }
    cleared = event.type == ALERT_CLEARED
    alert_fields = {
        "routing_key": _need_credential(keys).reveal(),
        "event_action": "resolve" if cleared else "trigger",
        "dedup_key": key[:_MAX_DEDUP_KEY_LENGTH],
    }
    return _encode(alert_fields if cleared else {**alert_fields, "payload": payload})


def _read_text(event: Event) -> _EventText:
    try:
        return msgspec.json.decode(event.data, type=_EventText)
    except _DECODE_ERRORS:
        return _EventText()


_FORMATS: Final[Mapping[Format, tuple[str, Callable[[str, Event, SinkSecrets, str], bytes]]]] = {
    Format.CLOUDEVENTS: (CLOUDEVENT, _cloudevent_body),
    Format.SLACK: (JSON, _slack_body),
    Format.PAGERDUTY: (JSON, _pagerduty_body),
}
