"""What hangs on an object and goes with it: measurements, their history, alerts, samples. Called by the ledger.

Each is removed in the very state in which it was found, so that nothing which comes meanwhile is left behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from lcm.control.board import Alerts, board
from lcm.control.records import (
    ALERTS,
    OBSERVATIONS,
    TELEMETRY,
    alerts_key,
    history_prefix,
    observations_key,
    telemetry_key,
)
from lcm.model.definition import LabletDefinition
from lcm.model.event import Event
from lcm.model.kinds import Resource
from lcm.model.worker import LabWorker
from lcm.store.base import Check, Delete, Op, Store, everything


@dataclass(frozen=True, slots=True)
class Hanging:
    """How the store forgets what hangs on an object, and what that means to the outside."""

    ops: Sequence[Op] = ()
    told: Sequence[Event] = ()


def hangs(key: str) -> bool:
    """Tell whether a key holds what hangs on an object."""
    return key.startswith((TELEMETRY, ALERTS, OBSERVATIONS))


async def hanging(store: Store, resource: Resource, now: datetime) -> Hanging:
    """Find what goes with an object."""
    raised = await board(store, alerts_key(resource))
    gone: list[Op] = [Delete(raised.key, at=raised.revision)] if raised.revision else [Check(raised.key, 0)]
    if isinstance(resource, LabWorker):
        # Each report writes the newest measurements: unless those changed, there is no other history than this.
        newest = await store.get(key := telemetry_key(resource))
        gone.append(Delete(key, at=newest.revision) if newest else Check(key, 0))
        chunks = await everything(store, history_prefix(resource))
        gone += [Delete(entry.key) for entry in chunks.entries]
    if isinstance(resource, LabletDefinition):
        samples = await store.get(key := observations_key(resource))
        gone.append(Delete(key, at=samples.revision) if samples else Check(key, 0))
    return Hanging(gone, raised.told(Alerts(), now))
