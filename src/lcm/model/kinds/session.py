"""LabletSession: one person's lab during one slot. Its spec, its status, its state machine.

Also the pure functions about a session: its claim, its worker, and its type.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from lcm.model.base.capacity import Claim
from lcm.model.base.machine import CONTROL_PLANE, LABLET_CONTROLLER, SCHEDULER, PhaseLimit, PhaseStep, StateMachine
from lcm.model.base.resource import (
    API_VERSION,
    END,
    Count,
    Metadata,
    Minutes,
    Moment,
    Name,
    Part,
    Positive,
    Region,
    ShortText,
    Status,
    Text,
)
from lcm.model.kinds.definition import Requirements
from lcm.model.kinds.saved_lab import (
    ContinuedLab,
    ContinueFrom,
    ObservationRequest,
    SaveRequest,
)
from lcm.model.kinds.worker import LabType
from lcm.model.money.billing import Usd
from lcm.model.telemetry.observation import LabUse, ResourceObservation, drift


class Rejection(Part):
    """How many workers one filter rejected, with some of them and their reasons."""

    filter: str
    count: int
    examples: tuple[str, ...] = ()


class SchedulingDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do with a session: assign it to a worker, plan a worker for it, or let it wait."""

    action: Literal["assign", "scale_up", "wait"]
    worker_id: str | None = None
    worker_template: str | None = None
    reason: str = ""
    score: float | None = None
    candidates_evaluated: int = 0
    latency_ms: float = 0.0
    rejections: tuple[Rejection, ...] = ()


INSTANTIATION_LIMIT: Final = timedelta(minutes=15)
COLLECTION_LIMIT: Final = timedelta(minutes=5)
STOP_ALERT: Final = timedelta(minutes=10)
CLEAN_UP_TIME: Final = timedelta(minutes=10)
"""How long after its slot a session may still be on its worker. Its claim covers this time too."""

MAX_NODES: Final = 300
"""How many nodes' states are kept with a session."""

Email = Annotated[str, msgspec.Meta(pattern=r"^[^@\s]+@[^@\s]+" + END, max_length=254, examples=["ada@example.org"])]
PortNumber = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class SessionPhase(StrEnum):
    """The phase of a session's life."""

    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    INSTANTIATING = "INSTANTIATING"
    RUNNING = "RUNNING"
    COLLECTING = "COLLECTING"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TERMINATED = "TERMINATED"
    EXPIRED = "EXPIRED"


class SessionCondition(StrEnum):
    """The conditions of a session."""

    WORKER_ASSIGNED = "WorkerAssigned"
    AT_RISK = "AtRisk"
    TIME_SHORTENED = "TimeShortened"
    CONTINUES = "Continues"
    LAB_RUNS = "LabRuns"
    LAB_SEEN = "LabSeen"


class RiskReason(StrEnum):
    """Why a session may not get what it was promised, as the scheduler says it in the condition AtRisk."""

    NO_WORKER = "NoWorkerInTime"
    LATE = "SeatTooLate"
    TAKEN = "SeatStillTaken"
    TOO_SMALL = "SeatTooSmall"
    FOREIGN = "ForeignLabs"
    NO_PLACE = "NoPlace"
    NO_LICENCE = "NoLicence"


LearnerRights = Annotated[tuple[Literal["extend", "terminate"], ...], msgspec.Meta(max_length=2)]
"""What a learner may do with a session besides using it."""


class LabletSessionSpec(Part):
    """A booking. Without a slot it starts as soon as possible, for `duration_minutes`.

    It is the owner's, and for the learner with the address `student_email`, who sees and uses it; the learner changes
    it only as `learner_may` says.
    With `allow_spot` it may run on a machine that the cloud can take away; then it is collected and tried again.
    With `continue_from` it starts with the saved lab of an earlier session of the same lab.
    One that is `prebuilt` is nobody's: its lab waits for somebody who wants one at once. Only the scheduler makes such.
    """

    definition: Name
    owner: ShortText = ""
    student_email: Email | None = None
    learner_may: LearnerRights = ()
    lab_instance_type: LabType = LabType.CML
    lab_track: ShortText = ""
    timeslot_start: Moment | None = None
    timeslot_end: Moment | None = None
    duration_minutes: Minutes | None = None
    give_up_at: Moment | None = None
    reservation_id: ShortText | None = None
    region_required: Region | None = None
    region_preferred: Region | None = None
    allow_spot: bool = False
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    resource_limits: Annotated[Mapping[ShortText, ShortText], msgspec.Meta(max_length=16)] | None = None
    continue_from: ContinueFrom | None = None
    prebuilt: bool = False


