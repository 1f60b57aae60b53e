"""What an object refers to by name, and which of the objects found under that name is meant.

A create or change holds what it refers to at the revision it saw; a delete marks an object before it looks for users.
So one of the two always notices the other.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lcm.control.objects.records import find, key_of, opened
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Conflict, Fault, Invalid
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, version_key
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.store.base import Check, Store, everything

Target = WorkerTemplate | LabletDefinition
LINGERING: Final = timedelta(minutes=1)
"""Who has marked something removes it, or takes the mark away, far sooner; else they were stopped in between."""

_LISTED: Final = 5


@dataclass(frozen=True, slots=True)
class Sought:
    """A name in a spec, and what it must be the name of. A definition's may leave the version out."""

    kind: type[Target]
    name: str
    namespace: str
    path: str

    @property
    def exact(self) -> bool:
        """Tell whether there can be but one."""
        return self.kind is WorkerTemplate or ":" in self.name

    @property
    def prefix(self) -> str:
        """Where the store keeps every version."""
        return KINDS[self.kind.__name__].key(self.namespace, f"{self.name}:")


Found = Callable[[Sought], Awaitable[Sequence[Target]]]
"""Gives every object that a name may mean."""


def sought(resource: Resource) -> Sought | None:
    """Say what an object refers to; None for kinds that stand alone."""
    namespace = resource.metadata.namespace
    match resource:
        case LabWorkerPool():
            return Sought(WorkerTemplate, resource.spec.template, namespace, "spec.template")
        case LabletSession() | Reservation():
            return Sought(LabletDefinition, resource.spec.definition, namespace, "spec.definition")
    return None


def refers_to(resource: Resource, target: Target) -> bool:
    """Tell whether an object refers to that very one."""
    wanted = sought(resource)
    return (
        wanted is not None
        and wanted.kind is type(target)
        and (wanted.namespace, wanted.name) == (target.metadata.namespace, target.metadata.name)
    )


async def stored(store: Store, wanted: Sought) -> Sequence[Target]:
    """Read every object that a name may mean."""
    if wanted.exact:
        record = await find(store, Ref(wanted.kind, wanted.name, wanted.namespace))
        named = record is not None and record.resource.metadata.name == wanted.name
        return (record.resource,) if record is not None and named else ()
    page = await everything(store, wanted.prefix)
    return [opened(entry, wanted.kind) for entry in page.entries]


def choose(wanted: Sought, found: Sequence[Target]) -> Target:
    """Pick the one that is meant, of a definition's versions the newest active; raises Invalid when none will do.

    Conflict while the only one that would do is being deleted: it may stay.
    """
    if not found:
        problem = f"there is no {wanted.kind.__name__} {wanted.name} in namespace {wanted.namespace}"
        raise Invalid(Fault(wanted.path, problem, "create it first, or correct the name"))
    problems = [_unusable(one) for one in found]
    usable = [one for one, problem in zip(found, problems, strict=True) if not problem]
    if usable:
        return max(usable, key=_newness)
    for one in found:
        refuse_marked(one)
    remedy = "set one to state: active" if wanted.kind is LabletDefinition else "use another"
    raise Invalid(Fault(wanted.path, ", ".join(problems[:_LISTED]), remedy))


def hold(target: Target, revision: int | None = None) -> Check:
    """Demand that what is referred to has not changed since it was read."""
    return Check(key_of(target), target.metadata.resource_version if revision is None else revision)


def refuse_marked(resource: Resource) -> None:
    """Raise Conflict while it is not known whether what others may refer to will go."""
    if isinstance(resource, Target) and resource.metadata.deletion_timestamp is not None:
        revision, name = resource.metadata.resource_version, resource.metadata.name
        message = f"{resource.kind} {name} is being deleted; try again in a moment"
        raise Conflict(key_of(resource), wanted=revision, found=revision, message=message)


def lingers(resource: Resource, now: datetime) -> bool:
    """Tell whether whoever marked what others may refer to was stopped before they had removed it."""
    marked = resource.metadata.deletion_timestamp
    return isinstance(resource, Target) and marked is not None and now - marked > LINGERING


def _unusable(target: Target) -> str:
    name = target.metadata.name
    if target.metadata.deletion_timestamp is not None:
        return f"{name} is being deleted"
    if isinstance(target, LabletDefinition) and target.spec.state is not DefinitionState.ACTIVE:
        return f"{name} is {target.spec.state}"
    return ""


def _newness(target: Target) -> tuple[tuple[int, ...], bool, str]:
    return version_key(target.spec.version) if isinstance(target, LabletDefinition) else ((), False, "")
