"""The made-up cloud's bill: by the second, a minute at least, and the disk of what is stopped."""

from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from harness.clouds import HERE, THERE, Bill, SimPrices, make_bill
from harness.stores import HandClock
from lcm.sim.cloud.account import CloudBehaviour, LaunchOrder
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.machines import RUNNING, STOPPED, STOPPING, MachinePace, SimMachine
from lcm.sim.time.chance import Chance

ZERO = timedelta(0)
HOUR = timedelta(hours=1)
AT_ONCE = CloudBehaviour(
    paces={"x.large": MachinePace(ZERO, ZERO, ZERO, ZERO), "slow.large": MachinePace(HOUR, ZERO, HOUR, HOUR)}
)
PRICES = SimPrices(
    hourly={(HERE, "x.large"): Decimal("3.60"), (THERE, "x.large"): Decimal("7.20"), (HERE, "slow.large"): Decimal(1)},
    disk_gb_hourly={HERE: Decimal("0.001")},
)


class Till:
    """A cloud with prices, and a clock to set."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.cloud = SimCloud(self.clock, Chance(1), nature=AT_ONCE)
        self.account = self.cloud.account

    def run(self, kind: str = "x.large", region: str = HERE) -> SimMachine:
        return self.account.run(LaunchOrder(region, kind, "ami-1", disk_gb=250))

    def bill(self, until: datetime | None = None) -> Bill:
        return make_bill(self.account.machines.values(), PRICES, until or self.clock.now())


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.mark.parametrize(
    ("ran", "usd"),
    [
        (timedelta(seconds=1), "0.06"),
        (timedelta(seconds=60), "0.06"),
        (timedelta(seconds=61), "0.061"),
        (timedelta(seconds=61.2), "0.062"),
        (timedelta(hours=2), "7.2"),
    ],
)
def test_a_run_costs_its_seconds_and_a_minute_at_least(till: Till, ran: timedelta, usd: str) -> None:
    made = till.run()
    till.clock.moment += ran
    assert till.bill().usd == Decimal(usd), "while it runs"
    till.account.terminate(HERE, made.instance_id)
    till.clock.step(days=1)
    assert till.bill().usd == Decimal(usd), "ever after"


def test_every_start_costs_a_minute_at_least(till: Till) -> None:
    made = till.run()
    for _ in range(3):
        till.clock.step(seconds=10)
        till.account.stop(HERE, made.instance_id)
        till.account.start(HERE, made.instance_id)
    till.clock.step(seconds=10)
    assert till.bill().usd == 4 * Decimal("0.06")


def test_a_stopped_machine_costs_its_disk(till: Till) -> None:
    made = till.run()
    till.clock.step(hours=1)
    till.account.stop(HERE, made.instance_id)
    till.clock.step(hours=4)
    line = till.bill().lines[made.instance_id]
    assert [(one.state, one.billed, one.usd) for one in line.intervals if one.billed] == [
        (RUNNING, HOUR, Decimal("3.6")),
        (STOPPED, 4 * HOUR, Decimal("1.000")),
    ]
    till.account.terminate(HERE, made.instance_id)
    till.clock.step(hours=4)
    assert till.bill().usd == line.usd == Decimal("4.6")


def test_booting_and_ending_cost_nothing_and_stopping_costs_the_disk(till: Till) -> None:
    made = till.run("slow.large")
    boot, stop = made.pace.boot, made.pace.stop
    till.clock.moment += boot
    assert till.bill().usd == 0
    till.clock.step(hours=2)
    till.account.stop(HERE, made.instance_id)
    till.clock.moment += stop
    states = {one.state: one.until - one.since for one in till.bill().lines[made.instance_id].intervals}
    assert states == {RUNNING: 2 * HOUR, STOPPING: stop}
    till.account.terminate(HERE, made.instance_id)
    before = till.bill().usd
    till.clock.step(hours=9)
    assert till.bill().usd == before


def test_a_machine_ended_before_it_ran_costs_nothing(till: Till) -> None:
    made = till.run("slow.large")
    till.clock.step(minutes=10)
    till.account.terminate(HERE, made.instance_id)
    till.clock.step(hours=9)
    assert till.bill().usd == 0


def test_a_machine_that_died_costs_until_then(till: Till) -> None:
    made = till.run()
    till.account.die(HERE, made.instance_id, till.clock.now() + HOUR)
    till.clock.step(hours=9)
    assert till.bill().usd == Decimal("3.6")


def test_prices_differ_by_region_and_unknown_ones_have_a_default(till: Till) -> None:
    here, there, other = till.run(), till.run(region=THERE), till.run("y.large")
    till.clock.step(hours=10)
    lines = till.bill().lines
    assert (lines[here.instance_id].usd, lines[there.instance_id].usd) == (Decimal(36), Decimal(72))
    assert 0 < lines[other.instance_id].usd < Decimal("3.9641") * 10


def test_a_bill_until_a_moment_knows_nothing_of_what_came_after(till: Till) -> None:
    made = till.run()
    till.clock.step(hours=1)
    then, before = till.clock.now(), till.bill()
    till.clock.step(hours=1)
    till.account.terminate(HERE, made.instance_id)
    assert till.bill(then) == before
    assert till.bill(made.changes[0].at).usd == 0
