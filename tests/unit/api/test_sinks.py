"""Sinks over HTTP: made and changed by administrators, mended by operators, and no secret in any answer."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.api_world import Desk, opened
from harness.credentials import OLD, given_keys
from harness.event_clients import event, sink
from harness.plane_world import hand_clock
from lcm.control.delivery import sinks
from lcm.control.delivery.courier import MAX_REFUSALS
from lcm.control.delivery.sinks import SettingSecrets, SinkSettings, make_built_in_sinks
from lcm.control.objects.records import CODEC, SINK_CODEC
from lcm.model.access.secret import Secret
from lcm.model.access.webhook import WebhookPolicy, parse_networks
from lcm.model.base import event as events
from lcm.model.base.errors import Stuck
from lcm.model.kinds.sink import TEST_TYPE, DeadLetter, Sink, StoredEvent, accepts_event, redact_url
from lcm.providers.protocols.secrets import SecretSources
from lcm.store.base import Put

HOOK = {"name": "hook", "url": "https://hooks.example.org/T0/hush-hush", "secret": "env:SECRET_HOOK"}
SLACK = Secret("https://hooks.slack.com/services/T0/B0/hush-hush")
PLAIN = Secret("https://alerts.example.org?key=hush-hush")
FIXED, PARTS = make_built_in_sinks([SLACK, PLAIN])
ONE = FIXED[0].metadata.name


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened(house=SinkSettings(WebhookPolicy(), FIXED)) as desk:
        yield desk


async def bury(desk: Desk, count: int, name: str = "hook") -> list[str]:
    now = hand_clock().now()
    ids = [f"e.{number}.0" for number in range(count)]
    told = events.decode_event(event(0, time=now))
    stored = StoredEvent(**{field: getattr(told, field) for field in told.__struct_fields__})
    for number in ids:
        letter = DeadLetter(sink=name, event_id=number, event=stored, attempts=MAX_REFUSALS, last_error="no", at=now)
        await desk.store.commit(Put(sinks.dead_letter_key(name, number), CODEC.encode(letter)))
    return sorted(ids)


async def test_a_sink_is_made_read_replaced_and_deleted(desk: Desk) -> None:
    answer = await desk.ask("root", "POST", "/api/sinks", json=HOOK)
    assert (answer.status_code, answer.headers["location"]) == (201, "/api/sinks/hook")
    made = answer.json()
    assert await desk.done("otto", "GET", "/api/sinks/hook") == made
    listed = await desk.done("otto", "GET", "/api/sinks")
    assert [one["name"] for one in listed["items"]] == [*(sink.metadata.name for sink in FIXED), "hook"]
    changed = await desk.done("root", "PUT", "/api/sinks/hook", json={**made, "enabled": False})
    assert changed["enabled"] is False
    assert changed["resource_version"] > made["resource_version"]
    await desk.done("root", "DELETE", "/api/sinks/hook")
    assert (await desk.ask("root", "GET", "/api/sinks/hook")).json()["reason"] == "NotFound"


async def test_what_may_be_secret_in_a_url_is_not_shown_and_survives_being_sent_back(desk: Desk) -> None:
    made = await desk.done("root", "POST", "/api/sinks", json=HOOK)
    assert made["url"] == "https://hooks.example.org/***"
    await desk.done("root", "PUT", "/api/sinks/hook", json={**made, "event_types": ["worker.*"]})
    entry = await desk.store.get("sinks/hook")
    assert entry is not None
    kept = SINK_CODEC.decode(entry.value, Sink).spec
    assert (kept.url, kept.event_types) == (made["url"], ("worker.*",))
    assert b"hush" not in entry.value
    assert given_keys(OLD).unseal(kept.sealed_url or "").reveal() == HOOK["url"]
    answer = await desk.ask("root", "POST", "/api/sinks", json={**made, "name": "copy"})
    assert [fault["path"] for fault in answer.json()["faults"]] == ["url"]
    for path in ("/api/sinks", "/api/sinks/hook"):
        assert "hush" not in (await desk.ask("root", "GET", path)).text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a.example.org", "https://a.example.org"),
        ("https://a.example.org/", "https://a.example.org/"),
        ("https://a.example.org/x", "https://a.example.org/***"),
        ("https://a.example.org/?key=x", "https://a.example.org/***"),
        ("https://a.example.org?key=x/y", "https://a.example.org?***"),
        ("https://a.example.org/services/{credential}", "https://a.example.org/services/{credential}"),
    ],
)
def test_a_url_is_shown_as_far_as_its_host(url: str, shown: str) -> None:
    assert redact_url(url) == shown


async def test_a_secret_in_clear_is_sealed_before_it_is_kept(desk: Desk) -> None:
    made = await desk.done("root", "POST", "/api/sinks", json={**HOOK, "secret": "plain:hush-hush"})
    assert made["secret"].startswith("sealed:")
    again = await desk.done("root", "PUT", "/api/sinks/hook", json={**made, "secret": "plain:hush-hush"})
    assert again["secret"] == made["secret"]
    entry = await desk.store.get("sinks/hook")
    assert entry is not None
    assert b'"plain:' not in entry.value
    answer = await desk.ask("root", "POST", "/api/sinks", json={**HOOK, "name": "x", "secret": "hush-hush"})
    assert answer.status_code == 422
    assert "hush" not in answer.text


@pytest.mark.parametrize(
    ("wrong", "paths"),
    [
        ({"url": "https://127.0.0.1/x"}, ["url"]),
        ({"url": "https://169.254.169.254/latest"}, ["url"]),
        ({"url": "http://hooks.example.org/x"}, ["url"]),
        ({"url": "https://hooks.slack.com/services/T0/B0/hush-hush"}, ["url"]),
        ({"name": "setting.mine"}, ["name"]),
        ({"format": "pagerduty"}, ["credential"]),
        ({"urls": "https://hooks.example.org/x"}, ["body"]),
    ],
)
async def test_what_could_never_work_is_refused_by_its_field(
    desk: Desk, wrong: dict[str, Any], paths: list[str]
) -> None:
    answer = await desk.ask("root", "POST", "/api/sinks", json={**HOOK, **wrong})
    assert answer.status_code == 422
    assert [fault["path"] for fault in answer.json()["faults"]] == paths
    assert "hush" not in answer.text


async def test_networks_that_the_settings_allow_may_be_named() -> None:
    house = SinkSettings(WebhookPolicy(parse_networks(["10.1.0.0/16"]), plain_http=True))
    async with opened(house=house) as desk:
        await desk.done("root", "POST", "/api/sinks", json={**HOOK, "url": "http://10.1.2.3:8080/x"})
        answer = await desk.ask("root", "POST", "/api/sinks", json={**HOOK, "name": "b", "url": "http://10.2.2.3/x"})
        assert answer.status_code == 422


async def test_of_two_administrators_the_slower_one_must_look_again(desk: Desk) -> None:
    made = await desk.done("root", "POST", "/api/sinks", json=HOOK)
    assert (await desk.ask("root", "POST", "/api/sinks", json=HOOK)).json()["reason"] == "AlreadyExists"
    tag = {"If-Match": f'"{made["resource_version"]}"'}
    await desk.done("root", "PUT", "/api/sinks/hook", json={**HOOK, "enabled": False}, headers=tag)
    assert (await desk.ask("root", "PUT", "/api/sinks/hook", json=HOOK, headers=tag)).status_code == 412
    assert (await desk.ask("root", "PUT", "/api/sinks/hook", json=made)).status_code == 409
    assert (await desk.ask("root", "DELETE", "/api/sinks/hook", headers=tag)).status_code == 412
    assert (await desk.ask("root", "PUT", "/api/sinks/none", json=HOOK)).status_code == 422
    assert (await desk.ask("root", "PUT", "/api/sinks/none", json={**HOOK, "name": "none"})).status_code == 404


async def test_a_dry_run_writes_nothing(desk: Desk) -> None:
    await desk.done("root", "POST", "/api/sinks?dry_run=true", json=HOOK)
    assert (await desk.ask("root", "GET", "/api/sinks/hook")).status_code == 404
    await desk.done("root", "POST", "/api/sinks", json=HOOK)
    before = await desk.revision()
    await desk.done("root", "PUT", "/api/sinks/hook?dry_run=true", json={**HOOK, "enabled": False})
    await desk.done("root", "DELETE", "/api/sinks/hook?dry_run=true")
    assert await desk.revision() == before


async def test_every_change_is_in_the_audit(desk: Desk) -> None:
    await desk.done("root", "POST", "/api/sinks", json=HOOK)
    await bury(desk, 1)
    await desk.done("root", "PUT", "/api/sinks/hook", json={**HOOK, "event_types": ["worker.*"]})
    await desk.done("otto", "POST", "/api/sinks/hook/test")
    await desk.done("otto", "POST", "/api/sinks/hook/dead-letters/replay")
    await desk.done("root", "DELETE", "/api/sinks/hook")
    found = (await desk.store.scan("audit/")).entries
    verbs = ["create", "update", "test", "replay", "delete"]
    assert all(sum(f'"{verb}"'.encode() in one.value for one in found) == 1 for verb in verbs)
    assert not any(b"hush" in one.value for one in found)


async def test_dead_letters_come_in_pages_oldest_first(desk: Desk) -> None:
    await desk.done("root", "POST", "/api/sinks", json=HOOK)
    ids, found, cursor = await bury(desk, 7), list[str](), ""
    while cursor is not None:
        query = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = await desk.done("otto", "GET", "/api/sinks/hook/dead-letters", params=query)
        found += [one["event"]["id"] for one in page["items"]]
        cursor = page["next"]
    assert found == ids
    naive = base64.urlsafe_b64encode(b'["2026-01-01T00:00:00","2026-01-01T00:00:00","x"]').decode()
    for bad in ("x", "bm8=", "W10=", "\xe9", naive):
        answer = await desk.ask("otto", "GET", "/api/sinks/hook/dead-letters", params={"cursor": bad})
        assert answer.json()["faults"][0]["path"] == "cursor"
    assert (await desk.ask("otto", "GET", "/api/sinks/none/dead-letters")).status_code == 404


async def test_some_or_all_dead_letters_are_asked_for_again(desk: Desk) -> None:
    await desk.done("root", "POST", "/api/sinks", json=HOOK)
    ids, where = await bury(desk, 4), "/api/sinks/hook/dead-letters"
    some = {"event_ids": ids[:2]}
    assert await desk.done("otto", "POST", f"{where}/replay", json=some) == {"count": 2}
    waiting = [one["replay"] for one in (await desk.done("otto", "GET", where))["items"]]
    assert waiting == [True, True, False, False]
    missing = {"event_ids": [ids[3], "e.99.0"]}
    assert (await desk.ask("otto", "POST", f"{where}/replay", json=missing)).status_code == 404
    assert await desk.done("otto", "POST", f"{where}/replay") == {"count": 2}
    assert await desk.done("otto", "POST", f"{where}/replay", json={}) == {"count": 0}


async def test_a_test_event_is_for_the_sink_that_it_names_and_for_no_other(desk: Desk) -> None:
    for name in ("hook", "other"):
        await desk.done("root", "POST", "/api/sinks", json={**HOOK, "name": name, "event_types": ["alert.*"]})
    queued = await desk.done("otto", "POST", "/api/sinks/hook/test")
    epoch, revision, place = queued["event_id"].split(".")
    assert (epoch, place) == (desk.store.epoch, "0")
    async with desk.store.events(after=int(revision) - 1) as reader:
        told = events.decode_event((await anext(reader)).events[0])
    assert told.type == TEST_TYPE
    assert accepts_event(sink("hook", event_types=("alert.*",)), told)
    assert not accepts_event(sink("other"), told)
    await desk.done("root", "PUT", "/api/sinks/other", json={**HOOK, "name": "other", "enabled": False})
    assert (await desk.ask("otto", "POST", "/api/sinks/other/test")).json()["reason"] == "Refused"


async def test_a_sink_of_the_settings_can_be_read_and_tested_but_not_changed(desk: Desk) -> None:
    shown = await desk.done("otto", "GET", f"/api/sinks/{ONE}")
    assert (shown["built_in"], shown["format"], shown["credential"]) == (True, "slack", None)
    assert shown["url"] == "https://hooks.slack.com/{credential}"
    for method in ("PUT", "DELETE"):
        body = {"json": shown} if method == "PUT" else {}
        answer = await desk.ask("root", method, f"/api/sinks/{ONE}", **body)
        assert (answer.status_code, answer.json()["reason"]) == (409, "Refused")
    await desk.done("otto", "POST", f"/api/sinks/{ONE}/test")
    assert "hush" not in (await desk.ask("root", "GET", "/api/sinks")).text


async def test_only_the_rest_of_its_address_is_secret_and_nobody_else_can_refer_to_it() -> None:
    slack, plain = (one.spec for one in FIXED)
    assert (plain.format, plain.url) == ("cloudevents", "https://alerts.example.org/{credential}")
    secrets = SettingSecrets(PARTS, SecretSources({}))
    assert slack.credential is not None
    assert (await secrets.reveal(slack.credential)).reveal() == "services/T0/B0/hush-hush"
    with pytest.raises(Stuck):
        await secrets.reveal("setting:another")
    async with opened(house=SinkSettings(WebhookPolicy(), FIXED)) as desk:
        answer = await desk.ask("root", "POST", "/api/sinks", json={**HOOK, "credential": slack.credential})
        assert answer.status_code == 422


def test_the_same_address_makes_the_same_sink_whatever_stands_beside_it() -> None:
    assert make_built_in_sinks([SLACK, PLAIN, PLAIN])[0] == FIXED
    assert make_built_in_sinks([PLAIN, SLACK])[0] == FIXED[::-1]
