"""Hours of mishaps and of people's doings, by a seed, upon two processes with a worker controller each."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from harness.clouds import HERE
from harness.fleet_world import Unreliable, Witnessed
from harness.workers import story
from lcm.control.plane.protocol import Drain, Pause, Ref, Resume, Undrain, WorkerAction
from lcm.model.base.errors import LcmError, Throttled, Unreachable
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import HOSTING_PHASES, IdlePolicy, LabWorker, WorkerPhase
from lcm.providers.protocols.compute import WORKER_TAG
from lcm.sim.cml.faults import CmlDown
from lcm.sim.time.chance import Chance
from lcm.sim.time.host import Host

P = WorkerPhase
AT_REST = {P.READY, P.READY_UNLICENSED, P.STOPPED, P.TERMINATED, P.FAILED}
Act = Callable[[], Awaitable[object]]
WISHES: list[WorkerAction] = [Drain(), Drain(deadline_minutes=10), Undrain(), Pause(), Resume(), Resume()]
EFFECTS = ("ensure", "start", "stop", "reboot", "remove", "find", "checks", "list_owned")


class Mayhem(Witnessed, Unreliable):
    """A fleet to which things happen."""

    def begin(self) -> None:
        self.dice = Chance(f"mayhem/{self.seed}")
        self.processes: list[Host] = []
        self.log: list[str] = []
        self.made = 0
        for _ in range(2):
            self.boot()

    def boot(self) -> None:
        host = Host(f"process-{len(self.processes)}")
        self.processes.append(host)
        host.spawn(replace(self.controller(), holder=host.name).run())

    @property
    def alive(self) -> list[Host]:
        return [host for host in self.processes if host.alive]

    async def rage(self, span: timedelta) -> None:
        """Let something happen every few minutes."""
        acts: list[Act] = [
            *[self.make] * 3,
            *[self.wish] * 6,
            self.remove,
            *[self.by_hand] * 3,
            *[self.occupy] * 2,
            *[self.vacate] * 2,
            *[self.kill] * 3,
            *[self.doze] * 3,
            self.cloud_fails,
            self.cml_fails,
            *[self.spoil] * 3,
            self.licences_fail,
        ]
        until = self.clock.now() + span
        while self.clock.now() < until:
            await asyncio.sleep(self.dice.uniform(5, 150))
            act = self.dice.choice(acts)
            self.log.append(f"{self.clock.now():%H:%M:%S} {act.__name__}")
            with suppress(LcmError):  # people are refused now and then
                await act()

    async def workers(self) -> list[LabWorker]:
        return list((await self.otto.list(LabWorker)).items)

    async def one(self) -> Ref[LabWorker]:
        workers = await self.workers()
        return Ref(LabWorker, self.dice.choice(workers).metadata.name if workers else "nobody")

    async def make(self) -> None:
        if len(await self.workers()) < 4:
            self.made += 1
            await self.create(f"w{self.made}", idle=IdlePolicy(enabled=self.dice.random() < 0.5))

    async def wish(self) -> None:
        action = self.dice.choice(WISHES)
        self.log.append(f"  {type(action).__name__}")
        await self.otto.act(await self.one(), action)

    async def remove(self) -> None:
        await self.otto.delete(await self.one())

    async def by_hand(self) -> None:
        living = self.living()
        if living:
            verb = self.dice.choice([self.cloud.account.stop, self.cloud.account.start, self.cloud.account.terminate])
            verb(HERE, self.dice.choice(living).instance_id)

    async def occupy(self) -> None:
        serving = [one for one in await self.workers() if one.status.phase in HOSTING_PHASES]
        if serving:
            await self.host_session(self.dice.choice(serving), f"s{self.dice.getrandbits(40)}")

    async def vacate(self) -> None:
        for session in (await self.otto.list(LabletSession)).items:
            if session.status.worker_id and self.dice.random() < 0.6:
                with suppress(LcmError):
                    await self.end_session(session.metadata.name)

    async def kill(self) -> None:
        self.dice.choice(self.alive).kill()
        self.soon(self.dice.uniform(1, 60), self._reboot)

    async def _reboot(self) -> None:
        self.boot()

    async def doze(self) -> None:
        host = self.dice.choice(self.alive)
        host.pause()
        self.soon(self.dice.uniform(1, 60), lambda: self._wake(host))

    async def _wake(self, host: Host) -> None:
        host.resume()

    async def cloud_fails(self) -> None:
        error = self.dice.choice([Unreachable("no route"), Throttled("slow down", after=timedelta(seconds=20))])
        with self.cloud_outage(error):
            await asyncio.sleep(self.dice.uniform(10, 1500))

    async def cml_fails(self) -> None:
        self.cml_trouble = CmlDown(listening=self.dice.random() < 0.3, there=self.dice.random() < 0.5)
        await asyncio.sleep(self.dice.uniform(10, 1500))
        self.cml_trouble = None

    async def spoil(self) -> None:
        verb = self.dice.choice(EFFECTS)
        lost = self.dice.random() < 0.5
        self.cloud.fail_next(verb, Unreachable("lost"), times=self.dice.randrange(1, 4), after_effect=lost)

    async def licences_fail(self) -> None:
        self.licences.reachable = False
        await asyncio.sleep(self.dice.uniform(10, 900))
        self.licences.reachable = True

    async def settle(self, span: timedelta) -> None:
        """Let nothing happen for long enough that all is done that was begun."""
        until = self.clock.now() + span
        while self.clock.now() < until:
            await asyncio.sleep(60)
            for session in (await self.otto.list(LabletSession)).items:
                if session.status.worker_id:
                    with suppress(LcmError):
                        await self.end_session(session.metadata.name)

    async def check(self) -> None:
        """See that nothing is there twice, nothing was lost, and nobody acted who did not lead."""
        deposed = [deed for deed in self.deeds if deed.host != deed.leader]
        assert not deposed, f"done by who did not lead: {deposed}"
        workers = {one.metadata.uid: one for one in await self.workers()}
        living = self.living()
        for worker in workers.values():
            assert worker.status.phase in AT_REST, self.tale(worker)
        known = {one.status.ec2.instance_id for one in workers.values()}
        assert {one.instance_id for one in living} <= known, "\n".join(self.log)
        owners = [one.tags[WORKER_TAG] for one in living if WORKER_TAG in one.tags]
        assert len(owners) == len(set(owners))
        seats = (await self.otto.licences()).seats
        assert len(self.licences.taken) <= len(seats), f"{self.licences.taken} {seats}"

    def tale(self, worker: LabWorker) -> str:
        return "\n".join([f"seed {self.seed}", *self.log, worker.metadata.name, story(worker), repr(worker.status)])
