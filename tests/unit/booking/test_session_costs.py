"""What a session costs: its share of its worker, for as long as it was on it, on each it was tried on."""

from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest

from harness import given
from harness.plane_world import NOW, Stage, service
from lcm.control.accounts.costs import CLOSED_PREFIX, open_key
from lcm.control.accounts.stays import capacity_of, cost_of_stay, make_stay
from lcm.control.objects.records import encode_checked
from lcm.model.base.capacity import Amount
from lcm.model.base.machine import LABLET_CONTROLLER
from lcm.model.base.resource import PhaseChange
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.billing import Billing, BillingInterval, to_usd
from lcm.store.base import Put

MACHINE = Amount(cpu_millis=48_000, memory_mb=196_608, storage_mb=250_000, nodes=200, ports=6000, labs=20)
QUARTER = Amount(cpu_millis=12_000, labs=1)
P = SessionPhase


def on_it(*phases: tuple[SessionPhase, int], need: Amount = QUARTER) -> LabletSession:
    """Return a session that came into each phase so many minutes ago."""
    history = tuple(
        PhaseChange(phase=phase, at=NOW - timedelta(minutes=ago), by="x", reason="") for phase, ago in phases
    )
    claim = msgspec.structs.replace(given.claim(), need=need)
    return given.session(phase=phases[-1][0], history=history, claim=claim, worker_id="uid-w1", outcome=P.COMPLETED)


def worker() -> LabWorker:
    return given.worker(capacity=MACHINE)


def billed(hours: float = 3, until: float | None = None, usd: int | None = 4) -> BillingInterval:
    """Return what a worker cost since so many hours ago."""
    return BillingInterval(
        worker_id="uid-w1",
        worker_name="w1",
        namespace="default",
        lab_track="",
        region="us-east-1",
        instance_type="m5zn.metal",
        instance_id="i-1",
        state=Billing.RUNNING,
        usd_hourly=None if usd is None else Decimal(usd),
        since=NOW - timedelta(hours=hours),
        until=None if until is None else NOW - timedelta(hours=until),
    )


def cost_of(session: LabletSession, on: LabWorker | None, bill: list[BillingInterval]) -> Decimal | None:
    """Return what a session that was alone on its worker pays."""
    found = cost_of_stay(make_stay(session, capacity_of(on, bill), NOW), bill, (), NOW)
    return None if found is None else to_usd(sum(found.values()))


@pytest.mark.parametrize(
    ("need", "cost"),
    [
        (Amount(cpu_millis=12_000, labs=1), "0.5000"),
        (Amount(memory_mb=98_304, labs=1), "1.0000"),
        (Amount(labs=1), "0.1000"),
        (Amount(cpu_millis=99_000, labs=1), "2.0000"),
    ],
)
def test_it_is_the_greatest_share_of_the_hours_on_the_worker(need: Amount, cost: str) -> None:
    session = on_it(
        (P.PENDING, 90), (P.SCHEDULED, 80), (P.INSTANTIATING, 30), (P.RUNNING, 25), (P.STOPPING, 1), need=need
    )
    assert cost_of(session, worker(), [billed()]) == Decimal(cost)


def test_only_the_last_worker_counts_from_when_it_came_onto_it() -> None:
    again = on_it((P.INSTANTIATING, 90), (P.STOPPING, 70), (P.PENDING, 65), (P.SCHEDULED, 60), (P.INSTANTIATING, 30))
    assert cost_of(again, worker(), [billed()]) == Decimal("0.5000")


def test_a_machine_that_is_gone_is_paid_for_until_it_went() -> None:
    session = on_it((P.INSTANTIATING, 180), (P.STOPPING, 50))
    assert cost_of(session, worker(), [billed(5, until=1)]) == Decimal("2.0000")
    assert cost_of(session, None, [billed(5, until=1)]) == Decimal("2.0000"), "by what its type has"
    disk = billed(1, usd=1)
    assert cost_of(session, worker(), [billed(5, until=1), disk]) == Decimal("2.2500")
    assert cost_of(session, worker(), []) is None
    assert cost_of(session, worker(), [billed(usd=None)]) is None


async def test_it_is_written_with_the_step_in_which_a_session_leaves_its_worker_and_adds_up_over_retries() -> None:
    stage = Stage()
    session = on_it((P.INSTANTIATING, 30), (P.STOPPING, 1))
    paid = msgspec.structs.replace(session.status, cost_usd=Decimal("0.2500"))
    session = msgspec.structs.replace(session, status=paid)
    found = await stage.put(session)
    await stage.put(worker())
    await stage.store.commit(Put(open_key("uid-w1"), encode_checked(billed())))
    plane = stage[service(LABLET_CONTROLLER)]
    done = await plane.step(found, msgspec.structs.replace(found.status, phase=P.COMPLETED))
    assert done.status.cost_usd == Decimal("0.7500")


async def test_the_bill_of_a_machine_that_is_gone_is_found() -> None:
    stage = Stage()
    found = await stage.put(on_it((P.INSTANTIATING, 180), (P.STOPPING, 50)))
    for number, ended in enumerate((9, 1)):
        key = f"{CLOSED_PREFIX}{NOW - timedelta(hours=ended):%Y%m%dT%H%M%S.%fZ}/uid-w1/{number:020d}"
        await stage.store.commit(Put(key, encode_checked(billed(10 - 4 * number, until=ended))))
    other = f"{CLOSED_PREFIX}{NOW:%Y%m%dT%H%M%S.%fZ}/uid-w2/{0:020d}"
    await stage.store.commit(Put(other, encode_checked(msgspec.structs.replace(billed(), worker_id="uid-w2"))))
    plane = stage[service(LABLET_CONTROLLER)]
    done = await plane.step(found, msgspec.structs.replace(found.status, phase=P.COMPLETED))
    assert done.status.cost_usd == Decimal("2.0000")
