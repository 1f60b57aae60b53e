"""The plane's client on the wire: what it sends, and what it makes of answers, good and bad."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import httpx
import msgspec
import pytest

from harness import given
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.problems import problem_of
from lcm.control.plane.protocol import Drain, Extend, Plane, Ref
from lcm.control.plane.transport import ClientTimeouts
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Forbidden, Gone, Invalid, LcmError, Relist, Stuck, Throttled, Unreachable
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.selector import ObjectSelector, SelectorTerm
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.sim.time.loop import run
from lcm.store.base import Fence, Lease

URL = "http://lcm.test"
TOKEN = Secret("lcm_a-token-that-nobody-may-see")
ROOT = Caller(name="root", role=Role.ADMIN)
W1 = Ref(LabWorker, "w1")
Answer = Callable[[httpx.Request], httpx.Response]


class Wire(httpx.AsyncBaseTransport):
    """Answers as a test says, and keeps what was asked."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[httpx.Request] = []
        self.closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.asked.append(request)
        return self._answer(request)

    async def aclose(self) -> None:
        self.closed = True


def told(status: int, body: bytes = b"", media: str = "application/json") -> Answer:
    return lambda _: httpx.Response(status, content=body, headers={"content-type": media})


def worker() -> Answer:
    return told(200, msgspec.json.encode(given.worker()))


def problem(error: LcmError) -> Answer:
    made = problem_of(error)
    return told(made.status, msgspec.json.encode(made), "application/problem+json")


def failing(error: Exception) -> Answer:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    return fail


def plane(wire: httpx.AsyncBaseTransport, *, actor: str = "", limits: ClientTimeouts | None = None) -> HttpPlane:
    return HttpPlane.open(URL, TOKEN, actor=actor, caller=ROOT, transport=wire, limits=limits)


async def test_a_caller_who_is_not_told_is_asked_for() -> None:
    wire = Wire(told(200, b'{"name":"ada","role":"user"}'))
    async with HttpPlane.open(URL, TOKEN, transport=wire) as opened:
        assert opened.caller == Caller(name="ada", role=Role.USER)
        assert opened.under(Fence("x", 1)).caller == opened.caller
    [request] = wire.asked
    assert (request.method, request.url.path) == ("GET", "/api/whoami")
    assert request.headers["authorization"] == f"Bearer {TOKEN.reveal()}"
    assert wire.closed


async def test_a_bad_token_is_told_at_once() -> None:
    body = b'{"title":"t","status":401,"detail":"sign in","reason":"Unauthorized"}'
    wire = Wire(told(401, body))
    with pytest.raises(Forbidden, match="sign in"):
        await HttpPlane.open(URL, TOKEN, transport=wire).__aenter__()
    assert wire.closed


async def test_a_service_says_its_name_its_term_and_its_request() -> None:
    wire = Wire(worker())
    service = plane(wire, actor=SCHEDULER)
    await service.under(Fence("scheduler", 17)).create(given.worker(), request="r-1", dry_run=True)
    await service.patch(W1, {"spec": {}}, at=5)
    await service.replace(given.worker(), at=6)
    await service.delete(W1, at=7)
    first, patch, put, delete = wire.asked
    assert (first.method, first.url.path, dict(first.url.params)) == ("POST", "/api/workers", {"dry_run": "true"})
    assert first.headers["lcm-actor"] == "scheduler"
    assert (first.headers["lcm-fence"], first.headers["idempotency-key"]) == ("scheduler;17", "r-1")
    assert (patch.method, patch.headers["content-type"]) == ("PATCH", "application/merge-patch+json")
    assert [one.headers["if-match"] for one in (patch, put, delete)] == ['"5"', '"6"', '"7"']
    assert all("lcm-fence" not in one.headers for one in (patch, put, delete))
    assert dict(patch.url.params) == {"namespace": "default"}
    await service.close()


async def test_actions_are_paths_and_their_fields_the_body() -> None:
    wire = Wire(worker())
    opened = plane(wire)
    await opened.act(W1, Drain())
    await opened.act(W1, Drain(deadline_minutes=5))
    with pytest.raises(Stuck):
        await opened.act(Ref(LabletSession, "s1", "exams"), Extend(minutes=5))
    assert [one.url.path for one in wire.asked] == [
        "/api/workers/w1/drain",
        "/api/workers/w1/drain",
        "/api/lablet-sessions/s1/extend",
    ]
    bodies = [msgspec.json.decode(one.content) for one in wire.asked]
    assert bodies == [{}, {"deadline_minutes": 5}, {"minutes": 5}], "an older API may not know what is left out"
    assert wire.asked[2].url.params["namespace"] == "exams"
    await opened.close()


async def test_a_selection_that_cannot_be_written_is_refused() -> None:
    opened = plane(Wire(told(200, b'{"items":[],"revision":3}')))
    assert (await opened.list(LabWorker, where=ObjectSelector((SelectorTerm("a", ("1",)),)))).revision == 3
    with pytest.raises(Invalid):
        await opened.list(LabWorker, where=ObjectSelector((SelectorTerm("a", ("1,b=2",)),)))
    await opened.close()


