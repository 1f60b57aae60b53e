"""Monitors workers for the workers bench: `python workers_controller.py COUNT FOLDER`; reads where they are on stdin.

The monitor, its cache and the control plane on SQLite run here; EC2 is made up in the same process. Each line on
standard input after "ready", a number of minutes, is answered with the seconds of a core that each poll took.
"""

import asyncio
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.workers_load import FastClock, allow_sockets, priced, run_fast
from harness import given
from harness.clouds import HERE
from harness.plane_world import service
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import creation_ops, encode_checked, history_prefix
from lcm.control.plane.bodies import Sample
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.control.telemetry.reports import HourOfSamples
from lcm.controllers.worker.conditions import ec2_facts
from lcm.controllers.worker.monitor import Monitor
from lcm.model.access.secret import Secret
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import (
    CmlFacts,
    Ec2Facts,
    LabWorker,
    LabWorkerSpec,
    LabWorkerStatus,
    WorkerPhase,
    WorkerTelemetry,
)
from lcm.providers.cml.host import CmlHost, CmlHosts
from lcm.providers.protocols.compute import OWNER_TAG
from lcm.settings.load import Settings
from lcm.sim.cloud.account import CloudBehaviour, LaunchOrder
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.time.chance import Chance
from lcm.store.base import Put, Store
from lcm.store.sqlite.engine import SqliteStore
from lcm.system import log
from lcm.system.tasks import cancel_and_wait

NODES = 5
WARM_UP_MINUTES = 3
LATELY = timedelta(minutes=2)
HISTORY = 30
"""Samples that the present hour holds already: as many as there are on average."""


class Password:
    """The simulator's, for every reference."""

    async def reveal(self, _ref: str) -> Secret:
        return Secret("admin")


class CountedHosts(CmlHosts):
    """Counts how often a host was asked for: once a poll."""

    polls = 0

    async def of(self, worker: LabWorker) -> CmlHost:
        self.polls += 1
        return await super().of(worker)


async def enrol(store: Store, cloud: SimCloud, clock: FastClock, count: int, *, url: str, pin: str) -> None:
    image = cloud.account.add_image(HERE, "CML-2.9.0", clock.now())
    for number in range(count):
        machine = cloud.account.run(LaunchOrder(HERE, "m5zn.metal", image.image_id, {OWNER_TAG: "lcm"}))
        now = clock.now()
        worker = LabWorker(
            metadata=Metadata(name=f"w{number}", uid=f"uid-{number}", created_at=now),
            spec=LabWorkerSpec(aws=given.IMAGE),
            status=LabWorkerStatus(
                phase=WorkerPhase.READY,
                ec2=ec2_facts(Ec2Facts(), machine.instance(now + timedelta(minutes=20))),
                cml=CmlFacts(api_url=f"{url}/w/w{number}", certificate=pin, version="2.9.1", licensed=False),
                capacity=given.machine(),
            ),
        )
        samples = tuple(_sample(now - timedelta(minutes=back)) for back in range(HISTORY, 0, -1))
        key = f"{history_prefix(ref_of(worker))}{now:%Y%m%d%H}"
        await store.commit(*creation_ops(worker), Put(key, encode_checked(HourOfSamples(samples=samples))))


def _sample(at: datetime) -> Sample:
    return Sample(
        at=at,
        cpu_utilization=12.34,
        memory_utilization=45.67,
        storage_utilization=8.9,
        active_labs_count=1,
        running_nodes=5,
    )


async def connect(plane: Plane, hosts: CmlHosts) -> None:
    """Sign in everywhere, a few at a time: what a first contact costs is not what is measured."""
    listed = await plane.list(LabWorker, limit=1000)
    places = asyncio.Semaphore(16)

    async def one(worker: LabWorker) -> None:
        async with places:
            await (await hosts.of(worker)).sign_in()

    await asyncio.gather(*map(one, listed.items))


async def late(plane: Plane, clock: FastClock, count: int) -> list[str]:
    """List the workers of which CML or the cloud did not say anything lately."""
    names = [f"w{number}" for number in range(count)]
    return [name for name in names if not _complete(await plane.telemetry(Ref(LabWorker, name)), clock.now())]


def _complete(found: WorkerTelemetry | None, now: datetime) -> bool:
    if found is None or found.running_nodes != NODES:
        return False
    return all(at is not None and now - at < LATELY for at in (found.cml_at, found.activity_at, found.ec2_at))


async def main(count: int, folder: Path) -> None:
    port, pin = json.loads(sys.stdin.readline())
    clock = FastClock()
    store = await SqliteStore.open(folder / f"workers-{count}.db")
    cloud = SimCloud(clock, Chance(7), nature=CloudBehaviour(speed=1000))
    await enrol(store, cloud, clock, count, url=f"https://127.0.0.1:{port}", pin=pin)
    plane = ControlPlane(store, clock=clock).plane_for(service(WORKER_CONTROLLER))
    cache = Cache(plane, LabWorker, LabletSession, SystemSettings)
    hosts = CountedHosts(Password())
    settings = Settings()
    monitor = Monitor(plane, cache, cloud, hosts, clock=clock, chance=lambda: 0.5, settings=lambda: settings)
    await connect(plane, hosts)
    tasks = [asyncio.create_task(cache.run()), asyncio.create_task(monitor.run())]
    for _ in range(WARM_UP_MINUTES):
        await asyncio.sleep(60)
        if not await late(plane, clock, count):
            break
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        hosts.polls = 0
        spent = await priced(asyncio.sleep(60 * float(line)))
        missed = await late(plane, clock, count)
        assert not missed, f"not measured: {missed}"
        print(json.dumps(spent / hosts.polls), flush=True)
    await cancel_and_wait(tasks)
    await hosts.close()
    await store.close()


if __name__ == "__main__":
    log.configure_logging("WARNING")
    allow_sockets()
    run_fast(main(int(sys.argv[1]), Path(sys.argv[2])))
