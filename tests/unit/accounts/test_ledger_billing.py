"""The ledger of billing intervals, as workers' steps write it, and the money that it adds up to."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from harness import given
from harness.clouds import HERE, SimPrices, make_bill
from harness.plane_world import ADA, ANNA, NOW, OTTO, ROOT, Stage, service
from harness.stores import HandClock
from harness.workers import LAUNCHED, P, fleet, intervals, move, pass_time, worker
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Forbidden, Invalid
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.base.resource import Owner
from lcm.model.kinds.pool import PoolPacking, describe_packing
from lcm.model.kinds.worker import LabWorker, RootVolume
from lcm.model.money.billing import (
    Billing,
    BillingInterval,
    clip_interval,
    local_days,
    sum_costs,
    sum_costs_by,
    sum_costs_by_day,
)
from lcm.model.money.prices import SHIPPED_PRICES, PriceBook
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.time.chance import Chance

MINUTE = timedelta(minutes=1)
DISK = SHIPPED_PRICES.disk_hourly(RootVolume(), HERE)
METAL = SHIPPED_PRICES.hourly(HERE, "m5zn.metal")


def ec2(state: str, **facts: object) -> dict[str, Any]:
    return {"ec2": {**LAUNCHED, "state": state, **facts}}


async def costs(stage: Stage, since: datetime = NOW, until: datetime | None = None) -> Sequence[BillingInterval]:
    return await stage[OTTO].costs(since=since, until=until or given.moment("23:00"))


def spans(found: Sequence[BillingInterval]) -> list[tuple[str, int, int | None]]:
    """Return what was paid for from which minute to which."""
    return [
        (one.state, (one.since - NOW) // MINUTE, (one.until - NOW) // MINUTE if one.until else None) for one in found
    ]


async def test_a_worker_is_paid_for_by_what_ec2_says() -> None:
    stage = Stage()
    at = await stage.put(worker(phase=P.PROVISIONING_EC2, ec2={"instance_id": "", "state": ""}))
    for minute, phase, state in [
        (1, P.PROVISIONING_EC2, "pending"),
        (2, P.EC2_READY, "running"),
        (5, P.STARTING, "running"),
        (20, P.READY_UNLICENSED, "running"),
        (60, P.STOPPING, "running"),
        (61, P.STOPPING, "stopping"),
        (64, P.STOPPED, "stopped"),
        (90, P.STARTING, "stopped"),
        (91, P.STARTING, "pending"),
        (93, P.STARTING, "running"),
        (100, P.FAILED, "running"),
        (101, P.TERMINATING_EC2, "running"),
        (102, P.TERMINATING_EC2, "shutting-down"),
    ]:
        pass_time(stage, NOW + minute * MINUTE)
        at = await move(stage, at, phase, **ec2(state), last_error="broken")
    assert spans(await costs(stage)) == [("running", 2, 61), ("stopped", 61, 91), ("running", 93, 102)]
    running, stopped, _ = await costs(stage)
    assert METAL is not None
    assert DISK is not None
    assert (running.usd_hourly, stopped.usd_hourly) == (METAL + DISK, DISK)
    assert running.usd(NOW) == (METAL + DISK) * 59 * 60 / 3600


async def test_the_bill_stays_when_the_worker_is_removed() -> None:
    stage = Stage()
    at = await stage.put(worker(phase=P.TERMINATING_EC2))
    at = await move(stage, at, **ec2("running", system_status="ok"))
    assert await intervals(stage.store) == ([], []), "what it is about has not changed"
    at = await move(stage, at, **ec2("stopped"))
    at = await stage[ROOT].delete(Ref(LabWorker, "w1"))
    pass_time(stage, NOW + 30 * MINUTE)
    await move(stage, at, P.TERMINATED, **ec2("terminated", gone_at=NOW))
    assert await stage.read(at) is None
    assert spans(await costs(stage)) == [("stopped", 0, 30)]


async def test_what_discovery_found_running_is_paid_for_from_its_first_step() -> None:
    stage = Stage()
    found = DiscoveredInstance(instance_id="i-9", instance_type="m5.metal", state="running")
    await stage[service("worker-controller")].import_workers(
        BulkImport(discovered_instances=(found,), aws_region="us-east-1")
    )
    at = await stage[ROOT].get(Ref(LabWorker, "imported-i-9"))
    assert at is not None
    await move(stage, at, P.EC2_READY)
    (one,) = await costs(stage)
    assert (one.instance_id, one.instance_type, one.until) == ("i-9", "m5.metal", None)


@pytest.mark.parametrize(
    ("created", "launched", "seen", "paid"),
    [("07:00", "07:30", "09:00", "07:30"), ("08:00", "07:30", "09:00", "08:00"), ("07:00", "08:57", "09:00", "09:00")],
)
async def test_what_runs_longer_than_it_was_seen_is_paid_for_since_it_was_launched(
    created: str, launched: str, seen: str, paid: str
) -> None:
    stage = Stage()
    at = await stage.put(worker(phase=P.PENDING, ec2={"state": ""}, created_at=given.moment(created)))
    pass_time(stage, given.moment(seen))
    await move(stage, at, P.EC2_READY, **ec2("running", launched_at=given.moment(launched)))
    (one,) = await costs(stage, given.moment("06:00"))
    assert one.since == given.moment(paid), "not from before it was a worker, nor for the time in which it came up"


@pytest.mark.parametrize(("launched", "turned"), [("08:40", 40), ("07:00", 120)])
async def test_a_start_that_nobody_saw_ends_what_was_paid_before(launched: str, turned: int) -> None:
    stage = Stage()
    at = await move(stage, await stage.put(worker(phase=P.STOPPED, ec2={"state": ""})), **ec2("stopped"))
    pass_time(stage, given.moment("10:00"))
    at = await move(stage, at, **ec2("running", launched_at=given.moment(launched)))
    assert spans(await costs(stage)) == [("stopped", 0, turned), ("running", turned, None)]


async def test_a_machine_seen_on_its_way_and_long_after_is_paid_for_once() -> None:
    stage = Stage()
    at = await move(stage, await stage.put(worker(phase=P.STOPPED, ec2={"state": ""})), **ec2("stopped"))
    for minute, state in ((31, "pending"), (60, "running")):
        pass_time(stage, NOW + minute * MINUTE)
        at = await move(stage, at, **ec2(state, launched_at=NOW + 30 * MINUTE))
    assert spans(await costs(stage)) == [("stopped", 0, 30), ("running", 30, None)]


async def test_another_type_has_another_price() -> None:
    stage = Stage()
    at = await move(stage, await stage.put(worker(phase=P.EC2_READY)), P.STARTING)
    pass_time(stage, NOW + 10 * MINUTE)
    await move(stage, at, **ec2("running", instance_type="m5.metal"))
    metal, other = await costs(stage)
    assert (metal.instance_type, other.instance_type) == ("m5zn.metal", "m5.metal")
    assert metal.usd_hourly != other.usd_hourly


async def test_a_price_that_nobody_knows_is_not_nothing() -> None:
    stage = Stage(fleet=fleet(prices=PriceBook()))
    await move(stage, await stage.put(worker(phase=P.EC2_READY)), P.STARTING)
    pass_time(stage, NOW + 10 * MINUTE)
    (one,) = await costs(stage)
    assert (one.usd_hourly, one.usd(stage.clock.now())) == (None, None)
    added = sum_costs("all", [one], stage.clock.now())
    assert (added.usd, added.seconds, added.unpriced_seconds) == (Decimal(0), 600, 600)


async def test_what_the_price_book_does_not_know_is_billed_at_the_price_of_its_pools_template() -> None:
    stage, made_by = Stage(fleet=fleet(prices=PriceBook())), Owner(kind="LabWorkerPool", name="ccna", uid="uid-ccna")
    await stage.put(given.template(price_per_hour_usd=Decimal(5)))
    await stage.put(given.pool())
    await move(stage, await stage.put(worker(phase=P.EC2_READY, owner=made_by)), P.STARTING)
    pass_time(stage, NOW + 60 * MINUTE)
    (one,) = await costs(stage)
    added = sum_costs("all", [one], stage.clock.now())
    assert (added.usd, added.unpriced_seconds) == (Decimal(5), 0), "a budget counts it as its forecast did"


async def test_a_running_machine_is_billed_from_its_next_step_after_its_price_is_known() -> None:
    stage, made_by = Stage(fleet=fleet(prices=PriceBook())), Owner(kind="LabWorkerPool", name="ccna", uid="uid-ccna")
    template = await stage.put(given.template())
    await stage.put(given.pool())
    at = await move(stage, await stage.put(worker(phase=P.EC2_READY, owner=made_by)), P.STARTING)
    pass_time(stage, NOW + 60 * MINUTE)
    said = msgspec.structs.replace(template.spec, price_per_hour_usd=Decimal(5))
    await stage[ROOT].replace(msgspec.structs.replace(template, spec=said))
    await move(stage, at, P.READY_UNLICENSED)
    pass_time(stage, NOW + 120 * MINUTE)
    found = await costs(stage)
    assert spans(found) == [("running", 0, 60), ("running", 60, None)]
    added = sum_costs("all", found, stage.clock.now())
    assert (added.usd, added.unpriced_seconds) == (Decimal(5), 3600)


async def test_a_clock_that_was_ahead_makes_no_interval_that_ends_before_it_began() -> None:
    stage = Stage()
    at = await move(stage, await stage.put(worker(phase=P.EC2_READY)), P.STARTING)
    pass_time(stage, NOW - 5 * MINUTE)
    await move(stage, at, **ec2("stopped"))
    _, (closed,) = await intervals(stage.store)
    assert closed.since == closed.until == NOW


async def test_costs_are_cut_to_the_span_and_parts_add_up_to_the_whole() -> None:
    stage = Stage()
    at = await move(stage, await stage.put(worker(phase=P.EC2_READY)), P.STARTING)
    pass_time(stage, NOW + timedelta(seconds=30))
    at = await move(stage, at, **ec2("stopped"))
    pass_time(stage, NOW + 10 * MINUTE)
    at = await move(stage, at, **ec2("running"))
    pass_time(stage, NOW + timedelta(minutes=20, seconds=0.5))
    await move(stage, at, **ec2("terminated"))
    now, edges = stage.clock.now(), [0.0, 10.0, 45.0, 600.0, 601.5, 700.25, 3000.0]
    moments = [NOW + timedelta(seconds=edge) for edge in edges]
    whole = sum_costs("all", await costs(stage, moments[0], moments[-1]), now)
    parts = [sum_costs("part", await costs(stage, since, until), now) for since, until in pairwise(moments)]
    assert abs(sum(part.usd for part in parts) - whole.usd) <= Decimal("0.0001") * len(parts)
    assert await costs(stage, given.moment("22:00")) == []
    assert await costs(stage, NOW - timedelta(days=1), NOW) == []


async def test_what_goes_on_has_no_end_unless_the_span_has_ended() -> None:
    stage = Stage()
    await move(stage, await stage.put(worker(phase=P.EC2_READY)), P.STARTING)
    pass_time(stage, NOW + 30 * MINUTE)
    (one,) = await costs(stage)
    assert (one.until, one.seconds(stage.clock.now())) == (None, Decimal(1800))
    (one,) = await costs(stage, NOW + 5 * MINUTE, NOW + 10 * MINUTE)
    assert (one.since, one.until, one.began_at) == (NOW + 5 * MINUTE, NOW + 10 * MINUTE, NOW)
    assert one.seconds(stage.clock.now()) == 300


async def test_only_staff_and_services_see_costs_and_only_of_spans() -> None:
    stage = Stage()
    for caller in (ADA, ANNA):
        with pytest.raises(Forbidden):
            await stage[caller].costs(since=NOW, until=NOW + MINUTE)
    with pytest.raises(Invalid):
        await costs(stage, NOW, NOW)


@pytest.mark.parametrize(
    ("state", "seconds", "paid"),
    [
        (Billing.RUNNING, 0, 60),
        (Billing.RUNNING, 59.5, 60),
        (Billing.RUNNING, 60.2, 61),
        (Billing.STOPPED, 0, 0),
        (Billing.STOPPED, 59.5, Decimal("59.5")),
    ],
)
def test_a_start_costs_a_minute_and_whole_seconds(state: Billing, seconds: float, paid: Decimal) -> None:
    one = given.interval(state=state, until=given.moment("08:00") + timedelta(seconds=seconds))
    assert one.seconds(NOW) == paid
    assert one.usd(NOW) == paid / Decimal(3600)


def test_a_start_that_ended_at_once_is_in_exactly_one_span() -> None:
    moment = given.moment("08:00")
    one = given.interval(since=moment, until=moment)
    assert clip_interval(one, moment, moment + MINUTE, moment) == one
    assert clip_interval(one, moment - MINUTE, moment, moment) is None
    assert clip_interval(one, moment + MINUTE, moment + 2 * MINUTE, moment) is None


def test_totals_are_by_name() -> None:
    found = [given.interval(), given.interval(lab_track="ccnp"), given.interval(usd_hourly=None)]
    added = sum_costs_by(found, lambda one: one.lab_track, NOW)
    assert [(one.name, one.usd, one.unpriced_seconds) for one in added] == [
        ("ccna", Decimal(1), 3600),
        ("ccnp", Decimal(1), 0),
    ]


POLL = timedelta(seconds=10)
LIFE = [("stop", 3600), ("start", 5000), ("stop", 5100), ("start", 9000), ("terminate", 14400)]


async def test_our_bill_is_the_clouds_but_for_the_time_between_two_looks() -> None:
    clock, volume = HandClock(), RootVolume()
    assert METAL is not None
    assert DISK is not None
    prices = SimPrices(hourly={(HERE, "m5zn.metal"): METAL + DISK}, disk_gb_hourly={HERE: DISK / volume.size_gb})
    cloud = SimCloud(clock, Chance(3))
    stage = Stage(clock=clock)
    machine = cloud.account.run(LaunchOrder(HERE, "m5zn.metal", "ami-1", disk_gb=volume.size_gb))
    at, start, life = await stage.put(worker(phase=P.FAILED, **ec2("pending"))), clock.now(), list(LIFE)
    while clock.now() < start + timedelta(hours=5):
        clock.moment += POLL
        if life and clock.now() >= start + timedelta(seconds=life[0][1]):
            verb = life.pop(0)[0]
            getattr(cloud.account, verb)(HERE, machine.instance_id)
        found = await cloud.find(HERE, machine.instance_id)
        state = found.state if found else "terminated"
        if state != at.status.ec2.state:
            at = await move(stage, at, **ec2(state))
    ours = await stage[OTTO].costs(since=start, until=clock.now())
    told = make_bill(cloud.account.machines.values(), prices, clock.now())
    changes = len(told.lines[machine.instance_id].intervals)
    assert changes >= 5
    allowed = (METAL + DISK) * Decimal(POLL.total_seconds() + 1) / 3600 * (changes + 1)
    difference = abs(told.usd - sum((one.usd(clock.now()) or Decimal(0) for one in ours), Decimal(0)))
    assert difference <= allowed, (told.usd, difference)
    assert told.usd > 10


def test_days_add_up_to_the_whole_and_one_may_have_23_hours() -> None:
    zone, end = ZoneInfo("Europe/Berlin"), datetime(2026, 3, 30, 12, tzinfo=UTC)
    paid = given.interval(since=datetime(2026, 3, 27, 22, 30, 0, 250_000, tzinfo=UTC), until=end, usd_hourly=Decimal(6))
    cut = clip_interval(paid, datetime(2026, 3, 28, tzinfo=UTC), end, end)
    assert cut is not None
    days = local_days(cut.since, end, zone)
    assert [name for name, _, _ in days] == ["2026-03-28", "2026-03-29", "2026-03-30"]
    found = sum_costs_by_day([cut], days, end)
    assert [one.usd for one in found] == [Decimal(6 * 23), Decimal(6 * 23), Decimal(6 * 14)]
    assert sum(one.usd for one in found) == sum_costs("all", [cut], end).usd


async def test_what_packing_saved_is_priced_when_it_is_reported_and_never_twice() -> None:
    stage = Stage()
    await stage.put(given.template(name="metal"))
    pool = await stage.put(given.pool(template="metal"))
    figures = PoolPacking(at=NOW, until=NOW, claims=1, moved=1, machine_hours=5, least_machine_hours=4, saved_since=NOW)
    plane, told = stage[service(POOL_CONTROLLER)], list[Decimal]()
    assert METAL is not None
    assert DISK is not None
    for hours in (2.0, 2.0, 3.5):
        packing = msgspec.structs.replace(figures, saved_machine_hours=hours, claims=len(told))
        pool = await plane.step(pool, msgspec.structs.replace(pool.status, packing=packing))
        assert pool.status.packing is not None
        told.append(pool.status.packing.saved_usd)
    assert pool.status.packing is not None
    first, more = (round((METAL + DISK) * Decimal(hours), 2) for hours in ("2", "1.5"))
    assert told == [first, first, first + more]
    assert f"saved 3.5 machine-hours, {first + more} USD since 02 Nov 2026" in describe_packing(pool.status.packing)
