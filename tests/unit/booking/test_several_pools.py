"""A track with several pools: who is asked first, who refuses, and that nobody promises the same room twice."""

import asyncio
from collections import Counter as Tally
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from harness import given
from harness.booking_world import DOZEN, NINE, Counter, Office, attended, from_monday, pool, slot, warm
from harness.clouds import HERE, THERE
from harness.plane_world import OTTO, service
from harness.workers import spec
from lcm.control.accounts.costs import open_key
from lcm.control.accounts.spending import KEPT_FOR
from lcm.control.objects.records import CODEC
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.base.errors import Conflict, NoRoom
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.placement import PreviewRequest, SlotRequest
from lcm.model.kinds.pool import (
    Budget,
    FilledSeat,
    LabWorkerPool,
    LabWorkerPoolSpec,
    ScalingPolicy,
    WorkerTemplate,
    WorkerTemplateSpec,
)
from lcm.model.kinds.session import LabletSession, Seat
from lcm.store.base import Put


async def add_pool(office: Office, name: str, price: str | None, region: str = HERE, **fields: Any) -> LabWorkerPool:
    """Make a pool of the track `ccna` with a template of its own."""
    kind = fields.pop("instance_type", "m5zn.metal")
    aws = msgspec.structs.replace(spec().aws, region=region, instance_type=kind)
    usd = None if price is None else Decimal(price)
    template = WorkerTemplateSpec(worker=spec(aws=aws), price_per_hour_usd=usd)
    await office.otto.create(WorkerTemplate(metadata=Metadata(name=name), spec=template))
    wanted: dict[str, Any] = {"lab_track": "ccna", "template": name, "min_workers": 0, "max_workers": 1} | fields
    return await office.otto.create(LabWorkerPool(metadata=Metadata(name=name), spec=LabWorkerPoolSpec(**wanted)))


def pool_of(session: LabletSession) -> str:
    assert session.status.seat is not None
    return session.status.seat.pool


@from_monday
async def test_a_booking_asks_by_region_wish_then_by_the_price_of_its_share_then_by_name() -> None:
    async with Office().open() as office:
        # For one lab, half a machine of six dollars is cheaper than a whole one of four.
        await add_pool(office, "a-small", "4")
        await add_pool(office, "b-large", "6", instance_type="m5.metal", max_workers=2)
        await add_pool(office, "c-large", "6", instance_type="m5.metal")
        await add_pool(office, "d-there", "9", THERE)
        await add_pool(office, "c-unknown", None, THERE, instance_type="r5b.metal")
        assert pool_of(await office.book("cheapest")) == "b-large"
        assert pool_of(await office.book("there", region_required=THERE)) == "d-there", "unknown is not free"
        assert pool_of(await office.book("rather-there", region_preferred=THERE)) == "d-there"
        assert pool_of(await office.book("rather-here", region_preferred=HERE)) == "b-large"
        with pytest.raises(NoRoom, match="the session must be in ap-south-1") as no:
            await office.book("nowhere", region_required="ap-south-1")
        assert no.value.why == "region"


@from_monday
async def test_a_preferred_region_that_is_full_gives_way_and_a_required_one_says_when_it_is_free() -> None:
    async with Office().open() as office:
        await add_pool(office, "here", "4")
        await add_pool(office, "there", "2", THERE)
        group = given.reservation(name="class", uid="", count=DOZEN, region_preferred=HERE)
        assert {one.seat.pool for one in (await office.otto.create(group)).status.held if one.seat} == {"here"}
        assert pool_of(await office.book("s1", region_preferred=HERE)) == "there"
        with pytest.raises(NoRoom) as no:
            await office.book("s2", region_required=HERE)
        assert (no.value.why, bool(no.value.nearest)) == ("full", True), "the other pool only says: not here"


@from_monday
async def test_what_is_explained_and_offered_is_what_a_booking_gets() -> None:
    async with Office().open() as office:
        await add_pool(office, "here", "4")
        await add_pool(office, "there", "5", THERE)
        wish = PreviewRequest(
            definition="basics", timeslot_start=NINE, timeslot_end=given.moment("11:00"), region_preferred=THERE
        )
        found = await office.otto.preview(wish)
        assert (found.seat, found.region) == (Seat(pool="there", number=1), THERE)
        asked = SlotRequest(
            definition="basics",
            duration_minutes=60,
            since=NINE,
            until=given.moment("10:00"),
            region_preferred=THERE,
        )
        told = await office.otto.slots(asked)
        assert {one.pool for one in told.slots} == {"default/there"}
        assert told.regions == tuple(sorted((HERE, THERE)))
        booked = await office.book("s1", region_preferred=THERE)
        assert pool_of(booked) == "there"
        assert (await office.otto.explain(ref_of(booked))).region == THERE


