"""What sinks receive: bodies of each format, signatures and who may have made them, and which events pass filters."""

import base64
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from harness import event_clients, suite
from lcm.control.delivery.formats import SinkRequest, SinkSecrets, build_request, summarize
from lcm.model.access.secret import Secret
from lcm.model.access.webhook import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign_request, verify
from lcm.model.base.errors import Invalid, Refused
from lcm.model.base.event import Event
from lcm.model.kinds.sink import Format, Sink, accepts_event, format_event_id, read_event

NOW = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)
SOURCE = "https://lcm.example.org"
NUMBER = "e1.42.0"
URL = "https://hooks.example.org/lcm"
RFC3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z")


def event(kind: str = "worker.status.updated", data: object = None, **fields: Any) -> Event:
    told = {"old_phase": "READY", "new_phase": "ACTIVE", "reason": "a session came", "worker_name": "w1"}
    whole: dict[str, Any] = {
        "time": NOW,
        "kind": "LabWorker",
        "name": "w1",
        "namespace": "default",
        "worker_id": "uid-w1",
    } | fields
    return Event(type=kind, data=msgspec.Raw(msgspec.json.encode(told if data is None else data)), **whole)


def sink(shape: Format = Format.CLOUDEVENTS, **fields: Any) -> Sink:
    return event_clients.sink("s", **{"url": URL, "format": shape} | fields)


def made(told: Event, to: Sink, *signing: str, credential: str = "") -> SinkRequest:
    keys = SinkSecrets([Secret(one) for one in signing], Secret(credential) if credential else None)
    return build_request(to.spec, NUMBER, told, keys, source=SOURCE, now=NOW)


def body(told: Event, to: Sink, **more: Any) -> Any:
    return json.loads(made(told, to, **more).body)


def test_a_cloudevent_has_what_the_standard_wants() -> None:
    asked = made(event(owner="ada", session_id="uid-s1", definition_id="basics:1.0.0"), sink())
    assert asked.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert json.loads(asked.body) == {
        "specversion": "1.0",
        "id": NUMBER,
        "source": SOURCE,
        "type": "worker.status.updated",
        "subject": "workers/default/w1",
        "time": "2026-11-02T09:00:00Z",
        "datacontenttype": "application/json",
        "data": {"old_phase": "READY", "new_phase": "ACTIVE", "reason": "a session came", "worker_name": "w1"},
        "ownerid": "ada",
        "workerid": "uid-w1",
        "sessionid": "uid-s1",
        "definitionid": "basics:1.0.0",
    }


def test_names_of_attributes_are_such_as_cloudevents_allow() -> None:
    assert all(re.fullmatch("[a-z0-9]{1,20}", name) for name in body(event(), sink()))
    assert "ownerid" not in body(event(), sink())


@pytest.mark.parametrize(
    "time",
    [
        NOW,
        NOW + timedelta(microseconds=5),
        NOW.astimezone(timezone(timedelta(hours=5, minutes=30))),
        NOW.astimezone(timezone(-timedelta(hours=8))),
    ],
)
def test_times_end_in_z_and_in_nothing_else(time: datetime) -> None:
    told = body(event(time=time), sink())["time"]
    assert RFC3339.fullmatch(told)
    assert datetime.fromisoformat(told) == time
    alert = body(event("alert.raised", time=time), sink(Format.PAGERDUTY), credential="key")
    assert RFC3339.fullmatch(alert["payload"]["timestamp"])


def test_a_line_for_slack_reads_well() -> None:
    told = body(event(), sink(Format.SLACK))
    assert told["text"] == "worker.status.updated · workers/default/w1 · READY → ACTIVE · a session came"
    assert told == {**told, "mrkdwn": False, "parse": "none", "unfurl_links": False, "unfurl_media": False}


def test_nothing_in_a_line_becomes_a_mention_a_link_or_another_line() -> None:
    text = body(event(data={"reason": "<!channel> & <https://x|y>\nand\u2028so\x00on"}), sink(Format.SLACK))["text"]
    assert text.endswith("&lt;!channel&gt; &amp; &lt;https://x|y&gt; and so on")
    assert not re.search(r"[<>\x00-\x1f\u2028]", text)


@pytest.mark.parametrize("data", [{}, [], "x", 7, {"reason": 7}, {"old_phase": None, "phase": "READY"}])
def test_any_data_can_be_told(data: object) -> None:
    assert summarize(event(data=data)).startswith("worker.status.updated · workers/default/w1")


def test_a_line_is_never_long() -> None:
    assert len(summarize(event(data={"reason": "x" * 2000, "message": "y" * 2000}))) == 1000


