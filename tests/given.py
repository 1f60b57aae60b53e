"""Objects to begin a test with. A keyword reaches the field of that name in spec, status or metadata, whichever has it
first; a mapping given for a part changes only what it names: `given.worker(phase=READY, ec2={"instance_id": "i-1"})`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.resource import Metadata, PhaseChange
from lcm.model.kinds.definition import LabletDefinition, LabletDefinitionSpec, Topology
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation, ReservationSpec
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import AwsSpec, LabWorker, LabWorkerSpec, LicenseFlavour, WorkerTelemetry
from lcm.model.money.billing import Billing, BillingInterval
from lcm.model.money.licences import LicenceSeat, SeatState
from lcm.model.telemetry.observation import ResourceObservation

MONDAY = datetime(2026, 11, 2, tzinfo=UTC)
IMAGE = AwsSpec(ami_name_pattern="CML-2.9*")
R = TypeVar("R", bound=Resource)
S = TypeVar("S", bound=msgspec.Struct)


def moment(clock: str, *, day: int = 0) -> datetime:
    """Say "09:00" or "09:00:30" of a Monday, or of so many days after it."""
    hours, minutes, *seconds = (float(part) for part in clock.split(":"))
    return MONDAY + timedelta(days=day, hours=hours, minutes=minutes, seconds=sum(seconds))


def amount(**overrides: int) -> Amount:
    """Give what a small lab needs."""
    need = Amount(cpu_millis=4_000, memory_mb=8_192, storage_mb=20_480, nodes=4, ports=6, labs=1)
    return msgspec.structs.replace(need, **overrides)


def machine(**overrides: int) -> Amount:
    """Give what a metal worker declares."""
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
    """Give a session without a slot."""
    return session(**{"timeslot_start": None, "timeslot_end": None, "duration_minutes": 120} | overrides)


def reservation(**overrides: object) -> Reservation:
    start, end = moment("09:00"), moment("11:00")
    spec = ReservationSpec(definition="basics:1.0.0", timeslot_start=start, timeslot_end=end, count=2)
    return with_fields(Reservation(metadata=Metadata(name="r1", uid="uid-r1"), spec=spec), overrides)


def settings(**overrides: object) -> SystemSettings:
    return with_fields(SystemSettings(metadata=Metadata(name="system", uid="uid-system")), overrides)


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
    """Give an hour at a dollar."""
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
    """Give a story, one change a minute from nine o'clock on."""
    start = moment("09:00")
    return tuple(
        PhaseChange(phase=phase, at=start + timedelta(minutes=number), by="test", reason=f"reason {number}")
        for number, phase in enumerate(phases)
    )


def every() -> tuple[Resource, ...]:
    """Give one object of each kind."""
    return (worker(), pool(), template(), definition(), session(), reservation(), settings())


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
