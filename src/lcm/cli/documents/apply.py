"""`lcm apply`: create or change objects from files, all of them or none; also make a definition of a lab file."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from lcm.cli.booking.observe import format_needs
from lcm.cli.documents.lab_files import (
    LocalLabFile,
    PreparedDocuments,
    apply_prepared,
    faults_in_file,
    prepare_documents,
)
from lcm.cli.documents.sources import (
    STDIN,
    DocumentSource,
    GatheredDocuments,
    check_locally,
    gather,
    key_of,
    read_files,
)
from lcm.cli.documents.texts import ParsedDocument
from lcm.cli.output import connection, exit_codes, render
from lcm.cli.output.nouns import noun_of
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, DryRun, Files, Namespace, Recursive
from lcm.control.admission.topologies import NO_PORTS
from lcm.control.plane.protocol import LONGEST_APPLY, Applied, Plane, Ref
from lcm.model.base.errors import Conflict, Fault, Invalid, Later, LcmError, TooLarge
from lcm.model.base.quantity import parse_memory
from lcm.model.base.resource import API_VERSION
from lcm.model.base.yaml_tree import YamlMapping
from lcm.model.kinds.definition import LabletDefinition, ResourceRequirements
from lcm.model.topology.lab import ParsedLab, compute_needs
from lcm.model.topology.node_definitions import NO_SIZE, KnownNode, NodeSize, parse_node_size, sizes_of
from lcm.system.clock import SystemClock

_SUMMARY_ABOVE: Final = 20
_COLOURS: Final = {"created": "green", "configured": "yellow"}


def apply(
    files: Files = None,
    *,
    recursive: Recursive = False,
    as_definition: Annotated[
        str,
        typer.Option(
            "--as-definition",
            metavar="NAME[:VERSION]",
            help="Create a definition from a lab file; default version: 1.0.0.",
        ),
    ] = "",
    track: Annotated[
        str,
        typer.Option("--track", metavar="TRACK", help="With --as-definition: the track of the workers that run it."),
    ] = "",
    activate: Annotated[
        bool, typer.Option("--activate", help="With --as-definition: make it bookable; without it, a draft.")
    ] = False,
    cpu: Annotated[
        float | None,
        typer.Option("--cpu", metavar="CORES", min=0.001, max=1024, help="With --as-definition: cores a lab needs."),
    ] = None,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="With --as-definition: memory that a lab needs, such as 8G.")
    ] = "",
    node_size: Annotated[
        list[str] | None,
        typer.Option(
            "--node-size",
            metavar="NAME=CPUS/MEMORY",
            help="With --as-definition: size of a node that CML does not ship, such as gitlab=4/8G; repeatable.",
        ),
    ] = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Create or change objects from files.

    All documents are checked before any is written; each error is shown with its file and line. A definition may name
    its lab by a path relative to its own file, such as labs/basics.yaml: that file is uploaded. Without such a
    document, `lcm apply -f basics.yaml --as-definition basics` creates a definition from the lab itself. A booking's
    slot may be relative to now, such as `timeslot_start: +10m`; once the booking exists, it keeps its times.
    """
    if not files:
        raise typer.BadParameter("name a file, a folder, or - for standard input", param_hint="-f")
    if as_definition:
        family, _, version = as_definition.partition(":")
        needs = read_declared_needs(cpu, memory, node_size or ())
        wanted = DefinitionRequest(family, version or "1.0.0", namespace, track, activate, needs)
        publish(files, wanted, context, dry_run=dry_run)
        return
    if track or activate or cpu or memory or node_size or namespace != DEFAULT_NAMESPACE:
        raise typer.BadParameter(
            "--track, --activate, --cpu, --memory, --node-size and --namespace need --as-definition",
            param_hint="--as-definition",
        )
    found = gather(files, recursive=recursive)
    if not found.sources and not found.faults:
        how = f"`lcm apply -f {found.labs[0]} --as-definition NAME` creates a definition from it" if found.labs else ""
        lab = f", only a lab: {how}" if found.labs else ""
        raise typer.BadParameter(f"the files contain no document{lab}", param_hint="-f")
    what = prepare_documents(found.sources, now=SystemClock().now())
    used = {Path(lab.file).resolve() for lab in what.labs.values()}
    for file in found.labs:
        if Path(file).resolve() not in used:
            render.print_message(f"{file} is a lab, not a document: ignored, because no definition here names it")
    if found.faults or what.faults:
        raise Invalid(*_collect_faults(found, what, context))
    if len(what.sources) > LONGEST_APPLY:
        raise TooLarge(f"{len(what.sources)} documents; apply at most {LONGEST_APPLY} at once")
    results = apply_documents(what, context, dry_run=dry_run)
    print_results(results, dry_run=dry_run)
    _note_labs_without_ports(what, results)


