"""A world whose witness asks no checks: it only keeps what a plan is measured by, so that months go by in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from lcm.control.objects.records import CODEC, located
from lcm.controllers.pool.view import POOL_LABEL
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.sim.cloud.effects import Effect
from lcm.sim.world.process import Process
from lcm.sim.world.scenario import Scenario
from lcm.sim.world.stage import Stage
from lcm.sim.world.witness import Witness
from lcm.sim.world.world import World
from lcm.store.base import Change


@dataclass(frozen=True, slots=True)
class Host:
    """Whose a machine was."""

    track: str
    instance_type: str


class Onlooker(Witness):
    """Keeps each session as it last was, and whose each machine is."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.sessions: dict[str, LabletSession] = {}
        """By name: nobody uses one twice here."""
        self.hosts: dict[str, Host] = {}
        """By the machine's id."""

    def commit(self, revision: int, changes: Sequence[Change]) -> None:  # noqa: ARG002  as the world tells it
        """See a commit."""
        self.commits += 1
        for change in changes:
            ref = located(change.key) if change.entry else None
            if change.entry is not None and ref is not None and ref.kind in {LabletSession, LabWorker}:
                self._note(CODEC.decode(change.entry.value, ref.kind))

    def effect(self, effect: Effect) -> None:
        """Let pass what is done to the outside: the cloud's own books tell it."""

    async def watch(self) -> None:
        """Look at nothing."""

    def tell(self, text: str) -> None:
        """Let pass what goes wrong: what it leads to is measured."""

    def overhear(self, line: str) -> None:
        """Let pass a line of a log."""

    def _note(self, resource: object) -> None:
        if isinstance(resource, LabletSession):
            self.sessions[resource.metadata.name] = resource
        elif isinstance(resource, LabWorker) and POOL_LABEL in resource.metadata.labels:
            # One that somebody launched by hand, and that was imported, is not of the fleet.
            ec2 = resource.status.ec2
            if ec2.instance_id:
                kind = ec2.instance_type or resource.spec.aws.instance_type
                self.hosts[ec2.instance_id] = Host(resource.spec.lab_track, kind)


class Unhurried(Process):
    """A process that looks at labs every ten seconds while they come up: a plan is counted in minutes."""

    pace = 0.1
    tidied = timedelta(days=2)


class PlannedWorld(World):
    """A world that is looked at by an onlooker."""

    made_of = Unhurried

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.onlooker = Onlooker(self.stage)
        self.witness = self.onlooker
