"""The state machines: one proof that all of them are sound, and how a step is allowed or refused."""

from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from harness import given
from lcm.model.base.errors import IllegalStep
from lcm.model.base.machine import (
    CONTROL_PLANE,
    LABLET_CONTROLLER,
    POOL_CONTROLLER,
    SCHEDULER,
    USER,
    WORKER_CONTROLLER,
    PhaseLimit,
    PhaseStep,
    StateMachine,
)
from lcm.model.base.resource import PhaseChange, Status
from lcm.model.kinds.registry import KINDS, STATE_MACHINES
from lcm.model.kinds.reservation import RESERVATION_MACHINE
from lcm.model.kinds.reservation import ReservationPhase as R
from lcm.model.kinds.session import ON_WORKER_PHASES, SESSION_MACHINE, LabletSessionStatus
from lcm.model.kinds.session import SessionPhase as S
from lcm.model.kinds.worker import HOSTING_PHASES, CmlFacts, Ec2Facts, LabWorkerStatus
from lcm.model.kinds.worker import WorkerPhase as W
from lcm.model.kinds.worker_machine import WORKER_MACHINE

RESTING = {
    "LabWorker": {
        "PENDING": "nothing was asked of the cloud yet",
        "READY_UNLICENSED": "a licence may never come",
        "READY": "waits for labs",
        "ACTIVE": "lasts as long as its sessions",
        "STOPPED": "paused",
        "FAILED": "retries are counted, not timed; then a person must help",
    },
    "LabWorkerPool": {
        "PENDING": "waits for its template",
        "READY": "the life of a pool",
        "FAILED": "retries are counted, not timed; then a person must help",
    },
    "LabletSession": {},
    "Reservation": {},
}
"""Phases that may last for ever, and why. Every other one has a time limit."""

ACTORS = {USER, CONTROL_PLANE, SCHEDULER, WORKER_CONTROLLER, LABLET_CONTROLLER, POOL_CONTROLLER}
PHASES = {
    "LabWorker": "PENDING PROVISIONING_EC2 EC2_READY STARTING READY_UNLICENSED LICENSING READY ACTIVE DRAINING "
    "UNLICENSING STOPPING TERMINATING_EC2 TERMINATED STOPPED FAILED",
    "LabWorkerPool": "PENDING INITIALIZING READY SCALING_UP SCALING_DOWN DRAINING TERMINATING TERMINATED FAILED",
    "LabletSession": "PENDING SCHEDULED INSTANTIATING RUNNING COLLECTING STOPPING COMPLETED FAILED TERMINATED EXPIRED",
}
"""The names users see; they are contract."""

MAIN_PATHS = {
    "LabWorker": "PENDING PROVISIONING_EC2 EC2_READY STARTING READY_UNLICENSED LICENSING READY ACTIVE READY ACTIVE "
    "DRAINING UNLICENSING STOPPING TERMINATING_EC2 TERMINATED",
    "LabWorkerPool": "PENDING INITIALIZING READY SCALING_UP READY SCALING_DOWN READY DRAINING TERMINATING TERMINATED",
    "LabletSession": "PENDING SCHEDULED INSTANTIATING RUNNING COLLECTING STOPPING COMPLETED",
    "Reservation": "PENDING PROMISED ACTIVE COMPLETED",
}


@pytest.mark.parametrize("machine", STATE_MACHINES, ids=lambda machine: machine.name)
def test_a_machine_is_sound(machine: StateMachine[Any]) -> None:
    ways = {(step.source, step.target) for step in machine.steps}
    limited = {limit.phase for limit in machine.limits}
    status = get_type_hints(KINDS[machine.name].struct)["status"]
    assert reached({machine.initial}, ways) == set(machine.phases), "every phase can be reached"
    back = {(target, source) for source, target in ways}
    assert reached(set(machine.final), back) == set(machine.phases), "every phase can reach an end"
    assert not {source for source, _ in ways} & machine.final, "an end is an end"
    assert all(source is not target for source, target in ways), "a step changes the phase"
    rows = [(step.source, step.target, step.by) for step in machine.steps]
    assert len(rows) == len(set(rows)), "one row for one actor's step"
    assert {step.by for step in machine.steps} <= ACTORS
    assert all(step.why for step in machine.steps)
    assert all(limit.why for limit in machine.limits)
    assert len(limited) == len(machine.limits), "one limit a phase"
    assert {(one.phase, one.target) for one in machine.limits if one.target} <= ways, "limits lead to real steps"
    resting = set(RESTING[machine.name])
    assert limited | resting == set(machine.phases) - machine.final, "a phase has a limit, rests on purpose, or ends"
    assert not limited & resting
    assert all(one.after > timedelta() for one in machine.limits if isinstance(one.after, timedelta))
    for step in machine.steps:
        paths = [path for need in (*step.needs, *step.bars, *dict(step.equals)) for path in need.split("|")]
        assert all(leads_somewhere(status, path) for path in paths), step
    for limit in machine.limits:
        assert isinstance(limit.after, timedelta) or leads_somewhere(status, limit.after), limit