class Seat(Part):
    """A planned worker of a pool. Its number identifies its timeline, whichever worker fills it."""

    pool: Name
    number: Count


class Progress(Part):
    """How far an instantiation or teardown has got."""

    step: str
    percent: Annotated[int, msgspec.Meta(ge=0, le=100)]
    message: Text
    at: Moment


class Waiting(Part):
    """A waiting session's place in the queue and its estimated start."""

    queue_position: Positive
    estimated_start: Moment | None
    basis: Text


class Artifact(Part):
    """A file collected from the lab that its owner may download."""

    name: str
    digest: str
    size_bytes: Count
    collected_at: Moment
    expires_at: Moment | None = None


class PrebuiltLab(Part):
    """The prebuilt session from which a session took its lab over. The lab keeps that session's name and uid."""

    name: ShortText
    uid: ShortText


class NodeState(Part):
    """A node of a session's lab, and what CML says that it does."""

    node_id: str
    label: str
    state: str


class LabletSessionStatus(Status):
    """The observed state of a session. It must run before `expires_at`, and its slot ends at `ends_at`.

    `requirements` are those of its definition when its slot was promised; a later change of the definition
    changes no promise. `boot_use` is the most that its lab used while it booted. `observed_last` means
    that it was observed after it ended and need not be observed again. `nodes` are those of its lab, in the states that
    the lablet controller saw last; none of a lab with more than MAX_NODES. `taken_by` is the uid of the session that
    took a prebuilt lab over; `taken_from` says there from which one. `prebuilt_in` is the epoch of the store in which
    a prebuilt session was made: in a later one, after a restore, its lab may have been taken already.
    """

    phase: SessionPhase = SessionPhase.PENDING
    outcome: SessionPhase | None = None
    outcome_reason: Text = ""
    expires_at: Moment | None = None
    ends_at: Moment | None = None
    claim: Claim | None = None
    seat: Seat | None = None
    requirements: Requirements | None = None
    worker_id: str | None = None
    worker_ref: str | None = None
    worker_name: str | None = None
    worker_namespace: str | None = None
    assigned_at: Moment | None = None
    allocated_ports: Mapping[str, PortNumber] | None = None
    resource_allocation: Mapping[str, str] | None = None
    cml_lab_id: str | None = None
    taken_from: PrebuiltLab | None = None
    taken_by: ShortText | None = None
    prebuilt_in: ShortText | None = None
    access_url: str | None = None
    access_urls: Mapping[str, str] = {}
    nodes: tuple[NodeState, ...] = ()
    progress: Progress | None = None
    retry_count: Count = 0
    waiting: Waiting | None = None
    last_decision: SchedulingDecision | None = None
    cost_usd: Usd | None = None
    boot_use: LabUse | None = None
    observed_resources: ResourceObservation | None = None
    observed_ports: Mapping[str, PortNumber] | None = None
    port_drift_detected: bool = False
    observation_count: Count = 0
    observed_at: Moment | None = None
    observed_last: bool = False
    observation_request: ObservationRequest | None = None
    observation_error: Text = ""
    save_request: SaveRequest | None = None
    save_error: Text = ""
    continues: ContinuedLab | None = None
    artifacts: tuple[Artifact, ...] = ()
    last_error: Text = ""


class SessionUse(Part):
    """What a session that has ended took of its owner's quotas: the time that it ran, and what it cost."""

    owner: ShortText
    namespace: Name
    lab_track: ShortText
    since: Moment
    until: Moment
    cost_usd: Usd | None = None


class DeletedSession(Part):
    """What is left of a deleted session."""

    ended_at: Moment
    used: SessionUse | None = None


class LabletSession(Part):
    """One person's lab during one slot."""

    metadata: Metadata
    spec: LabletSessionSpec
    api_version: Literal["lcm/v1"] = API_VERSION
    kind: Literal["LabletSession"] = "LabletSession"
    status: LabletSessionStatus = LabletSessionStatus()


_P = SessionPhase
_PLACEMENT_FIELDS = ("worker_id", "allocated_ports", "cml_lab_id")

