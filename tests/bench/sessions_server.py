"""Serves everything in one process for the sessions bench: `python sessions_server.py FOLDER KEY SPEED`.

Prints where it is. For each line that it is told, it writes into the folder what the lablet controller has asked CML
so far, (verb, lab's title, when it began and ended by the clock that both processes share), and prints how many seconds
it ran, and for how many it could have run but others were on the processors.
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lcm.compose.process import CONTROLLERS, Controller, ControllerContext, ProcessPart, run_embedded
from lcm.control.plane.protocol import Plane
from lcm.model.access.secret import Secret
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.labhost import Hosts, LabHost, LabSummary
from lcm.settings.load import Settings
from lcm.system import log

CALLS = "calls.json"
Call = tuple[str, str, float, float]


@dataclass
class Record:
    """What was asked of all hosts, in the order of the answers."""

    calls: list[Call] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)

    async def keep(self, verb: str, about: str, answer: Awaitable[Any]) -> Any:
        began = time.monotonic()
        answered = await answer
        if isinstance(answered, LabSummary):
            self.titles[answered.lab_id] = answered.title
        self.calls.append((verb, self.titles.get(about, about), began, time.monotonic()))
        return answered


class RecordedHost:
    """A host whose verbs about one lab are recorded."""

    def __init__(self, host: LabHost, record: Record) -> None:
        self._host = host
        self._record = record

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        ask: Callable[..., Awaitable[Any]] = getattr(self._host, verb)
        return lambda *given, **named: self._record.keep(verb, str(given[0]) if given else "", ask(*given, **named))


class RecordedHosts:
    """Hosts that are recorded; everything else is as it was."""

    def __init__(self, hosts: Hosts, record: Record) -> None:
        self._hosts = hosts
        self._record = record

    async def of(self, worker: LabWorker) -> LabHost:
        recorded: Any = RecordedHost(await self._hosts.of(worker), self._record)
        host: LabHost = recorded
        return host

    async def certificate(self, worker: LabWorker) -> str:
        return await self._hosts.certificate(worker)

    async def forget(self, worker: LabWorker) -> None:
        await self._hosts.forget(worker)

    async def close(self) -> None:
        await self._hosts.close()


def recorded(controller: Controller, record: Record) -> Controller:
    """Connect the lablet controller to hosts that record their calls."""

    async def run(plane: Plane, around: ControllerContext) -> None:
        outside = replace(around.outside, hosts=RecordedHosts(around.outside.hosts, record))
        await controller.run(plane, replace(around, providers=outside))

    return replace(controller, run=run) if controller.part is ProcessPart.LABLET_CONTROLLER else controller


def spent() -> tuple[float, float]:
    """Return how long all threads have run, and the main one has waited for a processor; 0 where nobody counts that."""
    used, counted = resource.getrusage(resource.RUSAGE_SELF), Path("/proc/self/schedstat")
    waited = int(counted.read_text().split()[1]) / 1e9 if counted.exists() else 0.0
    return used.ru_utime + used.ru_stime, waited


async def main(folder: Path, key: str, speed: float) -> None:
    settings = Settings(data_dir=folder, port=0, control_plane_api_key=Secret(key))
    record = Record()
    controllers = [recorded(one, record) for one in CONTROLLERS]
    async with run_embedded(settings, speed=speed, controllers=controllers) as it:
        print(it.running.url, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            await asyncio.to_thread((folder / CALLS).write_text, json.dumps(record.calls))
            print(*spent(), flush=True)


if __name__ == "__main__":
    log.configure_logging("ERROR")
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
