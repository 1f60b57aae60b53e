"""Rules that a document must satisfy beyond the types of its fields. Each is one small function that yields faults.

A rule names the fields that it is about, so that it is skipped when one of those is faulty in itself. Applied by
`model.kinds.validate`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.quantity import parse_limits
from lcm.model.kinds.definition import LabletDefinition, is_version_allowed
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import OCCURRENCES_LIMIT, Reservation, ReservationSpec, occurrences
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import QUOTA_LIMITS, SystemSettings, set_limits
from lcm.model.kinds.worker import LabType, LabWorker, LabWorkerSpec
from lcm.model.money.prices import HARDWARE

_IOPS_PER_GB: Final = {"io1": 50, "io2": 500, "gp3": 500}
_HOURS_PER_DAY: Final = 24
SETTINGS_NAME: Final = "system"
MAX_DOLLARS: Final = 1_000_000_000
ALLOWED_YEARS: Final = (2020, 2100)
LONGEST_SLOT: Final = timedelta(days=366)
MAX_RESERVATION_NAME_LENGTH: Final = 63 - len(f"-{OCCURRENCES_LIMIT}")
"""Shorter than other names: a session is named after its reservation and its number in it."""
NOTICES_ANNOTATION: Final = "lcm/notices"
"""Whether people get mail about a session, a class, or all that is booked on a pool."""
NOTICES_OFF: Final = "off"
_NOTICES_VALUES: Final = (NOTICES_OFF, "on")


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that the named fields must satisfy together. `broken` yields the faults."""

    kind: type[msgspec.Struct]
    about: tuple[str, ...]
    broken: Callable[[Any], Iterable[Fault]]


RULES: Final[list[Rule]] = []
_R = TypeVar("_R", bound=Resource)
_Check = Callable[[_R], Iterator[Fault]]


def _rule(kind: type[_R], *about: str) -> Callable[[_Check[_R]], _Check[_R]]:
    def add(broken: _Check[_R]) -> _Check[_R]:
        RULES.append(Rule(kind, about, broken))
        return broken

    return add


def _check_worker_launch(spec: LabWorkerSpec, path: str) -> Iterator[Fault]:
    aws, volume = spec.aws, spec.aws.root_volume
    if not aws.ami_id and not aws.ami_name_pattern:
        yield Fault(f"{path}.aws", "no image", "set ami_id or ami_name_pattern")
    if aws.vpc_id and not aws.subnet_ids:
        remedy = "name at least one subnet of the VPC, or leave vpc_id out for the default one"
        yield Fault(f"{path}.aws.subnet_ids", f"{aws.vpc_id} says nothing without a subnet", remedy)
    if aws.nested_virtualization and aws.instance_type.endswith(".metal"):
        remedy = "a metal machine needs none: set it to false, or choose a c8i, m8i or r8i type"
        yield Fault(f"{path}.aws.nested_virtualization", f"{aws.instance_type} cannot nest", remedy)
    most = _IOPS_PER_GB[volume.kind] * volume.size_gb
    if volume.iops > most:
        problem = f"{volume.iops} is too much for {volume.size_gb} GB of {volume.kind}"
        yield Fault(f"{path}.aws.root_volume.iops", problem, f"use at most {most}, or a larger volume")


def _check_worker_use(spec: LabWorkerSpec, path: str) -> Iterator[Fault]:
    if not spec.lab_types:
        yield Fault(f"{path}.lab_types", "empty", "name at least one lab type")
    if spec.host_kind == "container" and set(spec.lab_types) - {LabType.CONTAINER}:
        yield Fault(f"{path}.lab_types", "a container host runs containers only", "use CONTAINER, or host_kind: cml")
    if spec.idle.warn_minutes >= spec.idle.threshold_minutes:
        remedy = f"use less than threshold_minutes ({spec.idle.threshold_minutes})"
        yield Fault(f"{path}.idle.warn_minutes", "the warning would come before idleness", remedy)


@_rule(LabWorker, "spec.aws")
def _worker_can_launch(worker: LabWorker) -> Iterator[Fault]:
    yield from _check_worker_launch(worker.spec, "spec")


