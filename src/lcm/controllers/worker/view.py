"""What the lifecycle observes and what it may decide: values, no I/O.

`look` fills a `WorkerView`, the deciders (`launching`, `licensing`, `hosting`, `stopping`, `failing`) turn it into a
`Decision`, and `effects` carries that out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, LabWorkerStatus, WorkerPhase
from lcm.providers.protocols.compute import Instance, Launch, StatusChecks
from lcm.providers.protocols.labhost import Licence, Stats, System


@dataclass(frozen=True, slots=True)
class Unknown:
    """A missing observation: nobody asked, or no answer came.

    `answered` means that the machine is there and says that CML is not up. With a `reason` there was an answer
    that only a person can change: a wrong password, a missing permission.
    """

    why: str = "not asked"
    answered: bool = False
    reason: str = ""


NOT_ASKED: Final = Unknown()


@dataclass(frozen=True, slots=True)
class WorkerRules:
    """The settings that matter to a worker's lifecycle, and how often it is worth looking."""

    require_licensed: bool = True
    monitored: bool = True
    """Whether the monitor keeps facts fresh. If not, every look asks the machine too."""
    poll: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(hours=2)
    """How long a booting machine that cannot be reached counts as unknown.

    The boot limit applies to one that answers.
    """
    horizon: timedelta = timedelta(minutes=40)
    """How long before a session its worker must no longer be taken away."""
    judged_within: timedelta = timedelta(minutes=3)
    """The greatest age of an idle verdict that may still pause a worker."""
    unhealthy_for: timedelta = timedelta(minutes=10)
    drain_warning: timedelta = timedelta(minutes=15)
    clean_up: timedelta = timedelta(minutes=10)
    """How long sessions have after a drain's deadline to be collected and removed."""
    retries: int = 5
    same_machine: int = 2
    """How many retries use the failed machine before another one replaces it."""


class WorkerView(msgspec.Struct, frozen=True):
    """A worker and what was observed of it just now. `instance` None: the cloud answered that it is gone."""

    worker: LabWorker
    now: datetime
    rules: WorkerRules = WorkerRules()
    sessions: Sequence[LabletSession] = ()
    instance: Instance | Unknown | None = NOT_ASKED
    image_missing: bool | Unknown = False
    checks: StatusChecks | Unknown = NOT_ASKED
    certificate: str = ""
    system: System | Unknown = NOT_ASKED
    stats: Stats | Unknown = NOT_ASKED
    licence: Licence | Unknown = NOT_ASKED
    busy_labs: Sequence[str] | Unknown = NOT_ASKED

    @property
    def status(self) -> LabWorkerStatus:
        """The worker's status as it was before this look."""
        return self.worker.status

    @property
    def is_deleted(self) -> bool:
        """Whether the worker is marked for deletion."""
        return self.worker.metadata.deletion_timestamp is not None

    @property
    def blocker(self) -> Unknown | None:
        """The first observation that only a person can fix; None if there is none."""
        seen = (
            self.instance,
            self.image_missing,
            self.checks,
            self.system,
            self.stats,
            self.licence,
            self.busy_labs,
        )
        return next((one for one in seen if isinstance(one, Unknown) and one.reason), None)

    @property
    def entered_at(self) -> datetime:
        """When the worker entered its present phase."""
        history = self.status.history
        return history[-1].at if history else self.now


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A refused effect: `reason` in one word, `message` in a sentence."""

    reason: str
    message: str


EffectOutcome = Instance | Licence | WorkerFailure | None
"""The answer to an effect."""


@dataclass(frozen=True, slots=True)
class LaunchMachine:
    """Launch a machine, with the token that the status holds."""

    launch: Launch


@dataclass(frozen=True, slots=True)
class StartMachine:
    """Start the stopped machine."""


@dataclass(frozen=True, slots=True)
class StopMachine:
    """Stop the machine."""


@dataclass(frozen=True, slots=True)
class RebootMachine:
    """Reboot the machine."""


@dataclass(frozen=True, slots=True)
class RemoveMachine:
    """Terminate the machine."""


@dataclass(frozen=True, slots=True)
class Register:
    """Register CML's licence; `expansion_nodes` are those beyond what the product includes."""

    product: str
    token: str
    expansion_nodes: int = 0


@dataclass(frozen=True, slots=True)
class Deregister:
    """Return CML's licence."""


@dataclass(frozen=True, slots=True)
class SetTelemetry:
    """Set whether CML sends telemetry to its maker."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class StopLabs:
    """Stop the nodes of labs, so that CML can return its licence."""

    lab_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class EndSessions:
    """Request that sessions are collected and ended."""

    names: Sequence[tuple[str, str]]
    reason: str


@dataclass(frozen=True, slots=True)
class BeginDrain:
    """Repeat a deletion that was requested before the worker could be drained."""


Effect = (
    LaunchMachine
    | StartMachine
    | StopMachine
    | RebootMachine
    | RemoveMachine
    | Register
    | Deregister
    | SetTelemetry
    | StopLabs
    | EndSessions
    | BeginDrain
)


@dataclass(frozen=True, slots=True)
class WorkerWait:
    """Nothing to do until a moment; None: until something changes."""

    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A new status. With a new phase it is a step, and `reason` is its entry in the history."""

    status: LabWorkerStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WorkerDo:
    """Carry out an effect, then decide again by its outcome."""

    effect: Effect


Decision = WorkerWait | WorkerReport | WorkerDo
Decide = Callable[[WorkerView], Decision]


def enter_phase(view: WorkerView, phase: WorkerPhase, reason: str, **fields: Any) -> WorkerReport:  # noqa: ANN401 - fields of a status
    """Return a report that enters a phase and sets further fields of the status."""
    return WorkerReport(msgspec.structs.replace(view.status, phase=phase, **fields), reason)


def update_status(view: WorkerView, **fields: Any) -> WorkerReport | None:  # noqa: ANN401 - fields of a status
    """Return a report of other fields in the same phase; None when nothing differs."""
    status = msgspec.structs.replace(view.status, **fields)
    return None if status == view.status else WorkerReport(status)


def poll_again(view: WorkerView) -> WorkerWait:
    """Return a wait until the next poll."""
    return WorkerWait(view.now + view.rules.poll)
