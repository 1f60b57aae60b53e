"""Where a script is performed: a world that tells what happens in it, for people to read."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lcm.control.delivery.events import phase_of
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.sim.world.scenario import Scenario
from lcm.sim.world.world import World
from lcm.store.base import Change


@dataclass
class Stagecraft:
    """Where a script is performed: a world, and what became of each session and machine."""

    world: "ToldWorld"
    names: dict[str, list[str]] = field(default_factory=dict)
    """The sessions of everybody who booked."""


class ToldWorld(World):
    """A world that writes down, for people to read, what happened and how sessions and workers went on."""

    def __init__(self, scenario: Scenario) -> None:
        self.lines: list[str] = []
        self.phases: dict[str, list[str]] = {}
        """The phases that each session has had, by its name."""
        self._told = 0
        super().__init__(scenario)

    def tell_the_rest(self) -> None:
        """Write down what was told since the last commit."""
        told = self.witness.log[self._told :]
        self._told += len(told)
        self.lines += [f"{line.at[3:8]} {line.text}" for line in told]

    def _noted(self, revision: int, changes: Sequence[Change]) -> None:
        objects = self.witness.seen.objects
        before = {change.key: objects.get(change.key) for change in changes}
        super()._noted(revision, changes)
        self.tell_the_rest()
        for key, old in before.items():
            new = objects.get(key)
            if isinstance(new, LabletSession | LabWorker) and (old is None or phase_of(old) != phase_of(new)):
                name, phase = new.metadata.name, str(phase_of(new))
                self.lines.append(f"{self.clock.now():%H:%M} {name} {phase}")
                self.phases.setdefault(name, []).append(phase)
            elif new is None and isinstance(old, LabletSession | LabWorker):
                self.lines.append(f"{self.clock.now():%H:%M} {old.metadata.name} is gone")