def _note_labs_without_ports(what: PreparedDocuments, results: Sequence[Applied]) -> None:
    for place, found in what.labs.items():
        if results[place].outcome != "unchanged" and not found.lab.port_template:
            render.print_message(f"{found.file}: {NO_PORTS}")


def apply_documents(what: PreparedDocuments, context: str | None, *, dry_run: bool) -> Sequence[Applied]:
    """Apply documents; they are at least checked here if there is no API."""
    try:
        return connection.with_plane(lambda plane: apply_prepared(plane, what, dry_run=dry_run), context)
    except (exit_codes.NoContext, Later) as error:
        if faults := list(check_locally(what.sources)):
            render.print_message("the API could not be reached, so the files were checked here only")
            raise Invalid(*faults) from error
        raise
    except Conflict as error:
        if source := next((one for one in what.sources if key_of(one.value) == error.key), None):
            render.print_message(
                f"{source.file}:{source.written.line_of('metadata')}: {source.value['kind']}: not written"
            )
        raise


def print_results(results: Sequence[Applied], *, dry_run: bool) -> None:
    """Print the outcome of each document."""
    note = " (dry run)" if dry_run else ""
    for one in results:
        outcome = render.paint(one.outcome, _COLOURS.get(one.outcome))
        going = ", but it is being deleted: apply it again when it is gone" if one.deleting else ""
        render.print_line(f"{noun_of(one.kind).singular}/{one.name} {outcome}{note}{going}")
    if len(results) > _SUMMARY_ABOVE:
        counts = Counter(one.outcome for one in results)
        parts = (
            f"{counts[outcome]} {outcome}" for outcome in ("created", "configured", "unchanged") if counts[outcome]
        )
        render.print_message(f"{len(results)} objects: {', '.join(parts)}{note}")


def _collect_faults(found: GatheredDocuments, what: PreparedDocuments, context: str | None) -> Sequence[Fault]:
    """Return the files' faults and those of the documents themselves; nothing is written."""
    first = [*found.faults, *what.faults]
    if not what.sources:
        return first
    more: Iterable[Fault] = ()
    if found.whole:
        few = PreparedDocuments(what.sources[:LONGEST_APPLY], what.labs, what.wrong, moving=what.moving)
        try:
            apply_documents(few, context, dry_run=True)
        except Invalid as error:
            more = error.faults
        except LcmError:
            pass  # the faults found so far are reason enough to stop
    else:
        # The API might miss in the other files what stands in a file that could not be read to its end.
        more = check_locally(what.sources)
    known = {fault.path for fault in first}
    return [*first, *(fault for fault in more if fault.path not in known)]


_LABEL: Final = 8
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class DeclaredNeeds:
    """What the author says of a lab's needs: of all of it, and of its nodes by their definitions."""

    cpu_cores: float | None = None
    memory_gb: float | None = None
    node_sizes: Mapping[str, NodeSize] = field(default_factory=dict)

    def of_lab(self, lab: ParsedLab, sizes: Mapping[str, NodeSize]) -> ResourceRequirements | None:
        """Return a lab's needs if anything was said about them. Raise Invalid for nodes whose size nobody knows."""
        if self.cpu_cores is None and self.memory_gb is None and not self.node_sizes:
            return None
        if strange := sorted(self.node_sizes.keys() - set(lab.node_definitions)):
            problem = f"no node of the lab is a {strange[0]}; it has {', '.join(lab.node_definitions)}"
            raise typer.BadParameter(problem, param_hint="--node-size")
        whole = self.cpu_cores is not None and self.memory_gb is not None
        found = compute_needs(lab, {**sizes, **self.node_sizes}, otherwise=NO_SIZE if whole else None)
        return ResourceRequirements(
            cpu_cores=found.cpu_cores if self.cpu_cores is None else self.cpu_cores,
            memory_gb=found.memory_gb if self.memory_gb is None else self.memory_gb,
            storage_gb=found.storage_gb,
        )


def read_declared_needs(cpu: float | None, memory: str, node_sizes: Sequence[str]) -> DeclaredNeeds:
    """Read the options about a lab's needs; what makes no sense is wrong usage."""
    with _naming_option("--memory"):
        memory_gb = parse_memory(memory) / 1024 if memory else None
    with _naming_option("--node-size"):
        return DeclaredNeeds(cpu, memory_gb, dict(map(parse_node_size, node_sizes)))


