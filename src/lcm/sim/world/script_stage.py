"""What a script acts on: a world that writes down, for people to read, what happens in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lcm.control.delivery.events import phase_of
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.sim.world.checked_world import CheckedWorld
from lcm.sim.world.scenario import Scenario
from lcm.store.base import Change


@dataclass
class ScriptContext:
    """What the lines of a script act on: a world, and the sessions of each person."""

    world: "TracedWorld"
    names: dict[str, list[str]] = field(default_factory=dict)
    """The names of sessions, by who booked them."""


class TracedWorld(CheckedWorld):
    """A world that writes down, for people to read, what happens and how sessions and workers change."""

    def __init__(self, scenario: Scenario) -> None:
        self.lines: list[str] = []
        self.phases: dict[str, list[str]] = {}
        """The phases that each session has been in, by its name."""
        self._lines_written = 0
        super().__init__(scenario)

    def write_new_lines(self) -> None:
        """Write down what was logged since the last commit."""
        told = self.witness.log[self._lines_written :]
        self._lines_written += len(told)
        self.lines += [f"{line.at[3:8]} {line.text}" for line in told]

    def _on_commit(self, revision: int, changes: Sequence[Change]) -> None:
        objects = self.witness.seen.objects
        before = {change.key: objects.get(change.key) for change in changes}
        super()._on_commit(revision, changes)
        self.write_new_lines()
        for key, old in before.items():
            new = objects.get(key)
            if isinstance(new, LabletSession | LabWorker) and (old is None or phase_of(old) != phase_of(new)):
                name, phase = new.metadata.name, str(phase_of(new))
                self.lines.append(f"{self.clock.now():%H:%M} {name} {phase}")
                self.phases.setdefault(name, []).append(phase)
            elif new is None and isinstance(old, LabletSession | LabWorker):
                self.lines.append(f"{self.clock.now():%H:%M} {old.metadata.name} is gone")
