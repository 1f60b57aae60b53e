"""What a session's status says once it is placed, and how that is written. Used by `scheduling`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from lcm.control.companions import NO_LIMITS, beside
from lcm.control.ledger import Edit, Ledger
from lcm.control.records import Record
from lcm.control.stepping import stepped
from lcm.model.capacity import Claim
from lcm.model.errors import IllegalStep
from lcm.model.placing import Assignment
from lcm.model.quantity import Quantity
from lcm.model.resource import Condition, Truth, condition, story, with_condition
from lcm.model.session import LabletSession, LabletSessionStatus, SessionCondition
from lcm.model.worker import LabWorker, worker_ref
from lcm.store.base import Op

_OF_WORKER: Final = (
    "worker_id",
    "worker_ref",
    "worker_name",
    "worker_namespace",
    "assigned_at",
    "allocated_ports",
    "resource_allocation",
)


def changed(session: LabletSession, assignment: Assignment, **fields: object) -> LabletSessionStatus:
    """Give a session's status with what an assignment says of it."""
    changes: dict[str, Any] = {"waiting": assignment.waiting, **fields}
    if assignment.decision is not None:
        changes["last_decision"] = assignment.decision
    return msgspec.structs.replace(session.status, **changes)


def assigned(
    session: LabletSession, worker: LabWorker, ports: Mapping[str, int], claim: Claim, now: datetime
) -> Mapping[str, object]:
    """Say of a session which worker it has, and what of it."""
    status, same = session.status, session.status.worker_id == worker.metadata.uid
    return {
        "worker_id": worker.metadata.uid,
        "worker_ref": worker_ref(worker),
        "worker_name": worker.metadata.name,
        "worker_namespace": worker.metadata.namespace,
        "assigned_at": status.assigned_at if same and status.assigned_at else now,
        "allocated_ports": ports,
        "resource_allocation": Quantity(claim.need.cpu_millis, claim.need.memory_mb).limits(),
        "waiting": None,
        "conditions": with_condition(status.conditions, _told(Truth.TRUE, "Assigned", now)),
    }


def unassigned(session: LabletSession, now: datetime) -> Mapping[str, object]:
    """Take its worker away from a session, if it has one."""
    known = condition(session.status.conditions, SessionCondition.WORKER_ASSIGNED)
    told = with_condition(session.status.conditions, _told(Truth.FALSE, "Unassigned", now))
    conditions = told if known is not None and known.status is Truth.TRUE else session.status.conditions
    return {**dict.fromkeys(_OF_WORKER), "conditions": conditions}


def _told(truth: Truth, reason: str, now: datetime) -> Condition:
    return Condition(type=SessionCondition.WORKER_ASSIGNED, status=truth, last_transition_at=now, reason=reason)


async def write(
    book: Ledger,
    record: Record[LabletSession],
    status: LabletSessionStatus,
    ops: Sequence[Op],
    reason: str,
) -> LabletSession:
    """Commit a session's status with what it stands on; a guard that is put at a revision is not put twice."""
    before, now = record.resource, book.clock.now()
    after = stepped(before, status, by=book.caller.actor, author=book.author, now=now, reason=reason)
    if after is before:
        return before
    made = await beside(book.store, NO_LIMITS, before, after, now)
    held = {op.key for op in ops}
    rest = [op for op in made.ops if op.key not in held]
    return await book.write(Edit(record, made.after), *ops, *rest, told=made.told, reported=True)


def illegal(session: LabletSession, instead: str) -> IllegalStep:
    """Say why something cannot be done to a session as it is."""
    told = story(session.status.history)
    message = f"LabletSession {session.metadata.name} is {session.status.phase}: {instead}"
    return IllegalStep(f"{message}\nits story:\n{told}" if told else message)
