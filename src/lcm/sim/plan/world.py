"""The simulated world of a plan. It runs no checks and only keeps what a plan is measured by.

So months pass in seconds. Used by `sim.plan.trial` and `sim.plan.measure`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from lcm.control.objects.records import CODEC, ref_of_key
from lcm.controllers.pool.view import POOL_LABEL
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.sim.world.process import Process
from lcm.sim.world.world import Witness, World
from lcm.store.base import Change


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """The pool and type of a machine."""

    pool: str
    instance_type: str


class PlanWitness(Witness):
    """Keeps the last state of each session, and the pool of each machine."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, LabletSession] = {}
        """By name: no name is used twice here."""
        self.hosts: dict[str, MachineRecord] = {}
        """By the machine's id."""

    def record_commit(self, revision: int, changes: Sequence[Change]) -> None:  # noqa: ARG002  as the world tells it
        """Record a commit."""
        self.commits += 1
        for change in changes:
            ref = ref_of_key(change.key) if change.entry else None
            if change.entry is not None and ref is not None and ref.kind in {LabletSession, LabWorker}:
                self._record_object(CODEC.decode(change.entry.value, ref.kind))

    def _record_object(self, resource: object) -> None:
        if isinstance(resource, LabletSession):
            self.sessions[resource.metadata.name] = resource
        elif isinstance(resource, LabWorker) and POOL_LABEL in resource.metadata.labels:
            # A machine that somebody launched by hand, and that was imported, is not part of the fleet.
            ec2 = resource.status.ec2
            if ec2.instance_id:
                kind = ec2.instance_type or resource.spec.aws.instance_type
                self.hosts[ec2.instance_id] = MachineRecord(resource.metadata.labels[POOL_LABEL], kind)


class PlanProcess(Process):
    """A process that polls starting labs every ten seconds only: a plan is counted in minutes."""

    poll_rate = 0.1
    housekeeping_every = timedelta(days=2)
    archive_every = timedelta(hours=1)
    watches_store = False


class PlanWorld(World):
    """A world with a PlanWitness."""

    process_type = PlanProcess

    witness: PlanWitness

    def _make_witness(self) -> PlanWitness:
        return PlanWitness()
