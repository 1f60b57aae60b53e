"""Sessions in virtual time: the real lablet controller on simulated CMLs, with the other controllers or without."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import msgspec

from harness.credentials import given_keys
from harness.fleet_world import UNLICENSED, Witnessed
from harness.plane_world import service
from harness.workers import beside, spec
from lcm.control.objects.records import change_ops, creation_ops, find_record
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane, Ref
from lcm.controllers.pool.controller import PoolController
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.controllers.session.controller import LEASE, LabletController
from lcm.controllers.session.progress import prepared_name, title_of
from lcm.controllers.worker.controller import WorkerController
from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER
from lcm.model.base.resource import Condition, Metadata, PhaseChange, Truth
from lcm.model.kinds.definition import (
    DefinitionState,
    LabletDefinition,
    LabletDefinitionSpec,
    ResourceRequirements,
    Topology,
)
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, LabletSessionStatus, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerCondition, WorkerPhase
from lcm.model.topology.lab import parse_lab, rewrite
from lcm.placement.claims import Terms
from lcm.providers.protocols.compute import Instance
from lcm.providers.protocols.labhost import Hosts, LabHost, LabSummary
from lcm.settings.load import Settings
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.sim.cloud.effects import PowerHistory
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.parts import SimLab
from lcm.sim.time.chance import Ids
from lcm.sim.time.host import HOST
from lcm.sim.time.loop import VirtualStopwatch

_P = SessionPhase
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
UNMEASURED = Settings(
    worker_monitoring_enabled=False, worker_discovery_enabled=False, worker_controller_leader_lease_ttl=3600
)
S1 = Ref(LabletSession, "s1")
PORTS = {"PC_serial": 6001, "PC_vnc": 6002, "PC_pat_tcp_22": 6003}
SMALL = """\
lab: {version: 0.3.0, title: the file's own title}
nodes:
  - id: n0
    label: PC
    node_definition: server
    x: 0
    y: 0
    tags: [serial:5001, vnc:5002, "pat:5003:22", core]
    configuration: hostname PC
    interfaces: [{id: i0, label: eth0, type: physical, slot: 0}]
  - id: n1
    label: out
    node_definition: external_connector
    x: 100
    y: 0
    configuration: NAT
    interfaces: [{id: i0, label: port, type: physical, slot: 0}]
links: [{id: l0, n1: n0, i1: i0, n2: n1, i2: i0}]
"""


@dataclass
class Lablets(Witnessed):
    """A fleet with sessions on it."""

    terms: Terms = field(default_factory=Terms)
    settings: Settings = UNMEASURED
    speed: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.artifacts = SimulatedArtifacts(self.clock)
        self.core = self.control()

    def control(self) -> ControlPlane:
        return ControlPlane(
            self.store,
            clock=self.clock,
            ids=Ids(self.chance.stream("ids")),
            record_ids=Ids(self.chance.stream("records")),
            sealer=given_keys(),
            terms=self.terms,
            artifacts=getattr(self, "artifacts", None),
        )

    def leader(self) -> str | None:
        held = self.store._leases.get(LEASE)
        return held.lease.holder if held else None

    def _install(self, instance: Instance, power: PowerHistory) -> Cml:
        cml = super()._install(instance, power)
        self._witness(cml, ["import_lab"])
        self._witness(cml._labs, ["start", "stop", "wipe", "delete"])
        return cml

    def by(self, actor: str) -> Plane:
        return self.core.plane_for(service(actor))

    def lablets(self, *, holder: str = "lablets", hosts: Hosts | None = None, alone: bool = False) -> LabletController:
        """Make the lablet controller of one process; `alone` with a plane of its own."""
        core = self.control() if alone else self.core
        return LabletController(
            core.plane_for(service(LABLET_CONTROLLER)),
            hosts or self.hosts,
            self.artifacts,
            clock=self.clock,
            stopwatch=VirtualStopwatch(),
            chance=self.half,
            settings=self.settings,
            holder=holder,
            speed=self.speed,
        )

    @asynccontextmanager
    async def attended(self, *, hosts: Hosts | None = None) -> AsyncIterator["Lablets"]:
        """Run the lablet controller beside what a test does, and nothing else."""
        async with beside(self.lablets(hosts=hosts).run()):
            yield self

    @asynccontextmanager
    async def everybody(self) -> AsyncIterator["Lablets"]:
        """Run the calendar and all four controllers beside what a test does."""
        assert self.core.promises is not None
        parts: dict[str, Any] = {
            "clock": self.clock,
            "stopwatch": VirtualStopwatch(),
            "chance": self.half,
            "settings": self.settings,
        }
        scheduler = SchedulerController(plane=self.by(SCHEDULER), holder="scheduler", **parts)
        pools = PoolController(plane=self.by(POOL_CONTROLLER), holder="pools", **parts)
        async with AsyncExitStack() as running:
            work = (self.core.promises.calendar, self.workers_controller(), pools, scheduler, self.lablets())
            for one in work:
                await running.enter_async_context(beside(one.run()))
            yield self

    def workers_controller(self) -> WorkerController:
        return replace(self.controller(), plane=self.plane())

    async def define(self, text: str = SMALL, name: str = "basics:1.0.0", **fields: Any) -> LabletDefinition:
        """Publish a lab."""
        lab, stored = parse_lab(text.encode()), await self.artifacts.put(text.encode())
        usual: dict[str, Any] = {
            "topology": Topology(uri=stored.uri, digest=stored.digest),
            "lab_track": "ccna",
            "state": DefinitionState.ACTIVE,
            "node_count": lab.node_count,
            "port_template": lab.port_template,
            "resource_requirements": ResourceRequirements(cpu_cores=4, memory_gb=8),
        }
        made = LabletDefinitionSpec(version=name.partition(":")[2], **usual | fields)
        await self.store.commit(
            *creation_ops(LabletDefinition(metadata=Metadata(name=name, uid=f"uid-{name}"), spec=made))
        )
        found = await self.otto.get(Ref(LabletDefinition, name))
        assert found is not None
        return found

    async def open_pool(self, **fields: Any) -> LabWorkerPool:
        """Make a template and a pool."""
        made = WorkerTemplateSpec(worker=spec(), name_prefix="ccna")
        await self.otto.create(WorkerTemplate(metadata=Metadata(name="metal"), spec=made))
        wanted = LabWorkerPoolSpec(lab_track="ccna", template="metal", **{"min_workers": 0, "max_workers": 2} | fields)
        return await self.otto.create(LabWorkerPool(metadata=Metadata(name="ccna"), spec=wanted))

    async def wants(self, name: str = "s1", *, minutes: int = 60, definition: str = "basics:1.0.0") -> LabletSession:
        wanted = LabletSessionSpec(definition=definition, duration_minutes=minutes)
        return await self.otto.create(LabletSession(metadata=Metadata(name=name), spec=wanted))

    async def books(self, name: str, start: Any, *, minutes: int = 60) -> LabletSession:
        end = start + minutes * MINUTE
        wanted = LabletSessionSpec(definition="basics:1.0.0", timeslot_start=start, timeslot_end=end)
        return await self.otto.create(LabletSession(metadata=Metadata(name=name), spec=wanted))

    async def serving(self, *, licensed: bool = False) -> LabWorker:
        """Have a worker that takes sessions, its machine and CML up, without the way there."""
        if licensed:
            worker = await self.given_worker(WorkerPhase.READY, licensed=True)
        else:
            worker = await self.given_worker(WorkerPhase.READY_UNLICENSED, cml=UNLICENSED)
        accepts = Condition(type=WorkerCondition.ACCEPTING_LABS, status=Truth.TRUE, last_transition_at=self.clock.now())
        return await self.change_worker(worker, conditions=(accepts,))

    async def change_worker(self, worker: LabWorker, **fields: Any) -> LabWorker:
        record = await find_record(self.store, Ref(LabWorker, worker.metadata.name))
        assert record is not None
        status = msgspec.structs.replace(record.resource.status, **fields)
        await self.store.commit(*change_ops(record, msgspec.structs.replace(record.resource, status=status)))
        return await self.worker(worker.metadata.name)

    async def put_worker(self, worker: LabWorker, **fields: Any) -> LabWorker:
        """Change a worker's spec behind everybody's back."""
        record = await find_record(self.store, Ref(LabWorker, worker.metadata.name))
        assert record is not None
        spec = msgspec.structs.replace(record.resource.spec, **fields)
        await self.store.commit(*change_ops(record, msgspec.structs.replace(record.resource, spec=spec)))
        return await self.worker(worker.metadata.name)

    async def given_session(
        self,
        worker: LabWorker | None,
        phase: SessionPhase = _P.SCHEDULED,
        *,
        name: str = "s1",
        slot: timedelta | None = None,
        spec: dict[str, Any] | None = None,
        **fields: Any,
    ) -> LabletSession:
        """Write a session in some phase; with `slot` it is one that began now."""
        now = self.clock.now()
        wanted: dict[str, Any] = {"definition": "basics:1.0.0", "duration_minutes": 60}
        if slot is not None:
            wanted = {"definition": "basics:1.0.0", "timeslot_start": now, "timeslot_end": now + slot}
            fields = {"ends_at": now + slot, "expires_at": now + slot} | fields
        status: dict[str, Any] = {
            "phase": phase,
            "claim": Claim(start=now, end=now + (slot or 75 * MINUTE) + 10 * MINUTE, need=Amount(labs=1)),
            "history": (PhaseChange(phase=phase, at=now, by="test", reason="given"),),
            "worker_id": worker.metadata.uid if worker else None,
            "worker_name": worker.metadata.name if worker else None,
            "allocated_ports": PORTS,
        }
        session = LabletSession(
            metadata=Metadata(
                name=name, uid=self.core.ids(), generation=1, created_at=now, finalizers=("lcm/teardown",)
            ),
            spec=LabletSessionSpec(**wanted | (spec or {})),
            status=LabletSessionStatus(**status | fields),
        )
        await self.store.commit(*creation_ops(session))
        return await self.session(name)

    async def given_running(self, worker: LabWorker, text: str = SMALL, **fields: Any) -> LabletSession:
        """Have a session whose lab runs."""
        session = await self.given_session(worker, _P.RUNNING, **{"cml_lab_id": "none yet"} | fields)
        data = rewrite(text.encode(), session.status.allocated_ports or {})
        await self.artifacts.put_temporary(prepared_name(session), data)
        host = await self.host(worker)
        lab = await host.ensure(title_of(session), data.decode())
        await host.start(lab.lab_id)
        while not await host.converged(lab.lab_id):
            await asyncio.sleep(1)
        since = PhaseChange(phase=_P.RUNNING, at=self.clock.now(), by="test", reason="given")
        return await self.put(session, cml_lab_id=lab.lab_id, history=(since,))

    async def put(self, session: LabletSession, **fields: Any) -> LabletSession:
        """Change a session's status behind everybody's back."""
        record = await find_record(self.store, Ref(LabletSession, session.metadata.name))
        assert record is not None
        status = msgspec.structs.replace(record.resource.status, **fields)
        await self.store.commit(*change_ops(record, msgspec.structs.replace(record.resource, status=status)))
        return await self.session(session.metadata.name)

    async def host(self, worker: LabWorker) -> DirectHost:
        found = await self.hosts.of(worker)
        assert isinstance(found, DirectHost)
        return found

    def machine(self, worker: LabWorker) -> Cml:
        return self.cml(worker.status.ec2.instance_id)

    def lab_of(self, worker: LabWorker, session: LabletSession) -> SimLab:
        return next(lab for lab in self.machine(worker).labs if lab.title == title_of(session))

    async def labs(self, worker: LabWorker) -> Sequence[LabSummary]:
        return await (await self.host(worker)).labs()

    async def session(self, name: str = "s1") -> LabletSession:
        found = await self.otto.get(Ref(LabletSession, name))
        assert found is not None, f"there is no session {name}"
        return found

    async def sessions(self) -> Sequence[LabletSession]:
        """List the sessions as they were at one moment, by name."""
        return (await self.otto.list(LabletSession)).items

    async def until(
        self, so: Callable[[LabletSession], bool], name: str = "s1", within: timedelta = 2 * HOUR
    ) -> LabletSession:
        """Wait until something is so of a session."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                while not so(session := await self.session(name)):
                    await asyncio.sleep(1)
        except TimeoutError:
            raise AssertionError(f"{name} did not get there:\n{told(await self.session(name))}") from None
        return session

    async def comes_to(self, phase: SessionPhase, name: str = "s1", within: timedelta = 2 * HOUR) -> LabletSession:
        return await self.until(lambda one: one.status.phase is phase, name, within)

    async def temporary(self) -> list[str]:
        """List the files that end with their session."""
        every = [one.uri for one in await self.artifacts.list_temporary()]
        return [uri for uri in every if "/collected/" not in uri]

    async def lives_until(self, phase: SessionPhase) -> None:
        """Be a process: run the lablet controller until a session is as wanted, then end without a word."""
        host = HOST.get()
        assert host is not None
        life = asyncio.create_task(self.lablets(holder=host.name, alone=True).run())
        while not life.done() and (await self.session()).status.phase is not phase:
            await asyncio.sleep(5)
        if life.done():
            await life


async def prepared(text: str = SMALL) -> tuple[Lablets, LabWorker]:
    """Have a world with a published lab and a worker that takes sessions."""
    world = Lablets(quick=True)
    await world.define(text)
    return world, await world.serving()


def told(session: LabletSession) -> str:
    lines = [f"{line.at:%H:%M:%S} {line.phase}: {line.reason}" for line in session.status.history]
    return "\n".join([*lines, f"{session.status.progress}", session.status.last_error])


def phases(session: LabletSession) -> list[str]:
    return [line.phase for line in session.status.history]


@dataclass
class Through:
    """Hosts that are made of machines in a way of one's own."""

    world: Lablets
    make: Callable[[Cml], LabHost]
    made: dict[str, LabHost] = field(default_factory=dict)

    async def of(self, worker: LabWorker) -> LabHost:
        return self.made.setdefault(worker.metadata.uid, self.make(self.world.machine(worker)))

    async def certificate(self, _: LabWorker) -> str:
        return ""

    async def forget(self, _: LabWorker) -> None:
        return None

    async def close(self) -> None:
        for host in self.made.values():
            await host.close()


class LateHost(DirectHost):
    """Takes long over an import, and makes the lab also when nobody waits any more."""

    seconds = 90.0

    async def ensure(self, title: str, topology: str) -> LabSummary:
        if await self.find(title) is None:
            lands = asyncio.get_running_loop().create_task(self._lands(title, topology), context=Context())
            await asyncio.shield(lands)
        return await super().ensure(title, topology)

    async def _lands(self, title: str, topology: str) -> None:
        await asyncio.sleep(self.seconds)
        self._cml.import_lab(topology, self._cml.users.administrator, title)
