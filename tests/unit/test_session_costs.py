"""What a session costs: its share of its worker, for as long as it was on it, on each it was tried on."""

from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest

import given
from backstage import NOW, Stage, service
from lcm.control.billing import open_key
from lcm.control.records import written
from lcm.control.session_costs import cost_of
from lcm.model.billing import Billing, BillingInterval
from lcm.model.capacity import Amount
from lcm.model.machine import LABLET_CONTROLLER
from lcm.model.resource import PhaseChange
from lcm.model.session import LabletSession, SessionPhase
from lcm.model.worker import LabWorker
from lcm.store.base import Put

MACHINE = Amount(cpu_millis=48_000, memory_mb=196_608, storage_mb=250_000, nodes=200, ports=6000, labs=20)
QUARTER = Amount(cpu_millis=12_000, labs=1)
P = SessionPhase


def on_it(*phases: tuple[SessionPhase, int], need: Amount = QUARTER) -> LabletSession:
    """Give a session that came into each phase so many minutes ago."""
    history = tuple(
        PhaseChange(phase=phase, at=NOW - timedelta(minutes=ago), by="x", reason="") for phase, ago in phases
    )
    claim = msgspec.structs.replace(given.claim(), need=need)
    return given.session(phase=phases[-1][0], history=history, claim=claim, worker_id="uid-w1", outcome=P.COMPLETED)


def worker() -> LabWorker:
    return given.worker(capacity=MACHINE)


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
    assert cost_of(session, worker(), Decimal(4), NOW) == Decimal(cost)


def test_only_the_last_worker_counts_from_when_it_came_onto_it() -> None:
    again = on_it((P.INSTANTIATING, 90), (P.STOPPING, 70), (P.PENDING, 65), (P.SCHEDULED, 60), (P.INSTANTIATING, 30))
    assert cost_of(again, worker(), Decimal(4), NOW) == Decimal("0.5000")


async def test_it_is_written_with_the_step_in_which_a_session_leaves_its_worker_and_adds_up_over_retries() -> None:
    stage = Stage()
    session = on_it((P.INSTANTIATING, 30), (P.STOPPING, 1))
    paid = msgspec.structs.replace(session.status, cost_usd=Decimal("0.2500"))
    session = msgspec.structs.replace(session, status=paid)
    found = await stage.put(session)
    await stage.put(worker())
    interval = BillingInterval(
        worker_id="uid-w1",
        worker_name="w1",
        namespace="default",
        lab_track="",
        region="us-east-1",
        instance_type="m5zn.metal",
        instance_id="i-1",
        state=Billing.RUNNING,
        usd_hourly=Decimal(4),
        since=NOW - timedelta(hours=3),
    )
    await stage.store.commit(Put(open_key("uid-w1"), written(interval)))
    plane = stage[service(LABLET_CONTROLLER)]
    done = await plane.step(found, msgspec.structs.replace(found.status, phase=P.COMPLETED))
    assert done.status.cost_usd == Decimal("0.7500")
