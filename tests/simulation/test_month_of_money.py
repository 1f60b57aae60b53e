"""A month of a pool: the ledger is the cloud's own bill to the cent, and every grouping adds up to it.

Classes and single sessions of several owners; machines that an operator pauses and resumes, that die, that are stopped
and ended by hand, and spot machines that the cloud takes back. On days without classes nobody looks: what is paid for
then goes on all the same. The bill is made of the simulated cloud's own states of its machines, and of nothing of ours.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec
import structlog

from harness.clouds import HERE, SimPrices, make_bill
from harness.scheduler_world import HOUR, MINUTE, Lablets, Pools
from harness.workers import beside
from lcm.control.plane.protocol import Pause, Ref, Resume
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.reservation import Reservation, ReservationSpec
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.ledger import CostGroup, CostLedger
from lcm.model.money.prices import SHIPPED_PRICES
from lcm.settings.load import Settings
from lcm.sim.cloud.machines import BY_HAND, DIED, RUNNING, STOPPED, TAKEN_BACK
from lcm.sim.time.loop import VirtualStopwatch, run
from lcm.system.tasks import run_until_first_ends

DAY = timedelta(days=1)
TEACHING_DAYS = (1, 12, 29)
OWNERS = ("ada", "bob", "carl")
CLASS_SIZE = 7
"""One more than fit on a machine."""
SPOT_PRICE = Decimal("1.3")
EXTRA = Ref(LabWorker, "extra")
"""A worker outside of the pools, which an operator pauses."""


@dataclass
class Month(Pools):
    """A pool with everything that sessions need, in which everybody looks seldom: days must pass quickly."""

    settings: Settings = field(
        default_factory=lambda: Settings(
            worker_controller_leader_lease_ttl=3600,
            scheduler_reconcile_interval=600,
            worker_discovery_enabled=False,
            metrics_poll_interval=600,
            idle_check_interval=600,
        )
    )

    async def run_all(self) -> None:
        """Run all controllers."""
        scheduler = SchedulerController(
            plane=self.plane(SCHEDULER),
            clock=self.clock,
            stopwatch=VirtualStopwatch(),
            chance=self.half,
            settings=self.settings,
            holder="scheduler",
        )
        lablets = Lablets(self.plane(LABLET_CONTROLLER), self.clock)
        workers, pools = self.controller().run(), self.pool_controller().run()
        await run_until_first_ends(workers, pools, scheduler.run(), lablets.run())

    async def sleep_until(self, moment: datetime) -> None:
        await asyncio.sleep((moment - self.clock.now()).total_seconds())

    async def book_day(self, number: int, start: datetime) -> None:
        """Book a class and a single session of each owner."""
        two = {"definition": "basics:1.0.0", "timeslot_start": start, "timeslot_end": start + 2 * HOUR}
        several = ReservationSpec(**two, count=CLASS_SIZE, owner=OWNERS[number % 2])  # type: ignore[arg-type]
        await self.otto.create(Reservation(metadata=Metadata(name=f"class-{number}"), spec=several))
        for place, owner in enumerate(OWNERS):
            begin = start + place * HOUR
            end = begin + timedelta(minutes=35 + 7 * place)
            spec = LabletSessionSpec(definition="basics:1.0.0", owner=owner, timeslot_start=begin, timeslot_end=end)
            await self.otto.create(LabletSession(metadata=Metadata(name=f"single-{number}-{place}"), spec=spec))

    async def lend(self) -> None:
        """Make a pool of spot machines."""
        aws = msgspec.structs.replace(self.spec().aws, market="spot")
        template = WorkerTemplateSpec(worker=self.spec(aws=aws), name_prefix="lent", price_per_hour_usd=SPOT_PRICE)
        await self.otto.create(WorkerTemplate(metadata=Metadata(name="lent"), spec=template))
        spec = LabWorkerPoolSpec(lab_track="ccna", template="lent", min_workers=0, max_workers=2)
        await self.otto.create(LabWorkerPool(metadata=Metadata(name="lent"), spec=spec))

    async def want_lent(self, number: int) -> None:
        """Want two labs now that may run on a spot machine."""
        for place in range(2):
            name, owner = f"lent-{number}-{place}", OWNERS[place]
            spec = LabletSessionSpec(definition="basics:1.0.0", owner=owner, duration_minutes=180, allow_spot=True)
            await self.otto.create(LabletSession(metadata=Metadata(name=name), spec=spec))

    async def use_extra(self, number: int) -> None:
        """Hire a worker on the first day, pause it, resume it on the second, and keep it until the third."""
        if number == 0:
            await self.otto.create(LabWorker(metadata=Metadata(name=EXTRA.name), spec=self.spec(lab_track="other")))
            await asyncio.sleep(7200)
            await self.otto.act(EXTRA, Pause())
        elif number == 1:
            await self.otto.act(EXTRA, Resume())
        else:
            await self.otto.delete(EXTRA)

    def disturb(self, number: int) -> None:
        """Stop or end a machine by hand, or let it die; each time the cloud takes a spot machine back."""
        now, account = self.clock.now(), self.cloud.account
        running = [one for one in account.machines.values() if one.state(now) is RUNNING]
        lent = next(one for one in running if one.spot)
        account.reclaim(HERE, lent.instance_id)
        up = next(one for one in running if not one.spot and one.tags["Name"] != EXTRA.name)
        match number % 3:
            case 0:
                account.stop(HERE, up.instance_id)
            case 1:
                account.terminate(HERE, up.instance_id)
            case _:
                account.die(HERE, up.instance_id, now + timedelta(minutes=3, seconds=21))

    def bill(self) -> Decimal:
        """Return the cloud's own bill, which it makes of the states of its machines."""
        aws = self.spec().aws
        disk, machine = (
            SHIPPED_PRICES.disk_hourly(aws.root_volume, HERE),
            SHIPPED_PRICES.hourly(HERE, aws.instance_type),
        )
        assert disk is not None
        assert machine is not None
        prices = SimPrices(
            hourly={(HERE, aws.instance_type): machine + disk},
            spot={(HERE, aws.instance_type): SPOT_PRICE + disk},
            disk_gb_hourly={HERE: disk / aws.root_volume.size_gb},
        )
        return make_bill(self.cloud.account.machines.values(), prices, self.clock.now()).usd

    async def read(self, by: CostGroup, since: datetime) -> CostLedger:
        return await self.otto.ledger(by=by, since=since, until=self.clock.now(), limit=5000)


