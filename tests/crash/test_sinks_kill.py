"""`lcm up` killed while a sink is down: everything arrives once both are back, signed, in order, or can be replayed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from harness.api_world import Shell
from harness.commands import Running, up
from harness.documents import document
from harness.http_answers import AnswerServer, Say
from lcm.model.access.secret import Secret
from lcm.model.access.webhook import verify
from lcm.system.clock import SystemClock

KEY = "whsec_c2lnbmluZy1rZXktb2YtYS10ZXN0"
SETTINGS = {
    "WEBHOOK_NETWORKS": "127.0.0.0/8",
    "WEBHOOK_HTTP_ALLOWED": "true",
    "SECRET_HOOK": KEY,
    "EVENT_SOURCE": "https://lcm.test",
    "LOG_LEVEL": "ERROR",
}
TEMPLATES = ("t1", "t2", "t3")
CAUSED = ("template.created", "template.updated", "sink.test")
"""What this test causes: no controller changes templates."""


def came(server: AnswerServer) -> list[dict[str, Any]]:
    """Return what was sent, each once; a signature that is not valid fails the test."""
    for one in server.asked:
        number = verify(one.headers, one.body, [Secret(KEY)], now=SystemClock().now())
        assert json.loads(one.body)["id"] == number
    return list({(body := json.loads(one.body))["id"]: body for one in server.asked}.values())


async def change(client: httpx.AsyncClient, turn: int) -> None:
    for name in TEMPLATES:
        if turn:
            answer = await client.patch(
                f"/api/worker-templates/{name}", json={"metadata": {"labels": {"turn": str(turn)}}}
            )
        else:
            answer = await client.post(
                "/api/worker-templates", json=document("WorkerTemplate") | {"metadata": {"name": name}}
            )
        assert answer.is_success, answer.text


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.02)


async def dead(client: httpx.AsyncClient) -> list[str]:
    answer = await client.get("/api/sinks/hook/dead-letters")
    return [one["event"]["id"] for one in answer.json()["items"]]


async def until_dead(client: httpx.AsyncClient, count: int) -> list[str]:
    async with asyncio.timeout(60):
        while len(found := await dead(client)) != count:
            await asyncio.sleep(0.05)
    return found


def terminal(it: Running, home: Path) -> Shell:
    return Shell(home / "terminal", LCM_URL=it.url, LCM_TOKEN=it.token)


async def killed_while_the_sink_is_down(home: Path, server: AnswerServer) -> None:
    server.tell("hook", Say(503))
    with up(home, **SETTINGS) as it:
        async with it.ready().client() as client:
            options = ("--types", ",".join(CAUSED), "--secret", "env:SECRET_HOOK")
            address = f"{server.url}/api/v0/hook"
            await asyncio.to_thread(terminal(it, home).out, "sink", "create", "hook", address, *options)
            await change(client, 0)
            await change(client, 1)
            await until(lambda: server.asked)
        it.kill()


async def back_again(it: Running, home: Path, server: AnswerServer, client: httpx.AsyncClient) -> None:
    await change(client, 2)
    await asyncio.to_thread(terminal(it, home).out, "sink", "test", "hook")
    told = (await client.get("/api/events")).json()["items"]
    expected = [one["id"] for one in told if one["type"] in CAUSED]
    assert len(expected) == 3 * len(TEMPLATES) + 1
    await until(lambda: len(came(server)) == len(expected))
    assert [one["id"] for one in came(server)] == expected
    assert {one["source"] for one in came(server)} == {"https://lcm.test"}


async def refused_and_replayed(it: Running, home: Path, server: AnswerServer, client: httpx.AsyncClient) -> None:
    server.tell("hook", Say(400, b"no"))
    for name in TEMPLATES[:2]:
        await client.patch(f"/api/worker-templates/{name}", json={"metadata": {"labels": {"turn": "3"}}})
    first, second = await until_dead(client, 2)
    listed = await asyncio.to_thread(terminal(it, home).out, "sink", "dead", "hook")
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [first, second]
    server.asked.clear()
    server.tell("hook", Say(204))
    await asyncio.to_thread(terminal(it, home).out, "sink", "replay", "hook", first)
    await until(lambda: [one["id"] for one in came(server)] == [first])
    assert await until_dead(client, 1) == [second]
    assert (await client.post("/api/sinks/hook/dead-letters/replay", json={})).json() == {"count": 1}
    await until(lambda: [one["id"] for one in came(server)] == [first, second])
    assert await until_dead(client, 0) == []


async def test_every_event_arrives_signed_and_in_order_though_sink_and_process_fail(tmp_path: Path) -> None:
    async with AnswerServer() as server:
        await killed_while_the_sink_is_down(tmp_path, server)
        server.asked.clear()
        server.tell("hook", Say(204))
        with up(tmp_path, **SETTINGS) as it:
            async with it.ready().client() as client:
                await back_again(it, tmp_path, server, client)
                await refused_and_replayed(it, tmp_path, server, client)
            assert it.stop()[0] == 0
            assert KEY not in it.output