VERBS: dict[str, Callable[[Plane], Awaitable[object]]] = {
    "get": lambda plane: plane.get(W1),
    "list": lambda plane: plane.list(LabWorker),
    "create": lambda plane: plane.create(given.worker()),
    "delete": lambda plane: plane.delete(W1),
    "apply": lambda plane: plane.apply([]),
    "telemetry": lambda plane: plane.telemetry(W1),
    "lease": lambda plane: plane.lease("scheduler"),
    "renew": lambda plane: plane.renew(Lease("scheduler", "a", 3, 15)),
    "watch": lambda plane: anext(plane.watch(LabWorker, after=1)),
}
ASKING = [verb for verb in VERBS if verb != "watch"]
READING = [verb for verb in VERBS if verb != "renew"]


@pytest.mark.parametrize("verb", ASKING)
@pytest.mark.parametrize(
    "answer",
    [
        failing(httpx.ConnectError("refused")),
        failing(httpx.ConnectTimeout("late")),
        failing(httpx.ReadTimeout("late")),
        failing(httpx.ReadError("cut")),
        failing(httpx.RemoteProtocolError("cut")),
        told(502, b"<html>bad gateway</html>", "text/html"),
        told(503),
        told(504, b"{}"),
        told(429, b"slow down", "text/plain"),
        problem(Unreachable("the store does not answer")),
    ],
)
async def test_no_answer_is_never_nothing_there(verb: str, answer: Answer) -> None:
    opened = plane(Wire(answer))
    with pytest.raises(Unreachable) as raised:
        await VERBS[verb](opened)
    assert TOKEN.reveal() not in str(raised.value)
    await opened.close()


@pytest.mark.parametrize("verb", READING)
@pytest.mark.parametrize(
    "answer",
    [
        told(404, b"<html>not here</html>", "text/html"),
        told(404, b'{"detail":"Not Found"}'),
        told(301),
        told(204),
        told(200, b"<html>welcome</html>", "text/html"),
        told(200, b"[]"),
        told(200, b'{"items":{}}\n'),
    ],
)
async def test_an_answer_by_somebody_else_is_never_nothing_there(verb: str, answer: Answer) -> None:
    opened = plane(Wire(answer))
    with pytest.raises(Stuck):
        await VERBS[verb](opened)
    await opened.close()


async def test_only_a_problem_says_that_something_is_not_there() -> None:
    opened = plane(Wire(problem(Gone("there is no w1"))))
    assert await opened.get(W1) is None
    assert await opened.telemetry(W1) is None
    with pytest.raises(Gone, match="there is no w1"):
        await opened.delete(W1)
    await opened.close()


async def test_a_caller_is_told_for_how_long_to_wait() -> None:
    opened = plane(Wire(problem(Throttled("slow down", after=timedelta(seconds=9)))))
    with pytest.raises(Throttled) as raised:
        await opened.list(WorkerTemplate)
    assert raised.value.after == timedelta(seconds=9)
    await opened.close()


async def test_what_a_newer_api_says_is_read_as_far_as_it_is_known() -> None:
    document = msgspec.to_builtins(given.worker())
    document["spec"]["new_field"] = {"a": 1}
    document["status"]["ec2"]["newer"] = True
    opened = plane(Wire(told(200, msgspec.json.encode(document))))
    assert await opened.get(W1) == given.worker()
    await opened.close()


def test_an_api_that_does_not_answer_is_waited_for_only_so_long() -> None:
    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(10_000)
            raise AssertionError(request)

    async def main() -> float:
        loop, opened = (
            asyncio.get_running_loop(),
            plane(Silent(), limits=ClientTimeouts(connect_seconds=5, request_seconds=30)),
        )
        began = loop.time()
        with pytest.raises(Unreachable):
            await opened.get(W1)
        await opened.close()
        return loop.time() - began

    assert run(main) == pytest.approx(35)


async def test_nothing_is_asked_of_a_closed_plane() -> None:
    wire = Wire(worker())
    opened = plane(wire)
    watch = opened.watch(LabWorker, after=1)
    leading = opened.under(Fence("scheduler", 1))
    await leading.close()
    await opened.close()
    with pytest.raises(Unreachable, match="closed"):
        await opened.get(W1)
    with pytest.raises(Unreachable, match="closed"):
        await leading.get(W1)
    with pytest.raises(Relist, match="closed"):
        await anext(watch)
    with pytest.raises(Relist, match="closed"):
        await anext(opened.watch(LabWorker, after=1))
    assert wire.asked == []


@pytest.mark.parametrize("url", ["", "lcm.test", "ftp://lcm.test", "http://", "http://me:secret@lcm.test"])
def test_an_address_that_is_none_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(Invalid) as raised:
        HttpPlane.open(url, TOKEN)
    assert "secret" not in str(raised.value)


async def test_an_address_may_end_in_a_slash() -> None:
    wire = Wire(worker())
    async with HttpPlane.open(f"{URL}/", TOKEN, caller=ROOT, transport=wire) as opened:
        await opened.get(W1)
    assert str(wire.asked[0].url) == f"{URL}/api/workers/w1?namespace=default"
