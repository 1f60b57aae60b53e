"""A fleet in virtual time: the real worker controller on a simulated cloud, unreliable if asked, effects recorded."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple, ParamSpec

import msgspec
import structlog

from harness.clouds import HERE
from harness.credentials import given_keys
from harness.plane_world import service
from harness.stores import FallibleStore
from harness.workers import Estate, beside, spec, story
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import creation_ops
from lcm.control.objects.steps import TEARDOWN
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane, Ref
from lcm.controllers.runtime.election import Election
from lcm.controllers.runtime.reconcile import Runtime
from lcm.controllers.worker.conditions import api_url, capacity_of, ec2_facts
from lcm.controllers.worker.controller import WorkerController
from lcm.controllers.worker.effects import WorkerEffects
from lcm.controllers.worker.lifecycle import WorkerLifecycle
from lcm.controllers.worker.look import WorkerLook
from lcm.controllers.worker.occupants import Occupants
from lcm.controllers.worker.view import WorkerRules
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Later, Unreachable
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.base.resource import Metadata, PhaseChange
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import CmlFacts, CmlSpec, LabWorker, LabWorkerStatus, WorkerPhase
from lcm.model.money.licences import SeatState
from lcm.providers.protocols.compute import OWNER_TAG, WORKER_TAG, Compute, Instance, InstanceState
from lcm.providers.protocols.labhost import Hosts
from lcm.settings.load import Settings
from lcm.sim.cloud.account import CloudBehaviour, LaunchOrder
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.effects import PowerHistory
from lcm.sim.cloud.fleet import SimHosts
from lcm.sim.cloud.machines import MachinePace, SimMachine
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.facts import licence_facts, stats_facts
from lcm.sim.cml.faults import CmlDown
from lcm.sim.cml.licence import LicenceServer
from lcm.sim.cml.rest.documents import Registration
from lcm.sim.cml.stats import CmlMachine
from lcm.sim.time.chance import Chance, Ids
from lcm.sim.time.host import HOST
from lcm.sim.time.loop import VirtualClock, VirtualStopwatch, run
from lcm.store.base import scan_all
from lcm.store.memory import MemoryStore
from lcm.system.tasks import run_until_first_ends

TOKEN = "good-token"
QUICK = MachinePace(timedelta(seconds=5), timedelta(seconds=20), timedelta(seconds=10), timedelta(seconds=10))
"""A cloud and a CML that boot in seconds: crash tests stop at every await, so there must not be thousands."""
W1 = Ref(LabWorker, "w1")


class OneSecret:
    """Gives the same secret for every reference."""

    async def reveal(self, _ref: str) -> Secret:
        await asyncio.sleep(0)
        return Secret(TOKEN)


@dataclass
class Fleet(Estate):
    """The world: what outlives every process of ours."""

    seed: int = 7
    seats: int = 100
    quick: bool = False
    listed_within: timedelta = timedelta(seconds=4)
    rules: WorkerRules = field(default_factory=WorkerRules)
    settings: Settings = field(default_factory=Settings)
    store: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.chance = Chance(self.seed)
        self.licences = LicenceServer(seats=self.seats)
        paces = {"m5zn.metal": QUICK} if self.quick else {}
        subnets = {"subnet-a": f"{HERE}a", "subnet-b": f"{HERE}b"}
        nature = CloudBehaviour(paces=paces, subnets=subnets, listed_within=self.listed_within)
        self.cloud: SimCloud = SimCloud(self.clock, self.chance.stream("cloud"), nature=nature, attach=self._install)
        self.cloud.account.add_image(HERE, "CML-2.9.0", self.clock.now())
        self.hosts: Hosts = SimHosts(self.cloud)
        self.core = self.control()

    def control(self) -> ControlPlane:
        """Make a control plane, as each process has one."""
        return ControlPlane(
            self.store,
            clock=self.clock,
            ids=Ids(self.chance.stream("ids")),
            record_ids=Ids(self.chance.stream("records")),
            sealer=given_keys(),
        )

    def cml(self, instance_id: str) -> Cml:
        found = self.cloud.find_attached(instance_id)
        assert isinstance(found, Cml), f"{instance_id} does not run"
        return found

    async def seats_taken(self) -> int:
        return len(self.licences.taken)

    async def is_on(self, worker: LabWorker) -> bool:
        return self.cloud.find_attached(worker.status.ec2.instance_id) is not None

    def _install(self, instance: Instance, power: PowerHistory) -> Cml:
        machine = CmlMachine(silent_seconds=5, boot_seconds=15) if self.quick else CmlMachine()
        chance = Chance(f"{self.seed}/{instance.instance_id}")
        return Cml(self.clock, chance, machine=machine, power=power, licence_server=self.licences)

    def living(self) -> Sequence[Instance]:
        """List the machines that are not gone."""
        now = self.clock.now()
        every = [machine.instance(now) for machine in self.cloud.account.machines.values()]
        return [one for one in every if one.state not in {"terminated", "shutting-down"}]

    async def run_lifecycle(
        self, *, cloud: Compute | None = None, hosts: Hosts | None = None, holder: str = "a"
    ) -> None:
        """Run the worker controller's lifecycle as one process would: elected, fenced, until cancelled."""
        plane = self.control().plane_for(service(WORKER_CONTROLLER))
        election = Election(
            plane, "worker-controller", holder, ttl_seconds=15, stopwatch=VirtualStopwatch(), chance=self.half
        )
        await election.run(lambda fenced: self._lead(fenced, cloud or self.cloud, hosts or self.hosts))

    def half(self) -> float:
        return 0.5

    async def _lead(self, plane: Plane, cloud: Compute, hosts: Hosts) -> None:
        cache = Cache(plane, LabWorker, LabletSession, SystemSettings)
        await run_until_first_ends(cache.run(), self._work(plane, cache, cloud, hosts))

    async def _work(self, plane: Plane, cache: Cache, cloud: Compute, hosts: Hosts) -> None:
        await cache.ready()
        occupants = await Occupants.follow(cache)
        lifecycle = WorkerLifecycle(
            plane,
            cache,
            WorkerLook(cloud, hosts, self.clock),
            WorkerEffects(plane, cloud, hosts, OneSecret()),
            clock=self.clock,
            rules=lambda: self.rules,
            occupants=occupants,
        )
        runtime = Runtime(
            "worker-controller",
            lifecycle.reconcile,
            cache,
            LabWorker,
            clock=self.clock,
            chance=self.half,
            concurrency=2,
            report_bug=lifecycle.report_bug,
        )
        occupants.subscribe(lambda ref, _: runtime.enqueue(ref))
        await runtime.run()

    def controller(self, *, cloud: Compute | None = None, hosts: Hosts | None = None) -> WorkerController:
        """Make the whole worker controller of one process."""
        return WorkerController(
            plane=self.control().plane_for(service(WORKER_CONTROLLER)),
            cloud=cloud or self.cloud,
            hosts=hosts or self.hosts,
            secrets=OneSecret(),
            clock=self.clock,
            stopwatch=VirtualStopwatch(),
            chance=self.half,
            settings=self.settings,
            holder="controller",
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Fleet"]:
        """Run the lifecycle beside what a test does."""
        async with beside(self.run_lifecycle()):
            yield self

    async def stored(self, prefix: str) -> Sequence[str]:
        return [entry.key for entry in (await scan_all(self.store, prefix)).entries]


A = ParamSpec("A")


def virtually(test: Callable[A, Coroutine[Any, Any, None]]) -> Callable[A, None]:
    """Run a test in virtual time, days of it if need be, without writing down what every minute brought."""

    @functools.wraps(test)
    def wrapped(*args: A.args, **kwargs: A.kwargs) -> None:
        with structlog.testing.capture_logs():
            run(lambda: test(*args, **kwargs), horizon=timedelta(days=3))

    return wrapped


class Unreliable(Fleet):
    """A fleet whose cloud and CMLs can be silent."""

    glance_seconds = 5.0
    cloud_error: Later | None = None
    cml_trouble: CmlDown | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._guard(self.cloud.faults, "raise_before_effect", lambda: self.cloud_error)

    def _install(self, instance: Instance, power: PowerHistory) -> Cml:
        cml = super()._install(instance, power)
        self._guard(cml, "check_up", lambda: self.cml_trouble)
        return cml

    def _guard(self, target: object, verb: str, trouble: Callable[[], Exception | None]) -> None:
        usual = getattr(target, verb)

        def guarded(*args: Any) -> Any:
            error = trouble()
            if error is not None:
                raise error
            return usual(*args)

        setattr(target, verb, guarded)

    @contextmanager
    def cloud_outage(self, error: Later) -> Iterator[None]:
        self.cloud_error = error
        yield
        self.cloud_error = None

    @contextmanager
    def cml_outage(self) -> Iterator[None]:
        self.cml_trouble = CmlDown(listening=False, there=False)
        yield
        self.cml_trouble = None

    @contextmanager
    def store_outage(self) -> Iterator[None]:
        assert isinstance(self.store, FallibleStore)
        self.store.down = Unreachable("the store is not there")
        yield
        self.store.down = None

    async def machine(self) -> SimMachine:
        """Wait for the next machine that somebody launches."""
        known = set(self.cloud.account.machines)
        while not (new := set(self.cloud.account.machines) - known):
            await asyncio.sleep(1)
        return self.cloud.account.machines[new.pop()]


LEASE: Final = "worker-controller"
_CLOUD: Final = ("run", "start", "stop", "reboot", "terminate", "tag")
_LICENCE: Final = ("register", "deregister", "set_product", "set_features", "renew")


class Deed(NamedTuple):
    """An effect; `leader` is who held the lease at that moment, as the store saw it."""

    verb: str
    host: str
    leader: str | None


class Witnessed(Fleet):
    """A fleet whose cloud and CMLs tell what was done to them by processes of ours; people are not written down."""

    def __post_init__(self) -> None:
        self.deeds: list[Deed] = []
        self._people: list[asyncio.Task[None]] = []
        self.left_while: list[InstanceState] = []
        """What the machine was when its worker's record went."""
        super().__post_init__()
        self._witness(self.cloud.account, _CLOUD)
        self._witness(self.cloud, ["_launch"])

    def done(self, verb: str) -> int:
        return sum(deed.verb == verb for deed in self.deeds)

    def _witness(self, target: object, verbs: Sequence[str]) -> None:
        for verb in verbs:
            setattr(target, verb, self._witnessed(verb, getattr(target, verb)))

    def _witnessed(self, verb: str, done: Callable[..., Any]) -> Callable[..., Any]:
        def witness(*args: Any, **kwargs: Any) -> Any:
            host = HOST.get()
            if host is not None:
                self.deeds.append(Deed(verb, host.name, self.leader()))
            return done(*args, **kwargs)

        return witness

    def leader(self) -> str | None:
        held = self.store._leases.get(LEASE)
        return held.lease.holder if held else None

    def _install(self, instance: Instance, power: PowerHistory) -> Cml:
        cml = super()._install(instance, power)
        self._witness(cml.licence, _LICENCE)
        return cml

    async def runs_until(self, reached: Callable[[LabWorker | None], bool]) -> None:
        """Be a process: run the lifecycle until a worker is as wanted, then end without a word."""
        host = HOST.get()
        assert host is not None
        life = asyncio.create_task(self.run_lifecycle(holder=host.name))
        while not life.done() and not reached(await self.otto.get(W1)):
            await asyncio.sleep(5)
        if life.done():
            await life

    def watch_records(self) -> None:
        """Write down, from now on, what the machine is when the record goes."""

        async def follow() -> None:
            revision = (await self.otto.list(LabWorker)).revision
            async for changes in self.otto.watch(LabWorker, after=revision):
                if any(seen.resource is None for seen in changes.seen):
                    now = self.clock.now()
                    self.left_while += [one.state(now) for one in self.cloud.account.machines.values()]

        self.soon(0, follow)

    def soon(self, seconds: float, act: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Let somebody do something a while from now, whichever of our processes live then."""

        async def later() -> None:
            await asyncio.sleep(seconds)
            await act()

        self._people.append(asyncio.get_running_loop().create_task(later(), context=Context()))

    async def given_worker(self, phase: WorkerPhase, *, licensed: bool = False, **changes: Any) -> LabWorker:
        """Have a worker that serves, whose machine was launched by us, without the way there."""
        now, uid = self.clock.now(), "01-given"
        tags = {OWNER_TAG: "lcm", WORKER_TAG: uid, "Name": "w1"}
        image = self.cloud.account.images(HERE)[0].image_id
        machine = self.cloud.account.run(LaunchOrder(HERE, "m5zn.metal", image, tags=tags))
        await asyncio.sleep(60)
        cml = self.cml(machine.instance_id)
        if licensed:
            cml.licence.register(Registration(TOKEN))
            await asyncio.sleep(30)
        wanted = spec(**changes)
        instance, licence = machine.instance(self.clock.now()), licence_facts(cml)
        worker = LabWorker(
            metadata=Metadata(name="w1", uid=uid, generation=1, created_at=now, finalizers=(TEARDOWN,)),
            spec=wanted,
            status=LabWorkerStatus(
                ec2=msgspec.structs.replace(ec2_facts(LabWorkerStatus().ec2, instance), launch_attempt=1),
                cml=CmlFacts(
                    version=cml.machine.version,
                    api_url=api_url(wanted, instance),
                    ready=True,
                    healthy=True,
                    licensed=False,
                ),
                capacity=capacity_of(wanted, stats_facts(cml), licence),
                history=(PhaseChange(phase="PENDING", at=now, by="test", reason="given"),),
            ),
        )
        await self.store.commit(*creation_ops(worker))
        return await self._lead_to(phase, await self.worker(), licensed=licensed)

    async def _lead_to(self, phase: WorkerPhase, worker: LabWorker, *, licensed: bool) -> LabWorker:
        p = WorkerPhase
        way = [p.EC2_READY, p.STARTING, p.READY_UNLICENSED, *([p.LICENSING] if licensed else []), p.READY]
        plane = self.plane()
        for step in way[: way.index(phase) + 1]:
            cml = msgspec.structs.replace(worker.status.cml, licensed=licensed and step is p.READY)
            worker = await plane.step(worker, msgspec.structs.replace(worker.status, phase=step, cml=cml))
        return worker

    async def check_invariants(self, *, machines: int, seats: int) -> None:
        """See that nothing is there twice, nothing is left behind, and nobody acted who did not lead."""
        deposed = [deed for deed in self.deeds if deed.host != deed.leader]
        assert not deposed, f"done by who did not lead: {deposed}"
        assert self.done("run") <= 1, self.deeds
        records = (await self.otto.list(LabWorker)).items
        known = {worker.status.ec2.instance_id for worker in records}
        living = {one.instance_id for one in self.living()}
        assert living <= known, f"leaked: {living - known}"
        assert len(living) == machines, "\n".join(map(story, records))
        assert len(self.licences.taken) == seats
        entries = (await self.otto.licences()).seats
        assert [one.state for one in entries] == [SeatState.REGISTERED] * seats
        assert all(state is InstanceState.TERMINATED for state in self.left_while), self.left_while


QUICKLY: Final = timedelta(seconds=15)
UNLICENSED: Final = CmlSpec()
