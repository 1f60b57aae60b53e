"""What is planned, as values: labs, pools of machines, and who wants which lab when. Made by `reading` and `live`."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.money.prices import SHIPPED, declared_capacity

MOST_SESSIONS: Final = 20_000
LONGEST: Final = timedelta(days=400)


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody asked for more time."""

    at: datetime
    minutes: int


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One session that somebody wants: in a slot, or without one as soon as possible after it was booked."""

    name: str
    definition: str
    track: str
    minutes: int
    start: datetime | None = None
    owner: str = ""
    booked_at: datetime | None = None
    """When somebody books it; None is before everything else."""
    cancelled_at: datetime | None = None
    extended: tuple[Extension, ...] = ()
    standing: bool = False
    """Whether a live system has promised it already."""

    @property
    def end(self) -> datetime | None:
        """When its slot ends."""
        return None if self.start is None else self.start + timedelta(minutes=self.minutes)


class Timetable(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is planned."""

    definitions: tuple[LabletDefinition, ...]
    templates: tuple[WorkerTemplate, ...]
    pools: tuple[LabWorkerPool, ...]
    sessions: tuple[Wanted, ...]
    zone: str = "UTC"
    prices: Mapping[str, Decimal] = {}
    """Dollars an hour by instance type, over those that are shipped."""
    now: datetime | None = None
    """When it begins, for one that goes on from a live system."""

    def template_of(self, pool: LabWorkerPool) -> WorkerTemplate | None:
        """Find what the workers of a pool look like."""
        return next((one for one in self.templates if one.metadata.name == pool.spec.template), None)

    def definition(self, name: str) -> LabletDefinition | None:
        """Find a definition by its full name."""
        return next((one for one in self.definitions if one.metadata.name == name), None)

    def hourly(self, region: str, instance_type: str) -> Decimal | None:
        """Say what a machine costs by the hour where its template does not; None means that nobody knows."""
        if instance_type in self.prices:
            return self.prices[instance_type]
        return SHIPPED.hourly(region, instance_type)


def price_of(timetable: Timetable, template: WorkerTemplate) -> Decimal | None:
    """Say what a machine of a template costs by the hour."""
    aws = template.spec.worker.aws
    said = template.spec.price_per_hour_usd
    return said if said is not None else timetable.hourly(aws.region, aws.instance_type)


def checked(timetable: Timetable) -> Timetable:
    """Give a timetable that can be played; Invalid with everything that stands in its way."""
    faults = [*_tracks(timetable), *_machines(timetable), *_span(timetable)]
    if faults:
        raise Invalid(*faults)
    return timetable


def _tracks(timetable: Timetable) -> list[Fault]:
    served = {pool.spec.lab_track for pool in timetable.pools}
    missing = dict.fromkeys(one.track for one in timetable.sessions if one.track not in served)
    remedy = "add one to the fleet, or give the sessions another track"
    return [Fault("fleet", f"no pool is there for the track {track!r}", remedy) for track in missing]


def _machines(timetable: Timetable) -> list[Fault]:
    faults = []
    for pool in timetable.pools:
        template = timetable.template_of(pool)
        if template is None:
            faults.append(Fault("fleet", f"pool {pool.metadata.name} has no template", "add its template"))
        elif declared_capacity(template.spec.worker) is None:
            kind = template.spec.worker.aws.instance_type
            remedy = "use a type such as m5zn.metal or m8i.4xlarge"
            faults.append(Fault("fleet", f"nobody knows what a machine of type {kind!r} holds", remedy))
    return faults


def _span(timetable: Timetable) -> list[Fault]:
    if not timetable.sessions:
        return [Fault("sessions", "there are none", "add the sessions that are wanted")]
    if len(timetable.sessions) > MOST_SESSIONS:
        return [Fault("sessions", f"more than {MOST_SESSIONS}", "plan a shorter time")]
    begin, end = first_of(timetable), span_of(timetable)[1]
    if end - begin > LONGEST:
        return [Fault("sessions", f"they last for {(end - begin).days} days", f"plan {LONGEST.days} days at most")]
    return []


def span_of(timetable: Timetable) -> tuple[datetime, datetime]:
    """Say from when to when something is wanted."""
    starts = [(one.start or one.booked_at, one) for one in timetable.sessions]
    first = [one for one in (*(at for at, _ in starts), timetable.now) if one is not None]
    last = [
        max(at, one.booked_at or at) + timedelta(minutes=one.minutes + sum(more.minutes for more in one.extended))
        for at, one in starts
        if at
    ]
    assert first, "who has no slot says when it is booked"
    return min(first), max(*last, *first)


def first_of(timetable: Timetable) -> datetime:
    """Say when something happens first: a slot begins, or is booked."""
    return min([span_of(timetable)[0], *(one.booked_at for one in timetable.sessions if one.booked_at)])
