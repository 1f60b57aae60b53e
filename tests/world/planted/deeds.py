"""What people do in the worlds of planted faults, so that a fault has its occasion early."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from lcm.control.plane.protocol import Drain, Ref, Terminate
from lcm.model.access.identity import Caller, Role
from lcm.model.base.machine import LABLET_CONTROLLER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.providers.protocols.compute import OWNER_TAG, WORKER_TAG, InstanceState
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.cml.rest.documents import NodeUpdate
from lcm.sim.time.faults import FaultKind, FaultPeriod
from lcm.sim.world.environment import FULL_PERCENT, HALF_FULL_PERCENT
from lcm.sim.world.mishaps.restores import backup_is_restored, store_is_put_back
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.scenario import REGION, ScenarioLab, lab_topology
from lcm.sim.world.world import OPERATOR, PlaneCall
from world.checked import CheckedWorld
from world.checks.machines import OWNER
from world.planted.faults import Deed
from world.scenarios import definition_name

MINUTE = 60.0
_SERVES = frozenset({WorkerPhase.READY, WorkerPhase.ACTIVE})


async def nothing(_world: CheckedWorld) -> None:
    """Let nothing happen."""


def people_want_a_lab_now(count: int, minutes: int = 30, before: Deed = nothing) -> Deed:
    """Let people come to a worker that serves, one after the other; `before` happens right before each."""

    async def come(world: CheckedWorld) -> None:
        await _serving(world)
        spec = LabletSessionSpec(definition=definition_name(world.scenario.labs[0]), duration_minutes=minutes)
        for number in range(count):
            session = LabletSession(metadata=Metadata(name=f"s{number}"), spec=spec)
            who = Caller(name=f"person-{number}", role=Role.USER)
            await before(world)
            made = await world.insist(who, booking_of(session))
            world.witness.record_acknowledged(made, f"{who.name} was told to book")
            await asyncio.sleep(2 * MINUTE)

    return come


def both(first: Deed, second: Deed) -> Deed:
    """Let two things happen."""

    async def happen(world: CheckedWorld) -> None:
        world.begin(first(world))
        await second(world)

    return happen


async def two_book_the_last_room(world: CheckedWorld) -> None:
    """Let two people book the same slot at one moment, each at another process."""
    await asyncio.sleep(2 * MINUTE)
    start = world.clock.now() + timedelta(minutes=40)
    lab = definition_name(world.scenario.labs[0])
    spec = LabletSessionSpec(definition=lab, timeslot_start=start, timeslot_end=start + timedelta(minutes=30))
    asked = []
    for number, process in enumerate(world.alive):
        session = LabletSession(metadata=Metadata(name=f"s{number}"), spec=spec)
        asked.append(process.ask(Caller(name=f"person-{number}", role=Role.USER), booking_of(session)))
    await asyncio.gather(*asked, return_exceptions=True)


async def three_fit_on_a_machine_and_four_book(world: CheckedWorld) -> None:
    """Book the same slot for four, so that the last of them has a machine for itself."""
    await asyncio.sleep(2 * MINUTE)
    await _book_slot(world, [f"s{number}" for number in range(4)], timedelta(minutes=70))


async def more_is_booked_after_a_launch(world: CheckedWorld) -> None:
    """Book a slot for one, and another beside it once its machine is chosen."""
    await asyncio.sleep(2 * MINUTE)
    await _book_slot(world, ["s0"], timedelta(minutes=70), timedelta(minutes=120))
    await asyncio.sleep(45 * MINUTE)
    await _book_slot(world, ["t0"], timedelta(minutes=60))


async def hole_comes_before_a_launch(world: CheckedWorld) -> None:
    """Cancel one of three on the first machine while a fourth is alone on the second, and a third one start soon."""
    await asyncio.sleep(2 * MINUTE)
    await _book_slot(world, [f"s{number}" for number in range(4)], timedelta(minutes=70), timedelta(minutes=150))
    await _book_slot(world, [f"t{number}" for number in range(3)], timedelta(minutes=140))
    while len([one for one in world.witness.seen.live_sessions() if one.status.phase is SessionPhase.RUNNING]) < 4:
        await asyncio.sleep(MINUTE)
    await world.insist(OPERATOR, lambda plane: plane.act(Ref(LabletSession, "s0"), Terminate()))


async def _book_slot(
    world: CheckedWorld, names: Sequence[str], after: timedelta, span: timedelta = timedelta(minutes=30)
) -> None:
    start = world.clock.now() + after
    lab = definition_name(world.scenario.labs[0])
    spec = LabletSessionSpec(definition=lab, timeslot_start=start, timeslot_end=start + span)
    for number, name in enumerate(names):
        session = LabletSession(metadata=Metadata(name=name), spec=spec)
        await world.insist(Caller(name=f"person-{number}", role=Role.USER), booking_of(session))


async def launches_are_not_answered(world: CheckedWorld) -> None:
    """Let machines be launched and listed late, and nobody be told so."""
    cloud = world.stage.cloud
    cloud.account.listed_late = timedelta(minutes=4)
    with cloud.faults.spells.inject(FaultPeriod(FaultKind.DEAF, verbs=frozenset({"ensure"}))):
        await asyncio.sleep(15 * MINUTE)
    cloud.account.listed_late = timedelta(0)


async def machine_is_nobodys(world: CheckedWorld) -> None:
    """Let there be a machine of ours of whose worker there is no record, as after a restored backup."""
    await asyncio.sleep(5 * MINUTE)
    account = world.stage.cloud.account
    tags = {OWNER_TAG: OWNER, WORKER_TAG: "a-worker-that-was", "Name": "was"}
    account.run(LaunchOrder(REGION, "m5zn.metal", account.images(REGION, "CML-2.9*")[0].image_id, tags))


async def somebody_terminates_a_machine(world: CheckedWorld) -> None:
    """Let somebody press terminate at the console, for a machine that serves."""
    await _serving(world)
    account = world.stage.cloud.account
    running = [one for one in account.machines.values() if one.state(world.clock.now()) is InstanceState.RUNNING]
    account.terminate(REGION, running[0].instance_id)


async def worker_is_deleted(world: CheckedWorld) -> None:
    """Let an operator delete a worker that has a licence."""
    ref = Ref(LabWorker, (await _serving(world)).metadata.name)
    await world.insist(OPERATOR, lambda plane: plane.delete(ref))


async def busy_worker_is_drained(world: CheckedWorld) -> None:
    """Let an operator drain a worker on which somebody works for longer than the drain's deadline."""
    ref = Ref(LabWorker, (await _serving(world, lambda worker: _works_on(world, worker))).metadata.name)
    await world.insist(OPERATOR, lambda plane: plane.act(ref, Drain(deadline_minutes=20)))


