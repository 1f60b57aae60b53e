"""Malformed input: whatever comes in, what goes out is a problem document with a reason, and never a 5xx."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from harness.api_world import OWNED, Desk, document, name_of, opened, path, stock
from harness.plane_world import served
from harness.servers import LOOPBACK, free_port
from lcm.api.http.routing import GET, Route
from lcm.api.routes.oidc import CALLBACK_PATH
from lcm.api.routes.table import ROUTES
from lcm.control.plane.problems import Problem
from lcm.model.kinds.registry import KINDS

JSON = {"Content-Type": "application/json"}
BODIED = [route for route in ROUTES if route.body is not None]
IN_JSON = [route for route in BODIED if b"application/json" in route.body_media]
NAMED = [route for route in ROUTES if "{id}" in route.path]
NEEDED = {"/api/internal/alerts/{id}": "?kind=LabWorker"}
NOT_JSON = [
    b"",
    b"{",
    b"[1,",
    b"nonsense",
    b"{'a': 1}",
    b"\xff\xfe\x00",
    b"\x00",
    b'{"a": "\xed\xa0\x80"}',
    b'{"a": "\\ud800"}',
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": 01}',
    b'{"a": 1} trailing',
    b'\xef\xbb\xbf{"a": 1}',
    b"[" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b'{"a": "\x01"}',
]
NOT_OURS = [
    b"null",
    b"true",
    b"12",
    b'"text"',
    b"[]",
    b"[{}]",
    b'{"a": 1}',
    b'{"metadata": null}',
    b'{"metadata": []}',
    b'{"metadata": {"name": null}}',
    b'{"metadata": {"name": "a\\u0000b"}}',
    b'{"metadata": {"name": "' + b"a" * 100_000 + b'"}}',
    b'{"metadata": {"name": "ok", "labels": {"": ""}}}',
    b'{"metadata": {"name": "ok", "resource_version": ' + b"9" * 4_000 + b"}}",
    b'{"metadata": {"name": "ok", "resource_version": ' + b"9" * 10_000 + b"}}",
    b'{"metadata": {"name": "ok", "generation": -1}}',
    b'{"metadata": {"name": "ok", "generation": 1e400}}',
    b'{"metadata": {"name": "ok", "generation": 1.5}}',
    b'{"metadata": {"name": "ok"}, "spec": 7}',
    b'{"metadata": {"name": "ok"}, "kind": "LabWorker\\u0000"}',
    b'{"metadata": {"name": "ok"}, "kind": {"LabWorker": 1}}',
    b'{"metadata": {"name": "ok"}, "api_version": "v0"}',
    b'{"documents": null}',
    b'{"documents": [null]}',
    b'{"documents": [{"kind": "Nothing"}]}',
    b'{"documents": {"kind": "LabWorker"}}',
]
IDS = [
    "%2F",
    "a%2Fb",
    "..",
    "%2e%2e",
    "%2e%2e%2fsettings",
    "default%2Fccna-worker-1",
    "%00",
    "a%00b",
    "%0a",
    "%0d%0aSet-Cookie:%20a=b",
    "%ff",
    "%ed%a0%80",
    "%",
    "%zz",
    "%25",
    "a" * 64,
    "a" * 1_000,
    "a" * 10_000,
    "CCNA-Worker-1",
    "ccna-worker-1%20",
    "ccna-worker-1%0a",
    "*",
    "'%20OR%201=1--",
    "🦆",
    "%F0%9F%A6%86",
    "undefined",
]
QUERIES = [
    "limit=0",
    "limit=-1",
    "limit=1001",
    "limit=1.5",
    "limit=99999999999999999999999",
    "limit=",
    "limit=ten",
    "limit=1&limit=2",
    "limit=%ff",
    "%ff=1",
    "namespace=..",
    "namespace=a/b",
    "namespace=%00",
    "namespace=Default",
    "namespace=" + "n" * 5_000,
    "nonsense=1",
    "label_selector=((",
    "label_selector==",
    "label_selector=a%20in%20(",
    "label_selector=" + "a," * 2_000,
    "field_selector=status.nothing%3D1",
    "field_selector=__class__%3D1",
    "field_selector=status.__init__%3D1",
    "field_selector=metadata.labels%3D1",
    "cursor=",
    "cursor=nonsense",
    "cursor=%00",
    "cursor=" + "A" * 900,
    "cursor=" + "A" * 5_000,
    "&".join(f"p{number}=1" for number in range(200)),
]


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        await stock(desk, owner="ada")
        yield desk


def called(route: Route) -> str:
    return f"{route.method} {route.path}"


def target(route: Route) -> str:
    name = name_of(route.kind.name) if route.kind else "nothing"
    return route.path.replace("{id}", name).replace("{name}", "a-lease")


def bodied(route: Route) -> str:
    """Return where a body goes, with what else must be right before it is read."""
    return target(route) + NEEDED.get(route.path, "")


def who(route: Route) -> str:
    return "service" if "/internal/" in route.path else "root"


def check_problem(answer: Any, *statuses: int) -> Problem:
    """Hold an answer against what every answer to bad input must be."""
    asked = f"{answer.request.method} {answer.request.url}"
    assert answer.status_code in statuses, (asked, answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = msgspec.json.decode(answer.content, type=Problem)
    assert problem.status == answer.status_code
    assert problem.reason
    assert "Traceback" not in problem.detail
    return problem


async def test_a_body_that_is_no_json_is_malformed(desk: Desk) -> None:
    for route in IN_JSON:
        before = await desk.revision()
        for body in NOT_JSON:
            if not body and not route.body_needed:
                continue
            answer = await desk.ask(who(route), route.method, bodied(route), content=body, headers=JSON)
            assert check_problem(answer, 400).reason == "Malformed", body[:40]
        assert await desk.revision() == before


async def test_a_body_of_another_shape_is_turned_down_whole(desk: Desk) -> None:
    for route in IN_JSON:
        before = await desk.revision()
        for body in NOT_OURS:
            answer = await desk.ask(who(route), route.method, bodied(route), content=body, headers=JSON)
            if answer.is_success:
                # It merges what is its own and ignores the rest.
                assert route.method == "PATCH", (called(route), body[:80])
            else:
                check_problem(answer, 400, 409, 422)
        assert await desk.revision() == before


async def test_a_body_of_another_media_type_is_not_read(desk: Desk) -> None:
    for route in BODIED:
        for media in (
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "json",
            "\xff",
        ):
            headers = {"Content-Type": media.encode("latin-1")}
            answer = await desk.ask(who(route), route.method, bodied(route), content=b"{}", headers=headers)
            check_problem(answer, 415)


async def test_parameters_of_a_media_type_do_not_matter(desk: Desk) -> None:
    body = msgspec.json.encode(document("LabWorker", name="other"))
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert (await desk.ask("root", "POST", "/api/workers", content=body, headers=headers)).status_code == 201


async def test_what_cannot_be_a_name_is_not_there(desk: Desk) -> None:
    for route in NAMED:
        media = route.body_media[0].decode()
        for name in IDS:
            where = route.path.replace("{id}", name)
            answer = await desk.ask(who(route), route.method, where, content=b"", headers={"Content-Type": media})
            check_problem(answer, 400, 404, 405, 422)
            assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "where", ["/api//workers", "//api/workers", "/api/workers/", "/api", "/no-page", "/api/workers/a/b/c"]
)
async def test_other_paths_lead_nowhere(desk: Desk, where: str) -> None:
    check_problem(await desk.ask("root", "GET", f"http://desk{where}"), 404)


async def test_dots_lead_nowhere_else(desk: Desk) -> None:
    for where in ("/api/workers/%2e%2e/settings/system", "/api/settings/%2e%2e/workers", "/api/./workers/%2e"):
        check_problem(await desk.ask("root", "GET", where), 404)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_query_that_is_wrong_is_turned_down_by_name(desk: Desk, kind: str) -> None:
    for query in QUERIES:
        problem = check_problem(await desk.ask("root", "GET", f"{path(kind)}?{query}"), 410, 422)
        assert problem.reason in {"Invalid", "Relist"}
        assert problem.faults or problem.reason == "Relist"


async def test_no_route_takes_a_parameter_that_it_does_not_know(desk: Desk) -> None:
    for route in ROUTES:
        if route.path == CALLBACK_PATH:
            continue  # providers add parameters of their own
        answer = await desk.ask(who(route), route.method, f"{target(route)}?nonsense=1")
        problem = check_problem(answer, 422)
        assert isinstance(problem.faults, tuple)
        assert "nonsense" in {fault.path for fault in problem.faults}


@pytest.mark.parametrize("kind", OWNED)
async def test_a_cursor_that_was_tampered_with_shows_nothing_more(desk: Desk, kind: str) -> None:
    for number in range(3):
        await desk.done("ada", "POST", path(kind), json=document(kind, name=f"of-ada-{number}"))
        await desk.done("bob", "POST", path(kind), json=document(kind, name=f"of-bob-{number}"))
    page = await desk.done("ada", "GET", path(kind), params={"limit": 1})
    good = page["next"]
    padded = base64.urlsafe_b64decode(good + "=" * (-len(good) % 4))
    for place in range(len(padded)):
        bent = bytearray(padded)
        bent[place] ^= 0x55
        for cursor in (base64.urlsafe_b64encode(bytes(bent)).rstrip(b"=").decode(), good[:place], good + good[:place]):
            if not cursor:
                continue
            answer = await desk.ask("ada", "GET", path(kind), params={"cursor": cursor})
            if not answer.is_success:
                check_problem(answer, 410, 422)
                continue
            assert all(one["spec"]["owner"] == "ada" for one in answer.json()["items"])


HEADERS = [
    {"If-Match": "nonsense"},
    {"If-Match": "42"},
    {"If-Match": 'W/"42"'},
    {"If-Match": '"1", "2"'},
    {"If-Match": '"-1"'},
    {"If-Match": '"' + "9" * 400 + '"'},
    {"If-Match": b'"\xb2"'},
    {"If-Match": '""'},
]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_a_match_that_is_no_etag_of_ours_is_invalid(desk: Desk, method: str) -> None:
    where = path("LabWorker", name_of("LabWorker"))
    body = {} if method == "DELETE" else {"json": document("LabWorker")}
    for headers in HEADERS:
        problem = check_problem(await desk.ask("root", method, where, headers=headers, **body), 422)
        assert isinstance(problem.faults, tuple)
        assert [fault.path for fault in problem.faults] == ["If-Match"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Lcm-Fence": ""},
        {"Lcm-Fence": "scheduler"},
        {"Lcm-Fence": "scheduler;-1"},
        {"Lcm-Fence": "scheduler;" + "9" * 30},
        {"Lcm-Fence": ";1"},
        {"Lcm-Actor": "user"},
        {"Lcm-Actor": "control-plane"},
        {"Lcm-Actor": ""},
        {"Idempotency-Key": ""},
        {"Idempotency-Key": "k" * 201},
        {"Idempotency-Key": "a b"},
        {"Idempotency-Key": b"\xe4"},
    ],
    ids=str,
)
async def test_a_header_that_is_wrong_is_turned_down_by_name(desk: Desk, headers: dict[str, Any]) -> None:
    sent = document("LabWorker", name="other")
    problem = check_problem(await desk.ask("service", "POST", "/api/workers", json=sent, headers=headers), 422)
    assert isinstance(problem.faults, tuple)
    assert problem.faults[0].path in headers


RAW = [
    b"GET /api/whoami HTTP/1.1\r\n\r\n",
    b"GET /api/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-" + b"a" * 8_000 + b": 1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-A: 1\r\n" * 500 + b"\r\n",
    b"GET /healthz\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /api/workers/\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz?\xff=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz#part HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://elsewhere/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"BREW /api/workers HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /api/workers HTTP/1.1\r\nHost: x\r\nContent-Length: nonsense\r\n\r\n",
    b"POST /api/workers HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /api/workers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x00" * 100,
]


async def test_bytes_that_are_hardly_http_cost_their_sender_a_4xx_and_nobody_else_anything(desk: Desk) -> None:
    port = free_port()
    async with served(desk.api, port):
        for raw in RAW:
            status = await answered(port, raw)
            assert status is None or 200 <= status < 500, (raw[:60], status)
        assert await answered(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") == 200


async def answered(port: int, raw: bytes) -> int | None:
    """Send bytes and read the status that comes back; None when the connection is closed without one."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(raw)
    writer.write_eof()
    try:
        async with asyncio.timeout(60):
            line = await reader.readline()
    except ConnectionError:
        return None
    finally:
        writer.close()
    return int(line.split()[1]) if line else None


def test_something_was_tried_on_every_route_with_a_body() -> None:
    assert len(BODIED) >= 3 * len(KINDS)
    assert all(route.method != GET for route in BODIED)
