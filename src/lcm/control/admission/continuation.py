"""Bookings that continue: which saved lab is meant, whether it can be started, and how it differs from the definition.

Called by `control.admission.admit`. Whoever may download the files of a session may continue it. The saved lab always
starts as it was: where the definition has changed since, the booking says how, and claims as much as either needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from lcm.control.admission.topologies import read_node_definitions
from lcm.control.objects.lab_files import HeldLab
from lcm.control.objects.records import find_record
from lcm.control.objects.session_files import is_available, read_file
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import Ref
from lcm.control.telemetry.observations import LearningContext
from lcm.model.base.capacity import Amount
from lcm.model.base.errors import Fault, Gone, Invalid, Refused, Stuck, TooLarge
from lcm.model.base.resource import Condition, Truth, shorten_text
from lcm.model.kinds.definition import LabletDefinition, PortTemplate, ResourceRequirements, compute_amount
from lcm.model.kinds.saved_lab import (
    LAB_FILE,
    ContinuedLab,
    ContinueFrom,
    SavedNeeds,
    as_continued,
    file_of_save,
    save_of_file,
)
from lcm.model.kinds.session import (
    SESSION_MACHINE,
    Artifact,
    LabletSession,
    SessionCondition,
    SessionPhase,
    is_cml_type,
)
from lcm.model.topology.lab import ParsedLab, compute_needs
from lcm.model.topology.node_definitions import NO_SIZE, NodeSize, sizes_of
from lcm.model.topology.saved import LabDifference, compare_labs

_SESSION: Final = "spec.continue_from.session"
_SAVE: Final = "spec.continue_from.save"
_MILLIS, _MB_PER_GB = 1000, 1024


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a new session starts with, and what is to be said of it."""

    lab: ContinuedLab
    differences: Sequence[str]

    def condition(self, now: datetime) -> Condition:
        """Return the condition that says what a session continues, and how that differs from its definition."""
        lab = self.lab
        told = f"it continues {lab.session} as saved at {lab.saved_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ} ({lab.file})"
        rest = f"; the definition differs, the saved lab starts as it was: {'; '.join(self.differences)}"
        return Condition(
            type=SessionCondition.CONTINUES,
            status=Truth.TRUE,
            last_transition_at=now,
            reason="DefinitionDiffers" if self.differences else "AsSaved",
            message=shorten_text(told + (rest if self.differences else "")),
        )


async def resolve_continuation(
    writer: Writer, library: LearningContext, wanted: ContinueFrom, namespace: str, definition: LabletDefinition
) -> Continuation:
    """Find the saved lab that a booking of a definition continues, and keep its file for it.

    Raise Invalid, with what to do, for a session that this caller may not read, that left nothing, or whose lab cannot
    be started. Repeated, it does the same.
    """
    source = await _read_source(writer, wanted, namespace)
    _check_type(source, definition)
    file = choose_saved(source, wanted.save, writer.clock.now())
    template = await _template_of(writer, source)
    held = await _hold(writer, library, source, file, template)
    assert library.artifacts is not None, "it was held there"
    defined = await library.saved_labs.read_defined(library.artifacts, definition.spec.topology)
    difference = compare_labs(held.lab, defined) if defined else None
    known = difference is not None and difference.is_none
    has_ports = held.lab.port_template.keys() <= (definition.spec.port_template or {}).keys()
    needs = None
    if not known or not has_ports:
        sizes = sizes_of(await read_node_definitions(writer.store, library.node_sizes))
        needs = _needs_of(held.lab, definition, source, sizes)
    lab = ContinuedLab(
        session=source.metadata.name,
        session_id=source.metadata.uid,
        definition=source.spec.definition,
        file=file.name,
        saved_at=file.collected_at,
        topology=held.topology,
        needs=needs,
    )
    lost = sorted(name for name, use in template.items() if not use.ends)
    return Continuation(lab, describe_differences(lab, definition, difference, lost))


def choose_saved(source: LabletSession, save: str | None, now: datetime) -> Artifact:
    """Return the file that is meant: a named save, or what was saved last. Raise Invalid if there is none."""
    name, files = source.metadata.name, source.status.artifacts
    labs = [one for one in files if one.name == LAB_FILE or save_of_file(one.name) is not None]
    left = [one for one in labs if is_available(one, now)]
    if save is not None:
        found = next((one for one in left if one.name == file_of_save(save)), None)
        if found is None:
            saves = [known for one in left if (known := save_of_file(one.name))]
            remedy = f"its saves are {', '.join(saves)}" if saves else "it has none; leave the save out"
            raise Invalid(Fault(_SAVE, f"there is no save {save} of {name}, or it has expired", remedy))
        return found
    if left:
        return max(left, key=lambda one: one.collected_at)
    raise Invalid(Fault(_SESSION, *_why_nothing(source, expired=bool(labs))))


def _why_nothing(source: LabletSession, *, expired: bool) -> tuple[str, str]:
    """Return why there is nothing to continue from, and what to do."""
    name, phase = source.metadata.name, source.status.phase
    anew = f"book {source.spec.definition.partition(':')[0]} without it"
    if expired:
        return f"what was saved of {name} has expired", f"{anew}; artifacts.retention_days says how long files are kept"
    if phase is SessionPhase.RUNNING:
        return f"{name} is running, and nothing of it was saved yet", f"save it first: `lcm save {name}`; or cancel it"
    if phase not in SESSION_MACHINE.final:
        return f"{name} is {phase}: its lab is not saved yet", "wait until it has run, or has ended"
    why = f": {source.status.outcome_reason}" if source.status.outcome_reason else ""
    return f"{name} ended {phase}, and its lab was not collected{why}", anew