SESSION_MACHINE: Final = StateMachine(
    name="LabletSession",
    initial=_P.PENDING,
    final=frozenset({_P.COMPLETED, _P.FAILED, _P.TERMINATED, _P.EXPIRED}),
    steps=(
        PhaseStep(
            _P.PENDING,
            _P.SCHEDULED,
            SCHEDULER,
            "a planned or existing worker is claimed for it",
            ("claim", "seat|worker_id"),
        ),
        PhaseStep(
            _P.PENDING,
            _P.RUNNING,
            CONTROL_PLANE,
            "it takes a prebuilt lab over, in the commit that creates it",
            ("worker_id", "allocated_ports", "cml_lab_id", "ends_at", "taken_from"),
        ),
        PhaseStep(_P.PENDING, _P.TERMINATED, CONTROL_PLANE, "cancelled while it waited"),
        PhaseStep(_P.PENDING, _P.EXPIRED, SCHEDULER, "its slot, or its patience, ended before it ran"),
        PhaseStep(
            _P.PENDING, _P.FAILED, SCHEDULER, "it can never be placed, or was retried too often", ("last_error",)
        ),
        PhaseStep(
            _P.SCHEDULED, _P.PENDING, SCHEDULER, "its worker is lost or late; it is placed anew", bars=_PLACEMENT_FIELDS
        ),
        PhaseStep(
            _P.SCHEDULED,
            _P.INSTANTIATING,
            LABLET_CONTROLLER,
            "its lead time has come and its worker is ready",
            ("worker_id", "allocated_ports"),
        ),
        PhaseStep(_P.SCHEDULED, _P.TERMINATED, CONTROL_PLANE, "cancelled before anything of it was on a worker"),
        PhaseStep(_P.SCHEDULED, _P.EXPIRED, SCHEDULER, "its slot ended before it ran"),
        PhaseStep(_P.INSTANTIATING, _P.RUNNING, LABLET_CONTROLLER, "the lab has converged", ("cml_lab_id", "ends_at")),
        PhaseStep(_P.INSTANTIATING, _P.STOPPING, LABLET_CONTROLLER, "a step failed, or its time is up", ("outcome",)),
        PhaseStep(_P.INSTANTIATING, _P.STOPPING, CONTROL_PLANE, "cancelled while it started", ("outcome",)),
        PhaseStep(
            _P.RUNNING,
            _P.COLLECTING,
            LABLET_CONTROLLER,
            "its slot has ended, or the cloud takes its machine away",
            ("outcome",),
        ),
        PhaseStep(_P.RUNNING, _P.COLLECTING, CONTROL_PLANE, "ended by request", ("outcome",)),
        PhaseStep(_P.RUNNING, _P.STOPPING, LABLET_CONTROLLER, "the lab or its worker is lost", ("outcome",)),
        PhaseStep(
            _P.RUNNING,
            _P.COMPLETED,
            CONTROL_PLANE,
            "it was prebuilt, and another session takes its lab over",
            ("taken_by",),
            equals=(("outcome", _P.COMPLETED),),
        ),
        PhaseStep(_P.COLLECTING, _P.STOPPING, LABLET_CONTROLLER, "observed and saved, or that failed", ("outcome",)),
        *(
            PhaseStep(
                _P.STOPPING, end, LABLET_CONTROLLER, "the lab is seen gone from its worker", equals=(("outcome", end),)
            )
            for end in (_P.COMPLETED, _P.FAILED, _P.TERMINATED, _P.EXPIRED)
        ),
        PhaseStep(
            _P.STOPPING,
            _P.PENDING,
            LABLET_CONTROLLER,
            "the lab is seen gone; retried elsewhere while time remains",
            bars=_PLACEMENT_FIELDS,
        ),
    ),
    limits=(
        PhaseLimit(_P.PENDING, "expires_at", _P.EXPIRED, "a missed slot must not wait for ever"),
        PhaseLimit(_P.SCHEDULED, "expires_at", _P.EXPIRED, "a missed slot must not wait for ever"),
        PhaseLimit(_P.INSTANTIATING, INSTANTIATION_LIMIT, _P.STOPPING, "what is left of it is removed, then retried"),
        PhaseLimit(_P.RUNNING, "ends_at", _P.COLLECTING, "the next booking counts on the room"),
        PhaseLimit(_P.COLLECTING, COLLECTION_LIMIT, _P.STOPPING, "a failed collection never blocks teardown"),
        PhaseLimit(_P.STOPPING, STOP_ALERT, None, "a lab left on a worker keeps its ports and its room"),
    ),
)
_MOST_PORTS_NAMED: Final = 5
ON_WORKER_PHASES: Final = frozenset({_P.INSTANTIATING, _P.RUNNING, _P.COLLECTING, _P.STOPPING})
"""Phases in which something of the session may be on its worker."""
PREBUILT_OWNER: Final = "lcm.prebuilt"
"""Owns the prebuilt sessions: no person's name, so that what they cost is a line of its own."""


