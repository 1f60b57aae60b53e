"""Otto, who runs the fleet: drains, pauses, resizes, publishes, and does what alerts ask a person to do."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final

import msgspec

from lcm.control.objects.actions import HELD_LAB
from lcm.control.plane.protocol import Drain, Pause, Ref, RemoveLab, Resume, Snooze, Undrain, WorkerAction
from lcm.model.access.identity import Role
from lcm.model.base.errors import Gone, LcmError
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import DefinitionState, LabletDefinition
from lcm.model.kinds.placement import PoolPauseRequest
from lcm.model.kinds.pool import LabWorkerPool, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.rules import SETTINGS_NAME
from lcm.model.kinds.settings import SchedulerSettings, Strategy, SystemSettings, SystemSettingsSpec
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import LicenceSeat, SeatState
from lcm.model.telemetry.alert import Alert
from lcm.providers.protocols.compute import ENDING, WORKER_TAG
from lcm.sim.world.scenario import ScenarioLab, lab_topology
from world.checked import CheckedWorld
from world.people.person import Person
from world.scenarios import definition_of, pool_documents

_MEDDLES_SECONDS: Final = 2_400
_ANSWERS_SECONDS: Final = 600
_HOUR_SECONDS: Final = 3_600
_KEEPS_LABS: Final = timedelta(hours=1)
"""How long labs of sessions that a restore has lost may be of use to anybody."""
_SERVING: Final = (WorkerPhase.READY, WorkerPhase.ACTIVE)
OperatorAction = Callable[[], Coroutine[Any, Any, None]]


class Operator(Person):
    """Otto, the administrator of the fleet."""

    def __init__(self, world: CheckedWorld, current: dict[str, str]) -> None:
        super().__init__(world, "otto", Role.ADMIN)
        self._current = current
        """The definition that is booked for each lab; publishing changes it."""
        self._number = 0
        self._meddling: tuple[tuple[int, OperatorAction], ...] = (
            (3, self._drain),
            (2, self._undrain),
            (2, self._pause),
            (2, self._resume),
            (2, self._snooze),
            (1, self._delete_worker),
            (2, self._resize),
            (2, self._publish),
            (2, self._add_worker),
            (1, self._change_settings),
        )
        if any(pool.policy is not ScalingPolicy.SCHEDULED for pool in world.scenario.pools):
            self._meddling += ((2, self._pause_pool), (2, self._resume_pool))

    async def meddle(self) -> None:
        """Change something about the fleet once in a while."""
        weights, doings = zip(*self._meddling, strict=True)
        while True:
            await self.wait_about(_MEDDLES_SECONDS)
            if self.is_late:
                return
            (doing,) = self.dice.choices(doings, weights)
            await doing()

    async def answer_alerts(self) -> None:
        """Do what alerts and the licence ledger ask a person to do, also in the quiet time."""
        while True:
            await self.wait_about(_ANSWERS_SECONDS)
            try:
                alerts = await self.ask(lambda plane: plane.alerts())
                ledger = await self.ask(lambda plane: plane.licences())
            except LcmError as error:
                self.witness.tell(f"otto cannot read alerts: {type(error).__name__}")
                continue
            for alert in alerts:
                await self._handle_alert(alert)
            for seat in ledger.seats:
                if seat.state is SeatState.ORPHANED:
                    await self._free_seat(seat)

    async def _handle_alert(self, alert: Alert) -> None:
        ref = Ref(LabWorker, alert.name, alert.namespace)
        match alert.alert, alert.reason:
            case "StrayInstance", "SecondInstance":
                self._terminate(alert.message.split()[0])
            case ("StrayInstance", _) | ("OrphanedInstance", _):
                await self.want(f"remove {alert.name} ({alert.alert})", lambda plane: plane.delete(ref), removed=True)
            case "LabOfUnknownSession", _ if self.world.clock.now() - alert.since > _KEEPS_LABS:
                await self._give_up_labs(alert)
            case "WorkerFailed", "StoppedByHand":
                await self._act(alert.name, Resume())
            case "WorkerFailed", _ if "it is not tried again" in alert.message:
                await self.want(f"remove {alert.name} ({alert.reason})", lambda plane: plane.delete(ref), removed=True)

    async def _give_up_labs(self, alert: Alert) -> None:
        """Remove the labs that the annotations of a worker name as held."""
        worker = next((one for one in self.witness.seen.workers.values() if one.metadata.uid == alert.uid), None)
        held = [name for name in worker.metadata.annotations if name.startswith(HELD_LAB)] if worker else []
        for name in held:
            await self._act(alert.name, RemoveLab(lab_id=name.removeprefix(HELD_LAB)))

    async def _free_seat(self, seat: LicenceSeat) -> None:
        """Free an orphaned seat at the licence server, then report that it is free."""
        stage, now = self.world.stage, self.world.clock.now()
        for machine in stage.cloud.account.machines.values():
            cml = stage.fleet.find_cml(machine.instance_id)
            if cml is None or machine.tags.get(WORKER_TAG) != seat.worker_id:
                continue
            if (
                machine.state(now) in ENDING or cml.licence.attempt is None
            ):  # nothing there knows of its licence any more
                stage.licences.taken.pop(cml.licence.udi, None)
        try:
            await self.ask(lambda plane: plane.free_licence(seat.worker_id))
        except Gone:
            return
        except LcmError as error:
            self.witness.tell(f"otto frees the seat of {seat.worker_name}: {type(error).__name__}")
        else:
            self.witness.tell(f"otto frees the seat of {seat.worker_name}")

    def _terminate(self, instance_id: str) -> None:
        machine = self.world.stage.cloud.account.machines.get(instance_id)
        if machine is not None:
            self.witness.tell(f"otto terminates {instance_id} at the console, as an alert asks for")
            self.world.stage.cloud.account.terminate(machine.region, instance_id)

    async def _drain(self) -> None:
        await self._act_on_worker(Drain(deadline_minutes=self.dice.choice((30, 60, 240))), *_SERVING)

    async def _undrain(self) -> None:
        await self._act_on_worker(Undrain(), WorkerPhase.DRAINING)

    async def _pause(self) -> None:
        await self._act_on_worker(Pause(), *_SERVING)

    async def _resume(self) -> None:
        await self._act_on_worker(Resume(), WorkerPhase.STOPPED, WorkerPhase.STOPPING)

    async def _snooze(self) -> None:
        await self._act_on_worker(Snooze(minutes=self.dice.choice((15, 60))), *_SERVING)

    async def _delete_worker(self) -> None:
        if (worker := self._choose_worker(*_SERVING)) is not None:
            ref = Ref(LabWorker, worker.metadata.name)
            await self.want(f"remove {ref.name}", lambda plane: plane.delete(ref), removed=True)

    async def _resize(self) -> None:
        """Change how many workers a pool may have, around the number in the scenario."""
        pool = self.dice.choice(self.world.scenario.pools)
        most = max(1, pool.least, pool.most + self.dice.choice((-2, -1, 0, 1, 2)))
        ref = Ref(LabWorkerPool, pool.pool_name)
        await self.want(
            f"let {pool.pool_name} have {most} workers", lambda plane: plane.patch(ref, {"spec": {"max_workers": most}})
        )

    async def _pause_pool(self) -> None:
        """Pause a pool for a while; what was promised before is kept."""
        pool = self.dice.choice(self.world.scenario.pools)
        until = self.world.clock.now() + timedelta(minutes=self.dice.choice((20, 60, 180)))
        ref, wish = Ref(LabWorkerPool, pool.pool_name), PoolPauseRequest(until=until, reason="otto wants a rest")
        await self.want(f"pause {pool.pool_name} until {until:%H:%M}", lambda plane: plane.pause_pool(ref, wish))

    async def _resume_pool(self) -> None:
        ref = Ref(LabWorkerPool, self.dice.choice(self.world.scenario.pools).pool_name)
        await self.want(f"resume {ref.name}", lambda plane: plane.resume_pool(ref))

    async def _publish(self) -> None:
        """Publish another version of a lab, which people then book instead of the last."""
        lab = self.dice.choice(self.world.scenario.labs)
        self._number += 1
        made = await self._publish_version(lab, f"1.{self._number}.0")
        if made is None:
            return
        before, self._current[lab.name] = Ref(LabletDefinition, self._current[lab.name]), made
        await self.want(
            f"deprecate {before.name}", lambda plane: plane.patch(before, {"spec": {"state": "deprecated"}})
        )

    async def _publish_version(self, lab: ScenarioLab, version: str) -> str | None:
        try:
            stored = await self.world.stage.artifacts.put(lab_topology(lab))
        except LcmError as error:
            self.witness.tell(f"otto cannot store {lab.name}: {type(error).__name__}")
            return None
        first = definition_of(lab, stored)
        spec = msgspec.structs.replace(first.spec, version=version, state=DefinitionState.ACTIVE)
        name = f"{lab.name}:{version}"
        wanted = LabletDefinition(metadata=Metadata(name=name), spec=spec)
        made = await self.want(f"publish {name}", lambda plane: plane.create(wanted, request=name))
        return name if made is not None else None

    async def _add_worker(self) -> None:
        """Create a worker outside of pools, for some hours."""
        template, _ = pool_documents(self.dice.choice(self.world.scenario.pools))
        assert isinstance(template, WorkerTemplate), "a pool comes after its template"
        self._number += 1
        name = f"extra-{self._number}"
        wanted = LabWorker(metadata=Metadata(name=name), spec=template.spec.worker)
        if await self.want(f"hire {name}", lambda plane: plane.create(wanted, request=name)) is not None:
            self.world.begin(self._remove_later(Ref(LabWorker, name)))

    async def _remove_later(self, ref: Ref[LabWorker]) -> None:
        left = (self.world.scenario.end - self.world.clock.now()).total_seconds()
        await asyncio.sleep(max(0.0, min(left, self.dice.uniform(1, 3) * _HOUR_SECONDS)))
        await self.want(f"remove {ref.name}", lambda plane: plane.delete(ref), removed=True)

    async def _change_settings(self) -> None:
        """Change how sessions are placed, and how early labs and machines are started."""
        scheduler = SchedulerSettings(
            strategy=self.dice.choice(list(Strategy)),
            worker_bootup_delay_minutes=self.dice.choice((20, 30)),
            lablet_instantiation_delay_minutes=self.dice.choice((15, 20)),
        )
        changes = {"spec": {"scheduler": msgspec.to_builtins(scheduler)}}
        ref = Ref(SystemSettings, SETTINGS_NAME)
        what = f"place by {scheduler.strategy}"
        if await self.want(what, lambda plane: plane.patch(ref, changes)) is None:
            first = SystemSettings(metadata=Metadata(name=SETTINGS_NAME), spec=SystemSettingsSpec(scheduler=scheduler))
            await self.want(what, lambda plane: plane.create(first, request="first-settings"))

    async def _act_on_worker(self, action: WorkerAction, *phases: WorkerPhase) -> None:
        if (worker := self._choose_worker(*phases)) is not None:
            await self._act(worker.metadata.name, action)

    async def _act(self, name: str, action: WorkerAction) -> None:
        self._number += 1
        what, key = type(action).__name__.lower(), f"otto-{self._number}"
        await self.want(f"{what} {name}", lambda plane: plane.act(Ref(LabWorker, name), action, request=key))

    def _choose_worker(self, *phases: WorkerPhase) -> LabWorker | None:
        found = [one for one in self.witness.seen.workers.values() if one.status.phase in phases]
        return self.dice.choice(found) if found else None
