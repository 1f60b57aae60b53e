"""Builds of different ages beside each other: what a newer one reports is kept, and each says which it is."""

import json
from typing import Any

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from harness import given
from harness.api_world import KEY, Desk, opened
from harness.asgi import AsgiTransport
from lcm.control.plane.client_streams import fetch_installation_id
from lcm.control.plane.transport import ApiConnection, ClientTimeouts
from lcm.control.plane.wire import BUILD_HEADER, parse_build
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid
from lcm.system.build import SCHEMA, build_name

CONTROLLER = {"Lcm-Actor": "worker-controller"}
STATUS = "/api/internal/workers/w1/status"


async def stored(desk: Desk) -> dict[str, Any]:
    entry = await desk.store.get("workers/default/w1")
    assert entry is not None
    return dict(json.loads(entry.value.partition(b"\n")[2]))


async def report(desk: Desk, worker: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"resource_version": worker["metadata"]["resource_version"], "status": {**worker["status"], **fields}}
    return await desk.ask("service", "POST", STATUS, json=body, headers=CONTROLLER)


async def begun(desk: Desk) -> dict[str, Any]:
    await desk.done("root", "POST", "/api/workers", json=msgspec.to_builtins(given.worker()))
    return dict(await desk.done("service", "GET", "/api/workers/w1"))


async def test_status_fields_of_a_newer_controller_are_kept_not_refused() -> None:
    async with opened() as desk:
        worker = await begun(desk)
        newer = {"requirements": {"cores": 4}, "ec2": {**worker["status"]["ec2"], "hibernates": True}}
        seen = (await report(desk, worker, last_error="no quota", **newer)).json()
        assert seen["status"]["last_error"] == "no quota"
        status = (await stored(desk))["status"]
        assert (status["requirements"], status["ec2"]["hibernates"]) == ({"cores": 4}, True)
        again = await report(desk, seen, **newer)
        assert again.json()["metadata"]["resource_version"] == seen["metadata"]["resource_version"]
        older = await report(desk, seen, last_error="no capacity")
        assert older.is_success
        assert (await stored(desk))["status"]["requirements"] == {"cores": 4}
        alone = await report(desk, older.json(), requirements={"cores": 8})
        assert alone.is_success
        assert (await stored(desk))["status"]["requirements"] == {"cores": 8}


async def test_what_is_wrong_in_a_report_is_still_refused() -> None:
    async with opened() as desk:
        worker = await begun(desk)
        answer = await report(desk, worker, phase="NONSENSE", requirements={})
        assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")
        assert "phase" in answer.json()["detail"]


async def test_unknown_fields_of_other_reports_are_ignored_and_those_of_people_refused() -> None:
    async with opened() as desk:
        lease = {"holder": "me", "ttl_seconds": 15, "since": "yesterday"}
        await desk.done("service", "POST", "/api/internal/leases/scheduler/acquire", json=lease)
        answer = await desk.ask("ada", "POST", "/api/tokens", json={"colour": "red"})
        assert answer.status_code == 422


def connected(app: Any, key: str = KEY) -> ApiConnection:
    transport = AsgiTransport(app)
    return ApiConnection("http://desk", Secret(key), actor="", limits=ClientTimeouts(), trust=None, transport=transport)


async def first_contact(app: Any) -> list[Any]:
    line = connected(app)
    with capture_logs() as logs:
        assert await fetch_installation_id(line, lambda: 0.5)
    await line.close()
    return [(entry["event"], entry["log_level"]) for entry in logs if "API" in entry["event"]]


async def test_a_controller_with_another_key_than_the_api_is_told_which_setting_is_wrong() -> None:
    async with opened() as desk:
        line = connected(desk.api, "another-key-of-about-the-same-length")
        with pytest.raises(
            Invalid, match=r"CONTROL_PLANE_API_KEY: the API does not accept it; set it to the same value"
        ):
            await fetch_installation_id(line, lambda: 0.5)
        await line.close()


class AnotherApi:
    """An API of another build."""

    def __init__(self, **answer: Any) -> None:
        self.answer = {"id": "here", **answer}

    async def __call__(self, scope: Any, _: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(self.answer).encode()})


async def test_the_first_contact_tells_both_builds_and_a_wrong_order_of_an_upgrade() -> None:
    async with opened() as desk:
        assert await first_contact(desk.api) == [("API found", "info")]
        told = await desk.done("service", "GET", "/api/internal/installation")
        assert (told["version"], told["schema"]) == (build_name(), SCHEMA)
        with capture_logs() as logs:
            headers = {BUILD_HEADER: f"9.9.9+0123456789ab {SCHEMA + 1}"}
            await desk.done("service", "GET", "/api/internal/installation", headers=headers)
        assert [entry["controller"] for entry in logs if "upgrade the API first" in entry["event"]] == [
            "9.9.9+0123456789ab"
        ]
    assert await first_contact(AnotherApi()) == [
        ("the API is older than this controller: upgrade the API first", "error")
    ]
    newer = AnotherApi(version="9.9.9", schema=SCHEMA + 1, colour="red")
    assert await first_contact(newer) == [
        ("the API is newer than this controller: upgrade the controllers now", "warning")
    ]


@pytest.mark.parametrize("text", ["", "0.5.0", "0.5.0 x", "0.5.0 1234567", " 2", "0.5.0\n2", "x" * 101 + " 2"])
def test_what_is_no_build_is_not_read_as_one(text: str) -> None:
    assert parse_build(text) is None


def test_a_build_is_read_as_it_is_told() -> None:
    assert parse_build(f"{build_name()} {SCHEMA}") == (build_name(), SCHEMA)
