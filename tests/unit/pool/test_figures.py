"""A pool's figures, boots, conditions and complaints, each from what was seen."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harness import given
from lcm.controllers.pool.demand import plan
from lcm.controllers.pool.effects import AppliedPlan
from lcm.controllers.pool.index import PoolClaims, SeatClaim
from lcm.controllers.pool.phases import describe_conditions, next_phase, retry_at
from lcm.controllers.pool.report import (
    MeasuredBoot,
    count_by_phase,
    find_alerts,
    find_boots,
    measure_boots,
    stops_for_load,
    summarize_capacity,
)
from lcm.controllers.pool.view import PoolView
from lcm.model.base.resource import Condition, PhaseChange, Truth
from lcm.model.kinds.pool import PoolCondition, PoolPhase, ScalingDecision
from lcm.model.kinds.worker import CmlSpec, LabWorker, WorkerCondition, WorkerPhase
from lcm.placement.claims import Terms
from lcm.placement.limits import LOAD_LIMITS
from lcm.placement.request import HeldClaim
from lcm.placement.scaling import PoolLoad

NOW = given.moment("10:00")
P = WorkerPhase
LICENSED = CmlSpec(license_token="env:CML_LICENSE_TOKEN")


def story(*lines: tuple[str, str]) -> tuple[PhaseChange, ...]:
    return tuple(PhaseChange(phase=phase, at=given.moment(clock), by="test") for clock, phase in lines)


def serving(name: str, **fields: Any) -> LabWorker:
    accepts = Condition(type=WorkerCondition.ACCEPTING_LABS, status=Truth.TRUE, last_transition_at=NOW)
    usual = {"phase": P.READY, "conditions": (accepts,), "capacity": given.machine(), "uid": name}
    return given.worker(name=name, **usual | fields)


def view(*workers: LabWorker, **fields: Any) -> PoolView:
    claims = fields.pop("claims", ())
    sessions = fields.pop("sessions", {})
    pool = given.pool(**{"phase": PoolPhase.READY, "min_workers": 0} | fields)
    return PoolView(pool, given.template(), NOW, Terms(), PoolClaims(claims), workers, sessions=sessions)


LAUNCH = story(
    ("09:00", "PENDING"),
    ("09:01", "PROVISIONING_EC2"),
    ("09:03", "EC2_READY"),
    ("09:03:10", "STARTING"),
    ("09:10", "READY_UNLICENSED"),
    ("09:10:01", "LICENSING"),
    ("09:11", "READY"),
)


def test_a_boot_lasts_from_leaving_its_rest_to_serving() -> None:
    licensed = given.worker(cml=LICENSED, history=LAUNCH)
    assert list(find_boots(licensed)) == [MeasuredBoot(given.moment("09:11"), 600)]
    assert list(find_boots(given.worker(history=LAUNCH))) == [MeasuredBoot(given.moment("09:10"), 540)]


def test_a_resume_is_a_boot_and_a_return_from_a_session_is_none() -> None:
    lines = story(("09:20", "ACTIVE"), ("09:30", "READY"), ("09:31", "STOPPING"), ("09:35", "STOPPED"))
    again = story(("09:40", "STARTING"), ("09:44", "READY_UNLICENSED"), ("09:44", "LICENSING"), ("09:45", "READY"))
    worker = given.worker(cml=LICENSED, history=LAUNCH + lines + again)
    assert [boot.seconds for boot in find_boots(worker)] == [600, 300]


def test_a_boot_that_failed_on_the_way_is_not_measured() -> None:
    lines = story(("09:00", "PENDING"), ("09:01", "PROVISIONING_EC2"), ("09:11", "FAILED"), ("09:12", "STARTING"))
    assert list(find_boots(given.worker(history=lines + story(("09:20", "READY"))))) == []


def test_a_machine_that_is_adopted_running_was_not_booted_by_us() -> None:
    lines = story(("09:00", "PENDING"), ("09:01", "EC2_READY"), ("09:01", "STARTING"), ("09:01:30", "READY"))
    assert [boot.seconds for boot in find_boots(given.worker(history=lines))] == []


def test_each_boot_is_counted_once_and_the_newest_hundred_are_kept() -> None:
    worker = given.worker(history=LAUNCH)
    seconds, until = measure_boots(view(worker, boot_seconds=tuple(range(100))))
    assert seconds == (*range(1, 100), 540)
    assert until == given.moment("09:10")
    assert measure_boots(view(worker, boot_seconds=seconds, boots_counted_until=until)) == (seconds, until)


def test_a_boot_of_a_moment_ago_is_counted_a_moment_later() -> None:
    fresh = given.worker(history=(*LAUNCH[:4], *story(("09:59:55", "READY"))))
    assert measure_boots(view(fresh)) == ((), None)


def test_workers_are_added_up() -> None:
    booting, over = (
        given.worker(name="b", uid="b", phase=P.STARTING),
        given.worker(name="o", uid="o", phase=P.TERMINATED),
    )
    stopped = given.worker(name="s", uid="s", phase=P.STOPPED, wanted_state="stopped")
    workers = [serving("a"), booting, stopped, over]
    claims = (
        SeatClaim(1, HeldClaim("default/s1", given.claim())),
        SeatClaim(1, HeldClaim("default/s2", given.claim("12:00", "13:00"))),
    )
    seen = summarize_capacity(view(*workers, claims=claims, sessions={"a": 2}), workers)
    assert (seen.workers, seen.ready_workers, seen.booting_workers, seen.labs) == (3, 1, 1, 2)
    assert seen.declared == given.machine()
    assert seen.claimed == given.amount()
    assert count_by_phase(workers) == {"STARTING": 1, "READY": 1, "STOPPED": 1, "TERMINATED": 1}


def said(seen: PoolView) -> dict[str, tuple[Truth, str]]:
    return {name: (truth, reason) for name, truth, reason, _ in describe_conditions(seen, plan(seen), "")}


def test_conditions_say_what_is_missing() -> None:
    assert said(view())[PoolCondition.READY] == (Truth.TRUE, "SeatsFilled")
    assert said(view(min_workers=1))[PoolCondition.READY] == (Truth.FALSE, "Booting")
    assert said(view())[PoolCondition.CAPACITY_KNOWN] == (Truth.TRUE, "Known")
    odd = given.template(worker={"aws": {"instance_type": "x9.odd"}})
    unknown = PoolView(given.pool(), odd, NOW, Terms())
    assert said(unknown)[PoolCondition.CAPACITY_KNOWN] == (Truth.FALSE, "UnknownType")


def test_a_pool_that_failed_is_tried_again_a_few_times() -> None:
    once = story(("08:00", "READY"), ("09:50", "FAILED"))
    assert retry_at(view(phase=PoolPhase.FAILED, history=once)) == given.moment("10:05")
    often = story(*((f"0{hour}:00", "FAILED") for hour in range(4, 10)))
    assert retry_at(view(phase=PoolPhase.FAILED, history=often)) is None


def test_scaling_up_ends_after_an_hour_though_a_worker_is_still_missing() -> None:
    begun = story(("09:00", "SCALING_UP"))
    late = view(min_workers=1, phase=PoolPhase.SCALING_UP, history=begun)
    next_ = next_phase(late, plan(late))
    assert next_.phase is PoolPhase.READY
    assert "no machine after an hour" in next_.reason


OVERDUE = {
    PoolPhase.SCALING_DOWN: "ccna has been SCALING_DOWN for 6 hours: its workers are not seen gone",
    PoolPhase.DRAINING: "ccna has been DRAINING for 6 hours: sessions are on its workers whose time is over",
    PoolPhase.TERMINATING: "ccna has been TERMINATING for 6 hours: its workers are not seen gone",
}


def test_a_drain_that_brings_machines_above_the_maximum_is_complained_of_until_it_ends() -> None:
    drained = serving("w1", phase=P.DRAINING, drain_deadline_at=given.moment("14:00"))
    (complaint,) = find_alerts(view(drained, serving("w2"), serving("w3"), max_workers=2), "")
    assert (complaint.alert, complaint.reason) == ("PoolAboveMaximum", "Drain")
    assert complaint.message.startswith("ccna runs 3 machines, and its max_workers is 2: w1 being drained, until")
    assert "until 2026-11-02 14:00Z at the latest, and then stopped" in complaint.message
    stopped = serving("w1", phase=P.STOPPED)
    assert find_alerts(view(stopped, serving("w2"), serving("w3"), max_workers=2), "") == []
    assert find_alerts(view(drained, serving("w2"), max_workers=2), "") == []


@pytest.mark.parametrize(("phase", "text"), OVERDUE.items(), ids=str)
def test_what_takes_too_long_is_complained_of(phase: PoolPhase, text: str) -> None:
    seen = view(phase=phase, history=(PhaseChange(phase=phase, at=NOW - timedelta(hours=6), by="test"),))
    (complaint,) = find_alerts(seen, "")
    assert (complaint.alert, complaint.message) == ("PoolOverdue", text)
    fresh = view(phase=phase, history=(PhaseChange(phase=phase, at=NOW, by="test"),))
    assert find_alerts(fresh, "") == []


def decision(clock: str, action: Any, why: str) -> ScalingDecision:
    at = given.moment(clock)
    return ScalingDecision(at=at, action=action, reason="", workers_before=1, workers_after=1, why=why, workers=("w1",))


@pytest.mark.parametrize(
    ("story", "flaps"),
    [
        ([("09:30", "scale_down", "released"), ("09:39", "scale_up", "booked")], True),
        ([("09:30", "scale_down", "released"), ("09:41", "scale_up", "booked")], False),
        ([("09:30", "scale_down", "idle"), ("09:39", "scale_up", "booked")], False),  # for another reason
        ([("09:30", "scale_down", "failed"), ("09:31", "scale_up", "booked")], False),
        ([("08:30", "scale_down", "idle"), ("08:31", "scale_up", "waiting")], False),  # over for long
    ],
)
def test_a_worker_that_starts_within_a_cooldown_of_a_stop_for_the_same_reason_is_flapping(
    story: list[tuple[str, Any, str]], *, flaps: bool
) -> None:
    found = find_alerts(view(decisions=tuple(decision(*one) for one in story)), "")
    assert [one.alert for one in found] == ["PoolFlapping"] * flaps


def test_a_pool_at_its_maximum_while_people_wait_raises_an_alert() -> None:
    it = view()
    for facts, raised in (({"waiting": 1}, True), ({}, False), ({"waiting": 1, "closed": "paused"}, False)):
        load = PoolLoad(it.pool.spec.policy, NOW, most=3, current=3, **facts)
        assert [one.alert for one in find_alerts(it, "", load)] == ["PoolAtMaximum"] * raised


@pytest.mark.parametrize("why", ["idle", *LOAD_LIMITS])
def test_a_cooldown_begins_when_a_worker_stops_that_load_has_given_up_for_whatever_limit(why: str) -> None:
    done = AppliedPlan(removed=[serving("w1")])
    given_up = ScalingDecision(
        at=NOW, action="scale_down", reason="it yields", workers_before=2, workers_after=1, why=why
    )
    assert stops_for_load([given_up], done)
    assert not stops_for_load([msgspec.structs.replace(given_up, why="hours")], done)