@_rule(LabWorker, "spec.lab_types", "spec.host_kind", "spec.idle")
def _worker_can_serve(worker: LabWorker) -> Iterator[Fault]:
    yield from _check_worker_use(worker.spec, "spec")


@_rule(WorkerTemplate, "spec.worker.aws")
def _template_can_launch(template: WorkerTemplate) -> Iterator[Fault]:
    yield from _check_worker_launch(template.spec.worker, "spec.worker")


@_rule(WorkerTemplate, "spec.worker.lab_types", "spec.worker.host_kind", "spec.worker.idle")
def _template_can_serve(template: WorkerTemplate) -> Iterator[Fault]:
    yield from _check_worker_use(template.spec.worker, "spec.worker")


@_rule(WorkerTemplate, "spec.price_per_hour_usd")
def _template_price(template: WorkerTemplate) -> Iterator[Fault]:
    yield from _check_dollars("spec.price_per_hour_usd", template.spec.price_per_hour_usd)


@_rule(WorkerTemplate, "spec.smaller_types", "spec.worker.aws")
def _template_smaller_types(template: WorkerTemplate) -> Iterator[Fault]:
    aws = template.spec.worker.aws
    for name in template.spec.smaller_types:
        if name not in HARDWARE:
            remedy = "use a type whose size is known, such as m8i.4xlarge"
            yield Fault("spec.smaller_types", f"the size of {name} is not known", remedy)
        elif aws.nested_virtualization is (".metal" in name):
            remedy = "use types that are like the template's: all metal, or all with nested_virtualization"
            yield Fault("spec.smaller_types", f"{name} cannot be launched as the template says", remedy)


@_rule(LabWorkerPool, "spec.min_workers", "spec.max_workers")
def _pool_bounds(pool: LabWorkerPool) -> Iterator[Fault]:
    if pool.spec.min_workers > pool.spec.max_workers:
        problem = f"greater than max_workers ({pool.spec.max_workers})"
        yield Fault("spec.min_workers", problem, "use at most max_workers")


@_rule(LabWorkerPool, "spec.thresholds")
def _pool_thresholds(pool: LabWorkerPool) -> Iterator[Fault]:
    limits = pool.spec.thresholds
    for name, low, high in (
        ("cpu_scale_down", limits.cpu_scale_down, limits.cpu_scale_up),
        ("memory_scale_down", limits.memory_scale_down, limits.memory_scale_up),
        ("min_labs_per_worker", limits.min_labs_per_worker, limits.max_labs_per_worker),
    ):
        if low >= high:
            yield Fault(f"spec.thresholds.{name}", "the pool would grow and shrink at once", f"use less than {high}")


@_rule(LabWorkerPool, "spec.allowed_hours")
def _pool_hours(pool: LabWorkerPool) -> Iterator[Fault]:
    hours = pool.spec.allowed_hours
    if hours is not None:
        yield from _check_time_zone(hours.time_zone, "spec.allowed_hours.time_zone")
        if hours.end_hour - hours.start_hour in (0, -_HOURS_PER_DAY):
            yield Fault("spec.allowed_hours", "no hour is allowed", "use 0 and 24 for the whole day, or leave it out")
        if len(set(hours.weekdays)) < len(hours.weekdays):
            yield Fault("spec.allowed_hours.weekdays", "the same day twice", "name each day once")


@_rule(LabWorkerPool, "spec.budget")
def _pool_budget(pool: LabWorkerPool) -> Iterator[Fault]:
    yield from _check_dollars("spec.budget.hourly_usd", pool.spec.budget.hourly_usd)
    yield from _check_dollars("spec.budget.monthly_usd", pool.spec.budget.monthly_usd)


@_rule(SystemSettings, "spec.budgets")
def _track_budgets(settings: SystemSettings) -> Iterator[Fault]:
    seen = set[tuple[str, str]]()
    for place, one in enumerate(settings.spec.budgets.tracks):
        yield from _check_dollars(f"spec.budgets.tracks[{place}].monthly_usd", one.monthly_usd)
        if (one.namespace, one.lab_track) in seen:
            yield Fault(f"spec.budgets.tracks[{place}].lab_track", "has a budget already", "keep one of them")
        seen.add((one.namespace, one.lab_track))


