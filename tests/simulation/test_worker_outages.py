"""Nobody answers for a while, and workers in every phase of their lives are none the worse for it afterwards."""

import asyncio
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

import msgspec
import pytest
import structlog

from harness.fleet_world import Fleet, Unreliable
from harness.stores import FallibleStore
from harness.workers import story
from lcm.control.plane.protocol import Drain, Pause, Ref, Resume
from lcm.model.base.errors import Later, Throttled, Unreachable
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import IdlePolicy, LabWorker, Remedy, WorkerPhase
from lcm.providers.protocols.compute import WORKER_TAG
from lcm.sim.time.loop import run

P = WorkerPhase
OFF = IdlePolicy(enabled=False)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
WORSE = {P.FAILED, P.TERMINATED}
BEFORE = {
    "asking": P.PROVISIONING_EC2,
    "launching": P.PROVISIONING_EC2,
    "booting": P.STARTING,
    "licensing": P.LICENSING,
    "ready": P.READY,
    "active": P.ACTIVE,
    "draining": P.DRAINING,
    "stopped": P.STOPPED,
    "resuming": P.STARTING,
    "rebooting": P.STARTING,
    "terminating": P.TERMINATING_EC2,
}
"""Where each worker is when nobody answers any more; it is called after that."""
AFTERWARDS = {
    "asking": P.READY,
    "launching": P.READY,
    "booting": P.READY,
    "licensing": P.READY,
    "ready": P.READY,
    "active": P.ACTIVE,
    "draining": P.DRAINING,
    "stopped": P.STOPPED,
    "resuming": P.READY,
    "rebooting": P.READY,
    "terminating": None,
}
OLD = ("ready", "active", "draining", "stopped", "resuming", "rebooting", "terminating")


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Let hours of monitoring not be written down."""
    with structlog.testing.capture_logs():
        yield


async def in_every_phase(fleet: Unreliable) -> None:
    """Have a worker in each phase at this very moment."""
    for name in OLD:
        await fleet.create(name, idle=OFF)
    for name in OLD:
        await fleet.reaches(P.READY, name=name)
    for name in ("active", "draining"):
        await fleet.host_session(await fleet.worker(name), f"on-{name}")
    await fleet.otto.act(Ref(LabWorker, "draining"), Drain())
    for name in ("stopped", "resuming"):
        await fleet.otto.act(Ref(LabWorker, name), Pause())
        await fleet.reaches(P.STOPPED, name=name)
    fleet.licences.reachable = False
    await fleet.create("licensing", idle=OFF)
    await asyncio.sleep(5 * 60)
    await fleet.create("booting", idle=OFF)
    await fleet.reaches(P.LICENSING, name="licensing")
    fleet.licences.reachable = True
    await fleet.otto.delete(Ref(LabWorker, "terminating"))
    await fleet.reaches(P.TERMINATING_EC2, name="terminating")
    await intend(fleet)


async def intend(fleet: Unreliable) -> None:
    """Commit to effects of which nobody hears before the outage, and to one of which only the answer is lost."""
    fleet.cloud.lose_answer_next("ensure")
    await fleet.create("launching", idle=OFF)
    await fleet.reaches(P.PROVISIONING_EC2, name="launching")
    for verb in ("ensure", "start", "reboot"):
        fleet.cloud.fail_next(verb, Unreachable("no route to host"))
    await fleet.create("asking", idle=OFF)
    await fleet.otto.act(Ref(LabWorker, "resuming"), Resume())
    ailing = await fleet.worker("rebooting")
    status = msgspec.structs.replace(ailing.status, phase=P.STARTING, remedy=Remedy.REBOOT)
    await fleet.plane().step(ailing, status, reason="it is rebooted")
    await asyncio.sleep(0.5)


async def phases(fleet: Fleet) -> Mapping[str, LabWorker]:
    return {worker.metadata.name: worker for worker in (await fleet.otto.list(LabWorker)).items}


async def endure(fleet: Unreliable, span: timedelta, *, changed: set[str]) -> None:
    """See that nothing gets worse while nobody answers; some may go on."""
    until = fleet.clock.now() + span
    while fleet.clock.now() < until:
        await asyncio.sleep(30)
        for name, worker in (await phases(fleet)).items():
            assert worker.status.phase not in WORSE, f"{name}\n{story(worker)}"
            assert worker.status.phase is BEFORE[name] or name in changed, f"{name}\n{story(worker)}"
            assert worker.status.idle is None or not worker.status.idle.idle


async def everything_goes_on(fleet: Unreliable) -> None:
    await asyncio.sleep(25 * 60)
    workers = await phases(fleet)
    now = {name: workers[name].status.phase if name in workers else None for name in AFTERWARDS}
    assert now == AFTERWARDS, "\n".join(f"{name}\n{story(worker)}" for name, worker in workers.items())
    for name, worker in workers.items():
        told = {line.phase for line in worker.status.history}
        assert not told & WORSE, f"{name}\n{story(worker)}"
    launched = [one.tags[WORKER_TAG] for one in fleet.cloud.account.machines.values()]
    assert len(launched) == len(set(launched)) == len(BEFORE), "something was launched twice"
    for name in ("on-active", "on-draining"):
        session = await fleet.otto.get(Ref(LabletSession, name))
        assert session is not None
        assert session.status.phase is SessionPhase.RUNNING
    assert len(fleet.living()) == len(workers)
    assert len(fleet.licences.taken) == len((await fleet.otto.licences()).seats)


CLOUD_ERRORS = [Unreachable("connection refused"), Throttled("slow down", after=timedelta(seconds=30))]


@pytest.mark.parametrize("error", CLOUD_ERRORS, ids=lambda error: type(error).__name__)
def test_an_hour_without_aws_changes_no_worker_for_the_worse(error: Later) -> None:
    async def main() -> None:
        fleet = Unreliable()
        async with fleet.controlled():
            await in_every_phase(fleet)
            with fleet.cloud_outage(error):
                await endure(fleet, HOUR, changed={"licensing"})
            await everything_goes_on(fleet)

    run(main)


def test_an_hour_without_cml_changes_no_worker_for_the_worse() -> None:
    async def main() -> None:
        fleet = Unreliable()
        async with fleet.controlled():
            await in_every_phase(fleet)
            with fleet.cml_outage():
                await endure(fleet, HOUR, changed={"asking", "launching", "terminating"})
            await everything_goes_on(fleet)

    run(main)


def test_a_minute_without_a_store_has_no_leader_and_changes_nothing() -> None:
    async def main() -> None:
        store = FallibleStore()
        fleet = Unreliable(store=store)
        async with fleet.controlled():
            await in_every_phase(fleet)
            with fleet.store_outage():
                await asyncio.sleep(20)
                acts = _acts(fleet)
                await asyncio.sleep(MINUTE.total_seconds() - 20)
                assert _acts(fleet) == acts, "somebody acted without a store"
            await everything_goes_on(fleet)

    run(main)


@pytest.mark.parametrize("verb", ["checks", "find"])
def test_a_boot_of_which_only_a_part_is_heard_does_not_fail(verb: str) -> None:
    async def main() -> None:
        fleet = Unreliable()
        async with fleet.controlled():
            await fleet.create(idle=OFF)
            await fleet.reaches(P.STARTING)
            started_at = fleet.clock.now()
            fleet.cloud.fail_next(verb, Unreachable("no answer"), times=400)
            worker = await fleet.reaches(P.READY)
            assert fleet.clock.now() - started_at > timedelta(minutes=20)
            assert not {line.phase for line in worker.status.history} & WORSE

    run(main)


def _acts(fleet: Fleet) -> list[datetime]:
    """List when anything was done to any machine."""
    return [change.at for machine in fleet.cloud.account.machines.values() for change in machine.changes]
