"""What must never happen to pools, in commits: each check finds it, and says nothing when all is right."""

import asyncio
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from harness import given
from lcm.model.base.resource import Owner
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.pool import Budget, LabWorkerPool, ScalingPolicy
from lcm.model.kinds.session import LabletSession, Seat
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.ledger import CostGroup, CostLedger, CostRow
from lcm.sim.time.loop import run
from world.checks.bills import UNBALANCED, ledger_is_the_bill, parts_add_up
from world.checks.places import ELSEWHERE, LENT
from world.checks.pools import CALM_GRACE, COOLDOWN, FLAPPING, HOURS, OVERSPENT, SIZE
from world.witnessed import Watched, judged

MINUTE = timedelta(minutes=1)
NOW = given.moment("08:00")
OWNER = Owner(kind="LabWorkerPool", name="ccna", uid="uid-ccna")
BY_LOAD = given.pool(
    policy=ScalingPolicy.CAPACITY_BASED, min_workers=0, max_workers=2, open_seats=(1,), load_up_at=NOW - 30 * MINUTE
)
TEMPLATE = given.template(price_per_hour_usd=Decimal(4))
CLOSED = AllowedHours(start_hour=9, end_hour=20)


def machine(number: int, **fields: object) -> LabWorker:
    """Return a worker of the pool, for one of its planned workers."""
    name = f"ccna-{number}"
    labels = {"lcm/seat": str(number)}
    return given.worker(name=name, uid=f"uid-{name}", owner=OWNER, labels=labels, **fields)


def booked(number: int = 1, **fields: object) -> LabletSession:
    return given.session(
        claim=given.claim(), seat=Seat(pool="ccna", number=number), created_at=NOW - 60 * MINUTE, **fields
    )


def grown(at: datetime = NOW) -> LabWorkerPool:
    return given.with_fields(BY_LOAD, {"open_seats": (1, 2), "load_up_at": at})


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ({}, grown(), []),
        ({}, grown(NOW - 30 * MINUTE), [COOLDOWN]),
        ({"load_up_at": NOW - 5 * MINUTE}, grown(), [COOLDOWN]),
        ({"load_down_at": NOW - 5 * MINUTE}, grown(), [COOLDOWN]),
        ({}, given.with_fields(BY_LOAD, {"open_seats": (), "load_down_at": NOW}), []),
        (
            {"load_up_at": NOW - 15 * MINUTE},
            given.with_fields(BY_LOAD, {"open_seats": (), "load_down_at": NOW}),
            [COOLDOWN],
        ),
        (
            {"load_up_at": NOW - 15 * MINUTE},
            given.with_fields(BY_LOAD, {"open_seats": (), "allowed_hours": CLOSED}),
            [],
        ),
        ({}, given.with_fields(grown(), {"allowed_hours": CLOSED}), [HOURS]),
    ],
)
def test_a_pool_changes_for_load_after_its_cooldown(
    before: dict[str, object], after: LabWorkerPool, wrong: list[str]
) -> None:
    def story(watched: Watched) -> None:
        known = given.with_fields(BY_LOAD, before)
        hours = {"generation": 2} if after.spec != known.spec else {}
        watched.known(known, TEMPLATE)
        watched.commit(given.with_fields(after, hours))

    assert judged(story) == wrong


def started(
    *workers: LabWorker, pool: LabWorkerPool = BY_LOAD, known: tuple[LabletSession | LabWorker, ...] = ()
) -> list[str]:
    """Let a pool start workers, one commit each, and return the rules that were broken."""

    def story(watched: Watched) -> None:
        watched.known(pool, TEMPLATE, *known)
        for one in workers:
            watched.commit(one)

    return judged(story)


def test_no_pool_has_more_than_its_maximum_but_for_promises() -> None:
    two = (machine(1), machine(2))
    assert started(*two) == []
    assert started(*two, machine(3)) == [SIZE]
    assert started(*two, machine(3), known=(booked(3),)) == []
    assert started(*two, given.with_fields(machine(1), {"name": "ccna-1-2", "uid": "uid-again"})) == [SIZE]


def test_a_closed_pool_starts_only_what_was_promised() -> None:
    pool = given.with_fields(BY_LOAD, {"allowed_hours": CLOSED})
    assert started(machine(1), pool=pool) == [HOURS]
    assert started(machine(1), pool=pool, known=(booked(1),)) == []
    assert started(machine(2), pool=pool, known=(booked(1),)) == [HOURS]


