"""What a market is held in: a pool of workers that are up, workers outside of it, and labs of four sizes."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

import msgspec

import given
from estates import spec
from lcm.control.objects.records import creation_ops
from lcm.model.base.capacity import Amount
from lcm.model.base.resource import Condition, Metadata, Truth
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, PortUse, ResourceRequirements
from lcm.model.kinds.pool import (
    FilledSeat,
    LabWorkerPool,
    LabWorkerPoolSpec,
    LabWorkerPoolStatus,
    PoolPhase,
    ScalingPolicy,
    WorkerTemplate,
    WorkerTemplateSpec,
)
from lcm.model.kinds.session import Seat
from lcm.model.kinds.worker import CmlFacts, LabWorker, LabWorkerStatus, WorkerCondition, WorkerPhase
from lcm.model.money.prices import declared_capacity
from lcm.store.base import Store

ROOM = declared_capacity(spec()) or Amount()
LABS = {
    "small:1.0.0": (2.0, 8.0, 3, 4),
    "middle:1.0.0": (6.0, 20.0, 12, 10),
    "large:1.0.0": (17.0, 60.0, 40, 20),
    "tall:1.0.0": (3.0, 70.0, 6, 100),
}
"""Cores, GB of memory, nodes, ports."""
TRACK = "ccna"
SEATS = 4
EXTRAS = 2
WORKERS: Sequence[tuple[str, Seat | None]] = [
    *((f"uid-w{number}", Seat(pool=TRACK, number=number)) for number in range(1, SEATS + 1)),
    *((f"uid-x{number}", None) for number in range(1, EXTRAS + 1)),
]


@cache
def definition(name: str) -> LabletDefinition:
    cores, memory, nodes, ports = LABS[name]
    made = given.definition(
        lab_track=TRACK,
        state=DefinitionState.ACTIVE,
        version="1.0.0",
        resource_requirements=ResourceRequirements(cpu_cores=cores, memory_gb=memory, storage_gb=5),
        node_count=nodes,
        port_template={f"n{place}_serial": PortUse(kind="serial", node=f"n{place}") for place in range(ports)},
    )
    return msgspec.structs.replace(made, metadata=Metadata(name=name, uid=f"uid-{name.partition(':')[0]}"))


def serving(name: str, at: datetime, **changes: Any) -> LabWorker:
    """Give a worker that takes sessions."""
    accepting = Condition(type=WorkerCondition.ACCEPTING_LABS, status=Truth.TRUE, last_transition_at=at)
    status = LabWorkerStatus(
        phase=WorkerPhase.READY,
        cml=CmlFacts(version="2.9.0", ready=True, licensed=True, license_status="IN_COMPLIANCE"),
        capacity=ROOM,
        conditions=(accepting,),
        **changes,
    )
    return LabWorker(metadata=Metadata(name=name, uid=f"uid-{name}", created_at=at), spec=spec(), status=status)


def pool(name: str, track: str, workers: Sequence[LabWorker], **changes: Any) -> LabWorkerPool:
    filled = tuple(
        FilledSeat(number=number, worker_id=one.metadata.uid, worker_name=one.metadata.name)
        for number, one in enumerate(workers, start=1)
    )
    wanted = LabWorkerPoolSpec(lab_track=track, template="metal", min_workers=0, **changes)
    status = LabWorkerPoolStatus(phase=PoolPhase.READY, seats=filled)
    return LabWorkerPool(metadata=Metadata(name=name, uid=f"uid-{name}"), spec=wanted, status=status)


async def furnish(store: Store, at: datetime) -> None:
    """Put a pool of workers that are up, workers outside of it, and labs into a store."""
    seated = [serving(f"w{number}", at) for number in range(1, SEATS + 1)]
    extras = [serving(f"x{number}", at) for number in range(1, EXTRAS + 1)]
    metal = WorkerTemplate(
        metadata=Metadata(name="metal", uid="uid-metal"), spec=WorkerTemplateSpec(worker=spec(), name_prefix="w")
    )
    row = pool(TRACK, TRACK, seated, max_workers=SEATS, policy=ScalingPolicy.SCHEDULED)
    every = (metal, row, *seated, *extras, *map(definition, LABS))
    for resource in every:
        await store.commit(*creation_ops(resource))  # type: ignore[arg-type]  # each is of a kind that is stored