@_rule(LabletDefinition, "metadata.name", "spec.version")
def _definition_name(definition: LabletDefinition) -> Iterator[Fault]:
    name, version = definition.metadata.name, definition.spec.version
    family, _, carried = name.partition(":")
    if carried != version:
        yield Fault("metadata.name", f"{name!r} does not carry its version", f"use {family}:{version}")


@_rule(LabletDefinition, "spec.ami_requirements")
def _definition_versions(definition: LabletDefinition) -> Iterator[Fault]:
    wanted = definition.spec.ami_requirements
    low, high = wanted.cml_version_min, wanted.cml_version_max
    if low and high and not is_version_allowed(low, wanted):
        yield Fault("spec.ami_requirements.cml_version_min", f"{low} is newer than {high}", "swap the bounds")


@_rule(LabletDefinition, "spec.resource_requirements")
def _definition_needs(definition: LabletDefinition) -> Iterator[Fault]:
    needs = definition.spec.resource_requirements
    remedy = "give a number above 0, or leave resource_requirements out to derive them"
    if needs is not None and needs.cpu_cores == 0:
        yield Fault("spec.resource_requirements.cpu_cores", "zero", remedy)
    if needs is not None and needs.memory_gb == 0:
        yield Fault("spec.resource_requirements.memory_gb", "zero", remedy)


@_rule(LabletSession, "spec.timeslot_start", "spec.timeslot_end", "spec.duration_minutes", "spec.give_up_at")
def _session_time(session: LabletSession) -> Iterator[Fault]:
    spec = session.spec
    start, end = spec.timeslot_start, spec.timeslot_end
    if start is None and end is None:
        if spec.duration_minutes is None:
            yield Fault("spec.duration_minutes", "missing", "a session without a slot must say how long it runs")
        return
    if start is None or end is None:
        missing = "timeslot_start" if start is None else "timeslot_end"
        yield Fault(
            f"spec.{missing}",
            "half a slot",
            "set both timeslot_start and timeslot_end, or neither to start as soon as possible",
        )
        return
    yield from check_slot(start, end)
    if spec.duration_minutes is not None and end - start != timedelta(minutes=spec.duration_minutes):
        yield Fault("spec.duration_minutes", "differs from the slot", "leave it out: the slot says how long")
    if spec.give_up_at is not None:
        yield Fault("spec.give_up_at", "a booked slot is promised or refused at once", "leave it out")


@_rule(LabletSession, "spec.timeslot_start", "spec.allow_spot")
def _session_market(session: LabletSession) -> Iterator[Fault]:
    if session.spec.allow_spot and session.spec.timeslot_start is not None:
        problem = "a booked slot is promised, and a spot machine may be taken away"
        yield Fault("spec.allow_spot", problem, "leave it out, or ask for it as soon as possible")


@_rule(LabletSession, "spec.resource_limits")
def _session_limits(session: LabletSession) -> Iterator[Fault]:
    yield from _check_limits(session.spec.resource_limits)


@_rule(LabletDefinition, "spec.resource_limits")
def _definition_limits(definition: LabletDefinition) -> Iterator[Fault]:
    yield from _check_limits(definition.spec.resource_limits)


def _check_limits(limits: Mapping[str, str] | None) -> Iterator[Fault]:
    if limits is None:
        return
    try:
        parse_limits(limits)
    except Invalid as error:
        yield from (Fault(f"spec.{fault.path}", fault.problem, fault.remedy) for fault in error.faults)


@_rule(LabWorkerPool, "metadata.annotations")
def _pool_notices(pool: LabWorkerPool) -> Iterator[Fault]:
    yield from _check_notices(pool.metadata.annotations)


@_rule(LabletSession, "metadata.annotations")
def _session_notices(session: LabletSession) -> Iterator[Fault]:
    yield from _check_notices(session.metadata.annotations)


@_rule(Reservation, "metadata.annotations")
def _reservation_notices(reservation: Reservation) -> Iterator[Fault]:
    yield from _check_notices(reservation.metadata.annotations)