def reached(start: set[StrEnum], ways: set[tuple[StrEnum, StrEnum]]) -> set[StrEnum]:
    found, fresh = set[StrEnum](), start
    while fresh:
        found |= fresh
        fresh = {target for source, target in ways if source in fresh} - found
    return found


def leads_somewhere(hint: Any, path: str) -> bool:
    """Return whether a dotted path names a field of a struct."""
    name, _, rest = path.partition(".")
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    if not (isinstance(hint, type) and issubclass(hint, msgspec.Struct) and name in hint.__struct_fields__):
        return False
    return not rest or leads_somewhere(get_type_hints(hint)[name], rest)


def test_the_proof_sees_a_misspelt_need() -> None:
    status = get_type_hints(KINDS["LabWorker"].struct)["status"]
    assert leads_somewhere(status, "ec2.instance_id")
    assert not leads_somewhere(status, "ec2.instanceid")
    assert not leads_somewhere(status, "ec3.instance_id")
    assert not leads_somewhere(status, "last_error.text")


@pytest.mark.parametrize("kind", PHASES)
def test_phases_are_spelled_as_users_know_them(kind: str) -> None:
    machine = KINDS[kind].machine
    assert machine is not None
    assert {str(phase) for phase in machine.phases} == set(PHASES[kind].split())
    assert all(phase.name == phase.value for phase in machine.phases)


@pytest.mark.parametrize("kind", MAIN_PATHS)
def test_the_main_path_of_a_life_is_in_the_table(kind: str) -> None:
    machine = KINDS[kind].machine
    assert machine is not None
    path = [type(machine.initial)(name) for name in MAIN_PATHS[kind].split()]
    assert path[0] is machine.initial
    assert path[-1] in machine.final
    missing = [f"{a} -> {b}" for a, b in pairwise(path) if not machine.find(a, b)]
    assert not missing


@pytest.mark.parametrize("phase", [S.PENDING, S.SCHEDULED])
def test_a_missed_slot_can_expire(phase: S) -> None:
    assert SESSION_MACHINE.find(phase, S.EXPIRED)
    assert [limit.target for limit in SESSION_MACHINE.limits if limit.phase is phase] == [S.EXPIRED]


def test_while_anything_is_on_a_worker_every_end_goes_through_stopping() -> None:
    steps = [step for step in SESSION_MACHINE.steps if step.by != CONTROL_PLANE]  # another session takes a lab over
    ends = {step.source for step in steps if step.target in SESSION_MACHINE.final}
    assert ends & ON_WORKER_PHASES == {S.STOPPING}
    assert {step.target for step in SESSION_MACHINE.steps if step.source is S.STOPPING} == {
        *SESSION_MACHINE.final,
        S.PENDING,
    }


def test_the_end_of_a_slot_collects_before_it_stops() -> None:
    (limit,) = (one for one in SESSION_MACHINE.limits if one.phase is S.RUNNING)
    assert limit.target is S.COLLECTING


def test_a_drain_can_be_cancelled() -> None:
    assert all(WORKER_MACHINE.find(W.DRAINING, phase) for phase in (W.READY, W.ACTIVE, W.READY_UNLICENSED))


def test_a_worker_hosts_nothing_before_cml_is_ready() -> None:
    assert {W.READY_UNLICENSED, W.READY, W.ACTIVE} == HOSTING_PHASES


def test_a_worker_is_terminated_only_when_its_instance_was_seen_gone_or_never_was() -> None:
    unproved = {step.source for step in WORKER_MACHINE.steps if step.target is W.TERMINATED and not step.needs}
    assert unproved == {W.PENDING, W.FAILED}


@pytest.mark.parametrize(
    ("phase", "minutes", "target"),
    [
        (W.PROVISIONING_EC2, 10, W.FAILED),
        (W.STARTING, 15, W.FAILED),
        (W.TERMINATING_EC2, 5, None),
    ],
)
def test_the_documented_limits_of_a_worker_hold(phase: W, minutes: int, target: W | None) -> None:
    (limit,) = (one for one in WORKER_MACHINE.limits if one.phase is phase)
    assert (limit.after, limit.target) == (timedelta(minutes=minutes), target)