def describe_differences(
    lab: ContinuedLab, definition: LabletDefinition, difference: LabDifference | None, lost: Sequence[str]
) -> Sequence[str]:
    """Return in words how a saved lab differs from the definition that it is booked as; none if it does not."""
    name, needs = definition.metadata.name, lab.needs
    told = [] if lab.definition == name else [f"it was saved of {lab.definition} and is booked as {name}"]
    told += [f"the lab of {name} could not be read"] if difference is None else difference.describe(name)
    declared = definition.spec.resource_requirements
    if needs is not None and needs.resource_requirements != declared:
        says = _describe_needs(declared) if declared else "nothing"
        told.append(f"it claims {_describe_needs(needs.resource_requirements)}, {name} says {says}")
    return [*told, *([f"texts that name the ports {', '.join(lost)} keep their numbers"] if lost else [])]


def _describe_needs(needs: ResourceRequirements) -> str:
    return f"{needs.cpu_cores:g} CPU, {needs.memory_gb:g} GB memory, {needs.storage_gb:g} GB disk"


async def _read_source(writer: Writer, wanted: ContinueFrom, namespace: str) -> LabletSession:
    ref: Ref[LabletSession] = Ref(LabletSession, wanted.session, namespace)
    try:
        return await writer.read(ref)
    except Gone as error:
        problem = f"there is no session {wanted.session} that you may read"
        raise Invalid(Fault(_SESSION, problem, "`lcm get sessions --all` lists those that you may")) from error


def _check_type(source: LabletSession, definition: LabletDefinition) -> None:
    """Raise Invalid for labs that are no files of CML, and for another lab than the one that was saved."""
    name, lab = source.metadata.name, source.spec.definition
    if not is_cml_type(source):
        problem = f"{name} is a {source.spec.lab_instance_type} lab: only CML labs can be continued"
        raise Invalid(Fault(_SESSION, problem, "book it anew"))
    family = lab.partition(":")[0]
    if family != definition.metadata.name.partition(":")[0]:
        problem = f"{name} is of {lab}, and cannot be continued as {definition.metadata.name}"
        raise Invalid(Fault("spec.definition", problem, f"use {family}"))


async def _template_of(writer: Writer, source: LabletSession) -> PortTemplate:
    """Return the ports that a session had; none if its definition is gone, and then they are named anew."""
    ref = Ref(LabletDefinition, source.spec.definition, source.metadata.namespace)
    record = await find_record(writer.store, ref)
    return (as_continued(record.resource, source.status.continues).spec.port_template if record else None) or {}


async def _hold(
    writer: Writer, library: LearningContext, source: LabletSession, file: Artifact, template: PortTemplate
) -> HeldLab:
    """Keep a saved lab for a booking. Raise Invalid, with what to do, for one that cannot be read or started."""
    artifacts, name = library.artifacts, source.metadata.name
    if artifacts is None:
        raise Refused("this control plane keeps no files: ask the API that the controllers use")
    ref: Ref[LabletSession] = Ref(LabletSession, source.metadata.uid, source.metadata.namespace)
    key = f"{source.metadata.uid}/{file.name}/{file.digest}"
    remedy = f"continue from another save, or book {source.spec.definition.partition(':')[0]} anew"
    try:
        return await library.saved_labs.hold(
            key, lambda: read_file(writer, artifacts, ref, file.name), template, artifacts, writer.clock.now()
        )
    except Gone as error:
        raise Invalid(Fault(_SESSION, str(error), remedy)) from error
    except (Invalid, TooLarge) as error:
        raise Invalid(Fault(_SESSION, f"{file.name} of {name} cannot be started: {error}", remedy)) from error
    except Stuck as error:
        if error.reason != "DigestMismatch":
            raise
        problem = f"{file.name} of {name} is damaged: it is not what was saved"
        raise Invalid(Fault(_SESSION, problem, remedy)) from error


def _needs_of(
    lab: ParsedLab, definition: LabletDefinition, source: LabletSession, sizes: Mapping[str, NodeSize]
) -> SavedNeeds:
    """Return what a saved lab needs: the most of what its nodes add up to, its session claimed and the definition says.

    A node whose size nobody knows adds nothing; the other two count it.
    """
    amounts = (compute_amount(definition.spec), source.status.claim.need if source.status.claim else None)
    sums = [compute_needs(lab, sizes, otherwise=NO_SIZE), *map(_as_requirements, filter(None, amounts))]
    most = {name: max(getattr(one, name) for one in sums) for name in ResourceRequirements.__struct_fields__}
    known = definition.spec.ami_requirements.node_definitions
    return SavedNeeds(
        node_count=lab.node_count,
        resource_requirements=msgspec.convert(most, ResourceRequirements),
        port_template=lab.port_template,
        node_definitions=tuple(sorted({*known, *lab.node_definitions})),
    )


def _as_requirements(amount: Amount) -> ResourceRequirements:
    return ResourceRequirements(
        cpu_cores=amount.cpu_millis / _MILLIS,
        memory_gb=amount.memory_mb / _MB_PER_GB,
        storage_gb=amount.storage_mb / _MB_PER_GB,
    )
