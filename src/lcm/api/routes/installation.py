"""What staff look at when something is odd: every setting with its source, and what a machine wrote to its console."""

import asyncio
from datetime import datetime
from typing import Final

import msgspec

from lcm.api.http.answers import Answer, json_answer
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, Policy, Route, policy_for
from lcm.control.plane.bodies import OneQuery
from lcm.model.access.identity import STAFF, Verb
from lcm.model.base.errors import Gone, Refused, Unreachable
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.settings.load import ShownSetting

MOST_CONSOLE_CHARS: Final = 64 * 1024
"""How much of a console's output is shown: EC2 keeps as much."""
_CONSOLE_SECONDS: Final = 15.0


class SettingList(msgspec.Struct, frozen=True):
    """Every setting of the process that answers."""

    items: tuple[ShownSetting, ...]


class ConsoleOutput(msgspec.Struct, frozen=True):
    """What a machine wrote to its console last, as the cloud keeps it."""

    instance_id: str
    text: str
    cut: bool
    """Whether there was more before it."""
    read_at: datetime


async def _list_configuration(request: Request) -> Answer:
    found = (await request.plane.list(SystemSettings)).items
    return json_answer(SettingList(request.shared.configuration(next(iter(found), None))))


async def _read_console(request: Request) -> Answer:
    worker = await request.plane.get(request.ref(LabWorker, request.query(OneQuery).namespace))
    if worker is None:
        raise Gone(f"there is no worker {request.params[0]}")
    machine, read = worker.status.ec2.instance_id, request.shared.machine_consoles.read
    if not machine:
        raise Refused(f"worker {worker.metadata.name} has no machine")
    if read is None:
        raise Refused("the simulated machines are in another process than this API")
    try:
        async with asyncio.timeout(_CONSOLE_SECONDS):
            text = await read(worker.spec.aws.region, machine)
    except TimeoutError as error:
        raise Unreachable(f"the cloud did not show the console of {machine} in time") from error
    shown = text[-MOST_CONSOLE_CHARS:]
    return json_answer(ConsoleOutput(machine, shown, len(shown) < len(text), request.shared.clock.now()))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/configuration",
        _list_configuration,
        "listConfiguration",
        "List every setting with its value, where that comes from, and whether it can be changed at run time",
        policy=Policy(STAFF),
        answer=SettingList,
    ),
    Route(
        GET,
        "/api/workers/{id}/console-output",
        _read_console,
        "readConsoleOutput",
        "Read what a worker's machine wrote to its console last, as the cloud keeps it",
        policy=policy_for(KINDS[LabWorker.__name__], Verb.ACT),
        kind=KINDS[LabWorker.__name__],
        query=OneQuery,
        answer=ConsoleOutput,
        also=(409,),
    ),
)
