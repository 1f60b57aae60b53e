"""Sessions without a slot where several pools serve their track: whose machine is started for them."""

import asyncio
from decimal import Decimal
from typing import Any

import msgspec

from harness.booking_world import from_monday
from harness.clouds import HERE, THERE
from harness.scheduler_world import Room
from harness.workers import spec
from lcm.control.plane.protocol import ref_of
from lcm.model.base.resource import Metadata
from lcm.model.kinds.pool import Budget, WorkerTemplate, WorkerTemplateSpec


async def pools(room: Room, *, budget: Budget | None = None) -> None:
    """Make a dear pool here that boots in 15 minutes, and a cheap one there that takes 21."""
    for name, region, usd, boots in (("here", HERE, 5, 900), ("there", THERE, 4, 1260)):
        aws = msgspec.structs.replace(spec().aws, region=region)
        made = WorkerTemplateSpec(worker=spec(aws=aws), price_per_hour_usd=Decimal(usd))
        await room.otto.create(WorkerTemplate(metadata=Metadata(name=name), spec=made))
        fields = {"template": name, "max_workers": 1, "boot_seconds": (boots,)}
        more = {"budget": budget} if budget and name == "there" else {}
        await room.pool(name=name, uid=f"uid-{name}", **fields, **more)


async def pool_of(room: Room, name: str) -> str:
    found = await room.until(name, lambda one: one.status.seat is not None)
    assert found.status.seat is not None
    return found.status.seat.pool


@from_monday
async def test_a_machine_is_started_where_region_wish_and_price_say_though_another_would_be_up_sooner() -> None:
    async with Room().open() as room:
        await pools(room)
        wishes: tuple[tuple[str, dict[str, Any], str], ...] = (
            ("cheapest", {}, "there"),
            ("here", {"region_required": HERE}, "here"),
            ("rather-here", {"region_preferred": HERE}, "here"),
            ("rather-there", {"region_preferred": THERE}, "there"),
        )
        for name, wish, pool in wishes:
            made = await room.wants(name, **wish)
            assert await pool_of(room, name) == pool
            found = await room.otto.explain(ref_of(made))
            assert (found.region, found.seat and found.seat.pool) == (HERE if pool == "here" else THERE, pool)
        before = {one.metadata.name: one.status.seat for one in await room.sessions()}
        await asyncio.sleep(600)
        assert {one.metadata.name: one.status.seat for one in await room.sessions()} == before, "nobody moves about"


@from_monday
async def test_a_pool_without_room_or_money_is_passed_over() -> None:
    async with Room().open() as room:
        await pools(room)
        for number in range(13):
            await room.wants(f"s{number:02}")
            await pool_of(room, f"s{number:02}")
        assert [await pool_of(room, name) for name in ("s11", "s12")] == ["there", "here"]
    async with Room().open() as room:
        await pools(room, budget=Budget(hourly_usd=Decimal(3)))
        await room.wants("s1")
        assert await pool_of(room, "s1") == "here"