def test_an_alert_is_raised_and_cleared_under_one_key() -> None:
    to = sink(Format.PAGERDUTY)
    data = {"alert": "TerminateUnseen", "severity": "critical", "message": "still there", "reason": "no answer"}
    raised = body(event("alert.raised", data), to, credential="routing")
    assert (raised["routing_key"], raised["event_action"]) == ("routing", "trigger")
    assert raised["payload"] == {
        "summary": "alert.raised · workers/default/w1 · no answer · still there",
        "source": SOURCE,
        "severity": "critical",
        "timestamp": "2026-11-02T09:00:00Z",
        "component": "workers/default/w1",
        "custom_details": {"event_id": NUMBER, "event_type": "alert.raised", "data": data},
    }
    cleared = body(event("alert.cleared", {"alert": "TerminateUnseen", "reason": "gone"}), to, credential="routing")
    assert cleared == {"routing_key": "routing", "event_action": "resolve", "dedup_key": raised["dedup_key"]}
    other = body(event("alert.raised", {"alert": "TerminateUnseen"}, name="w2"), to, credential="routing")
    assert other["dedup_key"] != raised["dedup_key"]


@pytest.mark.parametrize(("severity", "sent"), [("WARNING", "warning"), ("fatal", "error"), (None, "error")])
def test_severities_are_those_that_pagerduty_knows(severity: str | None, sent: str) -> None:
    told = body(event("alert.raised", {"severity": severity}), sink(Format.PAGERDUTY), credential="k")
    assert told["payload"]["severity"] == sent


def test_another_event_is_for_information_under_its_own_key() -> None:
    told = body(event(), sink(Format.PAGERDUTY), credential="k")
    assert (told["event_action"], told["dedup_key"], told["payload"]["severity"]) == ("trigger", NUMBER, "info")


def test_without_a_routing_key_nothing_is_made() -> None:
    with pytest.raises(Invalid, match="credential"):
        made(event("alert.raised"), sink(Format.PAGERDUTY))


def test_a_credential_stands_in_the_url_and_is_not_shown() -> None:
    asked = made(event(), sink(Format.SLACK, url="https://hooks.slack.example/{credential}"), credential="T/B/hush")
    assert asked.url == "https://hooks.slack.example/T/B/hush"
    assert "hush" not in repr(asked)
    assert SinkSecrets([Secret("hush")], Secret("hash")).hide_in("hush and hash") == "*** and ***"


def test_a_secret_that_was_cut_off_is_hidden_too() -> None:
    keys = SinkSecrets([Secret("signing-key")], Secret("routing-key"))
    assert keys.hide_in("400: no such key: routing-k") == "400: no such key: ***"
    assert keys.hide_in("400: bad signature by signing-key, routing-key, sign") == "400: bad signature by ***, ***, ***"
    assert keys.hide_in("nothing here is rou") == "nothing here is rou"


def test_two_secrets_sign_while_receivers_change_over() -> None:
    asked = made(event(), sink(), "new", "old")
    assert len(asked.headers[SIGNATURE_HEADER].split()) == 2
    for known in (["new"], ["old"], ["newer", "old"]):
        assert verify(asked.headers, asked.body, map(Secret, known), now=NOW) == NUMBER
    with pytest.raises(Refused):
        verify(asked.headers, asked.body, [Secret("older")], now=NOW)


@pytest.mark.parametrize("shape", [Format.CLOUDEVENTS, Format.SLACK, Format.PAGERDUTY])
def test_every_format_is_signed(shape: Format) -> None:
    asked = made(event("alert.raised"), sink(shape), "key", credential="k")
    assert verify(asked.headers, asked.body, [Secret("key")], now=NOW) == NUMBER


def test_without_a_secret_there_is_an_id_and_no_signature() -> None:
    headers = made(event(), sink()).headers
    assert (headers[ID_HEADER], headers[TIMESTAMP_HEADER]) == (NUMBER, str(int(NOW.timestamp())))
    assert SIGNATURE_HEADER not in headers


def test_the_signature_is_the_standards() -> None:
    """The example of the Standard Webhooks libraries."""
    secret = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    moment = datetime.fromtimestamp(1614265330, UTC)
    headers = sign_request("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', [secret], now=moment)
    assert headers[SIGNATURE_HEADER] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def tampered(**changes: str) -> dict[str, str]:
    return dict(made(event(), sink(), "key").headers) | {name.replace("_", "-"): text for name, text in changes.items()}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        tampered(webhook_id="e1.42.1"),
        tampered(webhook_id=""),
        tampered(webhook_timestamp=str(int(NOW.timestamp()) + 1)),
        tampered(webhook_timestamp=""),
        tampered(webhook_timestamp="99999999999"),
        tampered(webhook_timestamp="\u0661"),
        tampered(webhook_timestamp="1e9"),
        tampered(webhook_signature=""),
        tampered(webhook_signature="v1,"),
        tampered(webhook_signature="v1a,x v2,y \udcff v1,\udcff"),
    ],
)
def test_what_was_tampered_with_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Refused):
        verify(headers, made(event(), sink(), "key").body, [Secret("key")], now=NOW)