@contextmanager
def _naming_option(option: str) -> Iterator[None]:
    try:
        yield
    except Invalid as error:
        fault = error.faults[0]
        raise typer.BadParameter(f"{fault.problem}; {fault.remedy}", param_hint=option) from error


@dataclass(frozen=True, slots=True)
class DefinitionRequest:
    """The definition to make: its name and version, and its options."""

    family: str
    version: str
    namespace: str
    track: str
    activate: bool
    needs: DeclaredNeeds = DeclaredNeeds()

    @property
    def name(self) -> str:
        """The full name, with its version."""
        return f"{self.family}:{self.version}"


def publish(files: Sequence[str], wanted: DefinitionRequest, context: str | None, *, dry_run: bool) -> None:
    """Upload a lab file, apply a definition made of it, and print what was derived."""
    found = list(read_files(files, recursive=False))
    if len(found) != 1:
        raise typer.BadParameter(f"name one lab file, not {len(found)}", param_hint="-f")
    file, data = found[0]
    before, known = connection.with_plane(lambda plane: _read_known(plane, wanted), context)
    sizes = sizes_of(known)
    path = STDIN if file == STDIN else file.rpartition("/")[2]  # as a definition in the same folder would write it
    source = DocumentSource(file, ParsedDocument(_write_document(wanted, before, path), YamlMapping({}, {}, 1)))
    what = prepare_documents([source], {path: data})
    if what.faults:
        raise Invalid(*what.faults)
    lab, spec = what.labs[0].lab, what.values[0]["spec"]
    try:
        declared = wanted.needs.of_lab(lab, sizes)
    except Invalid as error:
        raise Invalid(*faults_in_file(file, error.faults)) from error
    if declared is not None:
        spec["resource_requirements"] = msgspec.to_builtins(declared)
    print_results(apply_documents(what, context, dry_run=dry_run), dry_run=dry_run)
    needs = msgspec.convert(spec.get("resource_requirements"), ResourceRequirements | None)
    for label, text in _summarize(what.labs[0], needs or compute_needs(lab, sizes), spec):
        render.print_text(f"  {label + ':':<{_LABEL}}{text}")
    for note in _publication_notes(lab, known):
        render.print_message(note)
    if spec.get("state", "draft") == "draft":
        render.print_message(
            f"a draft cannot be booked: repeat the command with --activate when {wanted.name} is ready"
        )


async def _read_known(plane: Plane, wanted: DefinitionRequest) -> tuple[LabletDefinition | None, Sequence[KnownNode]]:
    """Read the definition as it is, if it exists, and the node definitions that are known."""
    ref = Ref(LabletDefinition, wanted.name, wanted.namespace)
    return await plane.get(ref), await plane.node_definitions()


def _publication_notes(lab: ParsedLab, known: Sequence[KnownNode]) -> Iterator[str]:
    """Yield what hinders nobody from publishing a lab, but its sessions."""
    if not lab.port_template:
        yield str(NO_PORTS)
    there = {one.definition_id for one in known if one.workers}
    if missing := [name for name in lab.node_definitions if there and name not in there]:
        names = render.join_some(missing, _SHOWN)
        yield f"no worker has the node definitions {names}: bookings are refused, or wait, until one does"


def _write_document(wanted: DefinitionRequest, before: LabletDefinition | None, path: str) -> dict[str, Any]:
    """Write the definition. An existing one keeps what it says, except for what was asked for."""
    spec: dict[str, Any] = msgspec.to_builtins(before.spec) if before else {"version": wanted.version}
    spec["topology"] = {"uri": path}
    if wanted.track:
        spec["lab_track"] = wanted.track
    if wanted.activate:
        spec["state"] = "active"
    metadata: dict[str, Any] = {"name": wanted.name, "namespace": wanted.namespace}
    if before:
        metadata |= {"labels": dict(before.metadata.labels), "annotations": dict(before.metadata.annotations)}
    return {"api_version": API_VERSION, "kind": LabletDefinition.__name__, "metadata": metadata, "spec": spec}


def _summarize(found: LocalLabFile, needs: ResourceRequirements, spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    lab = found.lab
    if lab.title:
        yield "Title", lab.title
    yield "Nodes", f"{lab.node_count} ({', '.join(lab.node_definitions)}), {lab.link_count} links"
    yield "Needs", format_needs(needs)
    ports = sorted(lab.port_template)
    yield "Ports", f"{len(ports)}: {render.join_some(ports, _SHOWN)}" if ports else "none"
    yield "Track", spec.get("lab_track") or "none"
    yield "State", spec.get("state", "draft")
    yield "File", found.digest
