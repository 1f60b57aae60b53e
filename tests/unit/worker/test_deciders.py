"""Whatever is seen of a worker in whatever phase at whatever time, what is decided is a step of its table."""

import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from harness import given
from harness.suite import TIMES
from lcm.control.objects.steps import take_step
from lcm.controllers.runtime.lifecycle import Do, Failure, Report, Unknown, Wait
from lcm.controllers.worker.alerts import ALERT_NAMES, find_complaints
from lcm.controllers.worker.conditions import capacity_of, with_conditions
from lcm.controllers.worker.lifecycle import DECIDERS, REACTIONS, decide, react
from lcm.controllers.worker.view import EffectOutcome, WorkerView
from lcm.model.base.capacity import Amount
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.base.resource import Condition, PhaseChange, Truth, find_condition
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import (
    HOSTING_PHASES,
    CmlFacts,
    Ec2Facts,
    IdleVerdict,
    LabWorker,
    LabWorkerStatus,
    Remedy,
    WorkerCondition,
    WorkerPhase,
)
from lcm.providers.protocols.compute import ENDING, Instance, InstanceState, StatusCheckResult, StatusChecks
from lcm.providers.protocols.labhost import Licence, Stats, System

NOW = given.moment("12:00")
AGES = [timedelta(0), timedelta(minutes=6), timedelta(minutes=11), timedelta(minutes=16), timedelta(hours=3)]
LAUNCHED = frozenset(WorkerPhase) - {WorkerPhase.PENDING, WorkerPhase.PROVISIONING_EC2, WorkerPhase.TERMINATED}
EITHER, MAYBE, MOSTLY, SELDOM = (True, False), (True, False, None), (True, True, False), (False, False, True)
SAMPLES = 4_000 * TIMES
STATS = Stats(
    cpu_count=48,
    cpu_percent=93.0,
    memory_total_mb=196_608,
    memory_used_mb=1,
    disk_total_mb=512_000,
    disk_used_mb=1,
    running_nodes=0,
    total_nodes=0,
    allocated_cpus=0,
    allocated_memory_mb=0,
)


def licence(registration: str, authorization: str) -> Licence:
    return Licence(registration=registration, authorization=authorization, product="CML_Enterprise", node_limit=200)


LICENCES = [
    Unknown("no answer"),
    Unknown("wrong password", answered=True, reason="CmlAuth"),
    licence("NOT_REGISTERED", "INIT"),
    licence("IN_PROGRESS", "EVAL"),
    licence("FAILED", "EVAL"),
    licence("COMPLETED", "IN_COMPLIANCE"),
    licence("COMPLETED", "OUT_OF_COMPLIANCE"),
]


def instance(state: InstanceState, *, address: str | None = "100.64.0.1") -> Instance:
    return Instance(
        instance_id="i-1",
        region="us-east-1",
        state=state,
        instance_type="m5zn.metal",
        image_id="ami-1",
        launched_at=NOW,
        public_ip=address,
        private_ip="10.0.0.1",
    )


