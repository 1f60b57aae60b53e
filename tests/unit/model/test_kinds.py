"""What every kind promises: the names users touch, immutability, bounded size."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from harness import documents, given
from lcm.model.base.capacity import Amount
from lcm.model.base.resource import (
    HISTORY_LIMIT,
    Condition,
    Metadata,
    PhaseChange,
    Status,
    Truth,
    find_condition,
    format_history,
    with_change,
    with_condition,
)
from lcm.model.kinds.definition import (
    FIXED_PER_VERSION,
    AmiRequirements,
    LabletDefinitionSpec,
    ResourceRequirements,
    Spread,
)
from lcm.model.kinds.pool import DECISIONS_KEPT, CapacityThresholds, LabWorkerPoolSpec, ScalingDecision, with_decision
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.reservation import OCCURRENCES_LIMIT, ReservationClaim
from lcm.model.kinds.session import (
    LabletSessionSpec,
    LabletSessionStatus,
    SchedulingDecision,
    Seat,
    SessionCondition,
    SessionPhase,
    get_lab_track,
    get_worker_ref,
    is_asap,
    is_assigned_to_worker,
    is_cml_type,
    is_container_type,
    requires_worker_assignment,
)
from lcm.model.kinds.settings import DiscoverySettings
from lcm.model.kinds.worker import (
    COARSE_STATUS,
    AwsSpec,
    CmlSpec,
    Ec2Facts,
    IdlePolicy,
    LabType,
    LabWorkerSpec,
    LabWorkerStatus,
    LicenseFlavour,
    WorkerCondition,
    WorkerPhase,
    WorkerTelemetry,
    coarse_status,
    satisfies_affinity,
    worker_ref,
)
from lcm.store.base import MAX_BYTES, check_key
from lcm.store.codec import Codec

CONTRACT: dict[type[msgspec.Struct], str] = {
    Metadata: "name namespace uid labels annotations generation resource_version created_at deletion_timestamp "
    "finalizers owner",
    Condition: "type status reason message last_transition_at",
    Status: "conditions observed_generation history",
    LabletSessionSpec: "lab_instance_type lab_track timeslot_start timeslot_end student_email resource_limits "
    "definition owner duration_minutes give_up_at reservation_id priority",
    LabletSessionStatus: "worker_id worker_ref worker_name worker_namespace assigned_at cml_lab_id allocated_ports "
    "retry_count access_url resource_allocation observed_resources observed_ports port_drift_detected "
    "observation_count observed_at phase outcome progress",
    WorkerTelemetry: "cpu_utilization memory_utilization active_labs_count hosted_lab_ids last_activity_at "
    "collected_at",
    DiscoverySettings: "enabled regions ami_name_pattern scan_interval_seconds",
    ResourceRequirements: "cpu_cores memory_gb storage_gb",
    LabletDefinitionSpec: "version topology resource_requirements port_template license_affinity lab_track state",
    AmiRequirements: "cml_version_min cml_version_max node_definitions",
    Spread: "avg p50 p95 max latest",
    LabWorkerPoolSpec: "lab_track template min_workers max_workers policy thresholds allowed_hours budget",
    Amount: "cpu_millis memory_mb storage_mb nodes ports labs",
}


@pytest.mark.parametrize("struct", CONTRACT, ids=lambda struct: struct.__name__)
def test_names_that_are_contract_are_there(struct: type[msgspec.Struct]) -> None:
    assert set(CONTRACT[struct].split()) <= set(struct.__struct_encode_fields__)


def test_what_is_fixed_per_version_exists() -> None:
    assert {"topology", "port_template"} <= set(FIXED_PER_VERSION) <= set(LabletDefinitionSpec.__struct_fields__)


def test_a_scheduling_decision_begins_with_the_documented_fields() -> None:
    assert SchedulingDecision.__struct_fields__[:4] == ("action", "worker_id", "worker_template", "reason")
    decision = SchedulingDecision("scale_up", None, "metal", "No worker with sufficient capacity")
    assert (decision.action, decision.worker_template) == ("scale_up", "metal")
    assert SchedulingDecision(action="wait") == SchedulingDecision("wait", None, None, "")
    assert {"score", "candidates_evaluated", "latency_ms"} <= set(SchedulingDecision.__struct_fields__)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (AwsSpec().instance_type, "m5zn.metal"),
        (AwsSpec().root_volume.kind, "io1"),
        (CmlSpec().max_nodes_unlicensed, 5),
        (CmlSpec().max_nodes_licensed, 200),
        (LabWorkerSpec().max_concurrent_labs, 20),
        (LabWorkerSpec().wanted_state, "running"),
        (timedelta(minutes=LabWorkerSpec().drain_deadline_minutes), timedelta(hours=4)),
        (IdlePolicy(), IdlePolicy(threshold_minutes=30, warn_minutes=5, snooze_minutes=60)),
        (LabWorkerPoolSpec(lab_track="a", template="t").min_workers, 1),
        (LabWorkerPoolSpec(lab_track="a", template="t").max_workers, 10),
        (
            CapacityThresholds(),
            CapacityThresholds(
                cpu_scale_up=0.75,
                cpu_scale_down=0.30,
                memory_scale_up=0.80,
                memory_scale_down=0.40,
                max_labs_per_worker=15,
                min_labs_per_worker=3,
                scale_up_cooldown_minutes=10,
                scale_down_cooldown_minutes=20,
            ),
        ),
        (DiscoverySettings(), DiscoverySettings(enabled=None, regions=None)),
    ],
)
def test_documented_defaults_hold(value: object, want: object) -> None:
    assert value == want


def test_kinds_live_under_the_paths_of_the_api() -> None:
    assert {kind.name: kind.plural for kind in KINDS.values()} == {
        "LabWorker": "workers",
        "LabWorkerPool": "worker-pools",
        "WorkerTemplate": "worker-templates",
        "LabletDefinition": "lablet-definitions",
        "LabletSession": "lablet-sessions",
        "Reservation": "reservations",
        "SystemSettings": "settings",
        "Sink": "event-sinks",
    }
    assert KINDS["LabWorker"].key("default", "w1") == "workers/default/w1"
    assert KINDS["Sink"].key("default", "pager") == "sinks/pager"
    for kind in KINDS.values():
        assert kind.split_key(kind.key("default", "a:1")) == ("default", "a:1")


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_the_longest_names_still_make_a_key(kind: Any) -> None:
    check_key(kind.key("n" * 63, "n" * 63))


STRUCTS = sorted(
    {struct for kind in KINDS.values() for struct in documents.structs(kind.struct)}
    | documents.structs(WorkerTelemetry),
    key=lambda struct: struct.__name__,
)


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_a_struct_cannot_be_changed_and_knows_its_fields(struct: type[msgspec.Struct]) -> None:
    assert struct.__struct_config__.frozen
    assert struct.__struct_config__.forbid_unknown_fields, "the codec notices a newer field only by this"
    made = msgspec.convert(documents.filled_document(struct), struct)
    name = struct.__struct_fields__[0]
    with pytest.raises(AttributeError):
        setattr(made, name, getattr(made, name))


def test_objects_share_no_mapping_through_a_default() -> None:
    assert given.worker().metadata.labels is not given.worker().metadata.labels


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_kind_spells_itself(kind: Any) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(kind.struct)}
    assert fields["kind"].default == kind.name
    assert fields["api_version"].default == "lcm/v1"
    assert {"metadata", "spec", "status"} <= set(fields)


def test_every_phase_has_a_coarse_status() -> None:
    assert set(COARSE_STATUS) == set(WorkerPhase) - {WorkerPhase.FAILED}
    assert set(COARSE_STATUS.values()) == {"PENDING", "PROVISIONING", "RUNNING", "STOPPING", "STOPPED", "TERMINATED"}
    assert (COARSE_STATUS[WorkerPhase.READY], COARSE_STATUS[WorkerPhase.ACTIVE]) == ("RUNNING", "RUNNING")
    assert COARSE_STATUS[WorkerPhase.STARTING] != "RUNNING", "CML is not up yet"


@pytest.mark.parametrize(
    ("phase", "state", "want"),
    [
        (WorkerPhase.READY, "running", "RUNNING"),
        (WorkerPhase.FAILED, "running", "RUNNING"),
        (WorkerPhase.FAILED, "stopped", "STOPPED"),
        (WorkerPhase.FAILED, "", "PENDING"),
    ],
)
def test_a_failed_worker_is_what_its_instance_is(phase: WorkerPhase, state: str, want: str) -> None:
    assert coarse_status(LabWorkerStatus(phase=phase, ec2=Ec2Facts(state=state))) == want


def test_conditions_are_spelled_as_users_know_them() -> None:
    names = "EC2Provisioned CMLReady Licensed AcceptingLabs CapacityAvailable HealthCheckPassed Reachable"
    assert {str(one) for one in WorkerCondition} == {*names.split(), "LikeTemplate"}
    assert {str(one) for one in SessionCondition} == {
        *("WorkerAssigned", "AtRisk", "TimeShortened", "Continues", "LabRuns", "LabSeen")
    }


@pytest.mark.parametrize(
    ("licence", "affinity", "fits"),
    [
        ("enterprise", "personal", True),
        ("enterprise", "enterprise", True),
        ("enterprise", "evaluation", False),
        ("personal", "personal", True),
        ("personal", "enterprise", False),
        ("evaluation", "evaluation", True),
        ("evaluation", "personal", False),
        ("personal", None, True),
    ],
)
def test_an_enterprise_worker_also_serves_personal(licence: str, affinity: str | None, *, fits: bool) -> None:
    wanted = LicenseFlavour(affinity) if affinity else None
    assert satisfies_affinity(LicenseFlavour(licence), wanted) is fits


def change(number: int) -> PhaseChange:
    return PhaseChange(phase=str(number), at=given.moment("09:00") + timedelta(minutes=number), by="test")


def test_a_history_keeps_the_newest_changes_only() -> None:
    history: tuple[PhaseChange, ...] = ()
    for number in range(HISTORY_LIMIT * 3):
        history = with_change(history, change(number))
    assert [int(one.phase) for one in history] == list(range(HISTORY_LIMIT * 2, HISTORY_LIMIT * 3))


def test_a_pool_keeps_the_newest_fifty_decisions_only() -> None:
    decisions: tuple[ScalingDecision, ...] = ()
    for number in range(120):
        new = ScalingDecision(
            at=change(number).at, action="none", reason=str(number), workers_before=1, workers_after=1
        )
        decisions = with_decision(decisions, new)
    assert len(decisions) == DECISIONS_KEPT == 50
    assert (decisions[0].reason, decisions[-1].reason) == ("70", "119")


def test_the_largest_reservation_fits_into_one_commit() -> None:
    held = tuple(
        ReservationClaim(number=number, claim=given.claim(), seat=Seat(pool="p" * 63, number=number), session="s" * 63)
        for number in range(OCCURRENCES_LIMIT)
    )
    emails = tuple(f"{number:0>64}@example.org" for number in range(OCCURRENCES_LIMIT))
    full = given.reservation(held=held, count=OCCURRENCES_LIMIT, student_emails=emails)
    assert len(Codec().encode(full)) < MAX_BYTES / 2


def test_a_story_is_told_in_utc() -> None:
    berlin = datetime.fromisoformat("2026-11-02T10:00:00+01:00")
    assert format_history([msgspec.structs.replace(change(0), at=berlin)]) == "2026-11-02T09:00:00Z 0 by test"


def said(name: str, status: Truth, clock: str, reason: str = "") -> Condition:
    return Condition(type=name, status=status, last_transition_at=given.moment(clock), reason=reason)


def test_a_condition_moves_in_time_only_when_its_status_does() -> None:
    first = with_condition((), said("Licensed", Truth.TRUE, "09:00"))
    same = with_condition(first, said("Licensed", Truth.TRUE, "10:00", "Renewed"))
    assert same == (said("Licensed", Truth.TRUE, "09:00", "Renewed"),)
    turned = with_condition(same, said("Licensed", Truth.UNKNOWN, "11:00"))
    assert turned == (said("Licensed", Truth.UNKNOWN, "11:00"),)


def test_a_condition_is_there_once_and_others_are_left_alone() -> None:
    several = with_condition((said("Reachable", Truth.TRUE, "09:00"),), said("Licensed", Truth.FALSE, "09:00"))
    several = with_condition(several, said("Reachable", Truth.FALSE, "10:00"))
    assert sorted(one.type for one in several) == ["Licensed", "Reachable"]
    found = find_condition(several, "Reachable")
    assert found is not None
    assert found.status is Truth.FALSE
    assert find_condition(several, "CMLReady") is None


def test_a_worker_is_referred_to_by_namespace_and_name() -> None:
    assert worker_ref(given.worker(namespace="exams", name="w7")) == "exams/w7"


def test_what_a_session_says_of_itself() -> None:
    waiting = given.asap(lab_track="ccna", lab_instance_type=LabType.HYBRID)
    assert is_asap(waiting)
    assert is_cml_type(waiting)
    assert not is_container_type(waiting)
    assert requires_worker_assignment(waiting)
    assert get_worker_ref(waiting) is None
    assert get_lab_track(waiting) == "ccna"
    placed = given.session(
        phase=SessionPhase.SCHEDULED, worker_id="uid-w1", worker_ref="default/w1", lab_instance_type=LabType.CONTAINER
    )
    assert not is_asap(placed)
    assert is_assigned_to_worker(placed)
    assert not requires_worker_assignment(placed)
    assert get_worker_ref(placed) == "default/w1"
    assert is_container_type(placed)
    assert not is_cml_type(placed)
    assert not requires_worker_assignment(given.session(phase=SessionPhase.TERMINATED))
