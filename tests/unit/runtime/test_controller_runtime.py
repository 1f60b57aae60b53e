"""How often a controller looks at what, and what its errors mean for the next look."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from harness.plane_world import NOW, ROOT, Stage, service, template
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Ref
from lcm.controllers.runtime.reconcile import DONE, Requeue, Runtime, requeue_at
from lcm.model.base.errors import Conflict, Deposed, Gone, Invalid, Later, NoRoom, Relist, Stuck, Throttled, Unreachable
from lcm.model.kinds.pool import WorkerTemplate
from lcm.sim.time.loop import VirtualClock, run
from lcm.system.tasks import cancel_and_wait, run_until_first_ends

HOURLY = timedelta(hours=1)


@dataclass
class World:
    """A controller over templates that writes down when it looked at what."""

    stage: Stage
    cache: Cache
    said: dict[str, list[Requeue | BaseException]] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    looks: list[tuple[str, float]] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    most: int = 0
    complaints: list[tuple[str, Exception]] = field(default_factory=list)
    deaf: Exception | None = None
    chance: float = 0.5
    runtime: Any = None

    async def reconcile(self, one: Ref[WorkerTemplate]) -> Requeue:
        assert one.name not in self.busy, "looked at twice at once"
        self.looks.append((one.name, now()))
        self.busy.append(one.name)
        self.most = max(self.most, len(self.busy))
        try:
            await asyncio.sleep(self.slow.get(one.name, 0))
            says = self.said.get(one.name, [])
            answer = says.pop(0) if len(says) > 1 else says[0] if says else DONE
            if isinstance(answer, BaseException):
                raise answer
            return answer
        finally:
            self.busy.remove(one.name)

    async def troubled(self, one: Ref[WorkerTemplate], error: Exception) -> None:
        await asyncio.sleep(0)
        self.complaints.append((one.name, error))
        if self.deaf is not None:
            raise self.deaf

    def times(self, name: str) -> list[float]:
        return [round(moment, 3) for one, moment in self.looks if one == name]

    def gaps(self, name: str) -> list[float]:
        times = self.times(name)
        return [round(later - earlier, 3) for earlier, later in pairwise(times)]

    async def make(self, *names: str) -> None:
        for name in names:
            await self.stage[ROOT].create(template(name))

    async def label(self, name: str, value: str) -> None:
        await self.stage[ROOT].patch(ref(name), {"metadata": {"labels": {"value": value}}})


def now() -> float:
    return asyncio.get_running_loop().time()


def ref(name: str) -> Ref[WorkerTemplate]:
    return Ref(WorkerTemplate, name)


def play(
    body: Callable[[World], Awaitable[None]],
    *names: str,
    concurrency: int = 16,
    resync: timedelta | Callable[[], timedelta] = HOURLY,
    resting: Callable[[WorkerTemplate], Requeue | None] = lambda _: None,
) -> None:
    async def main() -> None:
        stage = Stage(clock=VirtualClock())
        cache = Cache(stage[service("worker-controller")], WorkerTemplate)
        world = World(stage, cache)
        await world.make(*names)
        world.runtime = Runtime(
            "templates",
            world.reconcile,
            cache,
            WorkerTemplate,
            clock=VirtualClock(),
            chance=lambda: world.chance,
            concurrency=concurrency,
            resync=resync if callable(resync) else lambda: resync,
            resting=resting,
            report_bug=world.troubled,
        )
        following = asyncio.create_task(cache.run())
        try:
            await body(world)
        finally:
            await cancel_and_wait([following])

    run(main, start=NOW)


def running(body: Callable[[World], Awaitable[None]]) -> Callable[[World], Awaitable[None]]:
    """Let the controller run while the body does, to the end of which nothing may rise."""

    async def around(world: World) -> None:
        task = asyncio.create_task(world.runtime.run())
        await body(world)
        assert not task.done(), "the controller ended"
        await cancel_and_wait([task])

    return around


def test_everything_is_looked_at_at_the_start_and_then_what_changes() -> None:
    @running
    async def body(world: World) -> None:
        await asyncio.sleep(5)
        assert sorted(world.looks) == [("a", 0), ("b", 0)]
        await world.label("b", "new")
        await world.make("c")
        await asyncio.sleep(5)
        assert world.looks[2:] == [("b", 5), ("c", 5)]
        await world.stage[ROOT].delete(ref("c"))
        await asyncio.sleep(5)
        assert set(world.looks[4:]) == {("c", 10)}, "what goes is looked at too"

    play(body, "a", "b")


def test_a_key_that_changes_while_it_is_looked_at_is_looked_at_again_and_never_twice_at_once() -> None:
    @running
    async def body(world: World) -> None:
        world.slow["a"] = 10
        await asyncio.sleep(2)
        for number in range(5):
            await world.label("a", str(number))
            world.runtime.enqueue(ref("a"))
        await asyncio.sleep(60)
        assert world.times("a") == [0, 10]

    play(body, "a")


def test_lesson_29_one_slow_key_blocks_no_other() -> None:
    @running
    async def body(world: World) -> None:
        world.slow["stuck"] = 1e5
        await asyncio.sleep(1)
        for number in range(20):
            await world.label("a", str(number))
            await asyncio.sleep(1)
        assert len(world.times("a")) == 21
        assert world.times("stuck") == [0]

    play(body, "a", "stuck", concurrency=2)


def test_only_so_many_are_looked_at_at_once() -> None:
    names = [f"t{number}" for number in range(10)]

    @running
    async def body(world: World) -> None:
        world.slow.update(dict.fromkeys(names, 7))
        await asyncio.sleep(1)
        assert len(world.runtime._queue) == 7
        await asyncio.sleep(60)
        assert world.most == 3
        assert sorted(name for name, _ in world.looks) == sorted(names)
        assert len(world.runtime._queue) == 0

    play(body, *names, concurrency=3)


def test_a_controller_says_when_it_wants_to_look_again() -> None:
    @running
    async def body(world: World) -> None:
        world.said = {
            "after": [Requeue(timedelta(seconds=7)), Requeue(timedelta(seconds=3)), DONE],
            "at": [requeue_at(NOW + timedelta(minutes=1), NOW), requeue_at(NOW, NOW + timedelta(minutes=1)), DONE],
        }
        await asyncio.sleep(600)
        assert world.times("after") == [0, 7, 10]
        assert world.times("at") == [0, 60, 60]

    play(body, "after", "at")


def test_what_has_nothing_to_do_is_looked_at_once_in_a_while_and_not_all_at_one_moment() -> None:
    @running
    async def body(world: World) -> None:
        for world.chance in (0.0, 0.9):
            await asyncio.sleep(95)
        assert world.gaps("a") == [27, 27, 27, 27, 32.4, 32.4]

    play(body, "a", resync=timedelta(seconds=30))


def test_the_interval_may_change_meanwhile() -> None:
    spans = [timedelta(seconds=100)]

    @running
    async def body(world: World) -> None:
        await asyncio.sleep(150)
        spans[0] = timedelta(seconds=10)
        await asyncio.sleep(75)
        assert world.times("a") == [0, 100, 200, 210, 220]

    play(body, "a", resync=lambda: spans[0])


def test_what_rests_is_looked_at_when_it_changes_or_said_so_and_no_more() -> None:
    @running
    async def body(world: World) -> None:
        world.said = {"b": [Requeue(timedelta(hours=2)), DONE]}
        await asyncio.sleep(3 * 3600)
        await world.label("a", "new")
        await world.label("c", "new")
        await asyncio.sleep(95)
        assert world.times("a") == [0, 10800]
        assert world.times("b") == [0, 3600], "no timer is longer than an hour: clocks are set"
        assert world.times("c")[-4:] == [10800, 10830, 10860, 10890], "one that wakes is looked at again"

    def rest_of(one: WorkerTemplate) -> Requeue | None:
        return DONE if one.metadata.name != "c" or not one.metadata.labels else None

    play(body, "a", "b", "c", resync=timedelta(seconds=30), resting=rest_of)


def test_what_rests_till_a_time_is_looked_at_then_and_not_before() -> None:
    @running
    async def body(world: World) -> None:
        await asyncio.sleep(6 * 3600)
        assert world.times("soon") == [600]
        assert world.times("late") == [4 * 3600]
        await world.label("never", "new")
        await asyncio.sleep(1)
        assert world.times("never") == [6 * 3600], "it changed"

    hours = {"soon": 1 / 6, "late": 4, "never": 400}

    def rest_of(one: WorkerTemplate) -> Requeue | None:
        due = NOW + timedelta(hours=hours[one.metadata.name])
        now = VirtualClock().now()
        return requeue_at(due, now) if now < due else DONE

    play(body, *hours, resync=timedelta(seconds=30), resting=rest_of)


def test_what_rests_for_long_costs_nothing_till_it_is_due_soon() -> None:
    considered: list[float] = []

    @running
    async def body(world: World) -> None:
        await asyncio.sleep(39 * 3600)
        assert considered == [0]
        await asyncio.sleep(3 * 3600)
        assert world.times("late") == [40 * 3600]

    def rest_of(_: WorkerTemplate) -> Requeue | None:
        considered.append(now())
        due, present = NOW + timedelta(hours=40), VirtualClock().now()
        return requeue_at(due, present) if present < due else DONE

    play(body, "late", resting=rest_of)


def test_what_is_gone_is_not_looked_at_once_in_a_while() -> None:
    @running
    async def body(world: World) -> None:
        await asyncio.sleep(1)
        await world.stage[ROOT].delete(ref("a"))
        await asyncio.sleep(1000)
        assert set(world.times("a")) == {0, 1}

    play(body, "a", resync=timedelta(seconds=30))


@pytest.mark.parametrize(
    ("error", "gaps"),
    [
        (Conflict("workers/a", wanted=1, found=2), [0, 0.25, 0.5, 1, 2, 4, 6.25, 6.25]),
        (Relist("compacted"), [0, 0.25, 0.5, 1, 2, 4, 6.25, 6.25]),
        (Unreachable("no answer"), [1.25, 2.5, 5, 10, 20, 40, 80, 160]),
        (Throttled("slow down", after=timedelta(minutes=20)), [1500, 1500, 1500]),
        (Later("booting", after=timedelta(seconds=10)), [12.5, 25, 50, 100, 200, 375, 375]),
        (Stuck("LicenceTokenRefused", "ask somebody"), [6.25, 12.5, 25, 50, 100, 200, 375, 375]),
        (NoRoom("no capacity"), [6.25, 12.5, 25, 50, 100, 200, 375, 375]),
    ],
)
def test_each_error_has_its_pace(error: Exception, gaps: list[float]) -> None:
    @running
    async def body(world: World) -> None:
        world.said["a"] = [error]
        await asyncio.sleep(sum(gaps) + 1)
        assert world.gaps("a")[: len(gaps)] == gaps
        assert len(world.runtime._failures) == 1

    with capture_logs():
        play(body, "a", resync=timedelta(days=1))


def test_two_that_fail_at_the_same_moment_come_back_at_different_ones() -> None:
    @running
    async def body(world: World) -> None:
        world.said = {"a": [Unreachable("no answer"), DONE], "b": [Unreachable("no answer"), DONE]}
        numbers = iter([0.2, 0.9])
        world.runtime._chance = lambda: next(numbers, 0.5)
        await asyncio.sleep(10)
        assert len({gap for name in "ab" for gap in world.gaps(name)}) == 2

    play(body, "a", "b")


def test_a_success_ends_the_back_off() -> None:
    @running
    async def body(world: World) -> None:
        world.said["a"] = [
            *[Unreachable("no answer")] * 3,
            Requeue(timedelta(seconds=1)),
            Unreachable("no answer"),
            DONE,
        ]
        await asyncio.sleep(600)
        assert world.gaps("a") == [1.25, 2.5, 5, 1, 1.25]
        assert len(world.runtime._failures) == 0

    play(body, "a")


def test_a_change_is_not_kept_waiting_by_the_back_off() -> None:
    @running
    async def body(world: World) -> None:
        world.said["a"] = [Stuck("TokenRefused", "write another"), DONE]
        await asyncio.sleep(1)
        await world.label("a", "mended")
        await asyncio.sleep(600)
        assert world.times("a") == [0, 1], "and the look that was planned is not made besides"

    play(body, "a")


def test_what_is_gone_is_done_with() -> None:
    @running
    async def body(world: World) -> None:
        world.said["a"] = [Unreachable("no answer"), Gone("not there")]
        await asyncio.sleep(1000)
        assert world.times("a") == [0, 1.25]
        assert len(world.runtime._failures) == 0

    play(body, "a")


def test_what_goes_wrong_is_told_once_for_each_change() -> None:
    @running
    async def body(world: World) -> None:
        world.said["a"] = [
            Conflict("workers/a", wanted=1, found=2),
            *[Unreachable("no answer")] * 3,
            *[Stuck("TokenRefused", "write another")] * 2,
            DONE,
        ]
        await asyncio.sleep(1200)

    with capture_logs() as logs:
        play(body, "a")
    told = [(one["event"], one["log_level"], one.get("error")) for one in logs]
    assert told == [
        ("controller started", "info", None),
        ("cannot go on", "warning", "Unreachable: no answer"),
        ("cannot go on", "error", "Stuck: write another"),
        ("goes on again", "info", None),
        ("controller stopped", "info", None),
    ]
    assert logs[1]["object"] == "worker-templates/default/a"
    assert logs[3]["failures"] == 6


def test_who_is_deposed_ends_everything() -> None:
    async def body(world: World) -> None:
        world.said["bad"] = [Deposed("over")]
        world.slow["slow"] = 1e5
        with pytest.raises(Deposed, match="over"):
            await world.runtime.run()
        assert world.busy == [], "what was under way was ended"
        await world.label("slow", "new")
        await asyncio.sleep(10_000)
        assert len(world.looks) == 2, "nothing is looked at afterwards"

    play(body, "bad", "slow")


@pytest.mark.parametrize("error", [AssertionError("a bug"), KeyError("nobody expects this")])
def test_a_bug_is_one_objects_trouble_told_once_and_looked_at_after_minutes(error: Exception) -> None:
    @running
    async def body(world: World) -> None:
        world.said["bad"] = [error]
        with capture_logs() as logs:
            await asyncio.sleep(2000)
        assert set(world.gaps("bad")) == {375.0}
        assert len(world.times("good")) > 30
        assert [(one["log_level"], one["exc_info"]) for one in logs if one["event"] == "cannot go on"] == [
            ("error", error)
        ]
        assert world.complaints == [("bad", error)] * 6
        world.said["bad"] = [DONE]
        await world.label("bad", "new")
        await asyncio.sleep(300)
        assert len(world.runtime._failures) == 0
        assert world.gaps("bad")[-1] < 70, "it is looked at as often as the others again"

    play(body, "bad", "good", resync=timedelta(seconds=60))


def test_a_bug_that_cannot_be_complained_of_is_complained_of_at_its_next_look() -> None:
    @running
    async def body(world: World) -> None:
        world.said["bad"] = [AssertionError("a bug")]
        world.deaf = Unreachable("no plane")
        await asyncio.sleep(60)
        assert len(world.complaints) == 1
        await asyncio.sleep(375)
        assert len(world.complaints) == 2

    play(body, "bad")


def test_who_is_deposed_while_complaining_ends_everything() -> None:
    async def body(world: World) -> None:
        world.said["bad"] = [AssertionError("a bug")]
        world.deaf = Deposed("over")
        with pytest.raises(Deposed, match="over"):
            await world.runtime.run()

    play(body, "bad")


def test_a_refusal_says_what_must_change() -> None:
    @running
    async def body(world: World) -> None:
        world.said["a"] = [Invalid(), DONE]
        await asyncio.sleep(60)
        assert world.gaps("a") == [6.25]

    play(body, "a")


def test_a_controller_may_run_again_after_it_was_stopped() -> None:
    async def body(world: World) -> None:
        world.said["a"] = [Requeue(timedelta(seconds=50))]
        for _ in range(2):
            task = asyncio.create_task(world.runtime.run())
            await asyncio.sleep(10)
            await cancel_and_wait([task])
            await asyncio.sleep(1000)
            assert len(world.runtime._queue) == 0, "what was planned is forgotten"
        assert world.times("a") == [0, 1010]

    play(body, "a")


def test_work_side_by_side_ends_with_the_first_error_and_a_cancellation_is_never_lost() -> None:
    async def fail_when_cancelled() -> None:
        try:
            await asyncio.sleep(1e5)
        finally:
            raise Deposed("over")

    async def fail() -> None:
        raise Unreachable("no answer")

    async def main() -> None:
        with pytest.raises(Unreachable):
            await run_until_first_ends(fail_when_cancelled(), fail())
        task = asyncio.create_task(run_until_first_ends(fail_when_cancelled(), asyncio.sleep(1e5)))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run(main)


def test_whoever_is_told_twice_to_end_still_waits_for_what_it_began() -> None:
    async def linger() -> None:
        try:
            await asyncio.sleep(1e5)
        finally:
            await asyncio.sleep(10)

    async def main() -> None:
        task = asyncio.create_task(run_until_first_ends(linger()))
        for _ in range(3):
            await asyncio.sleep(1)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() == 11

    run(main)
