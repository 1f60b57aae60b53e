"""The public events that are committed together with a change.

The envelope, `Event`, carries what streams filter by; `data` has its own struct per type. `control.delivery.events`
makes them, `api` and the sinks send them on.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from lcm.model.base.resource import Count, Moment, Part, Text


class ObjectEvent(Part):
    """An object was created, changed or removed; `resource_generation` counts changes of its spec."""

    kind: str
    name: str
    namespace: str
    uid: str
    resource_generation: Count
    phase: str | None = None


class WorkerSummary(Part):
    """A worker in brief. `status` is the six-valued one of `model.kinds.worker.coarse_status`."""

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
    """A worker's phase changed."""

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
    """The set of labs running on a worker changed, whoever made them."""

    worker_id: str
    worker_name: str
    collected_at: Moment
    active_labs_count: Count | None
    hosted_lab_ids: tuple[str, ...]


class WorkerIdleWarning(Part):
    """A worker is idle and will be paused, unless there is activity or somebody snoozes it."""

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
    """The cause of an alert is gone."""

    cleared_at: Moment


class SessionStatusChanged(Part):
    """A session's phase changed. `instance_id` is the old name of `session_id`, kept for older clients."""

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
    """The actual resources of a running lab were observed.

    `instance_id` is the old name of `session_id`, kept for older clients.
    """

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
    """A port by its name: the allocated and the observed number. None means that there is no such port."""

    allocated: int | None
    observed: int | None


class SessionPortDrift(Part):
    """A running lab has other ports than it was given; `drift` holds those that differ, by name."""

    session_id: str
    instance_id: str
    session_name: str
    worker_id: str | None
    drift: Mapping[str, DriftedPort]
    timestamp: Moment


class SessionConsoleJoined(Part):
    """Somebody else than its owner opened a console of a session, or closed it; `looking`: without typing."""

    session_id: str
    instance_id: str
    session_name: str
    console: str
    who: str
    role: str
    looking: bool
    is_open: bool
    timestamp: Moment


class PoolScaled(Part):
    """A pool started or removed workers."""

    pool: str
    namespace: str
    lab_track: str
    action: str
    reason: Text
    workers_before: int
    workers_after: int
    timestamp: Moment


class SinkTested(Part):
    """Somebody requested a test delivery to a sink."""

    sink: str
    requested_by: str
    timestamp: Moment


class EventsLost(Part):
    """Some events did not reach a sink; the receiver must read the current state again."""

    reason: Text


class MailNotice(Part):
    """A mail that was not taken, as it is kept among the dead letters; `entries` are calendar objects of `method`."""

    mail_id: str
    recipient: str
    subject: str
    text: str
    method: str = ""
    entries: tuple[str, ...] = ()


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
    | SessionConsoleJoined
    | PoolScaled
    | SinkTested
    | EventsLost
    | MailNotice
)


NO_ROW: Final = msgspec.Raw(b"null")


class Event(Part, forbid_unknown_fields=False):
    """One event as it is stored. `owner` None means that only staff and services see it.

    `row` is the changed object in brief (`model.kinds.rows`), null where there is none. Unknown fields of a newer
    version are ignored: replicas are not all upgraded at the same moment.
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
    row: msgspec.Raw = NO_ROW
    learner: str = ""
    """The address of the learner whom the session is for, as addresses are compared. It is not sent to anybody."""


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """Return an event as the store keeps it."""
    return _encoder.encode(event)


def decode_event(raw: bytes) -> Event:
    """Decode an event that `encode_event` wrote."""
    return _decoder.decode(raw)


def encode_data(data: Data) -> msgspec.Raw:
    """Return an event's data as JSON."""
    return msgspec.Raw(_encoder.encode(data))