class Light(StrEnum):
    RED = "RED"
    GREEN = "GREEN"
    OFF = "OFF"


class Lamp(Status):
    code: str = ""
    proofs: tuple[str, ...] = ()
    parts: dict[str, int] | None = None
    amount: int | None = None
    detail: Status | None = None


LIGHT = StateMachine(
    name="Light",
    initial=Light.RED,
    final=frozenset({Light.OFF}),
    steps=(
        PhaseStep(Light.RED, Light.GREEN, SCHEDULER, "it is time", ("code|amount", "proofs")),
        PhaseStep(Light.GREEN, Light.OFF, CONTROL_PLANE, "asked for"),
        PhaseStep(Light.GREEN, Light.OFF, SCHEDULER, "late", ("detail.history",)),
    ),
    limits=(PhaseLimit(Light.RED, timedelta(minutes=90), Light.GREEN, "nobody waits longer"),),
)
STORY = given.history("RED", "GREEN")


@pytest.mark.parametrize(
    "status",
    [
        Lamp(code="7", proofs=("seen",)),
        Lamp(amount=0, proofs=("seen",)),
        Lamp(code="7", amount=1, proofs=("a", "b"), history=STORY),
    ],
    ids=["a", "b", "both"],
)
def test_a_step_is_taken_when_the_status_holds_what_it_needs(status: Lamp) -> None:
    assert LIGHT.check_step(Light.RED, Light.GREEN, by=SCHEDULER, status=status) is LIGHT.steps[0]


def test_each_actor_has_its_own_conditions() -> None:
    assert LIGHT.check_step(Light.GREEN, Light.OFF, by=CONTROL_PLANE, status=Lamp()).why == "asked for"
    told = Lamp(detail=Status(history=STORY))
    assert LIGHT.check_step(Light.GREEN, Light.OFF, by=SCHEDULER, status=told).why == "late"


@pytest.mark.parametrize(
    ("source", "target", "by", "status", "why"),
    [
        (Light.RED, Light.OFF, SCHEDULER, Lamp(), "from RED only GREEN may follow"),
        (Light.RED, Light.RED, SCHEDULER, Lamp(), "from RED only GREEN may follow"),
        (Light.OFF, Light.RED, SCHEDULER, Lamp(), "from OFF only nothing may follow"),
        (Light.GREEN, Light.RED, SCHEDULER, Lamp(), "from GREEN only OFF may follow"),
        (Light.RED, Light.GREEN, USER, Lamp(code="7", proofs=("seen",)), "only scheduler may"),
        (Light.GREEN, Light.OFF, USER, Lamp(), "only control-plane, scheduler may"),
        (Light.RED, Light.GREEN, SCHEDULER, Lamp(), "status lacks code|amount, proofs"),
        (Light.RED, Light.GREEN, SCHEDULER, Lamp(code="7"), "status lacks proofs"),
        (Light.GREEN, Light.OFF, SCHEDULER, Lamp(), "status lacks detail.history"),
        (Light.GREEN, Light.OFF, SCHEDULER, Lamp(detail=Status()), "status lacks detail.history"),
    ],
)
def test_an_illegal_step_is_refused_with_the_reason_and_the_story(
    source: Light, target: Light, by: str, status: Lamp, why: str
) -> None:
    told = msgspec.structs.replace(status, history=STORY)
    with pytest.raises(IllegalStep) as raised:
        LIGHT.check_step(source, target, by=by, status=told)
    first, *story = str(raised.value).splitlines()
    assert first == f"Light {source} -> {target} by {by}: {why}"
    assert story == [
        "its story:",
        "2026-11-02T09:00:00Z RED by test: reason 0",
        "2026-11-02T09:01:00Z GREEN by test: reason 1",
    ]


def test_an_object_without_a_past_has_no_story() -> None:
    with pytest.raises(IllegalStep) as raised:
        LIGHT.check_step(Light.OFF, Light.RED, by=SCHEDULER, status=Lamp())
    assert "story" not in str(raised.value)


def test_a_need_that_no_status_has_is_our_bug() -> None:
    wrong = StateMachine("Light", Light.RED, frozenset(), (PhaseStep(Light.RED, Light.OFF, USER, "", ("colour",)),), ())
    with pytest.raises(AssertionError, match="Lamp has no field colour"):
        wrong.check_step(Light.RED, Light.OFF, by=USER, status=Lamp())


def test_a_reservation_without_claims_promises_nothing() -> None:
    with pytest.raises(IllegalStep, match="status lacks held"):
        RESERVATION_MACHINE.check_step(R.PENDING, R.PROMISED, by=CONTROL_PLANE, status=given.reservation().status)


