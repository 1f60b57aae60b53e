"""What is planned, as values: labs, pools of machines, and who wants which lab when. Made by `sim.plan.reading`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.session import Seat
from lcm.model.money.prices import SHIPPED_PRICES, declared_capacity

MOST_SESSIONS: Final = 20_000
LONGEST_SPAN: Final = timedelta(days=400)


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """A request for more time."""

    at: datetime
    minutes: int


class SessionWish(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session wants to run."""

    region_required: str | None = None
    region_preferred: str | None = None
    allow_spot: bool = False


ANYWHERE: Final = SessionWish()


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One session that is wanted: in a slot, or without one as soon as possible after it was booked."""

    name: str
    definition: str
    track: str
    minutes: int
    start: datetime | None = None
    owner: str = ""
    booked_at: datetime | None = None
    """When it is booked; None means before everything else."""
    cancelled_at: datetime | None = None
    extended: tuple[Extension, ...] = ()
    wish: SessionWish = ANYWHERE
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
    sessions: tuple[SessionRequest, ...]
    zone: str = "UTC"
    prices: Mapping[str, Decimal] = {}
    """Dollars an hour by instance type; they override the prices that are shipped."""
    now: datetime | None = None
    """When it begins, for a plan that continues from a live system."""

    def template_of(self, pool: LabWorkerPool) -> WorkerTemplate | None:
        """Return the template of a pool's workers; None if there is none."""
        return next((one for one in self.templates if one.metadata.name == pool.spec.template), None)

    def definition(self, name: str) -> LabletDefinition | None:
        """Return a definition by its full name; None if there is none."""
        return next((one for one in self.definitions if one.metadata.name == name), None)

    def hourly(self, region: str, instance_type: str) -> Decimal | None:
        """Return the hourly price of a machine whose template has none; None means that it is not known."""
        if instance_type in self.prices:
            return self.prices[instance_type]
        return SHIPPED_PRICES.hourly(region, instance_type)


def pool_labels(pools: Sequence[LabWorkerPool]) -> Mapping[str, str]:
    """Return how each pool is called in results: after its track, if it is the only one of that."""
    tracks = Counter(one.spec.lab_track for one in pools)
    return {
        one.metadata.name: one.spec.lab_track if tracks[one.spec.lab_track] == 1 else one.metadata.name for one in pools
    }


def price_of(timetable: Timetable, template: WorkerTemplate) -> Decimal | None:
    """Return the hourly price of a template's machines."""
    aws = template.spec.worker.aws
    said = template.spec.price_per_hour_usd
    return said if said is not None else timetable.hourly(aws.region, aws.instance_type)


def track_of_place(pools: Sequence[LabWorkerPool], seat: Seat | None, namespace: str) -> str:
    """Return the track of the pool that serves a booking without a track; "" without pools.

    It is that of its planned worker. Any pool may serve a booking without one: the first by name is taken.
    """
    own = [one for one in pools if seat and (one.metadata.namespace, one.metadata.name) == (namespace, seat.pool)]
    others = sorted(pools, key=lambda one: (one.metadata.namespace != namespace, one.metadata.name))
    return next((one.spec.lab_track for one in (*own, *others)), "")


def check_timetable(timetable: Timetable) -> Timetable:
    """Return a timetable that can be played. Raises Invalid with everything that stands in its way."""
    faults = [*_track_faults(timetable), *_machine_faults(timetable), *_span_faults(timetable)]
    if faults:
        raise Invalid(*faults)
    return timetable


def _track_faults(timetable: Timetable) -> list[Fault]:
    served = {pool.spec.lab_track for pool in timetable.pools}
    missing = dict.fromkeys(one.track for one in timetable.sessions if one.track not in served)
    remedy = "add one to the fleet, or give the sessions another track"
    return [Fault("fleet", f"no pool serves the track {track!r}", remedy) for track in missing]


def _machine_faults(timetable: Timetable) -> list[Fault]:
    faults = []
    for pool in timetable.pools:
        template = timetable.template_of(pool)
        if template is None:
            faults.append(Fault("fleet", f"pool {pool.metadata.name} has no template", "add its template"))
        elif declared_capacity(template.spec.worker) is None:
            kind = template.spec.worker.aws.instance_type
            remedy = "use a type such as m5zn.metal or m8i.4xlarge"
            faults.append(Fault("fleet", f"the capacity of machines of type {kind!r} is not known", remedy))
    return faults


def _span_faults(timetable: Timetable) -> list[Fault]:
    if not timetable.sessions:
        return [Fault("sessions", "there are no sessions", "add the sessions that you want")]
    if len(timetable.sessions) > MOST_SESSIONS:
        return [Fault("sessions", f"more than {MOST_SESSIONS}", "plan a shorter time")]
    begin, end = first_moment(timetable), span_of(timetable)[1]
    if end - begin > LONGEST_SPAN:
        return [Fault("sessions", f"they last for {(end - begin).days} days", f"plan {LONGEST_SPAN.days} days at most")]
    return []


def span_of(timetable: Timetable) -> tuple[datetime, datetime]:
    """Return from when to when something is wanted."""
    starts = [(one.start or one.booked_at, one) for one in timetable.sessions]
    first = [one for one in (*(at for at, _ in starts), timetable.now) if one is not None]
    last = [
        max(at, one.booked_at or at) + timedelta(minutes=one.minutes + sum(more.minutes for more in one.extended))
        for at, one in starts
        if at
    ]
    assert first, "who has no slot says when it is booked"
    return min(first), max(*last, *first)


def first_moment(timetable: Timetable) -> datetime:
    """Return when something happens first: a slot begins, or is booked."""
    return min([span_of(timetable)[0], *(one.booked_at for one in timetable.sessions if one.booked_at)])
