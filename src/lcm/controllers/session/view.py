"""What the lives of sessions are decided by and what may be decided: values, no I/O.

`look` fills a `View`, the deciders (`starting`, `running`, `ending`) make a `Decision` of it, `effects` carries it out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.controllers.worker.view import Unknown
from lcm.model.base.resource import Condition, Truth, condition, with_condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import OBSERVATION_LIMIT, SESSION, LabletSession, LabletSessionStatus, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.providers.protocols.artifacts import Stored
from lcm.providers.protocols.labhost import LabState, LabSummary

UNASKED: Final = Unknown()
CAN_RUN: Final = "CanRun"
"""False: no worker could run this session's lab, so that it is not tried again."""
_W: Final = WorkerPhase
_LOST: Final = frozenset({_W.STOPPING, _W.STOPPED, _W.TERMINATING_EC2, _W.TERMINATED, _W.FAILED})
_OBSERVED: Final = frozenset({SessionPhase.RUNNING, SessionPhase.COLLECTING})
_TEXT: Final = 2000
_PATIENCE: Final = 20
"""Who looks after a twentieth of the time that has passed learns of the end a twentieth late at most."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How often a look is worth it, and how much is tried."""

    poll: timedelta = timedelta(seconds=1)
    """Between two looks at a lab that is coming up or going."""
    watch: timedelta = timedelta(seconds=15)
    """Between two looks at a lab that runs."""
    again: timedelta = timedelta(seconds=10)
    """Between two attempts at what was refused."""
    refused_for: timedelta = timedelta(minutes=2)
    """How long what is refused is attempted before another place is tried."""
    told_every: timedelta = timedelta(seconds=5)
    """How often a lab's boot is told of, unless it leaps."""
    settle: timedelta = timedelta(seconds=70)
    """How long an import whose answer was lost may still make a lab: longer than one may take here."""
    observe_within: timedelta = timedelta(seconds=30)
    observe_again: timedelta = timedelta(minutes=5)
    """Between two looks at what a lab has that somebody keeps changing."""
    worth_it: timedelta = timedelta(minutes=10)
    """What must be left of a slot for a lab to be started anew in it."""
    kept_for: timedelta = timedelta(days=30)
    """How long what was collected is kept."""
    starts: int = 4
    """How many labs start on a worker at once."""
    restarts: int = 3
    """How often a lab that somebody stopped is started again."""
    forgiven: timedelta = timedelta(minutes=30)
    """After which a lab that was found stopped may be as often again."""
    unseen_for: timedelta = timedelta(minutes=1)
    """How long a lab is out of sight before that is said."""
    seldom: timedelta = timedelta(seconds=30)
    """Between two looks at most for a lab that is out of sight."""


class View(msgspec.Struct, frozen=True):
    """A session and what was seen of it just now. `lab` None: its host answered that there is none, or is gone."""

    session: LabletSession
    now: datetime
    rules: Rules = Rules()
    definition: LabletDefinition | None = None
    worker: LabWorker | None = None
    lab: LabSummary | Unknown | None = UNASKED
    converged: bool | Unknown = UNASKED
    nodes: Mapping[str, str] | Unknown = UNASKED
    """The states of its lab's nodes, by id."""
    ahead: int = 0
    """How many labs start on its worker before this one."""
    usual: timedelta | None = None
    """How long labs of its definition took to start; None if nobody knows."""
    unseen_since: datetime | None = None
    """Since when its lab has been asked for in vain; None if it was not."""

    @property
    def status(self) -> LabletSessionStatus:
        """What was known before."""
        return self.session.status

    @property
    def deleted(self) -> bool:
        """Whether it is to go."""
        return self.session.metadata.deletion_timestamp is not None

    @property
    def entered_at(self) -> datetime:
        """Since when it has been in its phase."""
        history = self.status.history
        return history[-1].at if history else self.now

    @property
    def overdue(self) -> bool:
        """Whether its phase has lasted for as long as it may."""
        due = SESSION.deadline(self.status.phase, self.status)
        return due is not None and self.now >= due[0]

    @property
    def stopped(self) -> bool:
        """Whether its lab is there and does not run."""
        return isinstance(self.lab, LabSummary) and self.lab.state is not LabState.STARTED

    @property
    def on_worker(self) -> str:
        """Name its worker for people."""
        return self.status.worker_name or self.status.worker_id or "no worker"

    def no_later(self, then: datetime) -> datetime:
        """Give a moment, or an earlier one at which something is to be decided whatever is seen."""
        due, request = SESSION.deadline(self.status.phase, self.status), self.status.observation_request
        moments = [due[0]] if due else []
        if request is not None:
            moments.append(request.requested_at + OBSERVATION_LIMIT)
        return min((one for one in moments if self.now < one < then), default=then)