def test_another_body_is_refused() -> None:
    asked = made(event(), sink(), "key")
    with pytest.raises(Refused):
        verify(asked.headers, asked.body + b" ", [Secret("key")], now=NOW)


@pytest.mark.parametrize("late", [timedelta(minutes=6), -timedelta(minutes=6)])
def test_what_was_signed_at_another_time_is_refused(late: timedelta) -> None:
    asked = made(event(), sink(), "key")
    with pytest.raises(Refused, match="long ago"):
        verify(asked.headers, asked.body, [Secret("key")], now=NOW + late)


def test_headers_count_in_any_case_and_among_others() -> None:
    asked = made(event(), sink(), "key")
    headers = {name.upper(): value for name, value in asked.headers.items()} | {"Host": "x"}
    headers["WEBHOOK-SIGNATURE"] = f"v2,x {headers['WEBHOOK-SIGNATURE']} v1,y"
    assert verify(headers, asked.body, [Secret("key")], now=NOW) == NUMBER


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_not base64"])
def test_a_secret_that_protects_nothing_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="secret"):
        sign_request(NUMBER, b"", [Secret(text)], now=NOW)


def test_encoded_and_plain_secrets_are_the_same_key() -> None:
    encoded = Secret("whsec_" + base64.b64encode(b"key").decode())
    assert sign_request(NUMBER, b"x", [encoded], now=NOW) == sign_request(NUMBER, b"x", [Secret("key")], now=NOW)


@pytest.mark.parametrize(
    ("patterns", "kind", "wanted"),
    [
        ((), "worker.created", True),
        (("worker.*",), "worker.created", True),
        (("worker.*",), "worker.status.updated", True),
        (("worker.*",), "workers.created", False),
        (("worker.*",), "lablet.session.created", False),
        (("worker.created",), "worker.created", True),
        (("worker.created",), "worker.created.twice", False),
        (("*.created", "pool.*"), "lablet.session.created", True),
        (("*.created", "pool.*"), "pool.scaled", True),
        (("*.created", "pool.*"), "worker.terminated", False),
        (("*",), "anything", True),
    ],
)
def test_types_are_chosen_by_patterns(patterns: Sequence[str], kind: str, *, wanted: bool) -> None:
    assert accepts_event(sink(event_types=tuple(patterns)), event(kind)) is wanted


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("owner_id", "ada", True),
        ("owner_id", "bob", False),
        ("worker_id", "uid-w1", True),
        ("worker_id", "uid-w2", False),
        ("session_id", "uid-s1", True),
        ("session_id", "uid-s2", False),
        ("definition_id", "basics:1.0.0", True),
        ("definition_id", "advanced:1.0.0", False),
    ],
)
def test_events_are_chosen_by_what_they_are_about(field: str, value: str, *, wanted: bool) -> None:
    told = event(owner="ada", session_id="uid-s1", definition_id="basics:1.0.0")
    chosen = event_clients.sink(**{field: value})
    assert accepts_event(chosen, told) is wanted
    assert not accepts_event(chosen, event(worker_id=None))


def test_pagerduty_gets_alerts_only_unless_it_asks_for_more() -> None:
    assert accepts_event(sink(Format.PAGERDUTY), event("alert.raised"))
    assert not accepts_event(sink(Format.PAGERDUTY), event("worker.created"))
    assert accepts_event(sink(Format.PAGERDUTY, event_types=("worker.*",)), event("worker.created"))


@pytest.mark.parametrize(
    "field", [{"event_types": ["[x"]}, {"event_types": ["*"] * 51}, {"secret": "hush"}, {"typo": 1}]
)
def test_a_sink_that_is_not_sound_is_not_read(field: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"metadata": {"name": "s"}, "spec": {"url": URL, **field}}, Sink)


def test_an_event_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    newer = json.dumps({**json.loads(msgspec.json.encode(event())), "colour": "blue"})
    assert read_event(newer.encode()).worker_id == "uid-w1"


def test_the_documentation_shows_receivers_how_to_verify() -> None:
    text = (suite.ROOT / "docs" / "webhooks.md").read_text()
    block = text.split("```python\n")[1].split("```")[0]
    told: dict[str, Any] = {}
    exec(block, told)
    asked = made(event(), sink(), "new", "old")
    assert told["is_ours"](asked.headers, asked.body, b"old", now=NOW.timestamp())
    assert not told["is_ours"](asked.headers, asked.body, b"older", now=NOW.timestamp())
    assert not told["is_ours"](asked.headers, asked.body + b" ", b"old", now=NOW.timestamp())
    assert not told["is_ours"](asked.headers, asked.body, b"old", now=NOW.timestamp() + 600)


def test_ids_name_epoch_revision_and_place() -> None:
    assert format_event_id("e1", 42, 0) == NUMBER
