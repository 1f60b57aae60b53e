"""Objects to begin a test with: a keyword reaches the field of that name in spec, status or metadata; small pools."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st

from lcm.model.base.capacity import Amount, Claim, Profile
from lcm.model.base.resource import Metadata, PhaseChange
from lcm.model.kinds.definition import LabletDefinition, LabletDefinitionSpec, Topology
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation, ReservationSpec
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.sink import Format, Sink, SinkSpec
from lcm.model.kinds.worker import AwsSpec, LabWorker, LabWorkerSpec, LicenseFlavour, WorkerTelemetry
from lcm.model.money.billing import Billing, BillingInterval
from lcm.model.money.licences import LicenceSeat, SeatState
from lcm.model.telemetry.observation import ResourceObservation
from lcm.placement.limits import PromiseRules
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats, Span
from lcm.placement.timeline import micros

MONDAY = datetime(2026, 11, 2, tzinfo=UTC)
IMAGE = AwsSpec(ami_name_pattern="CML-2.9*")
R = TypeVar("R", bound=Resource)
S = TypeVar("S", bound=msgspec.Struct)


def moment(clock: str, *, day: int = 0) -> datetime:
    """Return "09:00" or "09:00:30" of a Monday, or of so many days after it."""
    hours, minutes, *seconds = (float(part) for part in clock.split(":"))
    return MONDAY + timedelta(days=day, hours=hours, minutes=minutes, seconds=sum(seconds))


def amount(**overrides: int) -> Amount:
    """Return what a small lab needs."""
    need = Amount(cpu_millis=4_000, memory_mb=8_192, storage_mb=20_480, nodes=4, ports=6, labs=1)
    return msgspec.structs.replace(need, **overrides)


def machine(**overrides: int) -> Amount:
    """Return what a metal worker declares."""
    room = Amount(cpu_millis=48_000, memory_mb=196_608, storage_mb=256_000, nodes=200, ports=6_000, labs=20)
    return msgspec.structs.replace(room, **overrides)


def claim(start: str = "09:00", end: str = "11:00", **overrides: int) -> Claim:
    return Claim(start=moment(start), end=moment(end), need=amount(**overrides))


def worker(**overrides: object) -> LabWorker:
    return with_fields(LabWorker(metadata=Metadata(name="w1", uid="uid-w1"), spec=LabWorkerSpec(aws=IMAGE)), overrides)


def template(**overrides: object) -> WorkerTemplate:
    spec = WorkerTemplateSpec(worker=LabWorkerSpec(aws=IMAGE))
    return with_fields(WorkerTemplate(metadata=Metadata(name="metal", uid="uid-metal"), spec=spec), overrides)


def pool(**overrides: object) -> LabWorkerPool:
    spec = LabWorkerPoolSpec(lab_track="ccna", template="metal")
    return with_fields(LabWorkerPool(metadata=Metadata(name="ccna", uid="uid-ccna"), spec=spec), overrides)


def definition(**overrides: object) -> LabletDefinition:
    spec = LabletDefinitionSpec(version="1.0.0", topology=Topology(uri="s3://labs/basics.yaml"))
    return with_fields(LabletDefinition(metadata=Metadata(name="basics:1.0.0", uid="uid-basics"), spec=spec), overrides)


def session(**overrides: object) -> LabletSession:
    spec = LabletSessionSpec(definition="basics:1.0.0", timeslot_start=moment("09:00"), timeslot_end=moment("11:00"))
    return with_fields(LabletSession(metadata=Metadata(name="s1", uid="uid-s1"), spec=spec), overrides)


def asap(**overrides: object) -> LabletSession:
    """Return a session without a slot."""
    return session(**{"timeslot_start": None, "timeslot_end": None, "duration_minutes": 120} | overrides)


def reservation(**overrides: object) -> Reservation:
    start, end = moment("09:00"), moment("11:00")
    spec = ReservationSpec(definition="basics:1.0.0", timeslot_start=start, timeslot_end=end, count=2)
    return with_fields(Reservation(metadata=Metadata(name="r1", uid="uid-r1"), spec=spec), overrides)


def settings(**overrides: object) -> SystemSettings:
    return with_fields(SystemSettings(metadata=Metadata(name="system", uid="uid-system")), overrides)


def sink(**overrides: object) -> Sink:
    spec = SinkSpec(url="https://events.example.org/v2", format=Format.PAGERDUTY, credential="env:PAGER")
    return with_fields(Sink(metadata=Metadata(name="pager", uid="uid-pager"), spec=spec), overrides)


def telemetry(**overrides: object) -> WorkerTelemetry:
    return changed(WorkerTelemetry(collected_at=moment("08:00")), overrides)


def seat(**overrides: object) -> LicenceSeat:
    taken = LicenceSeat(
        worker_id="uid-w1",
        worker_name="w1",
        namespace="default",
        token="9c1f0e7a55d2",
        flavour=LicenseFlavour.ENTERPRISE,
        state=SeatState.REGISTERED,
        since=moment("08:00"),
    )
    return changed(taken, overrides)


def interval(**overrides: object) -> BillingInterval:
    """Return an hour at a dollar."""
    ran = BillingInterval(
        worker_id="uid-w1",
        worker_name="w1",
        namespace="default",
        lab_track="ccna",
        region="us-east-1",
        instance_type="m5zn.metal",
        instance_id="i-1",
        state=Billing.RUNNING,
        usd_hourly=Decimal(1),
        since=moment("08:00"),
        until=moment("09:00"),
    )
    return changed(ran, overrides)


def observation(**overrides: object) -> ResourceObservation:
    seen = ResourceObservation(
        observed_at=moment("10:55"),
        observer="lablet-controller",
        total_cpu_cores=4.0,
        total_memory_mb=8_192,
        total_storage_mb=None,
        nodes=(),
        actual_node_count=4,
        node_definitions_used=("iosv",),
        observed_ports={"PC_serial": 5041},
    )
    return changed(seen, overrides)


def history(*phases: str) -> tuple[PhaseChange, ...]:
    """Return a story, one change a minute from nine o'clock on."""
    start = moment("09:00")
    return tuple(
        PhaseChange(phase=phase, at=start + timedelta(minutes=number), by="test", reason=f"reason {number}")
        for number, phase in enumerate(phases)
    )