class Draw:
    """Draws views: everything that could be seen, and statuses that the table allows in their phase."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def conditions(self) -> tuple[Condition, ...]:
        names = (WorkerCondition.HEALTH_CHECK_PASSED, WorkerCondition.REACHABLE)
        said = [(name, self.one(*Truth), NOW - self.one(*AGES)) for name in names]
        return tuple(
            Condition(type=name, status=truth, last_transition_at=at, reason="Said") for name, truth, at in said
        )

    def worker(self, phase: WorkerPhase) -> LabWorker:
        entered = NOW - self.one(*AGES)
        has_machine = phase in LAUNCHED or self.one(*EITHER)
        if phase is WorkerPhase.FAILED:
            has_machine = self.one(*EITHER)
        ours = self.one(*MOSTLY) or not has_machine
        ec2 = Ec2Facts(
            instance_id="i-1" if has_machine else "",
            client_token="" if has_machine or phase is not WorkerPhase.PROVISIONING_EC2 else "uid-w1-1",
            launch_attempt=self.one(1, 2, 5) if ours else 0,
            state=self.one("running", "running", "stopped", "terminated", "pending", "") if has_machine else "",
        )
        status = LabWorkerStatus(
            phase=phase,
            ec2=ec2,
            cml=self.cml(phase),
            capacity=Amount(labs=20, nodes=5) if phase in HOSTING_PHASES else None,
            idle=self.one(None, self.idle(NOW - timedelta(minutes=1)), self.idle(NOW + timedelta(minutes=3))),
            drain_deadline_at=self.one(None, *(NOW + age - timedelta(minutes=30) for age in AGES)),
            unhealthy_since=self.one(None, None, NOW - self.one(*AGES)),
            remedy=self.one(*Remedy),
            remedied_at=self.one(None, NOW - self.one(*AGES)),
            remedies=self.one(0, 0, 1, 2, 4),
            conditions=self.conditions(),
            failure=self.one("CmlNotUp", "NoCapacity")
            if phase is WorkerPhase.FAILED
            else self.one("", "NoLicenceSeat"),
            retry_count=self.one(0, 1, 3, 6),
            retry_at=self.one(None, NOW - timedelta(minutes=1), NOW + timedelta(minutes=1), NOW - timedelta(hours=1)),
            observed_generation=self.one(0, 1),
            last_error="something" if phase is WorkerPhase.FAILED else "",
            history=(PhaseChange(phase=str(phase), at=entered, by=WORKER_CONTROLLER),),
        )
        worker = given.worker(
            wanted_state=self.one("running", "stopped"), host_kind=self.one("cml", "cml", "container")
        )
        metadata = replace(
            worker.metadata, generation=1, deletion_timestamp=self.one(None, None, NOW - timedelta(minutes=1))
        )
        token = self.one(None, "env:CML_LICENSE_TOKEN")
        cml = replace(worker.spec.cml, license_token=token)
        aws = replace(worker.spec.aws, subnet_ids=self.one((), ("subnet-a", "subnet-b")))
        spec = replace(worker.spec, cml=cml, aws=aws)
        return replace(worker, metadata=metadata, spec=spec, status=status)

    def cml(self, phase: WorkerPhase) -> CmlFacts:
        known = phase in LAUNCHED - {WorkerPhase.EC2_READY, WorkerPhase.FAILED}
        return CmlFacts(
            api_url="https://100.64.0.1" if known else "",
            version="2.9.0" if phase in HOSTING_PHASES else "",
            ready=True if phase in HOSTING_PHASES else None,
            licensed=self.one(*MAYBE) if phase in LAUNCHED else False,
            license_status=self.one("", "IN_COMPLIANCE", "LicenceSeatUnknown"),
        )

    def idle(self, pause_at: datetime) -> IdleVerdict:
        judged_at = NOW - self.one(*AGES)
        return IdleVerdict(idle=True, reason="nothing happened", judged_at=judged_at, pause_at=pause_at)

    def view(self, phase: WorkerPhase) -> WorkerView:
        sessions = [given.session(phase=SessionPhase.RUNNING)]
        return WorkerView(
            resource=self.worker(phase),
            now=NOW,
            sessions=self.one((), (), sessions),
            instance=self.one(
                None, Unknown("no answer"), *map(instance, InstanceState), instance(InstanceState.RUNNING, address=None)
            ),
            image_missing=self.one(*SELDOM, Unknown("no answer")),
            checks=self.one(
                Unknown("no answer"),
                StatusChecks(system=StatusCheckResult.OK, instance=StatusCheckResult.OK),
                StatusChecks(system=StatusCheckResult.OK, instance=StatusCheckResult.INITIALIZING),
                StatusChecks(system=StatusCheckResult.OK, instance=StatusCheckResult.IMPAIRED),
            ),
            system=self.one(
                Unknown("no route"),
                Unknown("502", answered=True),
                Unknown("wrong password", answered=True, reason="CmlAuth"),
                System(version="2.9.0", ready=False),
                System(version="2.9.0", ready=True),
            ),
            stats=self.one(Unknown("no answer"), STATS),
            licence=self.one(*LICENCES),
            busy_labs=self.one(Unknown("no answer"), (), ("lab",)),
        )

    def outcome(self) -> EffectOutcome:
        drawn: EffectOutcome = self.one(
            None,
            Failure("NoCapacity", "none free"),
            Failure("Stuck", "help"),
            *map(instance, InstanceState),
            *LICENCES[2:],
        )
        return drawn


def allowed(view: WorkerView, report: Report[LabWorkerStatus]) -> LabWorker:
    """Take the step as the control plane does; raises IllegalStep if the table has no such step."""
    status = with_conditions(view.worker, report.status, sessions=view.sessions, require_licensed=True, now=NOW)
    return take_step(view.worker, status, by=WORKER_CONTROLLER, author="lcm", now=NOW, reason=report.reason)


def moves(seed: int, samples: int = SAMPLES) -> Counter[tuple[str, str]]:
    draw, taken = Draw(seed), Counter[tuple[str, str]]()
    for phase in [*DECIDERS] * (samples // len(DECIDERS)):
        view = draw.view(phase)
        find_complaints(view)
        decision = decide(view)
        if isinstance(decision, Do):
            decision = react(view, decision.effect, draw.outcome())
            assert not isinstance(decision, Do), "an effect leads to a report or to another look"
        if isinstance(decision, Report):
            after = allowed(view, decision)
            taken[view.status.phase, after.status.phase] += 1
        else:
            assert isinstance(decision, Wait)
            assert decision.until is None or decision.until >= NOW
    return taken


@pytest.fixture(scope="module")
def taken() -> Counter[tuple[str, str]]:
    return moves(7)


def test_every_decision_is_a_step_of_the_table(taken: Counter[tuple[str, str]]) -> None:
    assert sum(taken.values()) > SAMPLES / 10


def test_every_phase_has_a_decider_but_the_last() -> None:
    assert set(DECIDERS) == set(WorkerPhase) - {WorkerPhase.TERMINATED}
    assert len(REACTIONS) == 8


def test_no_worker_with_a_session_is_paused_rebooted_or_failed() -> None:
    draw = Draw(11)
    for phase in [WorkerPhase.READY_UNLICENSED, WorkerPhase.READY, WorkerPhase.ACTIVE] * 200:
        view = seen(draw.view(phase), sessions=[given.session(phase=SessionPhase.RUNNING)])
        decision = decide(view)
        if isinstance(decision, Report):
            assert decision.status.phase not in {WorkerPhase.STOPPING, WorkerPhase.STARTING, WorkerPhase.FAILED}


def test_a_failed_machine_on_which_a_lab_may_be_in_use_is_neither_rebooted_nor_replaced_nor_given_up() -> None:
    """CML did not come up for the worker's controller, but had for a session, which then lost its lab to the reboot."""
    draw, taken = Draw(12), Counter[str]()
    for _ in range(2_000):
        view = seen(draw.view(WorkerPhase.FAILED), sessions=(), session_labs=())
        status = view.status
        asked = view.is_deleted or status.remedy is Remedy.REPLACE
        if (
            asked
            or not status.ec2.instance_id
            or not isinstance(view.instance, Instance)
            or view.instance.state in ENDING
        ):
            continue
        for phase, held, free in (
            (None, (), True),
            (None, ("lab-1",), False),
            (SessionPhase.COLLECTING, (), False),
            (SessionPhase.STOPPING, (), True),
        ):
            sessions = [given.session(phase=phase)] if phase else ()
            decision = decide(replace(view, sessions=sessions, session_labs=held))
            if not isinstance(decision, Report):
                continue
            after = decision.status
            hurts = after.remedy is not status.remedy or after.phase in {
                WorkerPhase.UNLICENSING,
                WorkerPhase.TERMINATING_EC2,
            }
            assert free or not hurts, decision
            taken["hurts" if hurts else "waits"] += 1
    assert min(taken["hurts"], taken["waits"]) > 20, taken