@dataclass(frozen=True, slots=True)
class Failure:
    """An effect was refused: `reason` in one word, `message` in a sentence. `hopeless`: it would be everywhere."""

    reason: str
    message: str
    hopeless: bool = False


Outcome = LabSummary | Stored | Failure | None
"""What an effect was answered with."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Fetch the topology and write it with the session's ports."""


@dataclass(frozen=True, slots=True)
class Import:
    """Import the lab that was prepared."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the lab's nodes."""

    lab_id: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the nodes of a lab that somebody stopped."""

    lab_id: str


@dataclass(frozen=True, slots=True)
class Observe:
    """See what the lab uses and have it recorded: as the answer to a request, after a change by hand, at its end."""

    lab_id: str
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Collect:
    """Save the lab with what its nodes are configured to now."""

    lab_id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Stop, wipe and delete the lab."""

    lab_id: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove the file that was prepared."""


Effect = Prepare | Import | Start | Restart | Observe | Collect | Remove | Discard


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until a moment; None: until something changes."""

    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Another status; with another phase it is a step, and `reason` its line in the story."""

    status: LabletSessionStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Do:
    """Have an effect, then decide again by its outcome."""

    effect: Effect


Decision = Wait | Report | Do
Decide = Callable[[View], Decision]
React = Callable[[View, Outcome], Decision]


def move(view: View, phase: SessionPhase, reason: str, **fields: Any) -> Report:  # noqa: ANN401 - fields of a status
    """Take a step, with what else of the status changes by it."""
    return Report(msgspec.structs.replace(view.status, phase=phase, **_unasked(view, phase) | fields), reason[:_TEXT])


def _unasked(view: View, phase: SessionPhase) -> dict[str, Any]:
    """Clear a request to observe what is no longer there."""
    request = view.status.observation_request
    if request is None or phase in _OBSERVED:
        return {}
    error = f"not observed: the session was {phase} before {request.requested_by} could be answered"
    return {"observation_request": None, "observation_error": error}


def note(view: View, **fields: Any) -> Report | None:  # noqa: ANN401 - fields of a status
    """Report other facts in the same phase; None when nothing differs."""
    status = msgspec.structs.replace(view.status, **fields)
    return None if status == view.status else Report(status)


def soon(view: View) -> Wait:
    """Look again after a while."""
    return Wait(view.now + view.rules.poll)


def patiently(view: View) -> Wait:
    """Look again after a part of the time that its phase has taken: what takes minutes is not asked for each second."""
    passed = (view.now - view.entered_at) / _PATIENCE
    return Wait(view.now + max(view.rules.poll, min(passed, view.rules.told_every)))


def refused(view: View, failure: Failure) -> Decision:
    """Take note of a refusal, and try again after a while."""
    return note(view, last_error=failure.message[:_TEXT]) or Wait(view.now + view.rules.again)


def said(view: View, name: str, truth: Truth, reason: str, message: str = "") -> tuple[Condition, ...]:
    """Give its conditions with another one."""
    new = Condition(type=name, status=truth, last_transition_at=view.now, reason=reason, message=message[:_TEXT])
    return with_condition(view.status.conditions, new)


def denied(session: LabletSession, name: str) -> bool:
    """Tell whether a condition is known to be false."""
    known = condition(session.status.conditions, name)
    return known is not None and known.status is Truth.FALSE


def machine_gone(worker: LabWorker | None) -> bool:
    """Tell whether the machine that a session's lab was on was seen gone, and the lab with it."""
    if worker is None or worker.status.phase is WorkerPhase.TERMINATED:
        return True
    return worker.status.ec2.gone_at is not None or not worker.status.ec2.instance_id


def worker_lost(worker: LabWorker | None) -> bool:
    """Tell whether a lab cannot go on where it is."""
    return worker is None or machine_gone(worker) or worker.status.phase in _LOST
