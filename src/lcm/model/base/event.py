"""What a change means to the outside: the events that are committed with it.

The envelope carries what streams filter by; `data` is written in a form of its own per type. Made by `control.events`,
sent on by `api`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from lcm.model.base.resource import Count, Moment, Part, Text


class ObjectEvent(Part):
    """Something was made, changed or removed; `generation` counts changes of its spec."""

    kind: str
    name: str
    namespace: str
    uid: str
    resource_generation: Count
    phase: str | None = None


class WorkerSummary(Part):
    """A worker in a few words. `status` is the six-valued one of `model.worker.coarse`."""

    worker_id: str
    worker_name: str
    namespace: str
    phase: str
    status: str
    region: str
    instance_type: str
    instance_id: str = ""
    lab_track: str = ""


class WorkerStatusUpdated(Part):
    """A worker changed its phase."""

    worker_id: str
    worker_name: str
    old_phase: str
    new_phase: str
    old_status: str
    new_status: str
    reason: Text
    timestamp: Moment


class WorkerMetrics(Part):
    """A worker was measured."""

    worker_id: str
    worker_name: str
    collected_at: Moment
    cpu_utilization: float | None
    memory_utilization: float | None
    storage_utilization: float | None
    active_labs_count: Count | None


class WorkerLabs(Part):
    """Other labs run on a worker than before, whoever made them."""

    worker_id: str
    worker_name: str
    collected_at: Moment
    active_labs_count: Count | None
    hosted_lab_ids: tuple[str, ...]


class WorkerIdleWarning(Part):
    """A worker does nothing and will be paused, unless something happens or somebody puts it off."""

    worker_id: str
    worker_name: str
    namespace: str
    idle_since: Moment
    pause_at: Moment
    reason: Text
    snooze_minutes: Count
    timestamp: Moment


class AlertRaised(Part):
    """Somebody should look at something. `alert` is its name until it is cleared."""

    alert: str
    severity: str
    reason: str
    message: Text
    kind: str
    name: str
    namespace: str
    uid: str
    worker_id: str | None
    since: Moment


class AlertCleared(AlertRaised, kw_only=True):
    """What an alert was raised for is over."""

    cleared_at: Moment


class SessionStatusChanged(Part):
    """A session changed its phase. `instance_id` is what older clients call `session_id`."""

    session_id: str
    instance_id: str
    session_name: str
    previous_state: str
    new_state: str
    worker_id: str | None
    allocated_ports: Mapping[str, int]
    reason: Text
    timestamp: Moment


class SessionResourcesObserved(Part):
    """What a running lab really has was seen. `instance_id` is what older clients call `session_id`."""

    session_id: str
    instance_id: str
    session_name: str
    definition: str
    worker_id: str | None
    observer: str
    observed_at: Moment
    observation_count: Count
    total_cpu_cores: float
    total_memory_mb: int
    total_storage_mb: int | None
    actual_node_count: int
    observed_ports: Mapping[str, int]
    port_drift_detected: bool
    timestamp: Moment


class DriftedPort(Part):
    """A port by its name: what was allocated, and what is there. None: there is no such port."""

    allocated: int | None
    observed: int | None


class SessionPortDrift(Part):
    """A running lab holds other ports than it was given; `drift` are those that differ, by name."""

    session_id: str
    instance_id: str
    session_name: str
    worker_id: str | None
    drift: Mapping[str, DriftedPort]
    timestamp: Moment


class PoolScaled(Part):
    """A pool started workers, or let some go."""

    pool: str
    namespace: str
    lab_track: str
    action: str
    reason: Text
    workers_before: int
    workers_after: int
    timestamp: Moment


class SinkTested(Part):
    """Somebody wanted to see whether a sink is reached."""

    sink: str
    requested_by: str
    timestamp: Moment


class EventsLost(Part):
    """Some events did not reach a sink; what matters must be read anew."""

    reason: Text


Data = (
    ObjectEvent
    | WorkerSummary
    | WorkerStatusUpdated
    | WorkerMetrics
    | WorkerLabs
    | WorkerIdleWarning
    | AlertRaised
    | AlertCleared
    | SessionStatusChanged
    | SessionResourcesObserved
    | SessionPortDrift
    | PoolScaled
    | SinkTested
    | EventsLost
)


class Event(Part, forbid_unknown_fields=False):
    """One event as it is stored. `owner` None: staff and services see it, and nobody else.

    A newer version's events are read as far as they are known: replicas are not all exchanged at once.
    """

    type: str
    time: Moment
    kind: str
    name: str
    namespace: str
    data: msgspec.Raw
    owner: str | None = None
    public: bool = False
    session_id: str | None = None
    worker_id: str | None = None
    definition_id: str | None = None


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """Write an event as the store keeps it."""
    return _encoder.encode(event)


def decode(raw: bytes) -> Event:
    """Read an event that `encode` wrote."""
    return _decoder.decode(raw)


def data_of(data: Data) -> msgspec.Raw:
    """Write an event's data."""
    return msgspec.Raw(_encoder.encode(data))
