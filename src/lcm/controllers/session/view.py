"""What the lives of sessions are decided from, and what may be decided: values, without I/O.

`SessionLook` fills a `SessionView`. The deciders (`starting`, `running`, `ending`) make a `Decision` of it.
`SessionEffects` carries it out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lcm.controllers.runtime.lifecycle import (
    NOT_ASKED,
    Failure,
    LifeDecision,
    LifeView,
    Report,
    Unknown,
    Wait,
    enter_phase,
    poll_again,
    update_status,
)
from lcm.model.base.resource import Condition, Truth, shorten_text, with_condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.saved_lab import SaveRequest
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, LabletSessionStatus, NodeState, SessionPhase
from lcm.model.kinds.session_fields import open_requests, unanswered_fields
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.telemetry.observation import LabUse
from lcm.providers.protocols.artifacts import StoredArtifact
from lcm.providers.protocols.labhost import LabState, LabSummary

CAN_RUN: Final = "CanRun"
"""False: no worker could run this session's lab, so it is not retried."""
_W: Final = WorkerPhase
_LOST_PHASES: Final = frozenset({_W.STOPPING, _W.STOPPED, _W.TERMINATING_EC2, _W.TERMINATED, _W.FAILED})
_OBSERVABLE_PHASES: Final = frozenset({SessionPhase.RUNNING, SessionPhase.COLLECTING})
_PATIENCE_DIVISOR: Final = 20
"""Polling after a twentieth of the elapsed time notices the end at most a twentieth too late."""
_EARLY: Final = 0.75
"""Hardly a lab comes up in less than this part of the usual time."""


@dataclass(frozen=True, slots=True)
class SessionRules:
    """How often to look, and how much to try."""

    poll: timedelta = timedelta(seconds=1)
    """Between two looks at a lab that is starting or being removed."""
    watch: timedelta = timedelta(seconds=15)
    """Between two looks at a lab that runs, or at all labs of a worker that run undisturbed."""
    look_again: timedelta = timedelta(minutes=5)
    """Between two looks of its own at a lab that runs undisturbed, unless labs are watched more seldom than that."""
    again: timedelta = timedelta(seconds=10)
    """Between two attempts at what was refused."""
    refused_for: timedelta = timedelta(minutes=2)
    """How long a refused action is retried before another place is tried."""
    told_every: timedelta = timedelta(seconds=5)
    """How often boot progress is written, unless it leaps."""
    settle: timedelta = timedelta(seconds=70)
    """How long an import whose answer was lost may still create a lab: longer than an import may take here."""
    observe_within: timedelta = timedelta(seconds=30)
    observe_again: timedelta = timedelta(minutes=5)
    """Between two observations of a lab that somebody keeps changing."""
    worth_it: timedelta = timedelta(minutes=10)
    """What must be left of a slot for a lab to be started again in it."""
    kept_for: timedelta = timedelta(days=30)
    """How long collected files are kept."""
    starts: int = 4
    """How many labs start on a worker at once."""
    restarts: int = 3
    """How often a lab that somebody stopped is started again."""
    forgiven: timedelta = timedelta(minutes=30)
    """After this time earlier restarts of a stopped lab no longer count."""
    unseen_for: timedelta = timedelta(minutes=1)
    """How long a lab cannot be seen before that is reported."""
    behind_gateway: bool = False
    """Whether people reach labs by the gateway, and not at the workers' own addresses."""
    seldom: timedelta = timedelta(seconds=30)
    """The longest time between two looks for a lab that cannot be seen."""


class SessionView(LifeView[LabletSession, LabletSessionStatus], frozen=True):
    """A session and what was seen of it just now. `lab` None means that its host has no such lab, or is gone."""

    rules: SessionRules = SessionRules()
    definition: LabletDefinition | None = None
    worker: LabWorker | None = None
    lab: LabSummary | Unknown | None = NOT_ASKED
    converged: bool | Unknown = NOT_ASKED
    nodes: Mapping[str, str] | Unknown = NOT_ASKED
    """The states of its lab's nodes, by id."""
    named_nodes: tuple[NodeState, ...] | None = None
    """The same with their labels; None if not known now."""
    use: LabUse | None = None
    """What its lab uses while it boots; None if not known."""
    ahead: int = 0
    """How many labs start on its worker before this one."""
    usual: timedelta | None = None
    """How long labs of its definition took to start; None if not known."""
    unseen_since: datetime | None = None
    """Since when its lab could not be seen; None if it was seen or not looked for."""

    @property
    def session(self) -> LabletSession:
        """The session as it was before this look."""
        return self.resource

    @property
    def is_overdue(self) -> bool:
        """Whether the deadline of its phase has passed."""
        due = SESSION_MACHINE.deadline(self.status.phase, self.status)
        return due is not None and self.now >= due[0]

    @property
    def is_lab_stopped(self) -> bool:
        """Whether its lab exists and does not run."""
        return isinstance(self.lab, LabSummary) and self.lab.state is not LabState.STARTED

    @property
    def worker_label(self) -> str:
        """Its worker's name, for messages."""
        return self.status.worker_name or self.status.worker_id or "no worker"

    def cap_at_deadline(self, then: datetime) -> datetime:
        """Return a moment, or an earlier one at which something must be decided whatever is seen."""
        due = SESSION_MACHINE.deadline(self.status.phase, self.status)
        moments = [due[0]] if due else []
        moments += [request.deadline for request in open_requests(self.status).values()]
        return min((one for one in moments if self.now < one < then), default=then)