def test_a_stopped_worker_is_started_once_more_while_labs_on_its_disk_are_to_be_removed() -> None:
    worker = given.worker(phase=WorkerPhase.STOPPED)
    spec = replace(worker.spec, wanted_state="stopped")
    ec2 = Ec2Facts(instance_id="i-1", state="stopped")
    worker = replace(worker, spec=spec, status=replace(worker.status, ec2=ec2))
    empty = WorkerView(worker, NOW, instance=instance(InstanceState.STOPPED))
    assert isinstance(decide(empty), Wait)
    decision = decide(replace(empty, sessions=[given.session(phase=SessionPhase.STOPPING)]))
    assert isinstance(decision, Report)
    assert decision.status.phase is WorkerPhase.STARTING


def test_a_deleted_worker_whose_record_is_of_a_time_before_its_licence_is_not_terminated_with_it() -> None:
    known = {"phase": WorkerPhase.STARTING, "cml": CmlFacts(api_url="https://100.64.0.1", licensed=False)}
    worker = given.changed(given.worker(), {"status": known, "metadata": {"deletion_timestamp": NOW}})
    fresh = WorkerView(worker, NOW, instance=instance(InstanceState.RUNNING), licence=Unknown("no answer"))
    registered = licence("COMPLETED", "IN_COMPLIANCE")
    for told, phase in ((Unknown("no answer"), WorkerPhase.TERMINATING_EC2), (registered, WorkerPhase.STARTING)):
        decision = decide(replace(fresh, licence=told))
        assert (decision.status.phase if isinstance(decision, Report) else WorkerPhase.STARTING) is phase


