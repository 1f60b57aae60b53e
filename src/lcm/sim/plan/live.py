"""What a live system has, as the beginning of a plan: its labs, its pools, and what it has promised.

Machines that run now are not taken over: the simulated pools start, in the hours before, what promised sessions need.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from lcm.model.definition import LabletDefinition
from lcm.model.pool import LabWorkerPool, WorkerTemplate
from lcm.model.reservation import Reservation
from lcm.model.session import CLEAN_UP, SESSION, LabletSession
from lcm.sim.plan.documents import launchable, unmade
from lcm.sim.plan.reading_yaml import Stock
from lcm.sim.plan.timetable import Wanted

_MINUTE = timedelta(minutes=1)


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """What was listed of a live system, at a moment."""

    at: datetime
    definitions: tuple[LabletDefinition, ...] = ()
    templates: tuple[WorkerTemplate, ...] = ()
    pools: tuple[LabWorkerPool, ...] = ()
    sessions: tuple[LabletSession, ...] = ()
    reservations: tuple[Reservation, ...] = ()


def stock_of(live: Live) -> Stock:
    """Give what a plan goes on from; slots that have begun are as long as what is left of them."""
    now = live.at.replace(second=0, microsecond=0) + _MINUTE
    tracks = {one.metadata.name: one.spec.lab_track for one in live.definitions}
    promised = [*_sessions(live, now, tracks), *_reserved(live, now, tracks)]
    return Stock(
        definitions=live.definitions,
        templates=tuple(launchable(one) for one in live.templates),
        pools=tuple(unmade(one) for one in live.pools),
        sessions=tuple(promised),
        now=now,
    )


def _sessions(live: Live, now: datetime, tracks: dict[str, str]) -> Iterator[Wanted]:
    for session in live.sessions:
        spec, status = session.spec, session.status
        if status.phase in SESSION.final or spec.definition not in tracks:
            continue
        track = spec.lab_track or tracks[spec.definition]
        until = status.ends_at or spec.timeslot_end
        if until is None and spec.duration_minutes is not None:
            yield Wanted(
                name=session.metadata.name,
                definition=spec.definition,
                track=track,
                minutes=spec.duration_minutes,
                booked_at=now,
                standing=True,
            )
        elif until is not None:
            yield from _slot(session.metadata.name, spec.definition, track, spec.timeslot_start or now, until, now)


def _reserved(live: Live, now: datetime, tracks: dict[str, str]) -> Iterator[Wanted]:
    """Give what reservations hold for sessions that are not there yet."""
    for one in live.reservations:
        spec = one.spec
        long = spec.timeslot_end - spec.timeslot_start
        for held in one.status.held:
            if held.session is None and spec.definition in tracks:
                end = held.claim.end - CLEAN_UP
                name, track = f"{one.metadata.name}-{held.number}", spec.lab_track or tracks[spec.definition]
                yield from _slot(name, spec.definition, track, end - long, end, now)


def _slot(name: str, definition: str, track: str, start: datetime, end: datetime, now: datetime) -> Iterator[Wanted]:  # noqa: PLR0917
    begins = max(start, now)
    if (minutes := (end - begins) // _MINUTE) > 0:
        yield Wanted(name=name, definition=definition, track=track, minutes=minutes, start=begins, standing=True)