def _check_notices(annotations: Mapping[str, str]) -> Iterator[Fault]:
    value = annotations.get(NOTICES_ANNOTATION, NOTICES_OFF)
    if value not in _NOTICES_VALUES:
        path = f"metadata.annotations.{NOTICES_ANNOTATION}"
        yield Fault(path, f"{value!r} is neither", f"use {' or '.join(_NOTICES_VALUES)}")


@_rule(Reservation, "spec.timeslot_start", "spec.timeslot_end")
def _reservation_time(reservation: Reservation) -> Iterator[Fault]:
    yield from check_slot(reservation.spec.timeslot_start, reservation.spec.timeslot_end)


@_rule(Reservation, "spec.student_emails", "spec.count")
def _reservation_people(reservation: Reservation) -> Iterator[Fault]:
    people, count = len(reservation.spec.student_emails), reservation.spec.count
    if people not in (0, count):
        yield Fault("spec.student_emails", f"{people} for {count} sessions", "one each, or none")


@_rule(Reservation, "spec.recurrence", "spec.timeslot_start", "spec.timeslot_end", "spec.count")
def _reservation_series(reservation: Reservation) -> Iterator[Fault]:
    spec, series = reservation.spec, reservation.spec.recurrence
    if series is None:
        return
    if bad := list(_check_time_zone(series.time_zone, "spec.recurrence.time_zone")):
        yield from bad
        return
    days = (series.until - spec.timeslot_start.astimezone(ZoneInfo(series.time_zone)).date()).days
    if days < 0:
        yield Fault("spec.recurrence.until", "before the first slot", "use a later day")
        return
    step_days = series.interval * (1 if series.every == "day" else 7)
    yield from _check_reservation_size(spec, days // step_days)
    if spec.timeslot_end - spec.timeslot_start > timedelta(days=1 if series.weekdays else step_days):
        yield Fault("spec.timeslot_end", "the next slot would begin before this one ends", "use shorter slots")


def _check_reservation_size(spec: ReservationSpec, steps: int) -> Iterator[Fault]:
    """Check the number of sessions of a series. A series that is too long is not counted to its end."""
    assert spec.recurrence is not None, "only a series has a size of its own"
    until = spec.recurrence.until
    slots = len(occurrences(spec)) if steps <= OCCURRENCES_LIMIT and until.year <= ALLOWED_YEARS[1] else steps
    if slots * spec.count > OCCURRENCES_LIMIT:
        remedy = f"book at most {OCCURRENCES_LIMIT} at once"
        yield Fault("spec.recurrence", f"more than {OCCURRENCES_LIMIT} sessions", remedy)
    elif until.year > ALLOWED_YEARS[1]:
        yield Fault("spec.recurrence.until", "too far away", f"use a day not after the year {ALLOWED_YEARS[1]}")
    elif not slots:
        yield Fault("spec.recurrence", "no slot lies in it", "use a later until, or other weekdays")


@_rule(Reservation, "metadata.name")
def _reservation_name(reservation: Reservation) -> Iterator[Fault]:
    if len(reservation.metadata.name) > MAX_RESERVATION_NAME_LENGTH:
        remedy = f"use at most {MAX_RESERVATION_NAME_LENGTH} characters"
        yield Fault("metadata.name", "too long: its sessions are named after it", remedy)


@_rule(Reservation, "spec.recurrence")
def _reservation_weekdays(reservation: Reservation) -> Iterator[Fault]:
    series = reservation.spec.recurrence
    if series is None:
        return
    if series.every == "day" and series.weekdays:
        yield Fault("spec.recurrence.weekdays", "every day has no weekdays", "use every: week, or leave weekdays out")
    if len(set(series.weekdays)) < len(series.weekdays):
        yield Fault("spec.recurrence.weekdays", "a day is named twice", "name each day once")


@_rule(SystemSettings, "metadata.name")
def _settings_name(settings: SystemSettings) -> Iterator[Fault]:
    if settings.metadata.name != SETTINGS_NAME:
        yield Fault("metadata.name", "there is one object of settings", f"use {SETTINGS_NAME}")


@_rule(SystemSettings, "spec.discovery")
def _settings_discovery(settings: SystemSettings) -> Iterator[Fault]:
    discovery = settings.spec.discovery
    if discovery.regions == () and discovery.enabled is not False:
        remedy = "name at least one region, set enabled to false, or leave regions out for those of the environment"
        yield Fault("spec.discovery.regions", "empty", remedy)


@_rule(SystemSettings, "spec.scaling.min_workers", "spec.scaling.max_workers")
def _settings_workers(settings: SystemSettings) -> Iterator[Fault]:
    fewest, most = settings.spec.scaling.min_workers, settings.spec.scaling.max_workers
    yield from _check_pair("spec.scaling", {"min_workers": fewest, "max_workers": most})
    if fewest is not None and most is not None and fewest > most:
        yield Fault("spec.scaling.min_workers", f"greater than max_workers ({most})", "use at most max_workers")


@_rule(SystemSettings, "spec.quotas.rules")
def _settings_quotas(settings: SystemSettings) -> Iterator[Fault]:
    seen: set[object] = set()
    for place, rule in enumerate(settings.spec.quotas.rules):
        path, selects = f"spec.quotas.rules[{place}]", (rule.owner, rule.role, rule.namespace, rule.track)
        if not any(one is not None for one in selects):
            yield Fault(
                path, "selects nothing", "name an owner, role, namespace or track; max_live … are for everybody"
            )
        elif selects in seen:
            yield Fault(path, "selects the same as another rule", "put their limits into one rule")
        seen.add(selects)
        if not set_limits(rule):
            yield Fault(path, "has no limit", f"name one of {', '.join(QUOTA_LIMITS)}, or remove the rule")
        if rule.horizon_days is not None and rule.owner is None and rule.role is None:
            yield Fault(f"{path}.horizon_days", "bounds owners, not all together", "name an owner or a role with it")


@_rule(SystemSettings, "spec.scaling.scale_up_threshold_cpu", "spec.scaling.scale_down_threshold_cpu")
def _settings_thresholds(settings: SystemSettings) -> Iterator[Fault]:
    low, high = settings.spec.scaling.scale_down_threshold_cpu, settings.spec.scaling.scale_up_threshold_cpu
    yield from _check_pair("spec.scaling", {"scale_down_threshold_cpu": low, "scale_up_threshold_cpu": high})
    if low is not None and high is not None and low >= high:
        problem = "pools would grow and shrink at once"
        yield Fault("spec.scaling.scale_down_threshold_cpu", problem, f"use less than {high}")


def _check_pair(path: str, bounds: Mapping[str, float | None]) -> Iterator[Fault]:
    """Require both bounds or neither: one alone could contradict the other where that is set elsewhere."""
    missing = [name for name, bound in bounds.items() if bound is None]
    if len(missing) == 1:
        (said,) = bounds.keys() - set(missing)
        yield Fault(f"{path}.{missing[0]}", f"missing beside {said}", "say both, or neither")


def _check_dollars(path: str, amount: Decimal | None) -> Iterator[Fault]:
    if amount is not None and not (amount.is_finite() and 0 <= amount <= MAX_DOLLARS):
        yield Fault(path, f"{amount} is no amount of money", f"use a number of dollars from 0 to {MAX_DOLLARS:,}")


def check_slot(start: datetime, end: datetime) -> Iterator[Fault]:
    """Yield what is wrong with a slot, wherever it is in time."""
    if not (ALLOWED_YEARS[0] <= start.year and end.year <= ALLOWED_YEARS[1]):
        yield Fault(
            "spec.timeslot_start",
            "too far away",
            f"use a moment between the years {ALLOWED_YEARS[0]} and {ALLOWED_YEARS[1]}",
        )
    if start >= end:
        yield Fault("spec.timeslot_end", "not after timeslot_start", "use a later moment")
    elif end - start > LONGEST_SLOT:
        yield Fault("spec.timeslot_end", f"{(end - start).days} days long", f"use at most {LONGEST_SLOT.days} days")


def _check_time_zone(name: str, path: str) -> Iterator[Fault]:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        yield Fault(path, f"{name!r} is no time zone", "use a name such as Europe/Berlin")
