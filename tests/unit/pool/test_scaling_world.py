"""Pools that react to load: the real pool controller and scheduler on a real control plane, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from typing import Any

import pytest
import structlog

from harness.credentials import given_keys
from harness.scheduler_world import CCNA, HOUR, MINUTE, PER_WORKER, UP, Pools, names
from lcm.cli.fleet import pools
from lcm.cli.output.options import Output
from lcm.control.booking.pools import REMEDIES
from lcm.control.booking.step_records import FleetSettings
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Ref, Terminate, ref_of
from lcm.controllers.pool.view import POOL_LABEL
from lcm.model.base.errors import NoRoom
from lcm.model.base.resource import Metadata
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.placement import PoolExplanation, PoolPauseRequest, PoolScaleRequest
from lcm.model.kinds.pool import (
    Budget,
    CapacityThresholds,
    LabWorkerPool,
    LabWorkerPoolSpec,
    ScalingPolicy,
    WorkerTemplate,
    WorkerTemplateSpec,
)
from lcm.model.kinds.rules import SETTINGS_NAME
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, SessionPhase
from lcm.model.kinds.settings import BudgetSettings, SystemSettings, SystemSettingsSpec, TrackBudget
from lcm.model.kinds.worker import CmlSpec, WorkerPhase
from lcm.model.money.licences import token_id
from lcm.placement.scaling import LOAD_POLICIES
from lcm.sim.time.loop import run
from lcm.store.base import Delete

LOAD: dict[str, Any] = {"policy": ScalingPolicy.CAPACITY_BASED, "min_workers": 1, "max_workers": 3}


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@asynccontextmanager
async def scaling(*, up: int = 1, **fields: Any) -> AsyncIterator[Pools]:
    """Run a pool by capacity, of which so many workers have come up."""
    world = Pools()
    await world.found(**LOAD | fields)
    async with world.scaling():
        await world.settles()
        for number in range(1, up + 1):
            await comes_up(world, f"ccna-{number}")
        yield world


async def comes_up(world: Pools, name: str) -> None:
    """Let a worker take its time to boot: how long that is tells when the next one can be used."""
    await world.stepped(await world.worker(name), WorkerPhase.PROVISIONING_EC2)
    await minutes(10)
    for phase in UP[1:]:
        await world.stepped(await world.worker(name), phase)
    await world.settles(15)


def played(life: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        run(life)

    test.__name__ = life.__name__
    return test


async def minutes(count: float) -> None:
    await asyncio.sleep(count * 60)


async def fill(world: Pools, count: int = PER_WORKER, **fields: Any) -> None:
    await world.want(*(f"s{number}" for number in range(count)), **fields)


async def ask(world: Pools) -> PoolExplanation:
    found = await world.otto.explain_pool(CCNA)
    assert found.why in REMEDIES
    return found


async def why(world: Pools) -> tuple[str, str]:
    found = await ask(world)
    return found.action, found.why


async def running(world: Pools) -> list[str]:
    return names([one for one in await world.workers() if one.spec.wanted_state == "running"])


@played
async def test_the_case_of_48_of_48_cores_claimed_and_sessions_in_the_queue_scales_within_a_minute() -> None:
    async with scaling() as world:
        await fill(world, PER_WORKER + 3)
        await minutes(1)
        assert names(await world.workers()) == ["ccna-1", "ccna-2"]
        found = next(one for one in (await world.pool()).status.decisions[::-1] if one.action == "scale_up")
        assert (found.why, found.workers) == ("threshold", ("ccna-2",)) or found.why == "waiting"
        assert found.reason.startswith("launched ccna-2 for planned worker 2: ")
        assert any("100% claimed" in one for one in found.considered)


@played
async def test_lesson_3_a_booting_worker_counts_however_long_people_wait_and_a_step_is_as_large_as_the_wait() -> None:
    async with scaling(max_workers=9) as world:
        await fill(world, 4 * PER_WORKER)
        await minutes(1)
        assert len(await world.workers()) == 4
        for number in range(20):
            await minutes(0.4)
            await world.want(f"more{number}", span=HOUR)
        assert len(await world.workers()) == 4
        assert await why(world) == ("none", "cooldown")


@pytest.mark.parametrize("policy", sorted(LOAD_POLICIES))
def test_lesson_3_whoever_waits_starts_no_second_machine_while_the_first_boots_whatever_the_policy(
    policy: ScalingPolicy,
) -> None:
    async def life() -> None:
        thresholds = CapacityThresholds(
            cpu_scale_up=1.0, memory_scale_up=1.0, scale_up_cooldown_minutes=0, scale_down_cooldown_minutes=0
        )
        async with scaling(up=0, policy=policy, min_workers=0, max_workers=20, thresholds=thresholds) as world:
            await fill(world, 4 * PER_WORKER - 1)
            seen = list[int]()
            for _ in range(4 * 60):  # nothing comes up for two hours, and the scheduler looks every 30 seconds
                await minutes(0.5)
                seen.append(len(await world.workers()))
            assert (seen[1], max(seen)) == (4, 4), "as many as hold them, at once, and never another"
            for worker in await world.workers():
                await comes_up(world, worker.metadata.name)
            await minutes(30)
            assert len(await world.workers()) == 4

    run(life)


async def _pause(world: Pools) -> None:
    await world.otto.pause_pool(CCNA, PoolPauseRequest())


async def _close(world: Pools) -> None:
    await world.otto.patch(CCNA, {"spec": {"allowed_hours": {"start_hour": 6, "end_hour": 20}}})


async def _spend(world: Pools) -> None:
    await world.otto.patch(CCNA, {"spec": {"budget": {"hourly_usd": "0.5"}}})


async def _lose_template(world: Pools) -> None:
    own = WorkerTemplateSpec(worker=world.spec())
    made = await world.otto.create(WorkerTemplate(metadata=Metadata(name="lost"), spec=own))
    await world.otto.patch(CCNA, {"spec": {"template": "lost"}})
    await world.store.commit(Delete(ref_of(made).key, at=made.metadata.resource_version))


@pytest.mark.parametrize("hinder", [_pause, _close, _spend, _lose_template])
def test_where_the_first_pool_of_a_track_may_not_grow_the_next_does_and_no_more_than_it_must(
    hinder: Callable[[Pools], Awaitable[None]],
) -> None:
    async def life() -> None:
        async with scaling(up=0, min_workers=0) as world:
            own = (await world.pool()).spec
            await hinder(world)
            await world.otto.create(LabWorkerPool(metadata=Metadata(name="next"), spec=own))
            await fill(world)
            await minutes(3)
            made = await world.workers()
            assert [one.metadata.labels[POOL_LABEL] for one in made] == ["next"], await ask(world)

    run(life)


@played
async def test_a_session_that_no_worker_of_the_pool_could_host_starts_none() -> None:
    async with scaling() as world:
        await world.otto.patch(CCNA, {"spec": {"thresholds": {"cpu_scale_up": 1.0}}})
        await fill(world, PER_WORKER, span=6 * HOUR)
        await world.want("late", region_required="us-east-1")
        await world.otto.patch(Ref(WorkerTemplate, "metal"), {"spec": {"worker": {"aws": {"region": "eu-west-3"}}}})
        await minutes(2)
        assert names(await world.workers()) == ["ccna-1"]
        assert await why(world) == ("none", "unsuited")


@played
async def test_the_least_used_worker_is_drained_into_the_warm_tier_and_resumed_before_another_is_launched() -> None:
    async with scaling(warm_workers=1) as world:
        await fill(world, PER_WORKER + 2)
        await minutes(1)
        await comes_up(world, "ccna-2")
        await minutes(30)
        assert await running(world) == ["ccna-1", "ccna-2"]
        for number in range(PER_WORKER - 1):
            with suppress(Exception):
                await world.otto.act(Ref(LabletSession, f"s{number}"), Terminate())
        await minutes(10)
        assert await running(world) == ["ccna-1"] or await running(world) == ["ccna-2"]
        (left,) = await running(world)
        drained = await world.worker({"ccna-1": "ccna-2", "ccna-2": "ccna-1"}[left])
        assert drained.spec.wanted_state == "stopped"
        assert drained.status.phase in {WorkerPhase.READY, WorkerPhase.ACTIVE}  # its controller waits for sessions
        for session in (await world.otto.list(LabletSession)).items:  # those that it waits for
            if session.status.worker_name == drained.metadata.name:
                await world.otto.act(Ref(LabletSession, session.metadata.name), Terminate())
        await minutes(5)
        drained = await world.worker(drained.metadata.name)
        await world.stepped(await world.stepped(drained, WorkerPhase.STOPPING), WorkerPhase.STOPPED)
        await minutes(25)
        assert len(await world.workers()) == 2
        await world.want(*(f"late{number}" for number in range(2 * PER_WORKER)))
        await minutes(1)
        assert len(await running(world)) >= 2
        assert drained.metadata.name in await running(world)
        found = next(one for one in (await world.pool()).status.decisions[::-1] if one.action == "scale_up")
        assert f"resumed {drained.metadata.name}" in found.reason


@played
async def test_cooldowns_survive_the_leader() -> None:
    world = Pools()
    await world.found(**LOAD | {"max_workers": 9})
    async with world.scaling():
        await world.settles()
        await comes_up(world, "ccna-1")
        await fill(world, PER_WORKER + 1)
        await minutes(1)
        assert len(await world.workers()) == 2
    async with world.scaling():  # another leader, who remembers nothing
        await world.want(*(f"more{number}" for number in range(2 * PER_WORKER)))
        await minutes(5)
        assert len(await world.workers()) == 2
        await minutes(6)
        assert len(await world.workers()) > 2


NIGHT = AllowedHours(start_hour=6, end_hour=20)
"""The world's first day begins at midnight."""