EffectOutcome = LabSummary | StoredArtifact | Failure | None
"""The outcome of an effect."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Fetch the topology and write it with the session's ports."""


@dataclass(frozen=True, slots=True)
class Import:
    """Import the lab that was prepared."""


@dataclass(frozen=True, slots=True)
class LabEffect:
    """What is done to a lab."""

    lab_id: str


class Start(LabEffect):
    """Start the lab's nodes."""


class Restart(LabEffect):
    """Start the nodes of a lab that somebody stopped."""


@dataclass(frozen=True, slots=True)
class Observe(LabEffect):
    """Observe what the lab uses and record it: to answer a request, after a change by hand, or at its end."""

    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Save(LabEffect):
    """Save the lab as it runs, to answer a request."""

    request: SaveRequest


class Collect(LabEffect):
    """Save the lab with the present configuration of its nodes."""


class Remove(LabEffect):
    """Stop, wipe and delete the lab."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove the file that was prepared."""


Effect = Prepare | Import | Start | Restart | Observe | Save | Collect | Remove | Discard


Decision = LifeDecision[LabletSessionStatus, Effect]
Decide = Callable[[SessionView], Decision]
React = Callable[[SessionView, EffectOutcome], Decision]


def move(view: SessionView, phase: SessionPhase, reason: str, **fields: Any) -> Report[LabletSessionStatus]:  # noqa: ANN401 - fields of a status
    """Return a step to another phase, with the other status fields that change with it."""
    if phase not in _OBSERVABLE_PHASES:  # its lab no longer exists
        for name, one in open_requests(view.status).items():
            error = f"not {one.deed}: the session was {phase} before {one.requested_by} could be answered"
            fields = unanswered_fields(name, error) | fields
    return enter_phase(view, phase, reason, **fields)


def poll_patiently(view: SessionView) -> Wait:
    """Look again after a part of the time that the phase has taken: what takes minutes is not polled every second.

    Before labs of the definition usually come up, there is nothing to see but how far it is.
    """
    passed, told_every = view.now - view.entered_at, view.rules.told_every
    is_early = view.usual is not None and passed + told_every < view.usual * _EARLY
    return Wait(
        view.now + (told_every if is_early else max(view.rules.poll, min(passed / _PATIENCE_DIVISOR, told_every)))
    )


def retry_refused(view: SessionView, failure: Failure, **fields: Any) -> Decision:  # noqa: ANN401 - fields of a status
    """Record a refusal, and try again after a while."""
    told = shorten_text(failure.message)
    return update_status(view, last_error=told, **fields) or Wait(view.now + view.rules.again)


def retry_if_refused(view: SessionView, outcome: EffectOutcome) -> Decision:
    """Record a refusal, which is not repeated at once. What else came of an effect is seen at the next look."""
    return retry_refused(view, outcome) if isinstance(outcome, Failure) else poll_again(view)


def set_condition(view: SessionView, name: str, truth: Truth, reason: str, message: str = "") -> tuple[Condition, ...]:
    """Return the session's conditions with one replaced."""
    new = Condition(type=name, status=truth, last_transition_at=view.now, reason=reason, message=shorten_text(message))
    return with_condition(view.status.conditions, new)


def is_machine_gone(worker: LabWorker | None) -> bool:
    """Return whether the machine of a session's lab was seen gone, and the lab with it."""
    if worker is None or worker.status.phase is WorkerPhase.TERMINATED:
        return True
    return worker.status.ec2.gone_at is not None or not worker.status.ec2.instance_id


def is_reclaimed(worker: LabWorker | None) -> bool:
    """Return whether the cloud has given notice that it takes a lab's machine away."""
    return worker is not None and worker.status.ec2.reclaim_at is not None


def is_worker_lost(worker: LabWorker | None) -> bool:
    """Return whether a lab cannot go on where it is."""
    return worker is None or is_machine_gone(worker) or worker.status.phase in _LOST_PHASES
