"""`lcm events` and `lcm sink` at a terminal, and the stream that they read: across cuts, without gap or duplicate."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from harness import given
from harness.api_world import ApiServer, shell
from harness.commands import Running
from harness.event_clients import event
from harness.http_answers import AnswerServer, Say
from harness.servers import Proxy
from lcm.control.objects.records import encode_checked
from lcm.control.plane import client_streams
from lcm.control.plane.client_streams import (
    EventSelection,
    StreamEvent,
    StreamItem,
    StreamSnapshot,
    StreamStart,
    follow_events,
    read_recent,
)
from lcm.control.plane.protocol import Plane
from lcm.control.plane.transport import ApiConnection, ClientTimeouts
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Forbidden, Relist, Stuck, Unreachable
from lcm.model.kinds.sink import SinkStatus
from lcm.sim.time.loop import START
from lcm.store.base import Put
from lcm.system.clock import SystemClock

HOOK = "https://hooks.example.org/lcm/hush"


def make(api: ApiServer, *names: str) -> None:
    async def work(plane: Plane) -> None:
        for name in names:
            await plane.create(given.worker(name=name))

    api.do(work)


@asynccontextmanager
async def line_to(url: str, token: str) -> AsyncIterator[ApiConnection]:
    line = ApiConnection(url, Secret(token), actor="", limits=ClientTimeouts(), trust=None, transport=None)
    try:
        yield line
    finally:
        await line.close()


def chance() -> float:
    return 0.0


def names(told: list[StreamItem]) -> list[str]:
    return [json.loads(bytes(one.data))["worker_name"] for one in told if isinstance(one, StreamEvent)]


def test_what_happened_lately_is_a_table(api: ApiServer, tmp_path: Path) -> None:
    desk = shell(api, tmp_path)
    assert "no recent events" in desk.lcm("events").stderr
    make(api, "w1", "w2")
    heading, first, second = desk.out("events").splitlines()
    assert heading.split() == ["TIME", "TYPE", "ABOUT", "WHAT"]
    assert first.split()[2:] == ["worker.created", "w1", "PENDING"]
    assert second.split()[3] == "w2"
    assert desk.out("events", "--limit", 1).splitlines()[1].split()[3] == "w2"


def test_what_happened_lately_is_json_for_programs_and_can_be_narrowed(api: ApiServer, tmp_path: Path) -> None:
    desk = shell(api, tmp_path)
    make(api, "w1", "w2")
    first, second = (json.loads(line) for line in desk.out("events", "-o", "json").splitlines())
    assert (first["type"], first["name"], first["data"]["worker_name"]) == ("worker.created", "w1", "w1")
    assert json.loads(desk.out("events", "-o", "json", "--worker", second["worker_id"])) == second
    assert json.loads(desk.out("events", "-o", "json", "--after", first["id"])) == second
    for narrow in (["--types", "pool.*"], ["--session", "none"], ["--owner", "ada"], ["--definition", "x:1"]):
        assert desk.out("events", "-o", "json", *narrow) == ""
    assert desk.lcm("events", "--after", "0.1.0").exit_code == 4
    assert shell(api, tmp_path, "ada").out("events", "-o", "json") == ""


def test_text_of_others_cannot_write_to_the_terminal(api: ApiServer, tmp_path: Path) -> None:
    odd = event(time=START, data=msgspec.Raw(msgspec.json.encode({"reason": "gone\x1b[2J\u202e", "phase": 7})))
    bad = event(time=START, name="w\x1b[2J", data=msgspec.Raw(b'{"reason":"gone\\u001b[2J"}'))
    api.do(lambda _: api.store.commit(events=[odd, bad]))
    for form in ("table", "json"):
        told = shell(api, tmp_path).out("events", "-o", form)
        assert not {"\x1b", "\u202e"} & set(told)
        assert len(told.splitlines()) == (3 if form == "table" else 2)


async def test_follow_prints_what_happens_until_it_is_stopped(api: ApiServer, tmp_path: Path) -> None:
    own = {"LCM_URL": api.url, "LCM_TOKEN": api.tokens["root"]}
    with Running(tmp_path, "events", "--follow", "--types", "worker.*", "-o", "json", **own) as it:
        async with asyncio.timeout(60):
            while '"w' not in it.output:
                make(api, f"w{api.revision}")
                await asyncio.sleep(0.2)
        assert json.loads(it.output.splitlines()[0])["type"] == "worker.created"
        it.stop()


async def test_a_cut_stream_is_taken_up_without_gap_or_duplicate(api: ApiServer) -> None:
    wanted = [f"w{number}" for number in range(12)]
    told: list[StreamItem] = []
    async with (
        asyncio.timeout(60),
        Proxy(api.url.removeprefix("http://")) as proxy,
        line_to(f"http://{proxy.endpoint}", api.tokens["root"]) as line,
        aclosing(follow_events(line, EventSelection(), chance=chance)) as stream,
    ):
        async for one in stream:
            told.append(one)
            seen = len(names(told))
            if seen == len(wanted):
                break
            if seen % 4 == 3:
                await proxy.cut()
            await asyncio.to_thread(make, api, wanted[seen])
    assert names(told) == wanted
    assert [one for one in told if not isinstance(one, StreamEvent)] == [told[0]]
    assert isinstance(told[0], StreamStart)
    assert not told[0].reset
    assert proxy.connections >= 4


async def test_what_cannot_be_taken_up_is_a_reset(api: ApiServer) -> None:
    make(api, "w1")
    async with line_to(api.url, api.tokens["root"]) as line:
        async with aclosing(
            follow_events(line, EventSelection(), chance=chance, after="0badcafe.3.0", snapshot=True)
        ) as stream:
            begun, standing = await anext(stream), await anext(stream)
        assert isinstance(begun, StreamStart)
        assert begun.reset
        assert isinstance(standing, StreamSnapshot)
        assert json.loads(bytes(standing.data))["workers"][0]["worker_name"] == "w1"
        with pytest.raises(Relist):
            await read_recent(line, EventSelection(), after="0badcafe.3.0")


async def test_the_page_and_the_stream_name_events_alike(api: ApiServer) -> None:
    make(api, "w1")
    async with line_to(api.url, api.tokens["root"]) as line:
        page = await read_recent(line, EventSelection())
        make(api, "w2")
        async with aclosing(follow_events(line, EventSelection(), chance=chance, after=page.items[0].id)) as stream:
            told = await anext(stream)
        assert isinstance(told, StreamEvent)
        assert told.id == (await read_recent(line, EventSelection(), after=page.last)).items[0].id


async def test_a_token_that_is_not_valid_ends_it(api: ApiServer) -> None:
    async with line_to(api.url, "nonsense") as line:
        with pytest.raises(Forbidden):
            await anext(follow_events(line, EventSelection(), chance=chance))


async def test_an_api_that_never_answered_is_not_waited_for() -> None:
    async with line_to("http://127.0.0.1:1", "token") as line:
        with pytest.raises(Unreachable):
            await anext(follow_events(line, EventSelection(), chance=chance))


async def test_odd_streams_are_read_as_far_as_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_streams, "STREAM_PATH", "/api/v0/stream")
    good = b': alive\n\nretry: 2000\n\nid: e.1.0\nevent: a.b\ndata: {"x":1}\n\n'
    cut = b'id: e.2.0\nevent: a.c\ndata: {"y"'
    async with AnswerServer() as server, line_to(server.url, "token") as line:
        server.tell("stream", Say(200, good + cut, "text/event-stream"), Say(200, b"<html>", "text/html"))
        async with aclosing(follow_events(line, EventSelection(), chance=chance)) as stream:
            told = await anext(stream)
            assert isinstance(told, StreamEvent)
            assert (told.id, told.type, bytes(told.data)) == ("e.1.0", "a.b", b'{"x":1}')
            with pytest.raises(Stuck):
                await anext(stream)
        assert "last_event_id=e.1.0" in server.asked[-1].query


def test_why_a_sink_fails_is_told_in_full(api: ApiServer, tmp_path: Path) -> None:
    desk = shell(api, tmp_path, columns=80)
    desk.out("sink", "create", "hook", HOOK)
    why = "env:SECRET_HOOK is not set where the API runs; " * 3 + "set it"
    known = json.loads(desk.out("sink", "list", "-o", "json"))["items"][0]
    status = SinkStatus(epoch="e", revision=1, at=SystemClock().now(), sink=known["resource_version"], failures=3)
    api.commit(Put("sink-cursors/hook", encode_checked(given.changed(status, {"last_error": why}))))
    lines = desk.out("sink", "list").splitlines()
    assert max(map(len, lines)) <= 80
    assert "failing" in lines[1]
    assert f"hook: {why}" in " ".join(" ".join(lines).split())


def test_sinks_are_made_listed_tested_and_deleted(api: ApiServer, tmp_path: Path) -> None:
    desk = shell(api, tmp_path)
    assert "there are no sinks" in desk.lcm("sink", "list").stderr
    options = ("--types", "worker.*, alert.*", "--secret", "env:SECRET_HOOK", "--owner", "ada")
    assert "sink hook created" in desk.out("sink", "create", "hook", HOOK, *options)
    row = desk.out("sink", "list").splitlines()[1].split()
    assert row == ["hook", "cloudevents", "https://hooks.example.org/***", "worker.*,alert.*", "new", "never", "0"]
    (shown,) = json.loads(desk.out("sink", "list", "-o", "json"))["items"]
    assert (shown["secret"], shown["owner_id"]) == ("env:SECRET_HOOK", "ada")
    assert desk.lcm("sink", "create", "hook", HOOK).exit_code == 4
    assert "is queued for hook" in desk.out("sink", "test", "hook")
    assert (
        "refused no event so far; `lcm sink list` shows whether it answers" in desk.lcm("sink", "dead", "hook").stderr
    )
    assert json.loads(desk.out("sink", "dead", "hook", "-o", "json")) == {"items": []}
    assert "0 dead letters of hook" in desk.out("sink", "replay", "hook", "--all")
    assert desk.out("sink", "delete", "hook") == "sink hook deleted\n"
    assert desk.lcm("sink", "delete", "hook").exit_code == 3


def test_wrong_usage_and_bad_addresses_are_told(api: ApiServer, tmp_path: Path) -> None:
    desk = shell(api, tmp_path)
    assert desk.lcm("sink", "replay", "hook").exit_code == 2
    assert desk.lcm("sink", "replay", "hook", "e.1.0", "--all").exit_code == 2
    refused = desk.lcm("sink", "create", "hook", "https://169.254.169.254/hush")
    assert refused.exit_code == 5
    assert "not an address that webhooks may reach" in refused.stderr
    assert "hush" not in refused.output
    assert shell(api, tmp_path, "ada").lcm("sink", "list").exit_code == 5
