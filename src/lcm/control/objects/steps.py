"""Taking a step: another status, checked against the machine's table, with its line in the object's story.

Pure. Used for the steps that controllers report and for those that the control plane takes itself.
"""

from datetime import datetime
from typing import Any

import msgspec

from lcm.control.objects.records import kind_of
from lcm.control.plane.protocol import R
from lcm.model.base.errors import Fault, Forbidden, Invalid
from lcm.model.base.machine import ACTORS, CONTROL_PLANE
from lcm.model.base.resource import PhaseChange, Status, with_change
from lcm.model.kinds.registry import KINDS

TEARDOWN = "lcm/teardown"
"""The finalizer of what has a life of its own: it is removed only once that has ended."""


def permit(kind: type[R], actor: str) -> None:
    """Raise Forbidden unless an actor has a part in the lives of a kind's objects, and so may say what it saw."""
    machine = KINDS[kind.__name__].machine
    parts = {step.by for step in machine.steps} & ACTORS if machine else ACTORS
    if actor not in parts:
        raise Forbidden(f"only {', '.join(sorted(parts))} may report what was seen of {kind.__name__} objects")


def stepped(resource: R, status: Status, *, by: str, author: str, now: datetime, reason: str = "") -> R:
    """Put a status in place of an object's; another phase must be a step of `by`. The story is the object's own."""
    old = resource.status
    if type(status) is not type(old):
        problem = f"a {type(status).__name__} is no status of a {resource.kind}"
        raise Invalid(Fault("status", problem, f"use a {type(old).__name__}"))
    status = msgspec.structs.replace(status, history=old.history)
    if status == old:
        return resource
    finalizers = resource.metadata.finalizers
    machine = kind_of(resource).machine
    if machine is not None:
        source, target = _phase(old), _phase(status)
        if target is not source:
            machine.take(source, target, by=by, status=status)
            line = PhaseChange(phase=target, at=now, by=author, reason=reason)
            status = msgspec.structs.replace(status, history=with_change(status.history, line))
        finalizers = () if target in machine.final else finalizers
    metadata = msgspec.structs.replace(resource.metadata, finalizers=finalizers)
    return msgspec.structs.replace(resource, metadata=metadata, status=status)


def moved(resource: R, phase: object, *, author: str, now: datetime, reason: str, **fields: object) -> R:
    """Take a step of the control plane's own, with what else of the status changes by it."""
    changes: dict[str, Any] = {"phase": phase, **fields}
    status = msgspec.structs.replace(resource.status, **changes)
    return stepped(resource, status, by=CONTROL_PLANE, author=author, now=now, reason=reason)


def over(resource: R) -> bool:
    """Tell whether an object is to go and nothing keeps it."""
    return resource.metadata.deletion_timestamp is not None and not resource.metadata.finalizers


def _phase(status: Status) -> Any:  # noqa: ANN401 - each machine has phases of its own type
    return status.phase  # type: ignore[attr-defined]  # every kind with a machine has one
