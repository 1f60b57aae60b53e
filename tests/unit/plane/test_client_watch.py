"""The watch of the plane's client against an API that cuts, falls silent, and says odd things. In virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest

from harness import given
from harness.asgi import AsgiTransport
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.client_streams import HttpWatch
from lcm.control.plane.problems import problem_of
from lcm.control.plane.wire import KEEPALIVE_SECONDS
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Forbidden, LcmError, Relist, Stuck, Throttled, Unreachable
from lcm.model.kinds.worker import LabWorker
from lcm.sim.time.loop import run
from lcm.system.serving import Receive, Scope, Send

Act = Callable[["Stream"], Awaitable[None]]
OPERATOR = Caller(name="otto", role=Role.OPERATOR)


class Stream:
    """One connection of a watch, as the API's side sees it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.query = httpx.QueryParams(scope["query_string"].decode())
        self._receive, self._send = receive, send

    @property
    def after(self) -> int:
        return int(self.query["after"])

    async def begin(self, epoch: str = "e1") -> None:
        headers = [(b"content-type", b"application/x-ndjson"), (b"lcm-epoch", epoch.encode())]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def put(self, raw: bytes) -> None:
        await self._send({"type": "http.response.body", "body": raw, "more_body": True})

    async def tell(self, *revisions: int) -> None:
        await self.put(b"".join(map(line, revisions)))

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, error: LcmError) -> None:
        problem = problem_of(error)
        await self._send({"type": "http.response.start", "status": problem.status, "headers": []})
        await self._send({"type": "http.response.body", "body": msgspec.json.encode(problem)})

    async def gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Script:
    """An API that plays one act for each connection, the last one again and again."""

    def __init__(self, *acts: Act) -> None:
        self._acts = acts
        self.times: list[float] = []
        self.asked: list[int] = []
        self.open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        act = self._acts[min(len(self.asked), len(self._acts) - 1)]
        stream = Stream(scope, receive, send)
        self.asked.append(stream.after)
        self.times.append(asyncio.get_running_loop().time())
        self.open += 1
        try:
            await act(stream)
        finally:
            self.open -= 1


def line(revision: int) -> bytes:
    resource = given.worker(resource_version=revision)
    seen = {"kind": "LabWorker", "namespace": "default", "name": "w1", "object": resource}
    return msgspec.json.encode({"revision": revision, "seen": [seen]}) + b"\n"


def life(revision: int) -> bytes:
    return msgspec.json.encode({"revision": revision, "seen": []}) + b"\n"


def told(error: LcmError) -> bytes:
    return msgspec.json.encode({"problem": problem_of(error)}) + b"\n"


def play(script: Script, body: Callable[[HttpWatch], Coroutine[Any, Any, None]], *, chance: float = 1.0) -> None:
    async def main() -> None:
        way = AsgiTransport(script)
        async with HttpPlane.open(
            "http://lcm", Secret("t"), caller=OPERATOR, transport=way, chance=lambda: chance
        ) as plane:
            await body(plane.watch(LabWorker, after=10))
        await asyncio.sleep(60)
        assert script.open == 0, "the API was not told that its reader left"

    run(main)


async def revisions(watch: HttpWatch, count: int) -> list[int]:
    return [(await anext(watch)).revision for _ in range(count)]


def steady(*told: int) -> Act:
    async def act(stream: Stream) -> None:
        await stream.begin()
        await stream.tell(*(revision for revision in told if revision > stream.after))
        await stream.gone()

    return act


def test_a_watch_reads_commits_as_they_come() -> None:
    async def act(stream: Stream) -> None:
        await stream.begin()
        await stream.tell(11)
        await asyncio.sleep(4)
        await stream.tell(12, 14)
        await stream.gone()

    async def body(watch: HttpWatch) -> None:
        changes = await anext(watch)
        assert changes.seen[0].resource == given.worker(resource_version=11)
        assert await revisions(watch, 2) == [12, 14]

    script = Script(act)
    play(script, body)
    assert script.asked == [10]


def test_lines_may_be_cut_anywhere() -> None:
    async def act(stream: Stream) -> None:
        await stream.begin()
        for byte in line(11) + life(11) + line(12):
            await stream.put(bytes([byte]))
        await stream.gone()

    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 2) == [11, 12]

    play(Script(act), body)


def test_after_a_cut_it_goes_on_behind_the_last_whole_line() -> None:
    async def cut(stream: Stream) -> None:
        await stream.begin()
        await stream.tell(11, 12)
        await stream.put(line(13)[:-20])

    async def ended(stream: Stream) -> None:
        await stream.begin()
        await stream.tell(13)
        await stream.end()

    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 4) == [11, 12, 13, 14]

    script = Script(cut, ended, steady(14))
    play(script, body)
    assert script.asked == [10, 12, 13]


def test_a_stream_that_gives_no_sign_of_life_is_dead() -> None:
    async def silent(stream: Stream) -> None:
        await stream.begin()
        await stream.tell(11)
        await stream.gone()

    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 2) == [11, 12]

    script = Script(silent, steady(12))
    play(script, body)
    assert script.asked == [10, 11]
    assert script.times[1] - script.times[0] == pytest.approx(15, abs=0.2)


def test_an_api_that_accepts_and_never_answers_is_dead_too() -> None:
    script = Script(Stream.gone, steady(11))

    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 1) == [11]

    play(script, body)
    assert script.times[1] - script.times[0] == pytest.approx(15, abs=0.2)