async def play_month(world: Month) -> None:
    first = world.clock.now()
    for number, day in enumerate(TEACHING_DAYS):
        nine = first + (day - 1) * DAY + 9 * HOUR
        await world.sleep_until(nine - 2 * HOUR)
        async with beside(world.run_all()):
            await world.book_day(number, nine)
            await world.want_lent(number)
            await world.use_extra(number)
            await world.sleep_until(nine + HOUR + 11 * MINUTE)
            world.disturb(number)
            await world.sleep_until(nine + 5 * HOUR)
    await world.sleep_until(first + 30 * DAY)


def check_groups(found: CostLedger, total: Decimal) -> None:
    assert found.total_usd == total
    assert sum(row.usd for row in found.rows) + found.unused_usd == total, found.by
    if found.by in {CostGroup.TRACK, CostGroup.POOL, CostGroup.WORKER, CostGroup.DAY}:
        assert sum(row.unused_usd for row in found.rows) == found.unused_usd, found.by


async def check_month(world: Month, start: datetime) -> None:
    ledgers = {by: await world.read(by, start) for by in CostGroup}
    total = ledgers[CostGroup.OWNER].total_usd
    assert abs(total - world.bill()) < Decimal("0.005"), "the cloud's bill, to the cent"
    for found in ledgers.values():
        check_groups(found, total)
    owners = {row.name: row.usd for row in ledgers[CostGroup.OWNER].rows}
    assert owners.keys() == {*OWNERS}
    assert min(owners.values()) > 0
    sessions = {row.name: row.usd for row in ledgers[CostGroup.SESSION].rows}
    for name, usd in sessions.items():
        one = await world.otto.get(Ref(LabletSession, name.partition("/")[2]))
        assert one is not None
        # Whoever outlives a machine that is taken back is told its cost before anybody has seen that.
        if "lent" not in name:
            assert one.status.cost_usd == usd.quantize(Decimal("0.0001")), "what the session itself says"
    classes = {row.name: row.usd for row in ledgers[CostGroup.CLASS].rows}
    for number in range(len(TEACHING_DAYS)):
        told = await world.otto.class_cost(Ref(Reservation, f"class-{number}"))
        assert (told.spent_usd, told.booked_usd) == (classes[f"default/class-{number}"], Decimal(0))


def check_variety(world: Month) -> None:
    """Check that the month had all that makes bills difficult."""
    now, machines = world.clock.now(), list(world.cloud.account.machines.values())
    spans = [(one, span) for one in machines for span in one.spans(now)]
    assert sum(span.state is RUNNING for _, span in spans) > len(machines), "some ran again after a stop"
    stopped = {one.tags["Name"] == EXTRA.name for one, span in spans if span.state is STOPPED}
    assert stopped == {True, False}, "the one that was paused, and one that was stopped by hand"
    reasons = Counter(change.reason for one in machines for change in one.all_changes())
    assert reasons[BY_HAND] > 0
    assert reasons[DIED] > 0
    assert reasons[TAKEN_BACK] == len(TEACHING_DAYS)


def test_the_ledger_is_the_clouds_bill_and_all_groups_add_up_to_it() -> None:
    async def month() -> None:
        world = Month()
        start = world.clock.now()
        assert world.core.promises is not None
        await world.found(cpu=8)
        await world.lend()
        async with beside(world.core.promises.calendar.run()):
            await play_month(world)
            await check_month(world, start)
        check_variety(world)

    with structlog.testing.capture_logs():
        run(month, horizon=40 * DAY)
