"""What outlives every process of ours: the store, the cloud with its CMLs and licences, files, time and chance."""

import asyncio
from collections.abc import Callable, Sequence

from lcm.model.access.secret import Secret
from lcm.providers.cml.host import CmlHosts
from lcm.providers.protocols.artifacts import Listed
from lcm.providers.protocols.compute import ENDING, Instance
from lcm.providers.protocols.labhost import Hosts
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.sim.cloud.effects import OnEffect, unheard
from lcm.sim.cloud.fleet import PASSWORD, Fleet, SimHosts
from lcm.sim.cml.engine import Cml
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock
from lcm.sim.world.scenario import SECRET, Scenario
from lcm.sim.world.wire import Wire
from lcm.store.base import Change, Op
from lcm.store.memory import MemoryStore

Noted = Callable[[int, Sequence[Change]], None]
"""Hears of a commit, when it has happened and nobody else knows."""


class Stage:
    """The world without us."""

    def __init__(self, scenario: Scenario, noted: Noted, done: OnEffect = unheard) -> None:
        self.clock = VirtualClock()
        self.chance = Chance(scenario.seed)
        self.store = WatchedStore(noted)
        self._face = scenario.face
        password = SECRET if scenario.face == "client" else PASSWORD
        self.fleet = Fleet(self.clock, self.chance.stream("cloud"), on_effect=done, password=password)
        self.cloud = self.fleet.cloud
        self.licences = self.fleet.licences
        self.artifacts = SimulatedArtifacts(self.clock)
        self.hosts = SimHosts(self.cloud)
        self.secrets = OneSecret()

    def hosts_of(self, process: str) -> Hosts:
        """Give the way of a process to CMLs; each has a client of its own."""
        if self._face == "direct":
            return self.hosts
        return CmlHosts(self.secrets, transport=Wire(self.cloud, self.clock, self.hosts.spells, process))

    def living(self) -> Sequence[Instance]:
        """List the machines that cost money."""
        now = self.clock.now()
        every = [machine.instance(now) for machine in self.cloud.account.machines.values()]
        return [one for one in every if one.state not in ENDING]

    def temporary_files(self) -> Sequence[Listed]:
        """List the files by name, as they are at this moment."""
        return self.artifacts.temporary()

    def cml(self, instance_id: str) -> Cml | None:
        """Find the CML of a machine; None while that does not run."""
        found = self.cloud.attached(instance_id)
        return found if isinstance(found, Cml) else None


class WatchedStore(MemoryStore):
    """A store that tells of every commit, on the host that made it."""

    def __init__(self, noted: Noted) -> None:
        super().__init__(epoch="simulated")
        self._noted = noted

    def holder(self, lease: str) -> str | None:
        """Tell who holds a lease at this very moment."""
        held = self._leases.get(lease)
        return held.lease.holder if held else None

    def _write(self, ops: Sequence[Op]) -> int:
        before = self._revision
        revision = super()._write(ops)
        if revision != before:
            self._noted(revision, self._log[-1].changes)
        return revision


class OneSecret:
    """Gives the same secret for every reference; it must be found nowhere."""

    async def reveal(self, _ref: str) -> Secret:
        await asyncio.sleep(0)
        return Secret(SECRET)
