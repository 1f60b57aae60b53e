"""What is asked of the process itself; and what a caller is told of our own mistakes, which is nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from harness.api_world import KEY, Desk, document, opened, stock
from harness.plane_world import NOW
from lcm.api.http.answers import Answer, Stream
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, SIGNED_IN, Route
from lcm.api.routes.table import ROUTES
from lcm.model.base.errors import Later, LcmError, StoreFull, Stuck, Throttled, Unreachable
from lcm.sim.time.loop import run
from lcm.store.memory import MemoryStore


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        yield desk


async def test_a_process_that_runs_is_healthy_and_ready(desk: Desk) -> None:
    assert await desk.done("", "GET", "/healthz") == {"status": "ok"}
    ready = await desk.done("", "GET", "/readyz")
    assert ready["ready"]
    assert ready["checks"] == [{"name": name, "ok": True} for name in ("store", "tokens", "events", "writes")]


async def test_without_its_store_it_is_healthy_and_not_ready(desk: Desk) -> None:
    await desk.store.close()
    assert (await desk.ask("", "GET", "/healthz")).status_code == 200
    answer = await desk.ask("", "GET", "/readyz")
    assert answer.status_code == 503
    assert {"name": "store", "ok": False} in answer.json()["checks"]
    assert not answer.json()["ready"]


class Slow(MemoryStore):
    """A store that answers after a while."""

    pause = 0.0

    async def scan(self, *arguments: Any, **more: Any) -> Any:
        await asyncio.sleep(self.pause)
        return await super().scan(*arguments, **more)


def test_a_store_that_takes_longer_than_a_second_is_not_ready() -> None:
    async def main() -> None:
        store = Slow()
        async with opened(store=store) as desk:
            store.pause = 0.5
            assert (await desk.ask("", "GET", "/readyz")).status_code == 200
            store.pause = 3600.0
            began = asyncio.get_running_loop().time()
            assert (await desk.ask("", "GET", "/readyz")).status_code == 503
            assert asyncio.get_running_loop().time() - began == pytest.approx(1, abs=0.1)
            store.pause = 0.0

    run(main, start=NOW)


async def test_a_process_that_hears_nothing_of_tokens_is_not_ready(desk: Desk) -> None:
    await desk.tokens.close()
    answer = await desk.ask("", "GET", "/readyz")
    assert (answer.status_code, answer.json()["checks"][1]) == (503, {"name": "tokens", "ok": False})


async def test_everybody_learns_who_they_are(desk: Desk) -> None:
    assert await desk.done("anna", "GET", "/api/whoami") == {"name": "anna", "role": "author"}


async def test_answers_are_counted_by_route_and_never_by_what_a_stranger_wrote(desk: Desk) -> None:
    await stock(desk)
    for _ in range(3):
        await desk.ask("root", "GET", "/api/workers/ccna-worker-1")
    await desk.ask("root", "GET", "/api/workers/nobody")
    await desk.ask("root", "GET", "/api/secret-path")
    await desk.ask("root", "BREW", "/api/workers")
    families = {
        one.name: one for one in text_string_to_metric_families((await desk.ask("root", "GET", "/metrics")).text)
    }
    counted = {
        (sample.labels["route"], sample.labels["method"], sample.labels["status"]): sample.value
        for sample in families["lcm_http_requests"].samples
    }
    assert counted["/api/workers/{id}", "GET", "200"] == 3
    assert counted["/api/workers/{id}", "GET", "404"] == 1
    assert counted["none", "none", "404"] == counted["none", "none", "405"] == 1
    assert not any("secret-path" in route or "nobody" in route for route, _, _ in counted)
    took = {
        sample.name.removeprefix("lcm_http_request_seconds"): sample.value
        for sample in families["lcm_http_request_seconds"].samples
        if sample.labels.get("route") == "/api/workers/{id}" and sample.labels["status"] == "200"
    }
    assert took["_count"] == took["_bucket"] == 3
    assert families["lcm_store_revision"].samples[0].value == await desk.revision()
    assert families["lcm_build_info"].samples[0].labels["version"]
    assert {one.labels["check"] for one in families["lcm_ready"].samples if one.value} == {
        "store",
        "tokens",
        "events",
        "writes",
    }
    assert "process_cpu_seconds" in families


SECRET = "s3cr3t-in-an-error"


def failing(error: Exception) -> Route:
    async def fail(_: Request) -> Answer:
        raise error

    return Route(GET, "/api/broken", fail, "broken", "Fails", policy=SIGNED_IN)


async def told(error: Exception) -> tuple[Any, list[Any]]:
    async with opened(routes=[*ROUTES, failing(error)]) as desk:
        with capture_logs() as logs:
            return await desk.ask("ada", "GET", "/api/broken"), logs


async def test_who_runs_the_system_learns_what_ails_it() -> None:
    async with opened(routes=[*ROUTES, failing(Unreachable("etcd: DEADLINE_EXCEEDED"))]) as desk:
        for who in ("root", "service"):
            assert (await desk.ask(who, "GET", "/api/broken")).json()["detail"] == "etcd: DEADLINE_EXCEEDED"


def test_equal_problems_are_logged_once_a_minute_with_their_route() -> None:
    async def main() -> None:
        async with opened(routes=[*ROUTES, failing(StoreFull("no room"))]) as desk:
            with capture_logs() as logs:
                for _ in range(1_300):
                    assert (await desk.ask("ada", "GET", "/api/broken")).status_code == 503
                await asyncio.sleep(61)
                await desk.ask("ada", "GET", "/api/broken")
        line = {"event": "request could not be done", "log_level": "warning", "method": "GET", "route": "/api/broken"}
        assert logs == [
            line | {"reason": "StoreFull", "error": "no room"},
            line | {"reason": "StoreFull", "error": "no room", "left_out": 1_299},
        ]

    run(main, start=NOW)


async def test_a_store_that_takes_no_writes_is_not_ready() -> None:
    class Full(MemoryStore):
        async def probe(self) -> None:
            raise StoreFull("no room")

    async with opened(store=Full()) as desk:
        await desk.core.health.probe()
        answer = await desk.ask("", "GET", "/readyz")
        assert (answer.status_code, answer.json()["checks"][-1]) == (503, {"name": "writes", "ok": False})
        (alert,) = (await desk.ask("root", "GET", "/api/alerts")).json()["items"]
        assert alert["alert"] == "StoreNotWritable"


@pytest.mark.parametrize(
    "error", [KeyError(SECRET), AssertionError(SECRET), RuntimeError(SECRET), RecursionError(SECRET)]
)
async def test_a_bug_of_ours_is_told_to_the_log_once_and_to_the_caller_not_at_all(error: Exception) -> None:
    answer, logs = await told(error)
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["reason"] == "Bug"
    assert SECRET not in answer.text
    assert type(error).__name__ not in answer.text
    assert [one["event"] for one in logs] == ["request met a bug"]
    assert SECRET in "".join(logs[0]["trace"])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unreachable(f"/var/{SECRET}/lcm.db is locked"), 503),
        (Later(SECRET), 503),
        (Throttled(SECRET), 503),
        (Stuck("NewerSchema", SECRET), 500),
    ],
)
async def test_what_ails_us_is_named_and_not_described(error: LcmError, status: int) -> None:
    answer, logs = await told(error)
    assert (answer.status_code, answer.json()["reason"]) == (status, type(error).__name__)
    assert SECRET not in answer.text
    assert [one["event"] for one in logs] == ["request could not be done"]
    assert (answer.headers.get("retry-after") == "1") is (status == 503)


async def test_a_store_that_is_gone_is_an_outage_and_nothing_missing(desk: Desk) -> None:
    await stock(desk)
    await desk.store.close()
    for method, where in (
        ("GET", "/api/workers/ccna-worker-1"),
        ("GET", "/api/workers"),
        ("DELETE", "/api/settings/system"),
    ):
        answer = await desk.ask("root", method, where)
        assert (answer.status_code, answer.json()["reason"]) == (503, "Unreachable")


async def test_a_stream_that_meets_a_bug_breaks_off_and_is_logged() -> None:
    async def begin() -> AsyncIterator[bytes]:
        yield b"{}\n"
        raise KeyError(SECRET)

    async def answer(_: Request) -> Stream:
        return Stream(begin, b"application/x-ndjson")  # type: ignore[arg-type]

    route = Route(
        GET,
        "/api/broken",
        answer,
        "broken",
        "Breaks",
        policy=next(one.policy for one in ROUTES if one.operation == "watch"),
    )
    async with opened(routes=[*ROUTES, route]) as desk:
        with capture_logs() as logs, pytest.raises(Exception, match="broke off"):
            await desk.ask("ada", "GET", "/api/broken")
    assert [one["event"] for one in logs] == ["request met a bug"]


async def test_no_secret_is_in_any_answer_or_log(desk: Desk) -> None:
    with capture_logs() as logs:
        answers = [
            await desk.ask(who, method, where, json=document("LabWorker", name="X"))
            for who in ("", "ada", "root", "service")
            for method in ("GET", "POST", "PUT")
            for where in ("/api/workers", "/api/workers/x", "/api/whoami", "/metrics", "/nowhere")
        ]
    said = " ".join([*(answer.text + str(answer.headers) for answer in answers), str(logs)])
    assert not [name for name, secret in desk.secrets.items() if secret in said]
    assert KEY not in said


@pytest.mark.parametrize("extensions", [{}, {"websocket.http.response": {}}])
async def test_a_socket_where_there_is_none_is_refused_as_far_as_its_server_can(
    desk: Desk, extensions: dict[str, Any]
) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.lower().encode(), value.encode()) for name, value in desk.signed("ada").items()]
    scope = {"type": "websocket", "path": "/api/watch", "query_string": b"", "headers": headers}
    await desk.api({**scope, "extensions": extensions}, receive, send)
    assert [(one["type"], one.get("status")) for one in sent[:1]] == (
        [("websocket.http.response.start", 404)] if extensions else [("websocket.close", None)]
    )


async def test_it_lives_and_ends_as_a_server_asks(desk: Desk) -> None:
    stages, sent = iter(["lifespan.startup", "lifespan.shutdown"]), list[Any]()

    async def receive() -> dict[str, str]:
        return {"type": next(stages)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await desk.api({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
