"""A process that leads on a store, and is told on its standard input to hold its loop, or to act: `ENGINE ADDRESS`.

It prints a line for each thing that happens: when it leads, what held its loop, and what came of an act.
"""

import asyncio
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from lcm.compose.leases import open_lease_keeper
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane, Ref
from lcm.controllers.runtime.election import Election
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Deposed
from lcm.model.kinds.pool import WorkerTemplate
from lcm.providers.protocols.permit import check_permit
from lcm.store.base import Store
from lcm.store.etcd.engine import EtcdStore
from lcm.store.sqlite.engine import SqliteStore
from lcm.system import log
from lcm.system.clock import SystemClock, SystemStopwatch, random_fraction
from lcm.system.loop_watch import LoopWatch

TTL_SECONDS = 3
LEASE = "busy"


def say(*words: object) -> None:
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


async def open_store(engine: str, address: str) -> Store:
    return await SqliteStore.open(Path(address)) if engine == "sqlite" else await EtcdStore.open([address])


def hold_the_loop(seconds: float) -> None:
    """Compute and block, and let nothing else in the loop run."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(100_000))
        time.sleep(0.01)


async def act(plane: Plane, number: str) -> None:
    """Do what a leader does: an effect under its permit, and a write under its fence."""
    acted = written = "done"
    try:
        check_permit()
    except Deposed:
        acted = "deposed"
    try:
        await plane.patch(Ref(WorkerTemplate, "metal"), {"metadata": {"labels": {"number": number}}})
    except Deposed:
        written = "deposed"
    say("acted", acted, written)


async def lead(watch: LoopWatch, plane: Plane) -> None:
    say("leads")
    acts = set[asyncio.Task[None]]()
    while True:
        word, number = (await asyncio.to_thread(sys.stdin.readline)).split()
        if word == "hold":
            hold_the_loop(float(number))
            await asyncio.sleep(0.1)
            say("held", round(watch.longest.seconds, 1), watch.longest.culprit)
            continue
        if word == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        acts.add(asyncio.create_task(act(plane, number)))  # not cancelled with the term: what was begun goes on


async def main(engine: str, address: str) -> None:
    watch, store = LoopWatch(), await open_store(engine, address)
    with watch.run():
        async with open_lease_keeper(partial(open_store, engine, address), watch) as leases:
            caller = Caller(name="service", role=Role.SERVICE, actor="busy")
            election = Election(
                ControlPlane(store, clock=SystemClock()).plane_for(caller),
                LEASE,
                f"process {os.getpid()}",
                ttl_seconds=TTL_SECONDS,
                stopwatch=SystemStopwatch(),
                chance=random_fraction,
                beside=leases.keep_term,
            )
            await election.run(partial(lead, watch))


if __name__ == "__main__":
    log.configure_logging("ERROR")
    asyncio.run(main(*sys.argv[1:]))