def test_signs_of_life_keep_it_alive_and_tell_nothing() -> None:
    async def living(stream: Stream) -> None:
        await stream.begin()
        for _ in range(100):
            await asyncio.sleep(KEEPALIVE_SECONDS)
            await stream.put(life(10))
        await stream.tell(11)
        await stream.gone()

    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 1) == [11]

    script = Script(living)
    play(script, body)
    assert script.asked == [10]


def test_a_slow_reader_does_not_mistake_its_own_slowness_for_silence() -> None:
    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 1) == [11]
        await asyncio.sleep(100)
        assert await revisions(watch, 2) == [12, 13]

    script = Script(steady(11, 12, 13))
    play(script, body)
    assert script.asked == [10]


def test_it_comes_back_ever_more_slowly_and_at_random() -> None:
    async def refused(stream: Stream) -> None:
        await stream.refuse(Unreachable("the store does not answer"))

    def pauses(chance: float) -> list[float]:
        script = Script(*11 * [refused], steady(11))

        async def body(watch: HttpWatch) -> None:
            assert await revisions(watch, 1) == [11]

        play(script, body, chance=chance)
        return [after - before for before, after in zip(script.times, script.times[1:], strict=False)]

    longest, shortest = pauses(1.0), pauses(0.0)
    assert longest == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5], abs=0.001)
    assert shortest == pytest.approx([pause / 2 for pause in longest], abs=0.001)


def test_after_a_sign_of_life_it_comes_back_quickly_again() -> None:
    async def refused(stream: Stream) -> None:
        await stream.refuse(Unreachable("no"))

    async def living(stream: Stream) -> None:
        await stream.begin()
        await stream.put(life(10))

    script = Script(*6 * [refused], living, steady(11))

    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 1) == [11]

    play(script, body)
    assert script.times[-1] - script.times[-2] == pytest.approx(0.05, abs=0.01)


def test_a_stream_that_ends_at_once_is_not_asked_for_in_a_loop() -> None:
    async def empty(stream: Stream) -> None:
        await stream.begin()
        await stream.end()

    async def body(watch: HttpWatch) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await anext(watch)

    script = Script(empty)
    play(script, body)
    assert len(script.asked) < 40


def test_it_waits_as_long_as_it_is_told_to() -> None:
    async def refused(stream: Stream) -> None:
        await stream.refuse(Throttled("too many streams", after=timedelta(seconds=12)))

    script = Script(refused, steady(11))

    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 1) == [11]

    play(script, body)
    assert script.times[1] - script.times[0] == pytest.approx(12, abs=0.1)


def test_a_problem_that_ends_the_stream_is_raised_after_what_came_before_it() -> None:
    async def act(stream: Stream) -> None:
        await stream.begin()
        await stream.put(line(11) + told(Relist("the reader fell too far behind")))
        await stream.end()

    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 1) == [11]
        for _ in range(2):
            with pytest.raises(Relist, match="too far behind"):
                await anext(watch)

    script = Script(act)
    play(script, body)
    assert script.asked == [10]


def test_a_problem_that_passes_is_waited_out() -> None:
    async def act(stream: Stream) -> None:
        await stream.begin()
        await stream.put(line(11) + told(Unreachable("the store does not answer")))
        await stream.end()

    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 2) == [11, 12]

    play(Script(act, steady(12)), body)


@pytest.mark.parametrize("error", [Relist("compacted"), Forbidden("may not")])
def test_a_refusal_is_raised(error: LcmError) -> None:
    async def body(watch: HttpWatch) -> None:
        with pytest.raises(type(error), match=str(error)):
            await anext(watch)

    script = Script(lambda stream: stream.refuse(error))
    play(script, body)
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"<html>\n",
        b"{}}\n",
        b'{"revision":"x"}\n',
        line(11).replace(b"LabWorker", b"LabWorke"),
        line(11)[:-60] + b"}\n",
    ],
)
def test_garbage_is_not_passed_over(garbage: bytes) -> None:
    async def act(stream: Stream) -> None:
        await stream.begin()
        await stream.put(garbage)
        await stream.gone()

    async def body(watch: HttpWatch) -> None:
        with pytest.raises(Stuck):
            await anext(watch)

    play(Script(act), body)


def test_an_api_with_another_history_says_relist() -> None:
    async def before(stream: Stream) -> None:
        await stream.begin("e1")
        await stream.tell(11)

    async def restored(stream: Stream) -> None:
        await stream.begin("e2")
        await stream.gone()

    async def body(watch: HttpWatch) -> None:
        assert await revisions(watch, 1) == [11]
        with pytest.raises(Relist, match="restored"):
            await anext(watch)

    play(Script(before, restored), body)


def test_a_cancelled_read_keeps_the_stream() -> None:
    async def act(stream: Stream) -> None:
        await stream.begin()
        await asyncio.sleep(3)
        await stream.tell(11)
        await stream.gone()

    async def body(watch: HttpWatch) -> None:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(watch)
        assert await revisions(watch, 1) == [11]

    script = Script(act)
    play(script, body)
    assert script.asked == [10]


def test_closing_is_prompt_whatever_the_watch_is_doing() -> None:
    async def refused(stream: Stream) -> None:
        await stream.refuse(Unreachable("no"))

    async def body(watch: HttpWatch) -> None:
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(20)
        began = loop.time()
        await watch.aclose()
        with pytest.raises(Relist, match="closed"):
            await reading
        assert loop.time() == began

    for act in (steady(), refused, Stream.gone):
        play(Script(act), body)


def test_a_watch_that_nobody_reads_opens_nothing() -> None:
    async def body(watch: HttpWatch) -> None:
        await asyncio.sleep(20)
        await watch.aclose()

    script = Script(steady(11))
    play(script, body)
    assert script.asked == []
