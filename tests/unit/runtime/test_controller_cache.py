"""What controllers decide by: never emptied by an outage, without gaps over cuts, as new as our own writes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import strategies as st
from structlog.testing import capture_logs

from harness.plane_world import NOW, ROOT, Stage, service, template
from harness.stores import FallibleStore
from harness.suite import for_all
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import PAGE_SIZE, ObjectChange, Ref
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Forbidden, Stuck, Throttled, Unreachable, WentBack
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.worker import LabWorker
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock, run

CONTROLLER = service("worker-controller")


@dataclass
class World:
    """A store that may fail, a plane on it, and a cache of templates and pools."""

    store: FallibleStore
    stage: Stage
    cache: Cache

    async def make(self, *names: str) -> list[WorkerTemplate]:
        return [await self.stage[ROOT].create(template(name)) for name in names]

    async def label(self, name: str, value: str) -> WorkerTemplate:
        return await self.stage[ROOT].patch(ref(name), {"metadata": {"labels": {"value": value}}})

    async def drop(self, name: str) -> WorkerTemplate:
        return await self.stage[ROOT].delete(ref(name))

    def names(self) -> list[str]:
        return sorted(one.metadata.name for one in self.cache.all(WorkerTemplate))

    def value(self, name: str) -> str | None:
        found = self.cache.get(ref(name))
        return found.metadata.labels.get("value") if found else None


def ref(name: str) -> Ref[WorkerTemplate]:
    return Ref(WorkerTemplate, name)


def play(body: Callable[[World], Awaitable[None]], *, started: bool = True, backlog: int = 10_000) -> None:
    async def main() -> None:
        store = FallibleStore(backlog=backlog)
        stage = Stage(store=store, clock=VirtualClock())
        cache = Cache(stage[CONTROLLER], WorkerTemplate, LabWorkerPool)
        world = World(store, stage, cache)
        running = asyncio.create_task(cache.run()) if started else None
        if running is not None:
            await cache.ready()
        await body(world)
        if running is not None:
            assert not running.done()
            running.cancel()
            await asyncio.wait({running})

    run(main, start=NOW)


def test_a_list_that_is_older_than_what_is_known_ends_it() -> None:
    async def main() -> None:
        stage = Stage(clock=VirtualClock())
        cache = Cache(stage[CONTROLLER], WorkerTemplate)
        for name in "abc":
            await stage[ROOT].create(template(name))
        running = asyncio.create_task(cache.run())
        await cache.ready()
        cache._plane = Stage(clock=VirtualClock())[CONTROLLER]
        await stage.store.close()
        with pytest.raises(WentBack):
            await running

    run(main, start=NOW)


def test_it_holds_what_was_there_and_what_comes() -> None:
    async def body(world: World) -> None:
        await world.make("a", "b")
        running = asyncio.create_task(world.cache.run())
        await world.cache.ready()
        assert world.names() == ["a", "b"]
        (made,) = await world.make("c")
        await world.drop("a")
        await asyncio.sleep(1)
        assert world.names() == ["b", "c"]
        assert world.cache.get(ref("c")) == made
        assert world.cache.get(ref("a")) is None
        assert world.cache.all(LabWorkerPool) == []
        running.cancel()
        await asyncio.wait({running})

    play(body, started=False)


def test_more_than_a_page_is_listed() -> None:
    async def body(world: World) -> None:
        await world.make(*(f"t{number}" for number in range(PAGE_SIZE + 3)))
        running = asyncio.create_task(world.cache.run())
        await world.cache.ready()
        assert len(world.names()) == PAGE_SIZE + 3
        running.cancel()
        await asyncio.wait({running})

    play(body, started=False)


def test_before_the_first_list_nothing_can_be_asked() -> None:
    async def body(world: World) -> None:
        with pytest.raises(AssertionError, match="unknown"):
            world.cache.get(ref("a"))
        with pytest.raises(AssertionError, match="unknown"):
            world.cache.all(WorkerTemplate)

    play(body, started=False)


def test_lesson_30_a_list_that_fails_is_not_an_empty_list() -> None:
    async def body(world: World) -> None:
        await world.make("a", "b")
        await asyncio.sleep(1)
        seen: list[ObjectChange] = []
        world.cache.subscribe(seen.append)
        world.store.down = Unreachable("no answer")
        world.store.cut()
        for _ in range(60):
            await asyncio.sleep(60)
            assert world.names() == ["a", "b"]
        assert seen == []
        world.store.down = None
        await world.make("c")
        await asyncio.sleep(60)
        assert world.names() == ["a", "b", "c"]
        assert [one.ref.name for one in seen] == ["c"]

    play(body)


def test_a_list_that_fails_at_the_start_makes_nobody_believe_that_there_is_nothing() -> None:
    async def body(world: World) -> None:
        await world.make("a")
        world.store.down = Unreachable("no answer")
        running = asyncio.create_task(world.cache.run())
        ready = asyncio.create_task(world.cache.ready())
        await asyncio.sleep(3600)
        assert not ready.done()
        world.store.down = None
        await asyncio.sleep(60)
        assert ready.done()
        assert world.names() == ["a"]
        running.cancel()
        await asyncio.wait({running})

    play(body, started=False)


def test_what_happened_while_the_watch_was_cut_is_told_too() -> None:
    async def body(world: World) -> None:
        await world.make("kept", "changed", "dropped")
        await asyncio.sleep(1)
        seen: list[tuple[str, bool]] = []
        world.cache.subscribe(lambda one: seen.append((one.ref.name, one.resource is not None)))
        world.store.cut()
        await world.label("changed", "new")
        await world.drop("dropped")
        await world.make("made", "made-and-dropped")
        await world.drop("made-and-dropped")
        await asyncio.sleep(10)
        assert world.names() == ["changed", "kept", "made"]
        assert world.value("changed") == "new"
        assert sorted(seen) == [("changed", True), ("dropped", False), ("made", True)]

    play(body)


def test_a_reader_that_was_too_slow_lists_again() -> None:
    async def body(world: World) -> None:
        await world.make("a")
        await asyncio.sleep(1)
        held = asyncio.get_running_loop().create_future()

        def block(_: ObjectChange) -> None:
            if not held.done():
                held.set_result(None)
                world.store.cut()

        world.cache.subscribe(block)
        for number in range(20):
            await world.label("a", str(number))
        await asyncio.sleep(10)
        assert world.value("a") == "19"

    play(body, backlog=2)


def test_what_came_and_went_between_the_lists_of_two_kinds_never_shows() -> None:
    async def body(world: World) -> None:
        seen: list[ObjectChange] = []
        cache = Cache(world.stage[CONTROLLER], LabWorkerPool, WorkerTemplate)
        cache.subscribe(seen.append)
        world.store.latency_seconds = 10
        running = asyncio.create_task(cache.run())
        await asyncio.sleep(15)  # pools were listed, and the list of templates is asked for
        world.store.latency_seconds = 0
        await world.make("kept", "passing")
        await world.drop("passing")
        await asyncio.sleep(60)
        assert [(one.ref.name, one.resource is not None) for one in seen] == [("kept", True)]
        running.cancel()
        await asyncio.wait({running})

    play(body, started=False)


@pytest.mark.parametrize(
    ("error", "least"),
    [(Throttled("slow down", after=timedelta(minutes=2)), 120), (Unreachable("no answer"), 1), (Stuck("Odd", "?"), 0)],
)
def test_an_outage_is_waited_for_as_long_as_it_says_and_told_once(error: Unreachable, least: float) -> None:
    async def body(world: World) -> None:
        await world.make("a")
        await asyncio.sleep(1)
        world.store.down = error
        world.store.asked = 0
        with capture_logs() as logs:
            world.store.cut()
            await asyncio.sleep(600)
            attempts = world.store.asked
            world.store.down = None
            await asyncio.sleep(300)
        assert 2 <= attempts <= 600 / max(least, 20)  # it slows down
        assert [one["event"] for one in logs] == ["cache interrupted", "cache interrupted", "cache caught up"]
        assert world.names() == ["a"]

    play(body)


def test_who_may_not_read_is_told_so() -> None:
    async def main() -> None:
        stage = Stage(clock=VirtualClock())
        with pytest.raises(Forbidden):
            await Cache(stage[Caller(name="ada", role=Role.USER)], LabWorker, WorkerTemplate).run()

    run(main, start=NOW)


def test_it_waits_for_the_revision_of_our_own_write() -> None:
    async def body(world: World) -> None:
        await world.make("a")
        made = await world.label("a", "new")
        await world.cache.wait_for_revision(made.metadata.resource_version)
        assert world.value("a") == "new"
        await world.cache.wait_for_revision(made.metadata.resource_version)
        gone = await world.drop("a")
        await world.cache.wait_for_revision(gone.metadata.resource_version)
        assert world.cache.get(ref("a")) is None

    play(body)


def test_a_wait_that_is_given_up_leaves_nothing_behind() -> None:
    async def body(world: World) -> None:
        (made,) = await world.make("a")
        revision = made.metadata.resource_version
        given_up = asyncio.create_task(world.cache.wait_for_revision(revision + 1))
        waiting = asyncio.create_task(world.cache.wait_for_revision(revision + 1))
        await asyncio.sleep(5)
        given_up.cancel()
        await world.label("a", "new")
        await waiting
        assert given_up.cancelled()
        assert not world.cache._waiters

    play(body)


def test_a_wait_ends_when_the_list_after_a_cut_knows_the_revision() -> None:
    async def body(world: World) -> None:
        world.store.cut()
        made = await world.make("a")
        await world.cache.wait_for_revision(made[0].metadata.resource_version)
        assert world.names() == ["a"]

    play(body)


def test_the_answer_to_our_own_write_is_known_at_once_and_never_overwritten_by_older_news() -> None:
    async def body(world: World) -> None:
        await world.make("a")
        await asyncio.sleep(1)
        values: list[str | None] = []
        world.cache.subscribe(lambda _: values.append(world.value("a")))
        made = [await world.label("a", str(number)) for number in range(5)]
        world.cache.accept(made[-1])  # while some of those before are still under way to the cache
        assert world.value("a") == "4"
        await asyncio.sleep(10)
        assert world.value("a") == "4"
        assert values == sorted(values, key=str), "time went backwards"
        assert values.count("4") == 1, "told once"

    play(body)


def test_what_is_accepted_late_does_not_bring_back_what_went() -> None:
    async def body(world: World) -> None:
        (made,) = await world.make("a")
        await world.drop("a")
        await asyncio.sleep(1)
        world.cache.accept(made)
        assert world.names() == []
        (again,) = await world.make("a")
        await asyncio.sleep(1)
        world.cache.accept(made)
        assert world.cache.get(ref("a")) == again

    play(body)


def test_what_is_accepted_while_a_list_is_read_outlives_it() -> None:
    async def body(world: World) -> None:
        await asyncio.sleep(1)
        plane, cache = world.stage[ROOT], world.cache
        listing = await plane.list(WorkerTemplate)
        (made,) = await world.make("a")
        cache.accept(made)
        await cache._drop([ref("a")], listing.revision)
        assert world.names() == ["a"]

    play(body)


def test_who_unsubscribes_is_told_no_more() -> None:
    async def body(world: World) -> None:
        seen: list[ObjectChange] = []
        end = world.cache.subscribe(seen.append)
        others: list[ObjectChange] = []
        world.cache.subscribe(others.append)
        await world.make("a")
        await asyncio.sleep(1)
        end()
        end()
        await world.make("b")
        await asyncio.sleep(1)
        assert [one.ref.name for one in seen] == ["a"]
        assert [one.ref.name for one in others] == ["a", "b"]

    play(body)


@for_all(st.integers(0, 10_000))
def test_whatever_is_cut_and_down_meanwhile_it_ends_up_with_what_is_there_and_never_goes_back(seed: int) -> None:
    async def body(world: World) -> None:
        chance = Chance(seed)
        newest: dict[str, int] = {}

        def watch(seen: ObjectChange) -> None:
            if seen.resource is not None:
                version = seen.resource.metadata.resource_version
                assert version > newest.get(seen.ref.name, 0)
                newest[seen.ref.name] = version

        world.cache.subscribe(watch)
        for _ in range(40):
            name = chance.choice("abc")
            world.store.down = None
            if await world.stage[ROOT].get(ref(name)) is None:
                await world.make(name)
            elif chance.random() < 0.3:
                await world.drop(name)
            else:
                answer = await world.label(name, str(chance.random()))
                if chance.random() < 0.5:
                    world.cache.accept(answer)
            if chance.random() < 0.3:
                world.store.cut()
            if chance.random() < 0.3:
                world.store.down = Unreachable("down")
            await asyncio.sleep(chance.choice([0, 0, 0.1, 2, 40]))
        world.store.down = None
        await asyncio.sleep(60)
        listing = await world.stage[ROOT].list(WorkerTemplate)
        assert {Ref(WorkerTemplate, one.metadata.name): one for one in listing.items} == {
            Ref(WorkerTemplate, one.metadata.name): one for one in world.cache.all(WorkerTemplate)
        }

    with capture_logs():
        play(body, backlog=3)
