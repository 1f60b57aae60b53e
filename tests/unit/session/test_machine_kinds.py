"""Kinds of machines: pools in two regions, and machines that the cloud only lends and takes away again."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
import structlog

from harness.clouds import HERE, THERE
from harness.session_world import HOUR, MINUTE, Lablets, phases
from harness.workers import intervals, spec
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Invalid, NoRoom
from lcm.model.base.resource import Metadata
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.saved_lab import LAB_FILE
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, SessionPhase
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.billing import sum_costs
from lcm.sim.time.loop import run

_P = SessionPhase


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


async def add_pool(world: Lablets, name: str, price: int, **aws: Any) -> None:
    made = msgspec.structs.replace(spec().aws, **aws)
    template = WorkerTemplateSpec(worker=spec(aws=made), name_prefix=name, price_per_hour_usd=Decimal(price))
    await world.otto.create(WorkerTemplate(metadata=Metadata(name=name), spec=template))
    wanted = LabWorkerPoolSpec(lab_track="ccna", template=name, min_workers=0, max_workers=2)
    await world.otto.create(LabWorkerPool(metadata=Metadata(name=name), spec=wanted))


async def spot_world() -> Lablets:
    """Have a lab, and a pool of spot machines that may have two."""
    world = Lablets(quick=True)
    await world.define()
    await add_pool(world, "lent", 1, market="spot")
    return world


def wish(name: str = "s1", minutes: int | None = 60, **fields: Any) -> LabletSession:
    wanted = LabletSessionSpec(definition="basics:1.0.0", duration_minutes=minutes, **fields)
    return LabletSession(metadata=Metadata(name=name), spec=wanted)


def test_sessions_run_in_the_region_that_they_require_or_prefer() -> None:
    async def life() -> None:
        world = Lablets(quick=True)
        await world.define()
        world.cloud.account.add_image(THERE, "CML-2.9.0", world.clock.now())
        await add_pool(world, "here", 4)
        await add_pool(world, "there", 5, region=THERE)
        async with world.everybody():
            for name, asked in (("s1", {}), ("s2", {"region_required": THERE}), ("s3", {"region_preferred": THERE})):
                wanted: dict[str, Any] = asked
                await world.otto.create(wish(name, **wanted))
            slot = world.clock.now() + HOUR
            booked = await world.otto.create(
                wish("s4", None, timeslot_start=slot, timeslot_end=slot + HOUR, region_required=THERE)
            )
            assert booked.status.seat is not None
            assert booked.status.seat.pool == "there"
            sessions = [await world.comes_to(_P.RUNNING, name) for name in ("s1", "s2", "s3")]
            workers = [await world.worker(one.status.worker_name or "") for one in sessions]
            machines = [world.cloud.account.machines[one.status.ec2.instance_id] for one in workers]
            assert [one.region for one in machines] == [HERE, THERE, THERE]

    run(life)


def test_a_session_is_collected_at_the_notice_and_tried_again_on_another_machine_and_no_licence_is_lost() -> None:
    async def life() -> None:
        world = await spot_world()
        async with world.everybody():
            await world.otto.create(wish(allow_spot=True))
            session = await world.comes_to(_P.RUNNING)
            first = await world.otto.get(Ref(LabWorker, session.status.worker_name or ""))
            assert first is not None
            world.cloud.account.reclaim(HERE, first.status.ec2.instance_id)
            session = await world.until(lambda one: one.status.retry_count == 1, within=2 * MINUTE)
            assert [one.name for one in session.status.artifacts] == [LAB_FILE], "what was done is saved"
            session = await world.comes_to(_P.RUNNING)
            assert session.status.worker_id != first.metadata.uid
            story = phases(session)
            again = story[story.index("COLLECTING") :]
            assert again == ["COLLECTING", "STOPPING", "PENDING", "SCHEDULED", "INSTANTIATING", "RUNNING"]
            await asyncio.sleep(600)
            assert await world.otto.get(Ref(LabWorker, first.metadata.name)) is None, "the worker has ended"
            assert len(world.licences.taken) == 1
            (left,) = world.living()
            assert left.spot
        _, (paid, *_) = await intervals(world.store)
        assert paid.on_demand_usd_hourly is not None
        assert paid.usd_hourly is not None
        assert paid.on_demand_usd_hourly - paid.usd_hourly == Decimal("2.9641"), "3.9641 on demand, a dollar as lent"
        saved = paid.saved_usd(world.clock.now())
        assert saved > 0
        assert abs(sum_costs("all", [paid], world.clock.now()).saved_usd - saved) < Decimal("0.000001")

    run(life)


def test_a_spot_machine_takes_no_promise_and_nobody_who_did_not_allow_it() -> None:
    async def life() -> None:
        world = await spot_world()
        async with world.everybody():
            with pytest.raises(NoRoom, match="it is a spot machine, which the cloud may take away") as no:
                await world.otto.create(wish())
            assert no.value.why == "market"
            with pytest.raises(NoRoom) as no:
                await world.books("s2", world.clock.now() + 3 * HOUR)
            assert no.value.why == "market"
            slot: dict[str, Any] = {
                "timeslot_start": world.clock.now() + HOUR,
                "timeslot_end": world.clock.now() + 2 * HOUR,
            }
            with pytest.raises(Invalid, match="a booked slot is promised"):
                await world.otto.create(wish(minutes=60, allow_spot=True, **slot))

    run(life)


def test_a_spot_machine_that_nobody_needs_ends_because_it_cannot_be_paused() -> None:
    async def life() -> None:
        world = await spot_world()
        async with world.everybody():
            await world.otto.create(wish(minutes=5, allow_spot=True))
            await world.comes_to(_P.COMPLETED)
            await asyncio.sleep(timedelta(minutes=20).total_seconds())
            assert not world.living()
            assert not world.licences.taken

    run(life)