@played
async def test_the_minimum_is_stopped_outside_of_the_hours_and_started_again_and_promises_are_kept() -> None:
    async with scaling(up=0, policy=ScalingPolicy.HYBRID, allowed_hours=NIGHT) as world:
        assert await world.workers() == []
        assert (await ask(world)).why == "hours"
        with pytest.raises(NoRoom, match="hours"):
            await world.book("night", world.clock.now() + 3 * HOUR, HOUR)
        with pytest.raises(NoRoom, match="hours"):  # its machine, of the minimum or not, could not be up
            await world.book("early", world.clock.now() + 6 * HOUR + 20 * MINUTE, HOUR)
        await world.book("day", world.clock.now() + 18 * HOUR, 90 * MINUTE)
        await asyncio.sleep((6 * HOUR + MINUTE).total_seconds())
        assert names(await world.workers()) == ["ccna-1"]
        await world.comes_up("ccna-1")
        await asyncio.sleep((12 * HOUR).total_seconds())
        await world.otto.patch(CCNA, {"spec": {"allowed_hours": {"start_hour": 6, "end_hour": 18}}})
        await minutes(30)  # the session runs past the end
        assert (await world.worker("ccna-1")).spec.wanted_state == "running"
        assert (await world.pool()).status.seats != ()
        await asyncio.sleep((2 * HOUR).total_seconds())
        assert (await world.worker("ccna-1")).spec.wanted_state == "stopped"
        assert (await world.pool()).status.seats != ()


