"""Every kind in one table: its struct, its plural in paths and keys, its state machine.

`python -m lcm.model.kinds.registry` renders all state machines as one Markdown page, docs/states.md.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lcm.model.base.machine import StateMachine, describe_machine
from lcm.model.base.resource import DEFAULT_NAMESPACE
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import POOL_MACHINE, LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.worker import LabWorker
from lcm.model.kinds.worker_machine import WORKER_MACHINE

Resource = (
    LabWorker | LabWorkerPool | WorkerTemplate | LabletDefinition | LabletSession | Reservation | SystemSettings | Sink
)
"""A document of any kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of resource: its struct, its plural, its state machine."""

    struct: type[Resource]
    plural: str
    machine: StateMachine[Any] | None = None
    global_root: str = ""
    """Begins the keys of a kind that belongs to no namespace."""
    prefix: str = field(init=False)
    """What the store keys of all objects of this kind begin with."""

    @property
    def name(self) -> str:
        """The kind as it is spelt in documents."""
        return self.struct.__name__

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", f"{self.global_root or self.plural}/")

    def prefix_in(self, namespace: str) -> str:
        """Return what the store keys of a namespace's objects begin with."""
        return self.prefix if self.global_root else f"{self.prefix}{namespace}/"

    def key(self, namespace: str, name: str) -> str:
        """Return the store key of an object of this kind."""
        return self.prefix_in(namespace) + name

    def split_key(self, key: str) -> tuple[str, str]:
        """Return the namespace and the name of the object at a key."""
        rest = key.removeprefix(self.prefix)
        namespace, _, name = (DEFAULT_NAMESPACE, "", rest) if self.global_root else rest.partition("/")
        return namespace, name


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind(LabWorker, "workers", WORKER_MACHINE),
        Kind(LabWorkerPool, "worker-pools", POOL_MACHINE),
        Kind(WorkerTemplate, "worker-templates"),
        Kind(LabletDefinition, "lablet-definitions"),
        Kind(LabletSession, "lablet-sessions", SESSION_MACHINE),
        Kind(Reservation, "reservations", RESERVATION_MACHINE),
        Kind(SystemSettings, "settings"),
        Kind(Sink, "event-sinks", global_root="sinks"),
    )
}
STATE_MACHINES: Final[tuple[StateMachine[Any], ...]] = tuple(kind.machine for kind in KINDS.values() if kind.machine)


_HEADING: Final = """\
# States

Made from the tables in `lcm.model` by `make docs`; a test compares. Only the control plane takes steps, for the part
named under *by*.
"""


def render_states() -> str:
    """Return the whole Markdown page."""
    return "\n".join([_HEADING, *map(describe_machine, STATE_MACHINES)])


if __name__ == "__main__":
    sys.stdout.write(render_states())