@pytest.mark.parametrize(
    ("target", "by", "lacks"),
    [
        (S.SCHEDULED, SCHEDULER, "claim, seat|worker_id"),
        (S.FAILED, SCHEDULER, "last_error"),
    ],
)
def test_a_pending_session_needs_proof_to_move(target: S, by: str, lacks: str) -> None:
    with pytest.raises(IllegalStep) as raised:
        SESSION_MACHINE.check_step(S.PENDING, target, by=by, status=given.session().status)
    assert str(raised.value).endswith(f"status lacks {lacks}")


def test_a_running_lab_is_not_started_again() -> None:
    with pytest.raises(IllegalStep, match="from RUNNING only COLLECTING, STOPPING, COMPLETED may follow"):
        SESSION_MACHINE.check_step(S.RUNNING, S.INSTANTIATING, by=LABLET_CONTROLLER, status=given.session().status)


@pytest.mark.parametrize("licensed", [True, None])
@pytest.mark.parametrize("source", [W.STOPPED, W.FAILED, W.STOPPING, W.STARTING, W.EC2_READY])
def test_lesson_11_a_worker_is_terminated_only_when_its_licence_is_known_to_be_gone(
    source: W, *, licensed: bool | None
) -> None:
    status = LabWorkerStatus(ec2=Ec2Facts(instance_id="i-1"), cml=CmlFacts(licensed=licensed))
    with pytest.raises(IllegalStep, match=r"cml\.licensed is not False"):
        WORKER_MACHINE.check_step(source, W.TERMINATING_EC2, by=WORKER_CONTROLLER, status=status)


@pytest.mark.parametrize("facts", [Ec2Facts(instance_id="i-1"), Ec2Facts(client_token="uid-1")])
def test_a_worker_that_has_or_may_have_an_instance_is_not_forgotten(facts: Ec2Facts) -> None:
    status = LabWorkerStatus(ec2=facts)
    for source, target in ((W.PENDING, W.TERMINATED), (W.FAILED, W.TERMINATED), (W.FAILED, W.PENDING)):
        with pytest.raises(IllegalStep, match=r"still holds ec2\."):
            WORKER_MACHINE.check_step(source, target, by=WORKER_CONTROLLER, status=status)


def test_a_licence_that_is_not_there_does_not_make_a_worker_ready() -> None:
    status = LabWorkerStatus(cml=CmlFacts(licensed=False))
    with pytest.raises(IllegalStep, match=r"lacks cml\.licensed"):
        WORKER_MACHINE.check_step(W.LICENSING, W.READY, by=WORKER_CONTROLLER, status=status)


def test_a_span_counts_from_the_last_change_and_a_moment_is_read_from_the_status() -> None:
    at = given.moment("09:00")
    history = (PhaseChange(phase="STARTING", at=at, by=WORKER_CONTROLLER),)
    found = WORKER_MACHINE.deadline(W.STARTING, LabWorkerStatus(history=history))
    assert found is not None
    assert (found[0], found[1].target) == (at + timedelta(minutes=15), W.FAILED)
    found = WORKER_MACHINE.deadline(W.DRAINING, LabWorkerStatus(history=history, drain_deadline_at=at))
    assert found is not None
    assert (found[0], found[1].target) == (at, W.UNLICENSING)


def test_what_has_no_limit_or_an_unknown_one_has_no_deadline() -> None:
    assert WORKER_MACHINE.deadline(W.READY, LabWorkerStatus()) is None
    assert WORKER_MACHINE.deadline(W.STARTING, LabWorkerStatus()) is None
    assert WORKER_MACHINE.deadline(W.DRAINING, LabWorkerStatus()) is None


def test_a_session_ends_as_its_outcome_says() -> None:
    status = LabletSessionStatus(outcome=S.FAILED)
    with pytest.raises(IllegalStep, match="outcome is not COMPLETED"):
        SESSION_MACHINE.check_step(S.STOPPING, S.COMPLETED, by=LABLET_CONTROLLER, status=status)


@pytest.mark.parametrize(("source", "by"), [(S.SCHEDULED, SCHEDULER), (S.STOPPING, LABLET_CONTROLLER)])
def test_a_session_that_is_placed_anew_has_let_go_of_its_worker(source: S, by: str) -> None:
    status = LabletSessionStatus(worker_id="w1", allocated_ports={"R1_serial": 5000})
    with pytest.raises(IllegalStep, match="still holds worker_id, allocated_ports"):
        SESSION_MACHINE.check_step(source, S.PENDING, by=by, status=status)