@from_monday
async def test_two_replicas_promise_the_room_of_three_pools_once() -> None:
    async with Office(planes=2).open() as office:
        for number in range(3):
            await add_pool(office, f"pool{number}", f"{number + 4}")
        planes = [core.plane_for(OTTO) for core in office.cores]
        several = (planes[number % 2].create(slot(f"s{number}")) for number in range(4 * DOZEN))
        answers = await asyncio.gather(*several, return_exceptions=True)
        made = [one for one in answers if isinstance(one, LabletSession)]
        assert {one.why for one in answers if isinstance(one, NoRoom)} == {"full"}
        assert [sum(pool_of(one) == f"pool{number}" for one in made) for number in range(3)] == [DOZEN] * 3
        assert len(made) + sum(isinstance(one, NoRoom) for one in answers) == 4 * DOZEN


@from_monday
async def test_lesson_20_five_hundred_for_nine_get_what_the_pools_of_the_track_can_hold_by_their_policies() -> None:
    async with Office().open() as office:
        await add_pool(office, "booked", "4", max_workers=3, policy=ScalingPolicy.SCHEDULED)
        await add_pool(office, "both", "5", max_workers=2, policy=ScalingPolicy.HYBRID)
        for policy in (ScalingPolicy.NONE, ScalingPolicy.CAPACITY_BASED, ScalingPolicy.LAB_COUNT_BASED):
            await add_pool(office, policy.lower().replace("_", "-"), "1", max_workers=9, policy=policy)  # has no worker
        answers = await asyncio.gather(
            *(office.otto.create(slot(f"s{number}")) for number in range(500)), return_exceptions=True
        )
        promised = [one for one in answers if isinstance(one, LabletSession)]
        assert Tally(map(pool_of, promised)) == {"booked": 3 * DOZEN, "both": 2 * DOZEN}
        refused = [one for one in answers if isinstance(one, NoRoom)]
        assert (len(promised) + len(refused), {one.why for one in refused}) == (500, {"full"})
        assert set(Tally(one.status.seat for one in promised).values()) == {DOZEN}


@from_monday
async def test_a_budget_counts_what_the_pool_made_and_adopted_and_not_the_other_pools_of_its_track() -> None:
    async with Office().open() as office:
        budget = Budget(monthly_usd=Decimal(1000))
        first = await add_pool(office, "first", "4", budget=budget)
        await add_pool(office, "second", "5")
        spent = {"usd_hourly": Decimal(100_000), "since": given.MONDAY, "worker_id": "uid-w", "lab_track": "ccna"}
        await asyncio.sleep(3600)
        paid = given.interval(**spent, pool="second")
        await office.store.commit(Put(open_key("uid-w"), CODEC.encode(paid)))
        assert pool_of(await office.book("s1")) == "first"
        await asyncio.sleep(KEPT_FOR.total_seconds())
        unowned = msgspec.structs.replace(paid, pool="")
        await office.store.commit(Put(open_key("uid-w"), CODEC.encode(unowned)))
        assert pool_of(await office.book("s2", given.moment("15:00"))) == "first"
        seat = FilledSeat(number=1, worker_id="uid-w", worker_name="w")
        known = await office.otto.get(ref_of(first))
        assert known is not None
        await office.by(POOL_CONTROLLER).step(known, msgspec.structs.replace(known.status, seats=(seat,)))
        assert pool_of(await office.book("s3", given.moment("19:00"))) == "second"


def test_a_worker_that_nobody_made_for_a_pool_fills_a_seat_of_one_pool() -> None:
    async def main(counter: Counter) -> None:
        theirs = warm("theirs")
        await counter.put(given.template(), pool(uid="uid-one", name="one"), pool(uid="uid-two", name="two"), theirs)
        plane = counter[service(POOL_CONTROLLER)]
        one, two = [await plane.get(Ref(LabWorkerPool, name)) for name in ("one", "two")]
        assert one is not None
        assert two is not None
        seat = FilledSeat(number=1, worker_id=theirs.metadata.uid, worker_name="theirs")

        async def adopt(by: LabWorkerPool) -> LabWorkerPool:
            return await plane.step(by, msgspec.structs.replace(by.status, seats=(seat,)))

        answers = await asyncio.gather(adopt(one), adopt(two), return_exceptions=True)
        (error,) = [found for found in answers if isinstance(found, BaseException)]
        assert isinstance(error, Conflict)
        (kept,) = [found for found in answers if isinstance(found, LabWorkerPool)]
        loser = two if kept.metadata.name == "one" else one
        with pytest.raises(Conflict, match=f"fills a planned worker of pool {kept.metadata.name}"):
            await adopt(loser)

    attended(main)
