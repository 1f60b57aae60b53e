"""What an object refers to by name, and which of the objects found under that name is meant.

A create or change checks that its target is at the revision it read; a delete marks an object before it searches for
users. So one of the two always notices the other. Used by admission, apply and deletion.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lcm.control.objects.records import find_record, key_of, read_entry
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Conflict, Fault, Invalid
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, version_key
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.store.base import CheckRevision, Store, scan_all

Target = WorkerTemplate | LabletDefinition
ABANDONED_AFTER: Final = timedelta(minutes=1)
"""A deleter removes or unmarks an object much sooner than this, unless it was stopped in between."""

_LISTED_PROBLEMS: Final = 5


@dataclass(frozen=True, slots=True)
class Reference:
    """A name in a spec, and the kind of object it must name. A definition's name may omit the version."""

    kind: type[Target]
    name: str
    namespace: str
    path: str
    deprecated: bool = False
    """Whether a deprecated definition serves where there is no active one: for what was begun with it."""

    @property
    def is_exact(self) -> bool:
        """Whether the name can mean only one object."""
        return self.kind is WorkerTemplate or ":" in self.name

    @property
    def prefix(self) -> str:
        """The key prefix of all versions."""
        return KINDS[self.kind.__name__].key(self.namespace, f"{self.name}:")


TargetLookup = Callable[[Reference], Awaitable[Sequence[Target]]]
"""Returns every object that a reference may mean."""


def reference_of(resource: Resource) -> Reference | None:
    """Return what an object refers to; None for kinds that refer to nothing."""
    namespace = resource.metadata.namespace
    match resource:
        case LabWorkerPool():
            return Reference(WorkerTemplate, resource.spec.template, namespace, "spec.template")
        case LabletSession() if resource.spec.continue_from is not None:
            return Reference(LabletDefinition, resource.spec.definition, namespace, "spec.definition", deprecated=True)
        case LabletSession() | Reservation():
            return Reference(LabletDefinition, resource.spec.definition, namespace, "spec.definition")
    return None


def refers_to(resource: Resource, target: Target) -> bool:
    """Return whether an object refers to this target."""
    wanted = reference_of(resource)
    return (
        wanted is not None
        and wanted.kind is type(target)
        and (wanted.namespace, wanted.name) == (target.metadata.namespace, target.metadata.name)
    )


async def read_targets(store: Store, wanted: Reference) -> Sequence[Target]:
    """Read every object that a reference may mean."""
    if wanted.is_exact:
        record = await find_record(store, Ref(wanted.kind, wanted.name, wanted.namespace))
        named = record is not None and record.resource.metadata.name == wanted.name
        return (record.resource,) if record is not None and named else ()
    page = await scan_all(store, wanted.prefix)
    return [read_entry(entry, wanted.kind) for entry in page.entries]


def choose_target(wanted: Reference, found: Sequence[Target]) -> Target:
    """Return the target that is meant: of a definition's versions, the newest active one. Raise Invalid when none fits.

    Raise Conflict while the only one that fits is being deleted: it may yet stay.
    """
    if not found:
        problem = f"there is no {wanted.kind.__name__} {wanted.name} in namespace {wanted.namespace}"
        raise Invalid(Fault(wanted.path, problem, "create it first, or correct the name"))
    problems = [_why_unusable(one) for one in found]
    usable = [one for one, problem in zip(found, problems, strict=True) if not problem]
    usable = usable or [one for one in found if wanted.deprecated and _is_deprecated(one)]
    if usable:
        return max(usable, key=lambda one: version_key(one.spec.version) if isinstance(one, LabletDefinition) else ())
    for one in found:
        refuse_marked(one)
    remedy = "set one to state: active" if wanted.kind is LabletDefinition else "use another"
    raise Invalid(Fault(wanted.path, ", ".join(problems[:_LISTED_PROBLEMS]), remedy))


def check_unchanged(target: Target, revision: int | None = None) -> CheckRevision:
    """Return the check that a target has not changed since it was read."""
    return CheckRevision(key_of(target), target.metadata.resource_version if revision is None else revision)


def refuse_marked(resource: Resource) -> None:
    """Raise Conflict while an object that others may refer to is marked for deletion: it may yet stay."""
    if isinstance(resource, Target) and resource.metadata.deletion_timestamp is not None:
        revision, name = resource.metadata.resource_version, resource.metadata.name
        message = f"{resource.kind} {name} is being deleted; try again in a moment"
        raise Conflict(key_of(resource), wanted=revision, found=revision, message=message)


def is_abandoned_deletion(resource: Resource, now: datetime) -> bool:
    """Return whether the deleter of an object that others may refer to was stopped before it had removed it."""
    marked = resource.metadata.deletion_timestamp
    return isinstance(resource, Target) and marked is not None and now - marked > ABANDONED_AFTER


def _is_deprecated(target: Target) -> bool:
    is_staying = target.metadata.deletion_timestamp is None
    return isinstance(target, LabletDefinition) and is_staying and target.spec.state is DefinitionState.DEPRECATED


def _why_unusable(target: Target) -> str:
    name = target.metadata.name
    if target.metadata.deletion_timestamp is not None:
        return f"{name} is being deleted"
    if isinstance(target, LabletDefinition) and target.spec.state is not DefinitionState.ACTIVE:
        return f"{name} is {target.spec.state}"
    return ""
