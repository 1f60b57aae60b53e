"""One leader at a time, whoever dies, sleeps or is cut off; and a leader that is none any more can do nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count, pairwise

import pytest
from structlog.testing import capture_logs

from crash.everywhere import crash_everywhere, pause_everywhere
from harness.plane_world import NOW, ROOT, Stage, service, template
from harness.stores import FallibleStore, HandStopwatch
from lcm.control.plane.protocol import Plane, Ref, Tenure
from lcm.controllers.runtime.election import Election, Lead
from lcm.controllers.runtime.terms import LeaderTerm, TermKeeper
from lcm.model.base.errors import Deposed, Forbidden, Later, LcmError, Stuck, Unreachable
from lcm.model.kinds.pool import WorkerTemplate
from lcm.providers.protocols.permit import check_permit
from lcm.sim.time.chance import Chance
from lcm.sim.time.host import Host
from lcm.sim.time.loop import VirtualClock, VirtualStopwatch, run
from lcm.system.tasks import cancel_and_wait

TTL = 15
LEASE = "worker-controller"
JOBS = ("a", "b", "c")
METAL = Ref(WorkerTemplate, "metal")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing: thousands of lines would take longer than all else."""
    with capture_logs():
        yield


class Outside:
    """What no store can fence: it does what it is told, and writes down by whom, and who should have."""

    def __init__(self, store: FallibleStore) -> None:
        self._store = store
        self.done: list[tuple[str, str, float]] = []
        self.wrong: list[str] = []

    async def do(self, holder: str, job: str) -> None:
        await asyncio.sleep(0)
        check_permit()
        self.done.append((holder, job, now()))
        if self._store.holder(LEASE) != holder:
            self.wrong.append(f"{holder} did {job} at {now()} while {self._store.holder(LEASE)} led")
        await asyncio.sleep(0)


@dataclass
class World:
    """A store, the outside world, and candidates."""

    store: FallibleStore = field(default_factory=FallibleStore)
    chance: Chance = field(default_factory=lambda: Chance(7))
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.stage = Stage(store=self.store, clock=VirtualClock())
        self.outside = Outside(self.store)

    @property
    def plane(self) -> Plane:
        return self.stage[service("worker-controller")]

    def candidate(self, holder: str = "one", **options: object) -> Election:
        given = {"ttl_seconds": TTL, "stopwatch": VirtualStopwatch(), "chance": self.chance.random} | options
        return Election(self.plane, LEASE, holder, **given)  # type: ignore[arg-type]

    async def act(self, holder: str, plane: Plane) -> None:
        """Write and act once a second, as long as one is let."""
        for number in count():
            await plane.patch(METAL, {"metadata": {"labels": {"by": holder, "number": str(number)}}})
            await self.outside.do(holder, str(number))
            await asyncio.sleep(1)

    def actors(self, since: float = 0) -> set[str]:
        return {holder for holder, _, moment in self.outside.done if moment >= since}


def now() -> float:
    return asyncio.get_running_loop().time()


async def world_with_a_template() -> World:
    world = World()
    await world.stage[ROOT].create(template())
    return world


