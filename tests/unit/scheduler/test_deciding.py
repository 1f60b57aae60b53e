"""What a session needs of the scheduler, phase by phase. Pure."""

from datetime import datetime
from itertools import product

import pytest

from harness import given
from harness.scheduler_world import booting, serving
from lcm.controllers.runtime.lifecycle import Report, Wait
from lcm.controllers.runtime.reconcile import DONE, requeue_at
from lcm.controllers.scheduler.sessions import Bind, SchedulerFacts, decide, is_worker_lost, rest_of
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.resource import Truth
from lcm.model.kinds.session import (
    SESSION_MACHINE,
    LabletSession,
    LabletSessionStatus,
    Seat,
    SessionCondition,
    SessionPhase,
)
from lcm.model.kinds.worker import LabWorker, WorkerPhase

_P = SessionPhase
START, END = given.moment("08:45"), given.moment("11:00")
SLOT = {"expires_at": END, "ends_at": END, "claim": given.claim("08:45", "11:10"), "seat": Seat(pool="ccna", number=1)}
ON: dict[str, object] = {"worker_id": "uid-w1", "worker_name": "w1", "allocated_ports": {}}


def slot(**fields: object) -> LabletSession:
    return given.session(**SLOT | fields)


def at(clock: str) -> datetime:
    return given.moment(clock)


def moved(facts: SchedulerFacts) -> Report[LabletSessionStatus]:
    decision = decide(facts)
    assert isinstance(decision, Report)
    return decision


def test_every_move_is_a_step_of_the_table_whatever_is_known() -> None:
    phases = (WorkerPhase.STARTING, WorkerPhase.READY, WorkerPhase.DRAINING, WorkerPhase.FAILED)
    workers: list[LabWorker | None] = [None, *(serving(phase=phase) for phase in phases)]
    moments = [at("08:00"), START, END, at("15:00")]
    made: list[dict[str, object]] = [{}, {"claim": None, "seat": None}, ON, {**ON, "seat": None}]
    moves = 0
    for phase, fields, worker, now, retries, asap in product(_P, made, workers, moments, (0, 5), (False, True)):
        session = (given.asap if asap else given.session)(**SLOT | fields, phase=phase, retry_count=retries)
        if phase is _P.SCHEDULED and session.status.claim is None:
            continue
        for defined in (True, False):
            decision = decide(SchedulerFacts(session, now, defined, worker, worker))
            if isinstance(decision, Report):
                SESSION_MACHINE.check_step(phase, decision.status.phase, by=SCHEDULER, status=decision.status)
                moves += 1
            elif isinstance(decision, Wait) and decision.until is not None:
                assert decision.until > now, "what is due is done"
    assert moves > 500


@pytest.mark.parametrize("phase", [_P.PENDING, _P.SCHEDULED])
def test_what_missed_its_time_expires(phase: SessionPhase) -> None:
    assert moved(SchedulerFacts(slot(phase=phase), END)).status.phase is _P.EXPIRED
    before = decide(SchedulerFacts(slot(phase=phase, **ON), at("10:59"), worker=serving()))
    assert before == Wait(END) or isinstance(before, Report)


def test_lesson_22_the_same_facts_lead_to_the_same_step_however_late() -> None:
    late = [
        decide(SchedulerFacts(slot(phase=_P.SCHEDULED), now, seat_worker=serving())) for now in (START, at("09:30"))
    ]
    assert late == [Bind(serving())] * 2


def test_nothing_is_bound_before_its_time_or_to_a_worker_that_boots() -> None:
    seated = slot(phase=_P.SCHEDULED)
    assert decide(SchedulerFacts(seated, at("08:44"), seat_worker=serving())) == Wait(START)
    assert decide(SchedulerFacts(seated, START, seat_worker=booting())) == Wait(END)
    assert decide(SchedulerFacts(seated, START)) == Wait(END)


def test_a_slot_off_its_worker_keeps_claim_and_seat_and_others_do_not() -> None:
    back = moved(SchedulerFacts(slot(phase=_P.SCHEDULED, **ON), START, worker=serving(phase=WorkerPhase.FAILED))).status
    assert (back.phase, back.claim, back.seat) == (_P.PENDING, SLOT["claim"], SLOT["seat"])
    assert (back.worker_id, back.allocated_ports) == (None, None)
    back = moved(SchedulerFacts(given.asap(**SLOT, **ON, phase=_P.SCHEDULED), START)).status
    assert (back.claim, back.seat) == (None, None)


def test_a_slot_that_only_its_worker_kept_is_at_risk_from_the_moment_that_is_lost() -> None:
    def conditions(**fields: object) -> set[str]:
        status = moved(SchedulerFacts(slot(phase=_P.SCHEDULED, **ON | fields), at("08:00"))).status
        return {one.type for one in status.conditions if one.status is Truth.TRUE}

    assert conditions(seat=None) == {SessionCondition.AT_RISK}
    assert conditions() == set(), "its seat is its own"


def test_what_is_wanted_soon_and_cannot_begin_in_time_gets_another_claim() -> None:
    fields = {**ON, "phase": _P.SCHEDULED, "claim": given.claim("09:00", "11:25"), "expires_at": None}
    soon = given.asap(**SLOT | fields)
    assert decide(SchedulerFacts(soon, at("09:05"), worker=serving())) == Wait(at("09:15")), (
        "two hours and the clean-up are left"
    )
    back = moved(SchedulerFacts(soon, at("09:15"), worker=serving()))
    assert (back.status.phase, back.status.claim, back.status.worker_id) == (_P.PENDING, None, None)
    assert "in time" in back.reason
    assert decide(SchedulerFacts(slot(**fields), at("09:15"), worker=serving())) == Wait(), "a slot keeps its promise"
    short = given.asap(**SLOT | fields | {"claim": given.claim("09:00", "09:30")})
    assert decide(SchedulerFacts(short, at("09:00"), worker=serving())) == Wait(at("09:01")), (
        "it has time to begin at all"
    )


def test_nothing_is_decided_of_what_rests_until_it_wakes() -> None:
    for phase in set(_P) - {_P.PENDING, _P.SCHEDULED}:
        assert rest_of(slot(phase=phase), START) == DONE
    promised = slot(phase=_P.SCHEDULED)
    assert promised.status.claim is not None
    assert rest_of(promised, at("08:00")) == requeue_at(promised.status.claim.start, at("08:00"))
    assert rest_of(promised, START) is None
    assert rest_of(slot(phase=_P.SCHEDULED, **ON), at("08:00")) is None, "its worker may be lost"
    assert rest_of(slot(phase=_P.PENDING), at("08:00")) is None


def test_a_worker_is_lost_once_nothing_can_be_begun_on_it() -> None:
    assert is_worker_lost(None)
    assert is_worker_lost(serving(wanted_state="stopped"))
    assert is_worker_lost(serving(deletion_timestamp=START))
    assert not is_worker_lost(serving())
    assert not is_worker_lost(serving(phase=WorkerPhase.LICENSING))
    assert {phase for phase in WorkerPhase if is_worker_lost(serving(phase=phase))} == {
        WorkerPhase.DRAINING,
        WorkerPhase.UNLICENSING,
        WorkerPhase.STOPPING,
        WorkerPhase.STOPPED,
        WorkerPhase.TERMINATING_EC2,
        WorkerPhase.TERMINATED,
        WorkerPhase.FAILED,
    }