def twelve_labs(phase: SessionPhase = SessionPhase.RUNNING, start: str = "00:00") -> list[LabletSession]:
    need = given.claim(start, "23:00", cpu_millis=4_000, memory_mb=2_304, nodes=4, labs=1)
    return [given.session(name=f"s{number}", phase=phase, claim=need) for number in range(12)]


@pytest.mark.parametrize(
    ("sessions", "said", "left"),
    [
        ([], (Truth.TRUE, "Room", "0 of 20 labs"), 48_000),
        (twelve_labs()[:8], (Truth.TRUE, "Room", "8 of 20 labs"), 16_000),
        (twelve_labs(), (Truth.FALSE, "Full", "no cpu is left; 12 of 20 labs"), 0),
        (twelve_labs(SessionPhase.SCHEDULED), (Truth.FALSE, "Full", "no cpu is left; 12 of 20 labs"), 0),
        (twelve_labs(SessionPhase.SCHEDULED, "22:00"), (Truth.TRUE, "Room", "0 of 20 labs"), 48_000),
    ],
)
def test_what_is_claimed_of_a_worker_and_left_of_it_is_told_for_each_dimension(
    sessions: list[LabletSession], said: tuple[Truth, str, str], left: int
) -> None:
    room = Amount(cpu_millis=48_000, memory_mb=196_608, storage_mb=250_000, nodes=200, ports=6_000, labs=20)
    worker = given.worker(phase=WorkerPhase.ACTIVE, capacity=room)
    status = with_conditions(worker, worker.status, sessions=sessions, require_licensed=True, now=NOW)
    condition, usage = find_condition(status.conditions, WorkerCondition.CAPACITY_AVAILABLE), status.usage
    assert condition is not None
    assert usage is not None
    assert (condition.status, condition.reason, condition.message) == said
    assert (usage.available.cpu_millis, usage.claimed + usage.available) == (left, room)
    assert usage.percent["cpu_millis"] == round(100 - left / 480)


def test_lesson_23_nothing_is_schedulable_before_cml_is_ready_and_its_licence_known() -> None:
    draw = Draw(13)
    for phase in [*WorkerPhase] * 60:
        worker = draw.worker(phase)
        for required in (True, False):
            status = with_conditions(worker, worker.status, sessions=(), require_licensed=required, now=NOW)
            accepting = find_condition(status.conditions, WorkerCondition.ACCEPTING_LABS)
            assert accepting is not None
            if accepting.status is Truth.TRUE:
                assert phase in HOSTING_PHASES
                assert status.cml.ready
                assert worker.spec.host_kind == "container" or status.cml.licensed is not None


def test_an_outage_never_ends_stops_or_fails_a_worker() -> None:
    draw, silence = Draw(17), Unknown("no answer")
    ends = {WorkerPhase.TERMINATED, WorkerPhase.FAILED, WorkerPhase.STOPPED}
    for phase in [*set(DECIDERS) - {WorkerPhase.PENDING, WorkerPhase.FAILED}] * 60:
        view = seen(draw.view(phase), instance=silence, checks=silence, system=silence, stats=silence, licence=silence)
        view = seen(view, resource=_well(view.worker), busy_labs=silence)
        decision = decide(view)
        if isinstance(decision, Report):
            assert decision.status.phase not in ends, decision


def test_every_complaint_is_one_that_is_settled_again() -> None:
    draw = Draw(19)
    said = {one.alert for phase in [*WorkerPhase] * 60 for one in find_complaints(draw.view(phase))}
    assert said == set(ALERT_NAMES)


def seen(view: WorkerView, **changes: Any) -> WorkerView:
    return replace(view, **changes)


def _well(worker: LabWorker) -> LabWorker:
    status = replace(worker.status, unhealthy_since=None)
    return replace(worker, status=status)


def test_lesson_13_what_a_machine_has_is_never_computed_from_what_it_uses() -> None:
    idle, busy = (replace(STATS, cpu_percent=percent) for percent in (0.0, 93.0))
    spec = given.worker().spec
    assert capacity_of(spec, idle, None) == capacity_of(spec, busy, None)
    assert capacity_of(spec, busy, None).cpu_millis == 48_000
