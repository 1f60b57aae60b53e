"""What outlives our processes: the store, the cloud with its CMLs and licences, artifacts, time and chance."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Relist, StoreFull
from lcm.providers.protocols.labhost import Hosts
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.sim.cloud.effects import OnEffect, ignore_effect
from lcm.sim.cloud.fleet import PASSWORD, SimFleet, SimHosts
from lcm.sim.cml.engine import Cml
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock
from lcm.sim.world.scenario import SECRET, Scenario
from lcm.store.base import LEASES_PREFIX, Change, CommitChanges, Entry, Fence, Lease, Op, Put, StoreUsage
from lcm.store.memory import MemoryStore

OnCommit = Callable[[int, Sequence[Change]], None]
"""Called when a commit has happened, before anybody else knows of it."""


class Environment:
    """Everything outside of our own processes."""

    def __init__(
        self, scenario: Scenario, noted: OnCommit, done: OnEffect = ignore_effect, *, password: str = PASSWORD
    ) -> None:
        """Make it; `password` is that of every CML."""
        self.clock = VirtualClock()
        self.chance = Chance(scenario.seed)
        self.store = WatchedStore(noted)
        self.fleet = SimFleet(
            self.clock, self.chance.stream("cloud"), regions=scenario.regions, on_effect=done, password=password
        )
        self.cloud = self.fleet.cloud
        self.licences = self.fleet.licences
        self.artifacts = SimulatedArtifacts(self.clock)
        self.hosts = SimHosts(self.cloud)
        self.secrets = OneSecret()

    def hosts_of(self, _process: str) -> Hosts:
        """Return the way in which a process reaches CMLs."""
        return self.hosts

    def cml(self, instance_id: str) -> Cml | None:
        """Return the CML of a machine; None while the machine does not run."""
        found = self.cloud.find_attached(instance_id)
        return found if isinstance(found, Cml) else None


_STORE_BYTES: Final = 1_000_000
FULL_PERCENT: Final = 100
HALF_FULL_PERCENT: Final = 50


@dataclass(frozen=True)
class StoreCopy:
    """A copy of a store's files."""

    revision: int
    compacted: int
    states: Mapping[str, Sequence[tuple[int, Entry | None]]]
    log: Sequence[CommitChanges]


class WatchedStore(MemoryStore):
    """A store that reports every commit, on the host that made it, and that can be full.

    A full one is like etcd above its quota: nothing can be put and no lease granted, while reads, deletions and
    renewals go on.
    """

    def __init__(self, noted: OnCommit) -> None:
        super().__init__(epoch="simulated")
        self._on_commit = noted
        self.used_percent = HALF_FULL_PERCENT

    @property
    def is_full(self) -> bool:
        """Whether it takes no writes."""
        return self.used_percent >= FULL_PERCENT

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        if events or any(isinstance(one, Put) for one in ops):
            await self._refuse_if_full()
        return await super().commit(*ops, events=events, fence=fence)

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        await self._refuse_if_full()
        return await super().acquire(name, holder, ttl_seconds=ttl_seconds)

    async def probe(self) -> None:
        await super().probe()
        if self.is_full:
            await self._refuse_if_full()

    async def usage(self) -> StoreUsage | None:
        await super().usage()
        return StoreUsage(self.used_percent * _STORE_BYTES // FULL_PERCENT, _STORE_BYTES)

    def copy_state(self) -> StoreCopy:
        """Return all that it holds now, as a copy of its files would."""
        states = {key: list(several) for key, several in self._states.items() if not key.startswith(LEASES_PREFIX)}
        return StoreCopy(self._revision, self._compacted, states, list(self._log))

    def put_back(self, copy: StoreCopy) -> None:
        """Become a copy again, under the processes that run: the revision goes back, and no lease is held."""
        self._leases.clear()
        self._revision, self._compacted, self._log = copy.revision, copy.compacted, list(copy.log)
        self._states = {key: list(several) for key, several in copy.states.items()}
        self._keys = sorted(self._states)
        self._compactable = dict.fromkeys(self._keys)
        self._hub.tail = self._revision
        self._hub.end(Relist("the connection broke"))

    @property
    def revision(self) -> int:
        """The revision of the last commit."""
        return self._revision

    @property
    def has_leases(self) -> bool:
        """Whether any process holds a lease."""
        return bool(self._leases)

    async def _refuse_if_full(self) -> None:
        if self.is_full:
            await asyncio.sleep(0)
            raise StoreFull("the store takes no more: its quota is used up")

    def holder(self, lease: str) -> str | None:
        """Return who holds a lease at this very moment; None for nobody."""
        held = self._leases.get(lease)
        return held.lease.holder if held else None

    def _write(self, ops: Sequence[Op]) -> int:
        before = self._revision
        revision = super()._write(ops)
        if revision != before:
            self._on_commit(revision, self._log[-1].changes)
        return revision


class OneSecret:
    """Returns the same secret for every reference; it must never appear anywhere."""

    async def reveal(self, _ref: str) -> Secret:
        await asyncio.sleep(0)
        return Secret(SECRET)
