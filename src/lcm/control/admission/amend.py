"""Admission of changes: which fields may change, what a document may leave out, and merge patches (RFC 7396).

Pure. A field that admission once filled in is kept when a new document leaves it out: applying the same file twice
changes nothing. Called by `control.admission.admit`, `control.objects.actions` and `control.plane.local`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lcm.control.access.sealing import Sealing
from lcm.control.plane.protocol import R
from lcm.model.access.identity import SEES_ALL, Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Forbidden, Invalid
from lcm.model.base.resource import Metadata, SecretUse
from lcm.model.kinds.definition import FIXED_PER_VERSION, LabletDefinition, LabletDefinitionSpec
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.sink import Sink, redact_url, with_url
from lcm.model.kinds.worker import LabType, LabWorker, WorkerPhase

_MUTABLE_IN_SESSIONS: Final = frozenset({"student_email", "learner_may", "priority"})
_NEW_VERSION: Final = "publish a new version"
_PHASES_BEFORE_LAUNCH: Final = frozenset({WorkerPhase.PENDING, WorkerPhase.FAILED})
_BOOK_ANEW: Final = "delete it and book again"


def amend(stored: R, wanted: R, *, caller: Caller) -> R:
    """Return the stored object with another's spec, labels and annotations; the same object when nothing differs."""
    spec = _fill_spec(stored, wanted, caller)
    theirs, ours = wanted.metadata, stored.metadata
    if (spec, theirs.labels, theirs.annotations) == (stored.spec, ours.labels, ours.annotations):
        return stored
    metadata = msgspec.structs.replace(
        ours,
        labels=theirs.labels,
        annotations=theirs.annotations,
        generation=ours.generation + (spec != stored.spec),
    )
    new = msgspec.structs.replace(stored, metadata=metadata, spec=spec)
    if faults := [*_immutable_faults(stored, new), *_pool_faults(stored, new, caller)]:
        raise Invalid(*faults)
    return without_retry(stored, new)


def keep_url(stored: R | None, wanted: R, sealing: Sealing) -> R:
    """Return what is wanted of a sink with the stored URL, where it repeats that as it is shown, or in full."""
    if not isinstance(wanted, Sink):
        return wanted
    url, sealed = wanted.spec.url, None
    if isinstance(stored, Sink):
        old = stored.spec
        if url == redact_url(old.url) or (old.sealed_url is not None and sealing.unseal_text(old.sealed_url) == url):
            url, sealed = old.url, old.sealed_url
    made = with_url(wanted, url, sealed)
    assert isinstance(made, type(wanted))
    return made


def seal_url(resource: R, sealing: Sealing) -> R:
    """Return a sink whose URL is stored encrypted, if it may be a secret. Raise Invalid if it cannot be encrypted here.

    A control plane that was given no sealer leaves it as it is.
    """
    if not isinstance(resource, Sink) or sealing.sealer is None or resource.spec.sealed_url is not None:
        return resource
    url = resource.spec.url
    shown = redact_url(url)
    sealed = None if shown == url else sealing.seal_text(Secret(url), SecretUse.SINK_URL, "spec.url")
    made = with_url(resource, shown, sealed)
    assert isinstance(made, type(resource))
    return made


def is_repetition(stored: R, wanted: R, *, caller: Caller) -> bool:
    """Return whether a document asks for exactly what an object once was."""
    return bool(_fill_spec(stored, wanted, caller) == stored.spec)


def without_retry(stored: R, new: R) -> R:
    """Return a failed worker so that merely wanting it stopped does not retry it.

    A failed worker is retried when its spec changes.
    """
    if not isinstance(stored, LabWorker) or not isinstance(new, LabWorker):
        return new
    status, known = new.status, stored.metadata.generation == stored.status.observed_generation
    alike = new.spec in (stored.spec, msgspec.structs.replace(stored.spec, wanted_state="stopped"))
    if status.phase is not WorkerPhase.FAILED or not known or not alike:
        return new
    noticed = msgspec.structs.replace(status, observed_generation=new.metadata.generation)
    return msgspec.structs.replace(new, status=noticed)


def _fill_spec(stored: Any, wanted: Any, caller: Caller) -> Any:  # noqa: ANN401 - any kind's spec, and the same one back
    if isinstance(stored, LabletDefinition):
        return _keep_derived(stored.spec, wanted.spec)
    if not isinstance(stored, LabletSession | Reservation):
        return wanted.spec
    old: Any = stored.spec
    new: Any = wanted.spec
    changes: dict[str, Any] = {"owner": new.owner or old.owner, "lab_track": new.lab_track or old.lab_track}
    if new.definition == old.definition.partition(":")[0]:
        changes["definition"] = old.definition
    if isinstance(stored, LabletSession):
        # CML is the field's default, so it does not tell whether somebody wrote it.
        is_default = new.lab_instance_type is LabType.CML
        changes["lab_instance_type"] = old.lab_instance_type if is_default else new.lab_instance_type
        changes["give_up_at"] = new.give_up_at or old.give_up_at
        changes["priority"] = _new_priority(old.priority, new.priority, caller)
    return msgspec.structs.replace(new, **changes)


