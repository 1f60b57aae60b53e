"""A world in which every commit and every effect is checked, and the result of a run in it."""

from dataclasses import dataclass

from lcm.sim.world.scenario import Scenario
from lcm.sim.world.world import Violation, World
from world.witness import CheckingWitness, StoryLine


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run."""

    scenario: Scenario
    trace: str
    commits: int
    violations: tuple[Violation, ...]
    log: tuple[StoryLine, ...]
    story: tuple[StoryLine, ...] = ()
    """Everything that happened; kept only for a run that went wrong."""


class CheckedWorld(World):
    """A world with a CheckingWitness."""

    witness: CheckingWitness

    def _make_witness(self) -> CheckingWitness:
        return CheckingWitness(self.stage, calm=not self.scenario.mishaps_an_hour)

    def outcome(self) -> RunOutcome:
        """Return the result of the run."""
        witness = self.witness
        wrong, log = tuple(witness.violations), tuple(witness.log)
        story = tuple(witness.story) if wrong else ()
        return RunOutcome(self.scenario, witness.trace, witness.commits, wrong, log, story)
