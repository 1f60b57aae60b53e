"""Every kind in one table: its struct, its plural in paths and keys, its state machine."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lcm.model.base.machine import Machine, describe
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import POOL, LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import RESERVATION, Reservation
from lcm.model.kinds.session import SESSION, LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.model.kinds.worker_machine import WORKER

Resource = LabWorker | LabWorkerPool | WorkerTemplate | LabletDefinition | LabletSession | Reservation | SystemSettings
"""Any document of any kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known about a kind."""

    struct: type[Resource]
    plural: str
    machine: Machine[Any] | None = None

    @property
    def name(self) -> str:
        """The kind as documents spell it."""
        return self.struct.__name__

    def key(self, namespace: str, name: str) -> str:
        """Where the store keeps an object of this kind."""
        return f"{self.plural}/{namespace}/{name}"


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind(LabWorker, "workers", WORKER),
        Kind(LabWorkerPool, "worker-pools", POOL),
        Kind(WorkerTemplate, "worker-templates"),
        Kind(LabletDefinition, "lablet-definitions"),
        Kind(LabletSession, "lablet-sessions", SESSION),
        Kind(Reservation, "reservations", RESERVATION),
        Kind(SystemSettings, "settings"),
    )
}
MACHINES: Final[tuple[Machine[Any], ...]] = tuple(kind.machine for kind in KINDS.values() if kind.machine)


_HEADING: Final = """\
# States

Made from the tables in `lcm.model` by `make docs`; a test compares. Only the control plane takes steps, for the part
named under *by*.
"""


def render() -> str:
    """Write the whole page."""
    return "\n".join([_HEADING, *map(describe, MACHINES)])


if __name__ == "__main__":
    sys.stdout.write(render())