def _keep_derived(old: LabletDefinitionSpec, new: LabletDefinitionSpec) -> LabletDefinitionSpec:
    """Keep what was derived from a topology where the new document leaves it out."""
    changes: dict[str, Any] = {
        name: getattr(old, name)
        for name in ("resource_requirements", "node_count", "port_template")
        if getattr(new, name) is None
    }
    if not new.ami_requirements.node_definitions:
        kept = old.ami_requirements.node_definitions
        changes["ami_requirements"] = msgspec.structs.replace(new.ami_requirements, node_definitions=kept)
    if new.topology.uri == old.topology.uri and not new.topology.digest:
        changes["topology"] = old.topology
    return msgspec.structs.replace(new, **changes)


def _new_priority(old: int, new: int, caller: Caller) -> int:
    if caller.role in SEES_ALL:
        return new
    # 0 is the field's default, so it does not tell whether somebody wrote it.
    if new > old and new != 0:
        raise Forbidden("only staff may raise a priority")
    return old if new == 0 else new


def _immutable_faults(old: Any, new: Any) -> Iterator[Fault]:  # noqa: ANN401 - two objects of one kind
    match old:
        case LabletSession():
            yield from _change_faults("spec", old.spec, new.spec, free=_MUTABLE_IN_SESSIONS, remedy=_BOOK_ANEW)
        case Reservation():
            yield from _change_faults("spec", old.spec, new.spec, remedy=_BOOK_ANEW)
        case LabletDefinition():
            free = frozenset(old.spec.__struct_fields__) - set(FIXED_PER_VERSION)
            yield from _change_faults("spec", old.spec, new.spec, free=free, remedy=_NEW_VERSION)
        case LabWorkerPool() if old.spec.lab_track != new.spec.lab_track:
            yield Fault("spec.lab_track", "the track of a pool cannot be changed", "make another pool")
        case LabWorker() if _may_have_machine(old):
            remedy = "delete the worker and make another"
            yield from _change_faults("spec.aws", old.spec.aws, new.spec.aws, free=frozenset({"tags"}), remedy=remedy)


def _pool_faults(old: Any, new: Any, caller: Caller) -> Iterator[Fault]:  # noqa: ANN401 - likewise
    stopped = isinstance(old, LabWorker) and new.spec.wanted_state == "stopped"
    if stopped and caller.role is not Role.SERVICE and (fault := pool_fault(old)):
        yield fault


def pool_fault(worker: LabWorker) -> Fault | None:
    """Return why a person cannot stop a worker, and what to do instead; None if it can be stopped, or is already.

    A pool starts and pauses its workers by what is booked on them: it would undo it.
    """
    owner, name = worker.metadata.owner, worker.metadata.name
    free = owner is None or owner.kind != LabWorkerPool.__name__ or worker.metadata.deletion_timestamp is not None
    if free or owner is None or worker.spec.wanted_state == "stopped":
        return None
    problem = f"{name} belongs to pool {owner.name}, which starts its workers by what is booked and would undo it"
    remedy = f"lower min_workers of {owner.name} to have fewer machines, or drain {name} to take it out of service"
    return Fault("spec.wanted_state", problem, remedy)


def _may_have_machine(worker: LabWorker) -> bool:
    """Return whether there is a machine, or may be one: an unanswered launch may have made it."""
    known = worker.status.ec2
    return worker.status.phase not in _PHASES_BEFORE_LAUNCH or bool(known.instance_id or known.client_token)


def _change_faults(
    path: str, old: msgspec.Struct, new: msgspec.Struct, *, remedy: str, free: frozenset[str] = frozenset()
) -> Iterator[Fault]:
    for name in old.__struct_fields__:
        if name not in free and getattr(old, name) != getattr(new, name):
            yield Fault(f"{path}.{name}", "cannot be changed any more", remedy)


_MAX_DEPTH: Final = 32
_TOP_FIELDS: Final = ("api_version", "kind", "metadata", "spec", "status")
_WRITABLE_METADATA: Final = ("labels", "annotations")


def patch_document(stored: R, patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document that a patch makes of a stored object, without the fields that nobody may write."""
    if faults := list(_unknown_field_faults(patch)):
        raise Invalid(*faults)
    metadata, theirs = stored.metadata, patch.get("metadata") or {}
    document = {
        "kind": stored.kind,
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "labels": dict(metadata.labels),
            "annotations": dict(metadata.annotations),
        },
        "spec": msgspec.to_builtins(stored.spec),
    }
    mine: dict[str, Any] = {"metadata": {name: theirs[name] for name in _WRITABLE_METADATA if name in theirs}}
    return merge_patch(document, mine | ({"spec": patch["spec"]} if "spec" in patch else {}))


def merge_patch(document: Mapping[str, Any], patch: Mapping[str, Any], *, depth: int = 0) -> dict[str, Any]:
    """Merge a patch into a document: null removes, an object is merged recursively, all else replaces."""
    if depth > _MAX_DEPTH:
        raise Invalid(Fault("document", f"nested more than {_MAX_DEPTH} levels deep", "use fewer levels"))
    result = dict(document)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            old = result.get(name)
            result[name] = merge_patch(old if isinstance(old, Mapping) else {}, value, depth=depth + 1)
        else:
            result[name] = value
    return result


def _unknown_field_faults(patch: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for each misspelt field. Fields that exist but may not be written are no fault."""
    for name in patch:
        if name not in _TOP_FIELDS:
            yield Fault(str(name), "unknown field", f"use one of {', '.join(_TOP_FIELDS)}")
    metadata = patch.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        yield Fault("metadata", "not an object", "write an object with labels or annotations")
        return
    for name in metadata:
        if name not in Metadata.__struct_fields__:
            yield Fault(f"metadata.{name}", "unknown field", "use labels or annotations")