@played
async def test_a_pause_lists_promises_keeps_them_refuses_new_ones_and_ends_by_itself() -> None:
    async with scaling(policy=ScalingPolicy.SCHEDULED) as world:
        now = world.clock.now()
        await world.book("kept", now + 2 * HOUR, HOUR)
        await world.book("after", now + 9 * HOUR, HOUR)
        wish = PoolPauseRequest(until=now + 8 * HOUR)
        listed = await world.otto.pause_pool(CCNA, wish, dry_run=True)
        assert [one.name for one in listed.affected] == ["kept"]
        assert (await world.pool()).status.pause is None
        assert (await world.otto.pause_pool(CCNA, wish)).refused == 0
        with pytest.raises(NoRoom) as raised:
            await world.book("new", now + 3 * HOUR, HOUR)
        assert raised.value.why == "paused"
        assert raised.value.nearest[0][0] >= now + 8 * HOUR
        await minutes(2)  # it lingers for a minute
        assert (await ask(world)).why == "paused"
        assert (await world.worker("ccna-1")).spec.wanted_state == "stopped"
        await asyncio.sleep((1 * HOUR + 40 * MINUTE).total_seconds())
        assert (await world.worker("ccna-1")).spec.wanted_state == "running"
        await asyncio.sleep((6 * HOUR + 25 * MINUTE).total_seconds())
        assert (await world.pool()).status.pause is None
        assert (await world.worker("ccna-1")).spec.wanted_state == "running"


