"""Every kind in one table: its struct, its plural in paths and keys, its state machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lcm.model.definition import LabletDefinition
from lcm.model.machine import Machine
from lcm.model.pool import POOL, LabWorkerPool, WorkerTemplate
from lcm.model.reservation import RESERVATION, Reservation
from lcm.model.session import SESSION, LabletSession
from lcm.model.settings import SystemSettings
from lcm.model.worker import LabWorker
from lcm.model.worker_steps import WORKER

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
