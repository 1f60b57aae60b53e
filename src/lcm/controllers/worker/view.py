"""What the lifecycle looks at and what it may decide: values, no I/O.

`look` fills a `View`, the deciders (`launching`, `booting`, `licensing`, `hosting`, `draining`, `stopping`, `failing`)
make a `Decision` of it, `effects` carries it out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, LabWorkerStatus, WorkerPhase
from lcm.providers.protocols.compute import Checks, Instance, Launch
from lcm.providers.protocols.labhost import Licence, Stats, System


@dataclass(frozen=True, slots=True)
class Unknown:
    """There was no answer, or nobody asked. `answered`: the machine is there, and says that CML is not up.

    With a `reason` there was an answer that only a person can change: a wrong password, a missing permission.
    """

    why: str = "not asked"
    answered: bool = False
    reason: str = ""


UNASKED: Final = Unknown()


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings say that matters here, and how often a look is worth it."""

    require_licensed: bool = True
    monitored: bool = True
    """Whether the monitor keeps facts fresh; if not, each look is one at the machine too."""
    poll: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(hours=2)
    """How long a booting machine that cannot be reached counts as unknown; the boot limit holds for what answers."""
    horizon: timedelta = timedelta(minutes=40)
    """How long before a session its worker must not be taken away any more."""
    judged_within: timedelta = timedelta(minutes=3)
    """How old a verdict of idleness may be that still pauses a worker."""
    unhealthy_for: timedelta = timedelta(minutes=10)
    drain_warning: timedelta = timedelta(minutes=15)
    clean_up: timedelta = timedelta(minutes=10)
    """What sessions get after a drain's deadline to be collected and removed."""
    retries: int = 5
    same_machine: int = 2
    """How many retries use the machine that failed, before another takes its place."""


class View(msgspec.Struct, frozen=True):
    """A worker and what was seen of it just now. `instance` None: the cloud answered that it is gone."""

    worker: LabWorker
    now: datetime
    rules: Rules = Rules()
    sessions: Sequence[LabletSession] = ()
    instance: Instance | Unknown | None = UNASKED
    image_missing: bool | Unknown = False
    checks: Checks | Unknown = UNASKED
    certificate: str = ""
    system: System | Unknown = UNASKED
    stats: Stats | Unknown = UNASKED
    licence: Licence | Unknown = UNASKED
    busy_labs: Sequence[str] | Unknown = UNASKED

    @property
    def status(self) -> LabWorkerStatus:
        """What was known before."""
        return self.worker.status

    @property
    def deleted(self) -> bool:
        """Whether it is to go."""
        return self.worker.metadata.deletion_timestamp is not None

    @property
    def stuck(self) -> Unknown | None:
        """What only a person can mend, of all that was asked for; None if nothing."""
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
        """Since when it has been in its phase."""
        history = self.status.history
        return history[-1].at if history else self.now


@dataclass(frozen=True, slots=True)
class Failure:
    """An effect was refused: `reason` in one word, `message` in a sentence."""

    reason: str
    message: str


Outcome = Instance | Licence | Failure | None
"""What an effect was answered with."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Launch a machine, under the token that the status holds."""

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
    """Give CML's licence back."""


@dataclass(frozen=True, slots=True)
class SetTelemetry:
    """Tell CML whether to send telemetry to its maker."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class StopLabs:
    """Stop the nodes of labs, so that CML lets its licence go."""

    lab_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class EndSessions:
    """Ask for sessions to be collected and ended."""

    names: Sequence[tuple[str, str]]
    reason: str


@dataclass(frozen=True, slots=True)
class BeginDrain:
    """Repeat a deletion that came before the worker could be drained."""


Effect = (
    Ask
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
class Wait:
    """Nothing to do until a moment; None: until something changes."""

    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Another status; with another phase it is a step, and `reason` its line in the story."""

    status: LabWorkerStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Do:
    """Have an effect, then decide again by its outcome."""

    effect: Effect


Decision = Wait | Report | Do
Decide = Callable[[View], Decision]


def move(view: View, phase: WorkerPhase, reason: str, **fields: Any) -> Report:  # noqa: ANN401 - fields of a status
    """Take a step, with what else of the status changes by it."""
    return Report(msgspec.structs.replace(view.status, phase=phase, **fields), reason)


def note(view: View, **fields: Any) -> Report | None:  # noqa: ANN401 - fields of a status
    """Report other facts in the same phase; None when nothing differs."""
    status = msgspec.structs.replace(view.status, **fields)
    return None if status == view.status else Report(status)


def soon(view: View) -> Wait:
    """Look again after a while."""
    return Wait(view.now + view.rules.poll)