@played
async def test_promises_are_refused_with_the_reason_if_that_is_asked_for() -> None:
    async with scaling(policy=ScalingPolicy.SCHEDULED) as world:
        now = world.clock.now()
        await world.book("gone", now + 2 * HOUR, HOUR)
        made = await world.otto.pause_pool(CCNA, PoolPauseRequest(until=now + 8 * HOUR, promises="refuse"))
        assert made.refused == 1
        session = await world.otto.get(Ref(LabletSession, "gone"))
        assert session is not None
        assert session.status.phase is SessionPhase.TERMINATED
        assert session.status.outcome_reason.startswith("pool ccna is paused until ")
        await world.otto.resume_pool(CCNA)
        assert (await world.pool()).status.pause is None
        await world.settles()
        await world.book_many(2 * PER_WORKER, now + 2 * HOUR)
        fewer = PoolScaleRequest(max_workers=1)
        listed = await world.otto.scale_pool(CCNA, fewer)
        assert {one.seat for one in listed.affected} == {2}
        assert len(listed.affected) == PER_WORKER
        made = await world.otto.scale_pool(CCNA, PoolScaleRequest(max_workers=1, promises="refuse"))
        assert made.refused == PER_WORKER


async def full(world: Pools) -> None:
    await fill(world, PER_WORKER + 2)
    await minutes(2)


async def served(world: Pools) -> None:
    await full(world)
    await comes_up(world, "ccna-2")
    await minutes(2)


async def crowded(world: Pools) -> None:
    await full(world)
    await world.want(*(f"more{number}" for number in range(PER_WORKER)))
    await minutes(2)


async def lose_template(world: Pools) -> None:
    await world.store.commit(Delete(Ref(WorkerTemplate, "metal").key))
    await world.otto.patch(CCNA, {"metadata": {"labels": {"seen": "again"}}})
    await minutes(1)


async def fail_launch(world: Pools) -> None:
    await full(world)
    worker = await world.stepped(await world.worker("ccna-2"), WorkerPhase.PROVISIONING_EC2)
    error = {
        "failure": "InsufficientCapacity",
        "last_error": "no m5zn.metal is left",
        "retry_at": world.clock.now() + HOUR,
    }
    await world.stepped(worker, WorkerPhase.FAILED, **error)
    await minutes(2)


async def one_session(world: Pools) -> None:
    await world.want("alone")
    await minutes(25)


async def lonely(world: Pools) -> None:
    await served(world)
    for number in range(PER_WORKER + 2):
        await world.otto.act(Ref(LabletSession, f"s{number}"), Terminate())
    await minutes(15)


async def spend_track(world: Pools) -> None:
    budgets = BudgetSettings(tracks=(TrackBudget(lab_track="ccna", monthly_usd=Decimal(100)),))
    spec = SystemSettingsSpec(budgets=budgets)  # the machine that always runs takes more
    await world.otto.create(SystemSettings(metadata=Metadata(name=SETTINGS_NAME), spec=spec))
    await minutes(2)
    await full(world)


BUDGET = Budget(hourly_usd=Decimal(5))
HYBRID: dict[str, Any] = {"policy": ScalingPolicy.HYBRID}
ROOMY: dict[str, Any] = {"cpu_scale_up": 1.0, "memory_scale_up": 1.0}
FEW_LABS = CapacityThresholds(max_labs_per_worker=5, min_labs_per_worker=1)
BY_LABS: dict[str, Any] = {"policy": ScalingPolicy.LAB_COUNT_BASED, "thresholds": FEW_LABS}
BOOKED: dict[str, Any] = {"policy": ScalingPolicy.SCHEDULED, "min_workers": 0, "up": 0}