def play(body: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = await world_with_a_template()
        await body(world)
        assert world.outside.wrong == []

    run(main, start=NOW, horizon=timedelta(days=2))


def start(world: World, holder: str, lead: Lead | None = None) -> tuple[Host, Election, asyncio.Task[None]]:
    host, election = Host(holder), world.candidate(holder)
    return host, election, host.spawn(election.run(lead or partial(world.act, holder)))


def test_one_of_several_leads_and_the_others_wait() -> None:
    async def body(world: World) -> None:
        hosts = [start(world, name) for name in ("one", "two", "three")]
        await asyncio.sleep(10 * TTL)
        assert [election.is_leading for _, election, _ in hosts] == [True, False, False]
        assert world.actors() == {"one"}
        assert len(world.outside.done) == 10 * TTL
        for host, _, _ in hosts:
            host.kill()

    play(body)


def test_when_the_leader_dies_another_takes_over_after_its_time() -> None:
    async def body(world: World) -> None:
        first, _, _ = start(world, "one")
        second, _, _ = start(world, "two")
        await asyncio.sleep(100)
        first.kill()
        await asyncio.sleep(2 * TTL)
        moments = [moment for holder, _, moment in world.outside.done if holder == "two"]
        assert TTL * 0.5 <= moments[0] - 100 <= TTL * 1.5
        second.kill()

    play(body)


def test_lesson_9_a_leader_that_slept_through_its_term_can_neither_act_nor_write() -> None:
    met: list[str] = []

    async def stubborn(world: World, holder: str, plane: Plane) -> None:
        """Try everything once more after having slept, and do not end when told to."""

        async def write() -> None:
            with pytest.raises(Deposed):
                await plane.patch(METAL, {"metadata": {"labels": {"by": holder}}})
            met.append("the write is refused")

        await world.outside.do(holder, "before")
        await asyncio.sleep(1)
        try:
            await world.outside.do(holder, "after")
        except Deposed:
            met.append("the permit is withdrawn")
        await asyncio.shield(asyncio.create_task(write()))
        await asyncio.sleep(1e6)

    async def body(world: World) -> None:
        first, election = Host("one"), world.candidate("one")
        first.spawn(election.run(partial(stubborn, world, "one")))
        await asyncio.sleep(0.5)
        assert [(holder, job) for holder, job, _ in world.outside.done] == [("one", "before")]
        first.pause()
        second, _, _ = start(world, "two")
        await asyncio.sleep(3 * TTL)
        assert world.actors(since=TTL) == {"two"}
        first.resume()
        await asyncio.sleep(3 * TTL)
        assert met == ["the permit is withdrawn", "the write is refused"]
        assert world.actors(since=1) == {"two"}
        assert not election.is_leading
        first.kill()
        second.kill()

    play(body)


def test_lesson_9_without_a_store_there_is_no_leader() -> None:
    async def body(world: World) -> None:
        world.store.down = Unreachable("no answer")
        hosts = [start(world, name) for name in ("one", "two")]
        await asyncio.sleep(3600)
        assert not any(election.is_leading for _, election, _ in hosts)
        assert world.outside.done == []
        world.store.down = None
        await asyncio.sleep(TTL)
        assert len(world.actors()) == 1
        for host, _, _ in hosts:
            host.kill()

    play(body)


async def act_without_writing(world: World, _: Plane) -> None:
    while True:
        await world.outside.do("one", "")
        await asyncio.sleep(0.1)


def test_a_term_counts_from_when_its_renewal_was_asked_for_and_not_from_the_answer() -> None:
    async def body(world: World) -> None:
        world.store.renewal_seconds = 6
        host, election, _ = start(world, "one", partial(act_without_writing, world))
        await asyncio.sleep(TTL * 4 / 5)
        assert election.is_leading, "the first renewal was answered"
        world.store.down = Unreachable("no answer")
        await asyncio.sleep(2 * TTL)
        asked_at = TTL / 3
        assert max(moment for *_, moment in world.outside.done) == pytest.approx(asked_at + TTL * 4 / 5, abs=0.2)
        host.kill()

    play(body)


def test_a_leader_that_loses_the_store_stops_before_another_can_begin() -> None:
    async def body(world: World) -> None:
        host, election, _ = start(world, "one", partial(act_without_writing, world))
        await asyncio.sleep(60)
        world.store.down = Unreachable("no answer")
        await asyncio.sleep(TTL)
        assert not election.is_leading
        assert max(moment for *_, moment in world.outside.done) < 60 + TTL
        world.store.down = None
        await asyncio.sleep(2 * TTL)
        assert election.is_leading, "and it stands again"
        host.kill()

    play(body)


def test_a_renewal_that_is_never_answered_ends_the_term_in_time() -> None:
    async def body(world: World) -> None:
        told: list[float] = []

        async def lead(_: Plane) -> None:
            try:
                await asyncio.sleep(1e6)
            finally:
                told.append(now())

        task = asyncio.create_task(world.candidate().run(lead))
        await asyncio.sleep(1)
        world.store.latency_seconds = 1e5
        await asyncio.sleep(TTL)
        assert told == [pytest.approx(TTL * 4 / 5)]
        await cancel_and_wait([task])

    play(body)


def test_a_short_outage_ends_no_term() -> None:
    async def body(world: World) -> None:
        host, election, _ = start(world, "one")
        lead = await world.plane.lease(LEASE)
        await asyncio.sleep(59)
        for _ in range(20):
            world.store.latency_seconds = 1
            await asyncio.sleep(5)
            world.store.latency_seconds = 0
            await asyncio.sleep(5)
        assert election.is_leading
        lease = await world.plane.lease(LEASE)
        assert lead is None
        assert lease is not None
        assert lease.term == 3
        host.kill()

    play(body)


def test_a_leader_that_is_stopped_hands_over_at_once() -> None:
    async def body(world: World) -> None:
        _, first, task = start(world, "one")
        second, other, _ = start(world, "two")
        await asyncio.sleep(60)
        assert first.is_leading
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() == 60
        await asyncio.sleep(TTL * 0.01)
        assert world.store.holder(LEASE) == "two"
        assert other.is_leading
        second.kill()

    play(body)


def test_a_candidate_that_is_stopped_leaves() -> None:
    async def body(world: World) -> None:
        host, _, _ = start(world, "one")
        await asyncio.sleep(1)
        waiting = asyncio.create_task(world.candidate("two").run(partial(world.act, "two")))
        await asyncio.sleep(60)
        await cancel_and_wait([waiting])
        assert waiting.cancelled()
        assert world.store.holder(LEASE) == "one"
        host.kill()

    play(body)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_lost_lease_cancels_the_work_which_is_waited_for_before_standing_again(grouped: bool) -> None:  # noqa: FBT001
    story: list[tuple[str, float]] = []

    async def work() -> None:
        story.append(("begun", now()))
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(100)
            story.append(("ended", now()))

    async def fail_when_cancelled() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            raise Deposed("a write was refused")

    async def lead(_: Plane) -> None:
        if not grouped:
            await work()
            return
        async with asyncio.TaskGroup() as group:  # which tells of the failure only, and not that it was cancelled
            group.create_task(work())
            group.create_task(fail_when_cancelled())

    async def body(world: World) -> None:
        task = asyncio.create_task(world.candidate().run(lead))
        await asyncio.sleep(1)
        lease = await world.plane.lease(LEASE)
        assert lease is not None
        await world.plane.release(lease)  # somebody takes it away
        await asyncio.sleep(200)
        assert [event for event, _ in story] == ["begun", "ended", "begun"]
        assert story[2][1] > story[1][1]
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled(), "the cancellation was lost"
        assert [event for event, _ in story] == ["begun", "ended", "begun", "ended"]
        assert world.store.holder(LEASE) is None

    play(body)


def test_whoever_is_stopped_while_the_work_of_a_lost_term_ends_waits_for_it_and_leaves() -> None:
    ends: list[float] = []

    async def lead(_: Plane) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(100)
            ends.append(now())

    async def body(world: World) -> None:
        task = asyncio.create_task(world.candidate().run(lead))
        await asyncio.sleep(1)
        lease = await world.plane.lease(LEASE)
        assert lease is not None
        await world.plane.release(lease)
        await asyncio.sleep(50)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert len(ends) == 1

    play(body)


def test_a_leader_winding_up_keeps_others_out_until_it_has_ended() -> None:
    async def lead(world: World, _plane: Plane) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            for _ in range(4):
                await asyncio.sleep(TTL / 2)
                await world.outside.do("one", "clearing up")

    async def body(world: World) -> None:
        task = asyncio.create_task(world.candidate().run(partial(lead, world)))
        await asyncio.sleep(1)
        host, _, _ = start(world, "two")
        await cancel_and_wait([task])
        assert world.actors() == {"one"}
        await asyncio.sleep(TTL)
        assert world.actors(since=3 * TTL) == {"two"}
        host.kill()

    play(body)


@pytest.mark.parametrize(
    "error",
    [
        Deposed("refused"),
        Later("not yet"),
        Stuck("TokenRefused", "write another"),
        BaseExceptionGroup("", [Deposed("refused"), Deposed("again")]),
    ],
)
def test_work_that_is_interrupted_begins_anew_in_another_term(error: Exception) -> None:
    terms: list[float] = []

    async def lead(_: Plane) -> None:
        terms.append(now())
        await asyncio.sleep(10)
        raise error

    async def body(world: World) -> None:
        task = asyncio.create_task(world.candidate().run(lead))
        await asyncio.sleep(60)
        assert len(terms) > 3
        assert all(later - earlier >= 11 for earlier, later in pairwise(terms))
        await cancel_and_wait([task])

    play(body)


@pytest.mark.parametrize(
    ("error", "rises"),
    [
        (AssertionError("a bug"), AssertionError),
        (Forbidden("no"), Forbidden),
        (BaseExceptionGroup("", [Deposed("refused"), KeyError("a bug")]), ExceptionGroup),
    ],
)
def test_a_bug_rises_and_the_lease_is_given_back(error: Exception, rises: type[Exception]) -> None:
    async def lead(_: Plane) -> None:
        await asyncio.sleep(40)
        raise error

    async def body(world: World) -> None:
        with pytest.raises(rises) as caught:
            await world.candidate().run(lead)
        assert not isinstance(caught.value, ExceptionGroup) or not caught.value.subgroup(Deposed)
        assert world.store.holder(LEASE) is None

    play(body)


def test_a_bug_that_shows_when_the_work_is_ended_rises_too() -> None:
    async def lead(_: Plane) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            raise AssertionError("a bug")

    async def body(world: World) -> None:
        task = asyncio.create_task(world.candidate().run(lead))
        await asyncio.sleep(1)
        lease = await world.plane.lease(LEASE)
        assert lease is not None
        await world.plane.release(lease)
        with pytest.raises(AssertionError, match="a bug"):
            await task

    play(body)


def test_work_that_cancels_itself_is_a_bug() -> None:
    async def lead(_: Plane) -> None:
        raise asyncio.CancelledError

    async def body(world: World) -> None:
        with pytest.raises(AssertionError, match="cancelled itself"):
            await world.candidate().run(lead)

    play(body)


def test_who_may_take_no_leases_is_told_so() -> None:
    async def main() -> None:
        election = Election(
            Stage()[ROOT], LEASE, "one", ttl_seconds=TTL, stopwatch=VirtualStopwatch(), chance=lambda: 0.5
        )
        with pytest.raises(Forbidden):
            await election.run(lambda _: asyncio.sleep(1))

    run(main)


def test_when_the_work_is_done_the_election_ends_and_the_lease_is_free() -> None:
    async def body(world: World) -> None:
        election = world.candidate()
        await election.run(lambda _: asyncio.sleep(100))
        assert now() == 100
        assert world.store.holder(LEASE) is None
        assert not election.is_leading

    play(body)


def test_an_answer_that_comes_too_late_elects_nobody_who_may_act() -> None:
    met: list[str] = []

    async def lead(world: World, _: Plane) -> None:
        try:
            await world.outside.do("one", "too late")
        except Deposed:
            met.append("deposed")
            raise

    async def body(world: World) -> None:
        world.store.latency_seconds = TTL
        task = asyncio.create_task(world.candidate().run(partial(lead, world)))
        await asyncio.sleep(2 * TTL)
        assert met == ["deposed"]
        assert world.outside.done == []
        await cancel_and_wait([task])

    play(body)


def test_a_machine_that_was_suspended_knows_that_its_term_is_over() -> None:
    stopwatch = HandStopwatch()  # which goes on during a suspension, while the loop's clock stands still
    met: list[LcmError] = []

    async def lead(world: World, _: Plane) -> None:
        await world.outside.do("one", "before")
        await asyncio.sleep(0.5)
        try:
            await world.outside.do("one", "after")
        except Deposed as error:
            met.append(error)
            raise

    async def body(world: World) -> None:
        task = asyncio.create_task(world.candidate(stopwatch=stopwatch).run(partial(lead, world)))
        await asyncio.sleep(0.2)
        stopwatch.step(TTL)
        await asyncio.sleep(1)
        assert [job for _, job, _ in world.outside.done] == ["before"]
        assert "term" in str(met[0])
        await cancel_and_wait([task])

    play(body)


def test_a_leader_whose_lease_the_store_loses_stops_long_before_its_next_renewal() -> None:
    async def lead(world: World, holder: str, _: Plane) -> None:
        for number in count():
            await world.outside.do(holder, str(number))
            await asyncio.sleep(1)

    async def body(world: World) -> None:
        hosts = [start(world, holder, partial(lead, world, holder))[0] for holder in ("one", "two")]
        await asyncio.sleep(0.5)
        lease = await world.plane.lease(LEASE)
        assert lease is not None
        await world.plane.release(lease)
        await asyncio.sleep(TTL)
        assert world.actors() == {"one", "two"}, "and never both at a time, as every body is held to"
        for host in hosts:
            host.kill()

    play(body)


def test_a_renewal_that_is_answered_late_does_not_bring_back_a_lost_term() -> None:
    winding_up: list[str] = []

    async def lead(world: World, _: Plane) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(TTL / 3)
            try:
                await world.outside.do("one", "too late")
            except Deposed:
                winding_up.append("deposed")

    async def body(world: World) -> None:
        world.store.renewal_seconds = 2
        task = asyncio.create_task(world.candidate().run(partial(lead, world)))
        await asyncio.sleep(TTL / 3 + 1)  # it was renewed, and the answer is on its way
        lease = await world.plane.lease(LEASE)
        assert lease is not None
        await world.plane.release(lease)
        await asyncio.sleep(TTL / 2)
        assert winding_up == ["deposed"]
        await cancel_and_wait([task])

    play(body)


def test_what_happens_is_told() -> None:
    async def body(world: World) -> None:
        world.store.down = Unreachable("no answer")
        task = asyncio.create_task(world.candidate().run(partial(world.act, "one")))
        await asyncio.sleep(60)
        world.store.down = None
        await asyncio.sleep(60)
        lease = await world.plane.lease(LEASE)
        assert lease is not None
        await world.plane.release(lease)
        await asyncio.sleep(60)
        await cancel_and_wait([task])

    with capture_logs() as logs:
        play(body)
    assert [one["event"] for one in logs] == [
        "election entered",
        "no election without a store",
        "elected",
        "deposed",
        "elected",
        "handed over",
        "election left",
    ]
    assert all(one["lease"] == LEASE and one["holder"] == "one" for one in logs)
    elected, left = ([one["term"] for one in logs if one["event"] == event] for event in ("elected", "handed over"))
    assert left == elected[-1:]


def test_a_lease_that_could_not_be_released_is_told() -> None:
    async def body(world: World) -> None:
        task = asyncio.create_task(world.candidate().run(partial(world.act, "one")))
        await asyncio.sleep(TTL / 10)
        world.store.down = Unreachable("no answer")
        await cancel_and_wait([task])

    with capture_logs() as logs:
        play(body)
    assert [one["event"] for one in logs] == ["election entered", "elected", "not handed over", "election left"]
    assert logs[2]["error"] == "no answer"


async def work_through(world: World, holder: str, plane: Plane) -> None:
    """Do each job once: write the intention, act, write that it is done."""
    for job in JOBS:
        before = await plane.get(METAL)
        assert before is not None
        if before.metadata.labels.get(job) == "done":
            continue
        at = before.metadata.resource_version
        meant = await plane.patch(METAL, {"metadata": {"labels": {job: "meant"}}}, at=at)
        await world.outside.do(holder, job)
        at = meant.metadata.resource_version
        await plane.patch(METAL, {"metadata": {"labels": {job: "done"}}}, at=at)
        await asyncio.sleep(TTL / 2)


async def stand(world: World) -> None:
    holder = f"host-{next(world.numbers)}"
    lead: Lead = partial(work_through, world, holder)
    await world.candidate(holder).run(lead)


async def all_done_by_leaders_only(world: World) -> None:
    assert world.outside.wrong == []
    metal = await world.plane.get(METAL)
    assert metal is not None
    assert [metal.metadata.labels.get(job) for job in JOBS] == ["done"] * len(JOBS)
    assert {job for _, job, _ in world.outside.done} == set(JOBS)


def test_a_leader_may_die_anywhere(tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere("lead", world_with_a_template, stand, all_done_by_leaders_only, report=tell)
    assert awaits >= 30


def test_a_leader_may_sleep_anywhere_and_never_acts_after_its_term(tell: Callable[[str], None]) -> None:
    for terms in (0.5, 0.9, 1.0, 3):  # shorter than the term, nearly as long, as long, much longer
        awaits = pause_everywhere(
            f"lead for {terms} terms",
            world_with_a_template,
            stand,
            all_done_by_leaders_only,
            pause_for=timedelta(seconds=TTL * terms),
            report=tell,
        )
        assert awaits >= 30


@pytest.mark.parametrize("seed", range(10))
def test_candidates_that_die_sleep_and_lose_the_store_never_act_at_the_same_time(seed: int) -> None:
    async def main() -> None:
        world = World(chance=Chance(seed))
        await world.stage[ROOT].create(template())
        chance, names = Chance(seed + 1), count()
        hosts = [start(world, f"host-{next(names)}")[0] for _ in range(3)]
        for _ in range(60):
            await asyncio.sleep(chance.uniform(0, TTL))
            place, fate = chance.randrange(3), chance.random()
            if fate < 0.2:
                hosts[place].kill()
                hosts[place] = start(world, f"host-{next(names)}")[0]
            elif fate < 0.5:
                hosts[place].pause()
                asyncio.get_running_loop().call_later(chance.uniform(0, 3 * TTL), hosts[place].resume)
            elif fate < 0.6:
                world.store.down = Unreachable("no answer")
            elif fate < 0.7:
                world.store.latency_seconds = chance.uniform(0, TTL)
            else:
                world.store.down, world.store.latency_seconds = None, 0.0
        world.store.down, world.store.latency_seconds = None, 0.0
        await asyncio.sleep(10 * TTL)
        assert world.outside.wrong == []
        assert len(world.actors(since=now() - TTL)) == 1
        for host in hosts:
            host.kill()

    run(main, start=NOW)


class CountingLine:
    """A line to a store that notes how many leases each renewal had."""

    def __init__(self, store: FallibleStore) -> None:
        self._store = store
        self.renewals: list[int] = []

    async def renew(self, *leases: Tenure) -> None:
        self.renewals.append(len(leases))
        await self._store.renew(*leases)

    async def lease(self, name: str) -> Tenure | None:
        return await self._store.lease(name)

    async def wait_until_vacant(self, name: str) -> None:
        assert name
        await asyncio.Event().wait()


def test_one_request_renews_all_terms_of_a_process_and_one_that_is_lost_harms_no_other() -> None:
    async def body(world: World) -> None:
        line, keeper, stopwatch = CountingLine(world.store), TermKeeper(VirtualStopwatch()), VirtualStopwatch()
        leases = [await world.store.acquire(name, "one", ttl_seconds=TTL) for name in ("a", "b", "c")]
        terms = [LeaderTerm(lease, now(), stopwatch) for lease in leases if lease is not None]
        keeping = [asyncio.ensure_future(keeper.keep(term, line)) for term in terms]
        await asyncio.sleep(TTL * 4 + 1)
        assert line.renewals == [3] * 12
        await world.store.release(terms[1].lease)
        await asyncio.sleep(TTL)
        assert [one.done() for one in keeping] == [False, True, False]
        assert isinstance(keeping[1].exception(), Deposed)
        assert line.renewals[12:] == [3, 1, 1, 1, 2, 2]
        await cancel_and_wait(keeping)
        first = asyncio.ensure_future(keeper.keep(terms[0], line))
        await asyncio.sleep(TTL * 2)
        assert not first.done(), "the keeper goes on after nobody had a term"
        await cancel_and_wait([first])

    play(body)