async def lab_is_wanted_that_nobody_has(world: CheckedWorld) -> None:
    """Book labs that nobody can host, before any machine is there to show it."""
    for number, lab in enumerate(world.scenario.unhostable[:2]):
        await asyncio.sleep(MINUTE)
        spec = LabletSessionSpec(definition=definition_name(lab), duration_minutes=30)
        session = LabletSession(metadata=Metadata(name=f"odd{number}"), spec=spec)
        await world.insist(Caller(name="odd", role=Role.USER), booking_of(session))


async def somebody_grabs_all(world: CheckedWorld) -> None:
    """Ask every process for many labs of one person at one moment, and for somebody else for one a little later."""
    await _serving(world)
    spec = LabletSessionSpec(definition=definition_name(world.scenario.labs[0]), duration_minutes=30)
    gus, ada = Caller(name="gus", role=Role.USER), Caller(name="ada", role=Role.USER)
    asked = []
    for number in range(14):
        session = LabletSession(metadata=Metadata(name=f"g{number}"), spec=spec)
        asked.append(world.alive[number % len(world.alive)].ask(gus, booking_of(session)))
    await asyncio.gather(*asked, return_exceptions=True)
    await asyncio.sleep(MINUTE)
    await world.insist(ada, booking_of(LabletSession(metadata=Metadata(name="a1"), spec=spec)))


async def store_is_full(world: CheckedWorld) -> None:
    """Fill the store for some minutes, beginning now."""

    async def have_room_again() -> None:
        await asyncio.sleep(6 * MINUTE)
        world.stage.store.used_percent = HALF_FULL_PERCENT

    world.stage.store.used_percent = FULL_PERCENT
    world.begin(have_room_again())


async def backup_is_restored_later(world: CheckedWorld) -> None:
    """Take a backup when a machine serves, and restore it when labs run that it does not know."""
    await _serving(world)
    await backup_is_restored(Trouble(world), after=(15 * MINUTE, 15 * MINUTE))


