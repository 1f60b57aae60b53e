"""The past of a live system as a timetable that can be played again under other settings. Pure.

Called by `lcm record`. Sessions keep their slots and lengths, and the moments at which they were booked, extended
and cancelled; labs and pools are written in the short form of a timetable.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import msgspec

from lcm.model.base.capacity import Amount
from lcm.model.base.resource import PhaseChange
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, SessionPhase
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker, WorkerPhase
from lcm.sim.plan.timetable import track_of_place

_MINUTE: Final = timedelta(minutes=1)
_LONG_BEFORE: Final = timedelta(hours=2)
"""What was booked earlier than this before the span counts as booked before everything else."""
_EXTENDED_BEFORE_END: Final = timedelta(minutes=10)
"""How long before its end a session was extended, where the moment is not known."""
_NO_TRACK: Final = "none"
_LIVE: Final = frozenset(SessionPhase) - SESSION_MACHINE.final - {SessionPhase.COLLECTING, SessionPhase.STOPPING}
_HOSTING: Final = frozenset(map(str, HOSTING_PHASES))


class MachineFailure(msgspec.Struct, frozen=True, order=True):
    """A machine that failed."""

    at: datetime
    worker: str
    why: str


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a live system's past."""

    since: datetime
    until: datetime
    definitions: Sequence[LabletDefinition] = ()
    templates: Sequence[WorkerTemplate] = ()
    pools: Sequence[LabWorkerPool] = ()
    sessions: Sequence[LabletSession] = ()
    reservations: Sequence[Reservation] = ()
    workers: Sequence[LabWorker] = ()
    extensions: Mapping[str, Sequence[datetime]] = {}
    """When sessions were extended, by their names, as far as it is known."""
    failures: Sequence[MachineFailure] = ()
    """Including those of workers that are gone."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A timetable as a document, and what it cannot express."""

    timetable: Mapping[str, Any]
    sessions: int
    failures: Sequence[MachineFailure]
    without_pool: Sequence[str]
    """Tracks that were wanted and that no pool serves."""


def record_timetable(history: History) -> Recording:
    """Return the timetable of what was wanted in a span."""
    sessions = [one for one in _in_order(history.sessions) if _is_within(history, one)]
    labs = _labs(history, sessions)
    rows = [_session_row(history, one, labs) for one in sessions]
    fleet = _fleet(history)
    served = {pool["track"] for pool in fleet}
    table = {"definitions": list(labs.values()), "fleet": fleet, "sessions": rows}
    return Recording(
        timetable={"title": f"{history.since:%Y-%m-%d} as it was", "zone": "UTC", **table},
        sessions=len(rows),
        failures=_failures(history),
        without_pool=sorted({row["track"] for row in rows} - served),
    )


def _in_order(sessions: Sequence[LabletSession]) -> list[LabletSession]:
    """Return sessions in the order in which they were booked; one that was just archived may have been listed twice."""
    known = {one.metadata.uid: one for one in sessions}
    return sorted(known.values(), key=lambda one: (_created_at(one), one.metadata.name))


def _is_within(history: History, session: LabletSession) -> bool:
    spec, status = session.spec, session.status
    begins = spec.timeslot_start or _created_at(session)
    lasted = timedelta(minutes=_booked_minutes(session))
    over = status.history[-1].at if status.phase in SESSION_MACHINE.final and status.history else None
    waits = spec.timeslot_start is None and status.phase not in SESSION_MACHINE.final
    ends = max(over or status.ends_at or (history.until if waits else begins + lasted), begins)
    cancelled = _cancelled_at(session)
    if cancelled is not None and cancelled <= history.since - _LONG_BEFORE:
        return False  # others had its room by then: booked before everything else, it would keep them out
    return begins < history.until and ends >= history.since


