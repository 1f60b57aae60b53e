"""Planted faults of machines: launches, records, licences, and workers that are taken from under sessions."""

import asyncio
import itertools
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from pytest import MonkeyPatch

from lcm.control import licences
from lcm.control.plane import Drain, Ref
from lcm.controllers import orphans, region_search
from lcm.controllers.worker import complaints, draining, effects, hosting, launching, licensing, look
from lcm.controllers.worker.view import Decision, Do, EndSessions, Failure, Outcome, StopMachine, View, move
from lcm.model.errors import Later
from lcm.model.licence import LicenceSeat
from lcm.model.session import LabletSession, SessionPhase, needs_its_worker
from lcm.model.worker import LabWorker, WorkerPhase
from lcm.providers.compute import OWNER_TAG, WORKER_TAG, Instance, InstanceState, Launch
from lcm.sim.compute_account import Order
from lcm.sim.faults import Ill, Spell
from lcm.sim.world.checks.licences import UNRETURNED
from lcm.sim.world.checks.machines import NO_RECORD, OWNER, TAKEN, TWO_MACHINES, UNNOTICED
from lcm.sim.world.ground import REGION
from lcm.sim.world.scenario import Pool
from lcm.sim.world.world import OPERATOR, World
from planted import Planted, everywhere, small

STANDING: Final = small(pools=(Pool(track="ccna", most=2, least=1),))
MINUTE: Final = 60.0


async def launches_are_not_answered(world: World) -> None:
    """Let machines be launched and listed late, and nobody be told so."""
    cloud = world.stage.cloud
    cloud.account.listed_late = timedelta(minutes=4)
    with cloud.faults.spells.under(Spell(Ill.DEAF, verbs=frozenset({"ensure"}))):
        await asyncio.sleep(15 * MINUTE)
    cloud.account.listed_late = timedelta(0)


async def machine_is_nobodys(world: World) -> None:
    """Let there be a machine of ours of whose worker there is no record, as after a restored backup."""
    await asyncio.sleep(5 * MINUTE)
    account = world.stage.cloud.account
    tags = {OWNER_TAG: OWNER, WORKER_TAG: "a-worker-that-was", "Name": "was"}
    account.run(Order(REGION, "m5zn.metal", account.images(REGION, "CML-2.9*")[0].image_id, tags))


async def somebody_terminates_a_machine(world: World) -> None:
    await asyncio.sleep(30 * MINUTE)
    account = world.stage.cloud.account
    running = [one for one in account.machines.values() if one.state(world.clock.now()) is InstanceState.RUNNING]
    account.terminate(REGION, running[0].instance_id)


async def worker_is_deleted(world: World) -> None:
    """Let an operator delete a worker with a licence."""
    worker = await _serving(world)
    ref = Ref(LabWorker, worker.metadata.name)
    await world.insist(OPERATOR, lambda plane: plane.delete(ref))


async def busy_worker_is_drained(world: World) -> None:
    """Let an operator drain a worker on which somebody works, with a deadline that is shorter than that lasts."""
    worker = await _serving(world, busy=True)
    ref = Ref(LabWorker, worker.metadata.name)
    await world.insist(OPERATOR, lambda plane: plane.act(ref, Drain(deadline_minutes=20)))


async def _serving(world: World, *, busy: bool = False) -> LabWorker:
    """Wait for a worker that serves, and that somebody will be on for a while."""
    seen = world.witness.seen
    while True:
        await asyncio.sleep(MINUTE)
        late = world.clock.now() + timedelta(minutes=40)
        for uid, worker in seen.workers.items():
            on_it = [one for one in seen.on_worker[uid].values() if one.status.phase is SessionPhase.RUNNING]
            lasting = [one for one in on_it if one.status.ends_at and one.status.ends_at > late]
            if worker.status.phase in {WorkerPhase.READY, WorkerPhase.ACTIVE} and (lasting or not busy):
                return worker


def token_is_made_for_each_try(patch: MonkeyPatch) -> None:
    real, numbers = launching.launch_of, itertools.count()

    def anew(worker: LabWorker) -> Launch:
        launch = real(worker)
        return msgspec.structs.replace(launch, token=f"{launch.token}-{next(numbers)}")

    everywhere(patch, real, anew)


def silence_is_taken_for_a_refusal(patch: MonkeyPatch) -> None:
    real = effects.Hands._on_machine

    async def refused(self: effects.Hands, view: View, effect: Any) -> Outcome:
        try:
            return await real(self, view, effect)
        except Later as error:
            return Failure("NoCapacity", str(error))

    patch.setattr(effects.Hands, "_on_machine", refused)


def orphans_stay_fresh(patch: MonkeyPatch) -> None:
    everywhere(patch, orphans.GRACE, timedelta(days=1_000))