async def store_goes_back(world: CheckedWorld) -> None:
    """Put the store back under processes that run."""
    await asyncio.sleep(5 * MINUTE)
    await store_is_put_back(Trouble(world), after=(15 * MINUTE, 15 * MINUTE))


async def session_is_deleted(world: CheckedWorld) -> None:
    """Let an operator delete a session that runs."""
    ref = Ref(LabletSession, (await _running(world)).metadata.name)
    left = await world.insist(OPERATOR, lambda plane: plane.delete(ref))
    world.witness.record_acknowledged(left, "otto was told that it goes", removed=True)


async def session_is_cancelled(world: CheckedWorld) -> None:
    """Let an operator end a session that runs."""
    ref = Ref(LabletSession, (await _running(world)).metadata.name)
    await world.insist(OPERATOR, lambda plane: plane.act(ref, Terminate()))


async def leader_stands_still_over_a_lab(world: CheckedWorld) -> None:
    """Let who leads sleep through the end of its term right before it brings up a lab.

    Where somebody else leads by then, the lab is there, and the sleeper finds nothing to do.
    """
    still = FaultPeriod(FaultKind.STILL, verbs=frozenset({"ensure", "start"}))
    for _ in range(2):
        with world.stage.hosts.spells.inject(still):
            stopped = [asyncio.ensure_future(one.host.until_stopped()) for one in world.alive]
            await asyncio.wait(stopped, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(20)
        for process in world.alive:
            process.host.resume()


async def machine_comes_back_smaller(world: CheckedWorld) -> None:
    """Let a machine on which several work come back from a reboot with room for one of them."""
    worker = await _serving(world, lambda one: len(world.witness.seen.on_worker[one.metadata.uid]) > 1)
    cml = world.stage.cml(worker.status.ec2.instance_id)
    assert cml is not None, "it serves"
    cml.machine = replace(cml.machine, cpu_count=world.scenario.labs[0].cpu_cores)
    world.stage.cloud.account.reboot(REGION, worker.status.ec2.instance_id)


async def somebody_forwards_ports(world: CheckedWorld) -> None:
    """Let somebody have a lab of their own on our machine, with half of its ports forwarded to it."""
    worker = await _serving(world)
    cml = world.stage.cml(worker.status.ec2.instance_id)
    assert cml is not None, "it serves"
    lab, _ = cml.import_lab(
        lab_topology(ScenarioLab(name="by hand", track="", nodes=2)), cml.users.administrator, "by hand"
    )
    tags = [f"pat:tcp:{port}:{port}" for port in range(2_000, 8_000, 2)]
    cml.labs.change_node(lab, next(iter(lab.nodes.values())), NodeUpdate(tags=tags))


def booking_of(session: LabletSession) -> PlaneCall[LabletSession]:
    """Return the call that books a session."""
    return lambda plane: plane.create(session)


async def lease_of_the_lablet_controller_ends(world: CheckedWorld) -> None:
    """Let a lease end at the store while its holder, who has just lost its watches, believes in it."""
    lease = await world.stage.store.lease(LABLET_CONTROLLER)
    if lease is not None:
        for process in world.alive:
            if process.name == lease.holder:
                process.link.cut_watches()
        await world.stage.store.release(lease)


async def _serving(world: CheckedWorld, wanted: Callable[[LabWorker], bool] = lambda _: True) -> LabWorker:
    while True:
        await asyncio.sleep(MINUTE)
        for worker in world.witness.seen.workers.values():
            if worker.status.phase in _SERVES and wanted(worker):
                return worker


def _works_on(world: CheckedWorld, worker: LabWorker) -> bool:
    """Return whether somebody works on a worker, and will for a while."""
    late = world.clock.now() + timedelta(minutes=40)
    on_it = world.witness.seen.on_worker[worker.metadata.uid].values()
    busy = [one for one in on_it if one.status.phase is SessionPhase.RUNNING]
    return any(one.status.ends_at is not None and one.status.ends_at > late for one in busy)


async def _running(world: CheckedWorld) -> LabletSession:
    while True:
        await asyncio.sleep(MINUTE)
        for session in world.witness.seen.live_sessions():
            if session.status.phase is SessionPhase.RUNNING:
                return session
