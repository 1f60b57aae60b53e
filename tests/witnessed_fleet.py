"""A fleet in which every effect on the outside is written down: what was done, by which process, and who led then."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from clouds import HERE
from estates import spec, story
from fleets import TOKEN, W1, Fleet
from lcm.control.objects.records import creation_ops
from lcm.control.objects.steps import TEARDOWN
from lcm.controllers.worker.conditions import api_url, capacity_of, ec2_facts
from lcm.model.base.resource import Metadata, PhaseChange
from lcm.model.kinds.worker import CmlFacts, CmlSpec, LabWorker, LabWorkerStatus, WorkerPhase
from lcm.model.money.licences import SeatState
from lcm.providers.protocols.compute import OWNER_TAG, WORKER_TAG, Instance, InstanceState
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.cloud.effects import PowerHistory
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.facts import licence_facts, stats_facts
from lcm.sim.cml.rest.documents import Registration
from lcm.sim.time.host import HOST

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
