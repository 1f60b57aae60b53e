"""The line below the greeting of `lcm up`: how many workers are ready, how many sessions run. Called by `up`."""

import asyncio
from datetime import datetime
from typing import Final, NamedTuple

from lcm.cli.output import render, screen
from lcm.cli.output.follow import read_all
from lcm.cli.output.zone import current_zone
from lcm.control.plane.protocol import Plane
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Later, LcmError
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, SessionPhase
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker
from lcm.system.clock import SystemStopwatch

_EVERY_SECONDS: Final = 2.0
_MOST_SHARE: Final = 0.02
"""The share of the process's time that counting may take."""


class FleetCounts(NamedTuple):
    """How many objects there are, and how many of them do what they are there for."""

    workers: int
    ready: int
    sessions: int
    running: int
    alerts: int


def status_text(counts: FleetCounts, at: datetime) -> str:
    """Return the counts in one line."""
    sessions = f"{counts.running} of {counts.sessions} sessions running"
    alerts = f"{counts.alerts or 'no'} open alert{'' if counts.alerts == 1 else 's'}"
    return f"{at:%H:%M:%S}  {counts.ready} of {counts.workers} workers ready, {sessions}, {alerts}"


async def keep_status_line(plane: Plane, clock: Clock) -> None:
    """Draw the line on a terminal again and again, until cancelled."""
    line, watch, text = screen.LiveLines(), SystemStopwatch(), ""
    while True:
        begun = watch.seconds()
        try:
            text = status_text(await _count_fleet(plane), current_zone().local(clock.now()))
        except Later:
            pass  # the store is busy: the line stays as it is
        except LcmError as error:
            text = f"the state cannot be read: {error}"
        line.draw([render.truncate(render.sanitize(text), (render.output_width() or render.MAX_TEXT_WIDTH) - 1)])
        await asyncio.sleep(max(_EVERY_SECONDS, (watch.seconds() - begun) / _MOST_SHARE))


async def _count_fleet(plane: Plane) -> FleetCounts:
    workers = (await read_all(plane, LabWorker)).items
    sessions = [one.status.phase for one in (await read_all(plane, LabletSession)).items]
    return FleetCounts(
        workers=len(workers),
        ready=sum(one.status.phase in HOSTING_PHASES for one in workers),
        sessions=sum(phase not in SESSION_MACHINE.final for phase in sessions),
        running=sum(phase is SessionPhase.RUNNING for phase in sessions),
        alerts=len(await plane.alerts()),
    )