def _session_row(history: History, session: LabletSession, labs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    spec = session.spec
    booked = _booked_at(history, session)
    cancelled = _cancelled_at(session)
    extended = [{"at": _format_moment(at), "minutes": more} for at, more in _extensions_of(history, session)]
    return {
        "definition": labs[spec.definition]["name"],
        "track": _track_of(history, session),
        **({"at": _format_moment(spec.timeslot_start)} if spec.timeslot_start else {}),
        "for": f"{_booked_minutes(session)}m",
        **({"owner": spec.owner} if spec.owner else {}),
        **({"booked_at": _format_moment(booked)} if booked else {}),
        **({"extended": extended} if extended else {}),
        **({"cancelled_at": _format_moment(cancelled)} if cancelled else {}),
        **({"region": spec.region_required} if spec.region_required else {}),
        **({"prefer_region": spec.region_preferred} if spec.region_preferred else {}),
        **({"spot": True} if spec.allow_spot else {}),
    }


def _booked_minutes(session: LabletSession) -> int:
    """Return for how many minutes it was booked."""
    spec = session.spec
    if spec.timeslot_start and spec.timeslot_end:
        return max(1, (spec.timeslot_end - spec.timeslot_start) // _MINUTE)
    return spec.duration_minutes or 1


def _booked_at(history: History, session: LabletSession) -> datetime | None:
    """Return when it was booked; None where that was long before the span.

    A reserved session was booked by its reservation.
    """
    made, owner = _created_at(session), session.metadata.owner
    if owner is not None and owner.kind == Reservation.__name__:
        known = {one.metadata.uid: one.metadata.created_at for one in history.reservations}
        made = known.get(owner.uid) or history.since - _LONG_BEFORE
    elif session.spec.reservation_id:
        named = {one.metadata.name: one.metadata.created_at for one in history.reservations}
        named |= {one.metadata.uid: one.metadata.created_at for one in history.reservations}
        made = named.get(session.spec.reservation_id) or history.since - _LONG_BEFORE
    slotted = session.spec.timeslot_start is not None
    return None if slotted and made <= history.since - _LONG_BEFORE else made


def _cancelled_at(session: LabletSession) -> datetime | None:
    """Return when somebody ended it before its time; None if nobody did."""
    status = session.status
    if SessionPhase.TERMINATED not in {status.phase, status.outcome}:
        return None
    turns = [after for before, after in pairwise(status.history) if before.phase in _LIVE and after.phase not in _LIVE]
    return turns[-1].at if turns else None


def _extensions_of(history: History, session: LabletSession) -> Iterator[tuple[datetime, int]]:
    """Yield by how much its end was moved, at the moments that are known, in equal parts."""
    planned, ends = _planned_end(session), session.status.ends_at
    more = round((ends - planned) / _MINUTE) if planned and ends else 0  # both may be off by milliseconds
    if planned is None or more <= 0:
        return
    first = planned - min(_EXTENDED_BEFORE_END, timedelta(minutes=_booked_minutes(session)) / 2)
    moments = sorted(history.extensions.get(session.metadata.name, ()))[:more] or [first]
    for place, at in enumerate(moments, start=1):
        yield at, more // len(moments) + (more % len(moments) if place == len(moments) else 0)


def _planned_end(session: LabletSession) -> datetime | None:
    """Return when it would have ended without extensions."""
    if session.spec.timeslot_end is not None:
        return session.spec.timeslot_end
    ran = [line.at for line in session.status.history if line.phase == SessionPhase.RUNNING]
    return ran[-1] + timedelta(minutes=_booked_minutes(session)) if ran else None


def _labs(history: History, sessions: Sequence[LabletSession]) -> dict[str, dict[str, Any]]:
    """Return the booked labs by the names of their definitions; a short name where a family has one version only."""
    known = {one.metadata.name: one for one in history.definitions}
    booked: dict[str, LabletSession] = {}
    for one in sessions:
        booked.setdefault(one.spec.definition, one)
    families = [name.partition(":")[0] for name in booked]
    found = {}
    for name, session in sorted(booked.items()):
        family = name.partition(":")[0]
        short = family if families.count(family) == 1 else name.replace(":", "-")
        definition = known.get(name)
        needs = _declared_needs(definition) if definition else None
        found[name] = {"name": short, "track": _track_of(history, session), **(needs or _claimed_needs(session))}
    return found


def _track_of(history: History, session: LabletSession) -> str:
    """Return the track of a session, else of its definition, else of the pool that served it."""
    templates = {(one.metadata.namespace, one.metadata.name) for one in history.templates}
    pools = [one for one in history.pools if (one.metadata.namespace, one.spec.template) in templates]
    lab = next((one.spec.lab_track for one in history.definitions if one.metadata.name == session.spec.definition), "")
    served = track_of_place(pools, session.status.seat, session.metadata.namespace)
    return session.spec.lab_track or lab or served or _NO_TRACK


def _declared_needs(definition: LabletDefinition) -> dict[str, Any] | None:
    spec = definition.spec
    if spec.resource_requirements is None:
        return None
    needs = spec.resource_requirements
    return _needs(
        needs.cpu_cores, needs.memory_gb, needs.storage_gb, spec.node_count or 1, len(spec.port_template or ())
    )


def _claimed_needs(session: LabletSession) -> dict[str, Any]:
    """Return what a session claimed; used where its definition is gone."""
    need = session.status.claim.need if session.status.claim else Amount()
    return _needs(need.cpu_millis / 1000, need.memory_mb / 1024, need.storage_mb / 1024, need.nodes, need.ports)


def _needs(cpu: float, memory: float, storage: float, nodes: int, ports: int) -> dict[str, Any]:
    sizes = {"cpu": max(cpu, 0.001), "memory": max(memory, 0.001), "storage": storage}
    return {**{name: round(size, 3) for name, size in sizes.items()}, "nodes": max(1, nodes), "ports": ports}


def _fleet(history: History) -> list[dict[str, Any]]:
    """Return the pools. One whose name another namespace has too is also called after its own."""
    templates = {(one.metadata.namespace, one.metadata.name): one.spec for one in history.templates}
    names, fleet = Counter(one.metadata.name for one in history.pools), list[dict[str, Any]]()
    for pool in sorted(history.pools, key=lambda one: (one.metadata.namespace, one.metadata.name)):
        spec, metadata = pool.spec, pool.metadata
        template = templates.get((metadata.namespace, spec.template))
        if template is None:
            continue
        aws, price = template.worker.aws, template.price_per_hour_usd
        name = metadata.name if names[metadata.name] == 1 else f"{metadata.name}-{metadata.namespace}"
        fleet.append(
            {
                "name": name,
                "track": spec.lab_track,
                "instance_type": aws.instance_type,
                "region": aws.region,
                "min": spec.min_workers,
                "max": spec.max_workers,
                **({"price": str(price)} if price is not None else {}),
                **({"spot": True} if aws.market == "spot" else {}),
            }
        )
    return fleet


def _failures(history: History) -> list[MachineFailure]:
    known = {(one.at, one.worker): one for one in history.failures}
    for worker in history.workers:
        for before, after in pairwise(worker.status.history):
            if is_failure(before.phase, after.phase):
                known.setdefault((after.at, worker.metadata.name), _failure_of(worker.metadata.name, after))
    return sorted(one for one in known.values() if history.since <= one.at < history.until)


def is_failure(before: str, after: str) -> bool:
    """Return whether a worker's phase change means that its machine failed."""
    rebooted = before in _HOSTING and after == WorkerPhase.STARTING
    replaced = before == WorkerPhase.TERMINATING_EC2 and after == WorkerPhase.PENDING
    return after == WorkerPhase.FAILED or rebooted or replaced


def _failure_of(worker: str, line: PhaseChange) -> MachineFailure:
    return MachineFailure(line.at, worker, f"{line.phase}: {line.reason}")


def _created_at(session: LabletSession) -> datetime:
    made = session.metadata.created_at or session.spec.timeslot_start
    assert made is not None, "the plane says when an object was made"
    return made


def _format_moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
