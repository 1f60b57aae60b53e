"""What the lifecycle observes and what it may decide: values, no I/O.

`look` fills a `WorkerView`, the deciders (`launching`, `licensing`, `hosting`, `stopping`, `failing`) turn it into a
`Decision`, and `effects` carries that out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lcm.controllers.runtime.lifecycle import NOT_ASKED, Failure, LifeDecision, LifeView, Unknown
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, LabWorkerStatus, WorkerPhase
from lcm.providers.protocols.compute import Instance, Launch, StatusChecks
from lcm.providers.protocols.labhost import Licence, NodeDefinition, Stats, System


@dataclass(frozen=True, slots=True)
class WorkerRules:
    """The settings that matter to a worker's lifecycle, and how often it is worth looking."""

    require_licensed: bool = True
    monitored: bool = True
    """Whether the monitor keeps facts fresh. If not, every look asks the machine too."""
    console_trust: bool = False
    """Whether a certificate is pinned only if the machine's console shows its fingerprint."""
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


class WorkerView(LifeView[LabWorker, LabWorkerStatus], frozen=True):
    """A worker and what was observed of it just now. `instance` None: the cloud answered that it is gone."""

    rules: WorkerRules = WorkerRules()
    sessions: Sequence[LabletSession] = ()
    instance: Instance | Unknown | None = NOT_ASKED
    image_missing: bool | Unknown = False
    checks: StatusChecks | Unknown = NOT_ASKED
    certificate: str = ""
    system: System | Unknown = NOT_ASKED
    stats: Stats | Unknown = NOT_ASKED
    licence: Licence | Unknown = NOT_ASKED
    definitions: Sequence[NodeDefinition] | Unknown = NOT_ASKED
    """The node definitions of a CML that has booted. Nothing waits for them: the monitor asks again."""
    busy_labs: Sequence[str] | Unknown = NOT_ASKED
    session_labs: Sequence[str] | Unknown = ()
    """The labs of sessions on a machine that is drained or has failed, and that no known session is on."""

    @property
    def used_sessions(self) -> Sequence[LabletSession]:
        """The sessions that somebody has: all but prebuilt ones."""
        return [one for one in self.sessions if not one.spec.prebuilt]

    @property
    def worker(self) -> LabWorker:
        """The worker as it was before this look."""
        return self.resource

    @property
    def state_since(self) -> datetime | None:
        """When the machine came into its state; None if the cloud did not say."""
        return self.instance.state_since if isinstance(self.instance, Instance) else None

    @property
    def has_unknown_labs(self) -> bool:
        """Whether labs of sessions that are not known keep a drained machine.

        They do so until the drain's deadline; a pool, which is in no hurry, waits until they are gone.
        """
        if self.sessions or isinstance(self.session_labs, Unknown) or not self.session_labs:
            return False
        drains = [line.by for line in self.status.history if line.phase == WorkerPhase.DRAINING]
        deadline = self.status.drain_deadline_at
        return drains[-1:] == [POOL_CONTROLLER] or (deadline is not None and self.now < deadline)

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


EffectOutcome = Instance | Licence | Failure | None
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


Decision = LifeDecision[LabWorkerStatus, Effect]
Decide = Callable[[WorkerView], Decision]