async def nearly_full(world: Pools) -> None:
    await fill(world, PER_WORKER - 2)
    await minutes(2)


async def book_soon(world: Pools) -> None:
    await world.book("soon", world.clock.now() + 2 * HOUR, HOUR)
    await minutes(90)


async def pause(world: Pools) -> None:
    await world.otto.pause_pool(CCNA, PoolPauseRequest(until=world.clock.now() + 8 * HOUR))
    await minutes(2)


async def explain(world: Pools, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `lcm explain pool ccna` prints, in one line."""
    await ask(world)
    capsys.readouterr()
    await pools.explain_pool(world.otto, CCNA, Output.WIDE)
    return " ".join(capsys.readouterr().out.split())


STAYS = "pool/ccna stays as it is "
LAUNCHED = "launched ccna-2 for planned worker 2: "


@pytest.mark.parametrize(
    ("fields", "work", "says"),
    [
        pytest.param({}, spend_track, f"{STAYS}(track_budget): ", id="budget of the track"),
        pytest.param({}, nearly_full, f"scale_up (threshold): {LAUNCHED}the upper threshold of CPU", id="CPU"),
        pytest.param(
            {"thresholds": CapacityThresholds(cpu_scale_up=1.0, memory_scale_up=0.1, memory_scale_down=0.05)},
            nearly_full,
            f"scale_up (threshold): {LAUNCHED}the upper threshold of memory is passed",
            id="memory",
        ),
        pytest.param(
            BY_LABS, nearly_full, f"scale_up (threshold): {LAUNCHED}the upper threshold of labs is passed", id="labs"
        ),
        pytest.param(
            {"thresholds": CapacityThresholds(**ROOMY)},
            full,
            f"scale_up (waiting): {LAUNCHED}sessions wait whom no worker will hold soon; 1 more would hold them",
            id="somebody waits",
        ),
        pytest.param(BOOKED, book_soon, "scale_up (booked): launched ccna-1 for planned worker 1", id="booked soon"),
        pytest.param({}, lonely, "the load is below the lower thresholds, and nobody waits", id="given up"),
        pytest.param({}, lonely, f"{STAYS}(minimum): nobody waits, and the pool has its minimum", id="drained"),
        pytest.param({}, lambda _: minutes(1), f"{STAYS}(minimum): nobody waits, and the pool has", id="nobody waits"),
        pytest.param({}, served, f"{STAYS}(thresholds): nobody waits, and no threshold is passed", id="thresholds"),
        pytest.param({}, crowded, f"{STAYS}(cooldown): the pool changed for the load, and grows again", id="cooldown"),
        pytest.param({"max_workers": 1}, full, f"{STAYS}(maximum): the pool has its max_workers, 1", id="maximum"),
        pytest.param({"budget": BUDGET}, full, f"{STAYS}(hourly_budget): no worker is started for load", id="budget"),
        pytest.param({}, full, f"{STAYS}(booting): a worker that comes up will hold those who wait", id="booting"),
        pytest.param(
            {"policy": ScalingPolicy.NONE}, full, f"{STAYS}(policy): sessions wait, and with the policy", id="policy"
        ),
        pytest.param({}, lose_template, f"{STAYS}(no_template): there is no WorkerTemplate metal", id="template"),
        pytest.param({}, fail_launch, f"{STAYS}(launch_failed): ", id="launch"),
        pytest.param(
            HYBRID | {"min_workers": 0, "up": 0},
            one_session,
            f"{STAYS}(promised): sessions or promises need every worker of the pool",
            id="promised",
        ),
        pytest.param(
            HYBRID | {"allowed_hours": NIGHT, "up": 0},
            lambda _: minutes(1),
            f"{STAYS}(hours): it is outside of the pool's hours: only what was promised has a machine until 2026",
            id="outside of its hours",
        ),
        pytest.param(
            {},
            pause,
            f"{STAYS}(paused): the pool is paused: only what was promised has a machine until 2026-01-01 08:",
            id="paused",
        ),
    ],
)
def test_true_answers_to_why_it_did_or_did_not_scale(
    fields: dict[str, Any],
    work: Callable[[Pools], Awaitable[None]],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def life() -> None:
        async with scaling(**fields) as world:
            await work(world)
            text = await explain(world, capsys)
            assert says in text
            assert "workers, " in text

    run(life)


class Licensed(Pools):
    """A fleet with one licence."""

    def control(self) -> ControlPlane:
        made = super().control()
        return ControlPlane(
            self.store,
            clock=self.clock,
            ids=made.ids,
            sealer=given_keys(),
            terms=self.terms,
            fleet=FleetSettings({ONE: 1}),
        )


ONE = token_id("env:CML_LICENSE_TOKEN")


def test_true_answer_that_licences_are_in_the_way() -> None:
    async def life() -> None:
        world = Licensed()
        await world.found(template={"cml": CmlSpec(license_token="env:CML_LICENSE_TOKEN")}, **LOAD)
        async with world.scaling():
            await world.settles()
            await comes_up(world, "ccna-1")
            await full(world)
            assert await why(world) == ("none", "licences")
            assert names(await world.workers()) == ["ccna-1"]

    run(life)


@played
async def test_claims_that_follow_one_another_are_not_added_up() -> None:
    async with scaling() as world:
        start, half = world.clock.now() + 20 * MINUTE, PER_WORKER // 2
        slots = [(start, start + 30 * MINUTE), (start + 56 * MINUTE, start + 86 * MINUTE)]
        for place, (begin, end) in enumerate(slots):
            for number in range(half):
                spec = LabletSessionSpec(definition="basics:1.0.0", timeslot_start=begin, timeslot_end=end)
                await world.otto.create(LabletSession(metadata=Metadata(name=f"b{place}-{number}"), spec=spec))
        for _ in range(80):
            await minutes(1)
            assert await running(world) == ["ccna-1"], "half of its cores are claimed at any time"


@played
async def test_the_cooldown_of_a_pool_that_shrinks_begins_when_the_worker_is_stopped() -> None:
    async with scaling() as world:
        await fill(world, PER_WORKER + 1, span=HOUR)
        await minutes(1)
        await comes_up(world, "ccna-2")
        await minutes(90)
        assert await running(world) == ["ccna-1"]
        pool = await world.otto.get(CCNA)
        assert pool is not None
        decided = [one for one in pool.status.decisions if one.why == "idle"]
        assert [one.workers for one in decided] == [("ccna-2",)]
        assert pool.status.load_down_at is not None
        assert decided[0].at < pool.status.load_down_at < decided[0].at + MINUTE


@played
async def test_a_worker_that_sessions_have_left_is_still_within_the_budget_that_it_was_started_with() -> None:
    async with scaling(budget=Budget(hourly_usd=Decimal(10))) as world:  # enough for two
        await fill(world, PER_WORKER + 1)
        await minutes(1)
        await comes_up(world, "ccna-2")
        await minutes(30)
        last = await world.otto.get(Ref(LabletSession, f"s{PER_WORKER}"))
        assert last is not None
        assert last.status.worker_name == "ccna-2"
        await world.otto.act(Ref(LabletSession, last.metadata.name), Terminate())
        await minutes(5)
        pool = await world.otto.get(CCNA)
        assert pool is not None
        assert [one.why for one in pool.status.decisions if one.action == "scale_down"] == []
        assert await running(world) == ["ccna-1", "ccna-2"]


@played
async def test_of_two_pools_the_cheaper_one_starts_a_worker_for_those_who_wait() -> None:
    world = Pools()
    await world.found(**LOAD | {"min_workers": 0})
    cheap = WorkerTemplateSpec(worker=world.spec(), name_prefix="thrifty", price_per_hour_usd=Decimal(1))
    await world.otto.create(WorkerTemplate(metadata=Metadata(name="thrifty"), spec=cheap))
    spec = LabWorkerPoolSpec(
        lab_track="ccna", template="thrifty", min_workers=0, max_workers=3, policy=ScalingPolicy.CAPACITY_BASED
    )
    await world.otto.create(LabWorkerPool(metadata=Metadata(name="thrifty"), spec=spec))
    async with world.scaling():
        await world.settles()
        await fill(world, 3)
        await minutes(2)
        assert await running(world) == ["thrifty-1"]