def get_claim(session: LabletSession) -> Claim | None:
    """Return the claim of a session in any phase; None once the session has ended."""
    return None if session.status.phase in SESSION_MACHINE.final else session.status.claim


def worker_of(session: LabletSession) -> str | None:
    """Return the uid of the worker that a session is on or is promised to; None if there is none."""
    live = session.status.phase in ON_WORKER_PHASES or session.status.phase is SessionPhase.SCHEDULED
    return session.status.worker_id if live else None


def has_same_hold(before: object, after: object) -> bool:
    """Return whether these are two states of one session that hold the same claim, on the same seat and worker."""
    if not (isinstance(before, LabletSession) and isinstance(after, LabletSession)):
        return False
    old, new = before.status, after.status
    return (
        (old.worker_id, old.phase in SESSION_MACHINE.final) == (new.worker_id, new.phase in SESSION_MACHINE.final)
        and (old.phase is new.phase or worker_of(before) == worker_of(after))
        and old.claim == new.claim
        and old.seat == new.seat
        and before.metadata.uid == after.metadata.uid
    )


def needs_its_worker(session: LabletSession, now: datetime, horizon: timedelta) -> bool:
    """Return True if a session is on its worker, or starts before a removed machine could be back."""
    if session.status.phase is not SessionPhase.SCHEDULED:
        return session.status.phase in ON_WORKER_PHASES
    claim = session.status.claim
    start = session.spec.timeslot_start or (claim.start if claim else None)
    return start is None or start <= now + horizon


def use_of_ended(session: LabletSession) -> SessionUse:
    """Return what a session that has ended took: nothing of the time if it never ran."""
    history, created = session.status.history, session.metadata.created_at
    runs = [place for place, line in enumerate(history) if line.phase == SessionPhase.RUNNING]
    last = history[-1].at if history else created
    assert last is not None, "what was admitted has a time"
    return SessionUse(
        owner=session.spec.owner,
        namespace=session.metadata.namespace,
        lab_track=session.spec.lab_track,
        since=history[runs[0]].at if runs else last,
        until=history[min(runs[-1] + 1, len(history) - 1)].at if runs else last,
        cost_usd=session.status.cost_usd,
    )


def describe_drift(status: LabletSessionStatus) -> str:
    """Return which ports a lab was seen to have in place of those it was given, in words."""
    differs = drift(status.allocated_ports or {}, status.observed_ports or {})
    moved = [
        f"{name} is {seen} instead of {own or 'none'}" for name, (own, seen) in differs.items() if seen is not None
    ]
    more = len(moved) - _MOST_PORTS_NAMED
    return ", ".join(moved[:_MOST_PORTS_NAMED]) + f" and {more} more" * (more > 0) if moved else "some are missing"


def is_asap(session: LabletSession) -> bool:
    """Return True if the session is to start as soon as possible."""
    return session.spec.timeslot_start is None


def is_assigned_to_worker(session: LabletSession) -> bool:
    """Return True if a worker has been chosen."""
    return session.status.worker_id is not None


def get_worker_ref(session: LabletSession) -> str | None:
    """Return the chosen worker as "namespace/name"; None if there is none."""
    return session.status.worker_ref


def is_cml_type(session: LabletSession) -> bool:
    """Return True if the lab needs CML."""
    return session.spec.lab_instance_type in (LabType.CML, LabType.HYBRID)


def is_container_type(session: LabletSession) -> bool:
    """Return True if the lab consists of containers only."""
    return session.spec.lab_instance_type is LabType.CONTAINER


def requires_worker_assignment(session: LabletSession) -> bool:
    """Return True if the session still needs a worker."""
    return session.status.phase in (SessionPhase.PENDING, SessionPhase.SCHEDULED) and not is_assigned_to_worker(session)


def get_lab_track(session: LabletSession) -> str:
    """Return the lab track whose pool serves the session."""
    return session.spec.lab_track
