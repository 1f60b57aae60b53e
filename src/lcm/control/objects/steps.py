"""Lifecycle steps: a new status, checked against the kind's state machine, with a line in the object's history.

Pure. Used for the steps that controllers report and for those that the control plane takes itself.
"""

from collections.abc import Collection
from datetime import datetime
from functools import cache
from typing import Any

import msgspec

from lcm.control.objects.records import kind_of
from lcm.control.plane.protocol import R
from lcm.model.base.errors import Fault, Forbidden, Invalid
from lcm.model.base.machine import ACTORS, CONTROL_PLANE
from lcm.model.base.resource import PhaseChange, Status, with_change
from lcm.model.kinds.registry import KINDS

TEARDOWN = "lcm/teardown"
"""The finalizer of objects with a lifecycle: they are removed only once that has ended."""


def require_actor(kind: type[R], actor: str) -> None:
    """Raise Forbidden unless an actor takes part in the lifecycle of a kind and so may report on its objects."""
    if actor not in (parts := _find_actors(kind.__name__)):
        raise Forbidden(f"only {', '.join(sorted(parts))} may report the status of {kind.__name__} objects")


@cache
def _find_actors(kind: str) -> Collection[str]:
    machine = KINDS[kind].machine
    return {step.by for step in machine.steps} & ACTORS if machine else ACTORS


def take_step(resource: R, status: Status, *, by: str, author: str, now: datetime, reason: str = "") -> R:
    """Return an object with another status. A new phase must be a step of `by`. The object's own history is kept."""
    old = resource.status
    if type(status) is not type(old):
        problem = f"a {type(status).__name__} is not the status of a {resource.kind}"
        raise Invalid(Fault("status", problem, f"use a {type(old).__name__}"))
    status = msgspec.structs.replace(status, history=old.history)
    if status == old:
        return resource
    finalizers = resource.metadata.finalizers
    machine = kind_of(resource).machine
    if machine is not None:
        source, target = _phase(old), _phase(status)
        if target is not source:
            machine.check_step(source, target, by=by, status=status)
            line = PhaseChange(phase=target, at=now, by=author, reason=reason)
            status = msgspec.structs.replace(status, history=with_change(status.history, line))
        finalizers = () if target in machine.final else finalizers
    metadata = msgspec.structs.replace(resource.metadata, finalizers=finalizers)
    return msgspec.structs.replace(resource, metadata=metadata, status=status)


def take_plane_step(resource: R, phase: object, *, author: str, now: datetime, reason: str, **fields: object) -> R:
    """Take a step of the control plane's own, together with other changes of the status."""
    changes: dict[str, Any] = {"phase": phase, **fields}
    status = msgspec.structs.replace(resource.status, **changes)
    return take_step(resource, status, by=CONTROL_PLANE, author=author, now=now, reason=reason)


def is_removable(resource: R) -> bool:
    """Return whether an object is marked for deletion and has no finalizers left."""
    return resource.metadata.deletion_timestamp is not None and not resource.metadata.finalizers


def _phase(status: Status) -> Any:  # noqa: ANN401 - each machine has phases of its own type
    return status.phase  # type: ignore[attr-defined]  # every kind with a machine has one
