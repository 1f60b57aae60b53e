"""A world in which every commit and every effect is checked, and the result of a run in it."""

from dataclasses import dataclass

from lcm.controllers.runtime.settings import owner_limits_of
from lcm.sim.world.mishaps.processes import processes_are_upgraded
from lcm.sim.world.scenario import Scenario, lab_topology
from lcm.sim.world.world import Violation, World
from world.scenarios import definition_of, pool_documents, settings_document
from world.wire import WiredEnvironment
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
    """A world with a CheckingWitness, and with the labs and pools of its scenario."""

    stage_type = WiredEnvironment
    witness: CheckingWitness

    async def prepare(self) -> None:
        """Start the processes, and create what the scenario needs, as an operator's script would."""
        self.set_up()
        if self.scenario.quotas:
            await self.apply(settings_document(self.scenario.quotas))
        for lab in (*self.scenario.labs, *self.scenario.unhostable):
            stored = await self.stage.artifacts.put(lab_topology(lab))
            await self.apply(definition_of(lab, stored))
        for pool in self.scenario.pools:
            for resource in pool_documents(pool):
                await self.apply(resource)

    def _make_witness(self) -> CheckingWitness:
        wanted = self.scenario
        undisturbed = not wanted.bystanders and set(wanted.mishaps) == {processes_are_upgraded.__name__}
        made = CheckingWitness(self.stage, calm=not wanted.mishaps_an_hour, undisturbed=undisturbed)
        made.seen.limits = owner_limits_of(wanted.settings)
        return made

    def outcome(self) -> RunOutcome:
        """Return the result of the run."""
        witness = self.witness
        wrong, log = tuple(witness.violations), tuple(witness.log)
        story = tuple(witness.story) if wrong else ()
        return RunOutcome(self.scenario, witness.trace, witness.commits, wrong, log, story)