def every() -> tuple[Resource, ...]:
    """Return one object of each kind."""
    return (worker(), pool(), template(), definition(), session(), reservation(), settings(), sink())


def with_fields(resource: R, overrides: Mapping[str, object]) -> R:
    """Change fields of a resource's spec, status or metadata."""
    parts: dict[str, dict[str, object]] = {"spec": {}, "status": {}, "metadata": {}}
    for name, value in overrides.items():
        part = next((one for one in parts if name in getattr(resource, one).__struct_fields__), None)
        assert part is not None, f"{type(resource).__name__} has no field {name}"
        parts[part][name] = value
    return changed(resource, parts)


def changed(struct: S, overrides: Mapping[str, object]) -> S:
    """Change fields of a struct; a mapping for a part changes only what it names."""
    fields: dict[str, Any] = {
        name: changed(old, value)
        if isinstance(value, Mapping) and isinstance(old := getattr(struct, name), msgspec.Struct)
        else value
        for name, value in overrides.items()
    }
    return msgspec.structs.replace(struct, **fields)


LEAD, KEEP = 25, 15
MINUTE = timedelta(minutes=1)
ROOM = Amount(cpu_millis=4, memory_mb=6, labs=3)
EARLY = moment("00:00", day=-1)
LONG_BEFORE = PromiseRules(EARLY)

Minutes = set[int]


def at(minute: int) -> datetime:
    return moment("00:00") + minute * MINUTE


def seat_claim(start: int, end: int, need: Amount) -> Claim:
    return Claim(start=at(start), end=at(end), need=need)


needs = st.builds(Amount, cpu_millis=st.integers(0, 5), memory_mb=st.integers(0, 6), labs=st.just(1))
spans = st.tuples(st.integers(0, 46).map(lambda n: n * 10), st.integers(1, 18).map(lambda n: n * 10))
claims = st.builds(lambda span, need: seat_claim(span[0], span[0] + span[1], need), spans, needs)
books = st.lists(claims, max_size=14)


def seats(size: int = 3, *, room: Amount = ROOM, standing: int = 0) -> Seats:
    return Seats(room, size, lead=LEAD * MINUTE, keep=KEEP * MINUTE, standing=standing)


def minutes(spans_: Iterable[Span]) -> Minutes:
    start = micros(at(0))
    each = ((span.start - start, span.end - start) for span in spans_)
    return {minute for begin, end in each for minute in range(begin // 60_000_000, end // 60_000_000)}


def covered(one: Claim) -> Minutes:
    return set(range((one.start - at(0)) // MINUTE, (one.end - at(0)) // MINUTE))


def plainly_running(several: Iterable[Claim]) -> Minutes:
    """Return the minutes a worker runs: claims, the boot before each stretch of them, and gaps not worth a release."""
    busy = set().union(*map(covered, several))
    running = set(busy)
    for minute in busy:
        if minute - 1 not in busy:
            last = max((other for other in busy if other < minute), default=None)
            gap = LEAD + KEEP if last is None else minute - 1 - last
            running |= set(range(minute - (gap if gap < LEAD + KEEP else LEAD), minute))
    return running


def on(pool: Seats, number: int) -> list[Claim]:
    return [held.claim for held in pool[number].held.values()]


def plainly_fits(pool: Seats, number: int, new: Claim) -> bool:
    return Profile.of(on(pool, number)).fits(new, pool[number].capacity)


def sound(pool: Seats) -> bool:
    """Return whether no seat is over-committed at any moment."""
    every = range(1, len(pool) + 1)
    return not any(Profile.of(on(pool, number)).find_overcommitted(pool[number].capacity) for number in every)


def filled(pool: Seats, held: Sequence[tuple[int, Claim]]) -> Seats:
    for place, (number, one) in enumerate(held):
        pool.hold(number, HeldClaim(f"h{place}", one))
    return pool


def state(pool: Seats) -> object:
    lines = [pool[number].timeline for number in range(1, len(pool) + 1)]
    return [(line.moments, line.levels) for line in lines], pool.opening.moments, pool.opening.levels, pool.time