def last_of_a_batch_is_not_imported(patch: MonkeyPatch) -> None:
    real = region_search.RegionSearch._import

    async def one_less(
        self: region_search.RegionSearch, region: str, source: str, instances: Any
    ) -> Any:
        return await real(self, region, source, instances[:-1])

    patch.setattr(region_search.RegionSearch, "_import", one_less)


def end_of_a_machine_is_not_noticed(patch: MonkeyPatch) -> None:
    everywhere(patch, hosting.confirmed, lambda _view: None)


def serving_machine_is_not_looked_at(patch: MonkeyPatch) -> None:
    real = look._looks_at_machine
    everywhere(patch, real, lambda worker, rules: worker.status.phase not in look._WATCHED and real(worker, rules))


def licence_is_forgotten_by_a_drain(patch: MonkeyPatch) -> None:
    def on(view: View, why: str) -> Decision:
        return move(view, WorkerPhase.STOPPING, why, cml=draining._said(view, licensed=False))

    everywhere(patch, draining._on, on)


def licence_is_believed_to_be_returned(patch: MonkeyPatch) -> None:
    everywhere(patch, licensing.unlicensing, licensing._without)


def seat_of_a_lost_machine_is_forgotten(patch: MonkeyPatch) -> None:
    real = licences.seat_after

    def forgotten(before: LabWorker, after: LabWorker, seat: LicenceSeat | None, now: datetime) -> LicenceSeat | None:
        return None if after.status.phase is WorkerPhase.TERMINATED else real(before, after, seat, now)

    everywhere(patch, real, forgotten)


def busy_worker_is_stopped_as_idle(patch: MonkeyPatch) -> None:
    real = hosting.active

    def stopped(view: View) -> Decision:
        busy = [one for one in view.sessions if one.status.phase is SessionPhase.RUNNING]
        return Do(StopMachine()) if busy else real(view)

    everywhere(patch, real, stopped)


def running_session_needs_no_worker(patch: MonkeyPatch) -> None:
    def needs(session: LabletSession, now: datetime, horizon: timedelta) -> bool:
        runs = session.status.phase is SessionPhase.RUNNING
        return not runs and needs_its_worker(session, now, horizon)

    everywhere(patch, needs_its_worker, needs)


def drain_has_no_deadline(patch: MonkeyPatch) -> None:
    real = draining.draining

    def at_once(view: View) -> Decision:
        lingering = [one for one in view.sessions if one.status.phase is SessionPhase.RUNNING]
        names = [draining._name(one) for one in lingering]
        return Do(EndSessions(names, "its worker is drained")) if names else real(view)

    everywhere(patch, real, at_once)


def drain_is_not_warned_of(patch: MonkeyPatch) -> None:
    patch.setattr(complaints, "_JUDGES", tuple(one for one in complaints._JUDGES if one is not complaints._deadline))


MACHINES: Final = (
    Planted(
        "a token is made for each try", TWO_MACHINES, token_is_made_for_each_try, STANDING, launches_are_not_answered
    ),
    Planted(
        "silence is taken for a refusal",
        TWO_MACHINES,
        silence_is_taken_for_a_refusal,
        STANDING,
        launches_are_not_answered,
    ),
    Planted("orphans stay fresh", NO_RECORD, orphans_stay_fresh, STANDING, machine_is_nobodys),
    Planted(
        "the last of a batch is not imported",
        NO_RECORD,
        last_of_a_batch_is_not_imported,
        STANDING,
        machine_is_nobodys,
    ),
    Planted(
        "the end of a machine is not noticed",
        UNNOTICED,
        end_of_a_machine_is_not_noticed,
        STANDING,
        somebody_terminates_a_machine,
    ),
    Planted(
        "a serving machine is not looked at",
        UNNOTICED,
        serving_machine_is_not_looked_at,
        STANDING,
        somebody_terminates_a_machine,
    ),
    Planted("a drain forgets the licence", UNRETURNED, licence_is_forgotten_by_a_drain, STANDING, worker_is_deleted),
    Planted(
        "a licence is believed to be returned",
        UNRETURNED,
        licence_is_believed_to_be_returned,
        STANDING,
        worker_is_deleted,
    ),
    Planted(
        "the seat of a lost machine is forgotten",
        UNRETURNED,
        seat_of_a_lost_machine_is_forgotten,
        STANDING,
        somebody_terminates_a_machine,
    ),
    Planted("a busy worker is stopped as idle", TAKEN, busy_worker_is_stopped_as_idle, STANDING),
    Planted(
        "a running session needs no worker", TAKEN, running_session_needs_no_worker, STANDING, busy_worker_is_drained
    ),
    Planted("a drain has no deadline", TAKEN, drain_has_no_deadline, STANDING, busy_worker_is_drained),
    Planted("a drain is not warned of", TAKEN, drain_is_not_warned_of, STANDING, busy_worker_is_drained),
)