def test_load_stays_within_the_budget() -> None:
    pool = given.with_fields(BY_LOAD, {"budget": Budget(hourly_usd=Decimal(7))})
    assert started(machine(1), pool=pool) == []
    assert started(machine(1), machine(2), pool=pool) == [OVERSPENT]
    assert started(machine(1), machine(2), pool=pool, known=(booked(2),)) == []


def test_nothing_is_started_soon_after_a_stop_for_the_same_reason() -> None:
    def story(watched: Watched, booking: LabletSession) -> None:
        pool = given.with_fields(BY_LOAD, {"open_seats": ()})
        serving = machine(1, phase=WorkerPhase.READY)
        watched.known(pool, TEMPLATE, serving)
        watched.commit(given.with_fields(serving, {"wanted_state": "stopped", "generation": 2}))
        watched.known(booking)
        watched.commit(machine(2))

    assert judged(lambda watched: story(watched, booked(2)), calm=True) == [FLAPPING]
    assert judged(lambda watched: story(watched, booked(2))) == [], "something may have gone wrong"
    new = given.with_fields(booked(2), {"created_at": NOW + MINUTE})
    assert judged(lambda watched: story(watched, new), calm=True) == [], "it was booked after the stop"


def looked_at(*known: LabWorkerPool | LabWorker | LabletSession, for_: timedelta) -> list[str]:
    """Look every minute for a while in a calm world, and return the rules that were broken."""

    async def life() -> list[str]:
        watched = Watched(calm=True)
        watched.known(TEMPLATE, *known)
        for _ in range(for_ // MINUTE):
            await asyncio.sleep(60)
            watched.witness.check_minute()
        return list(dict.fromkeys(one.rule for one in watched.witness.violations))

    return run(life, start=NOW)


def test_a_pool_has_its_minimum_while_it_is_open_and_rests_while_it_is_closed() -> None:
    long = CALM_GRACE + 3 * MINUTE
    pool, up = given.pool(min_workers=1, phase="READY"), machine(1, phase=WorkerPhase.READY)
    shut = given.with_fields(pool, {"allowed_hours": CLOSED})
    assert looked_at(pool, for_=long) == [SIZE]
    assert looked_at(pool, for_=CALM_GRACE - MINUTE) == []
    assert looked_at(pool, up, for_=long) == []
    assert looked_at(shut, for_=long) == []
    assert looked_at(shut, up, for_=long) == [HOURS]
    assert looked_at(shut, up, booked(1), for_=long) == []


def test_a_session_is_where_it_may_be() -> None:
    def story(watched: Watched, worker: LabWorker, session: LabletSession) -> None:
        watched.known(worker, BY_LOAD, TEMPLATE, given.with_fields(session, {"worker_id": None}))
        watched.commit(session)

    here, lent = given.worker(), given.worker(aws={"market": "spot"})
    there = given.asap(worker_id="uid-w1", region_required="eu-west-1", created_at=NOW)
    willing = given.asap(worker_id="uid-w1", allow_spot=True, created_at=NOW)
    timed = given.session(worker_id="uid-w1", claim=given.claim())
    assert ELSEWHERE in judged(lambda watched: story(watched, here, there))
    assert LENT in judged(lambda watched: story(watched, lent, given.asap(worker_id="uid-w1", created_at=NOW)))
    assert LENT in judged(lambda watched: story(watched, lent, timed))
    assert not {LENT, ELSEWHERE} & {*judged(lambda watched: story(watched, lent, willing))}
    assert not {LENT, ELSEWHERE} & {*judged(lambda watched: story(watched, here, timed))}


def test_a_ledger_adds_up_to_the_bill_to_the_cent() -> None:
    def ledger(total: str, unused: str, *parts: str) -> CostLedger:
        rows = tuple(CostRow(name=str(n), usd=Decimal(one)) for n, one in enumerate(parts))
        usd = {"total_usd": Decimal(total), "unused_usd": Decimal(unused)}
        none = {"forecast_usd": Decimal(0), "forecast_unused_usd": Decimal(0)}
        times = {"since": NOW, "until": NOW, "as_of": NOW, "stays_since": None}
        return CostLedger(by=CostGroup.OWNER, unpriced_seconds=0, rows=rows, **usd, **none, **times)  # type: ignore[arg-type]

    assert parts_add_up(ledger("3", "1", "1.5", "0.5")) == []
    assert [one.rule for one in parts_add_up(ledger("3", "1", "1.5"))] == [UNBALANCED]
    assert ledger_is_the_bill(ledger("3", "3"), Decimal("3.004")) == ()
    assert [one.rule for one in ledger_is_the_bill(ledger("3", "3"), Decimal("3.006"))] == [UNBALANCED]
