"""`lcm apply -f lab.yaml --as-definition NAME`: a definition made of a lab file alone. Called by `apply`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import typer

from lcm.cli.booking.observe import format_needs
from lcm.cli.documents import apply
from lcm.cli.documents.lab_files import LocalLabFile, prepare_documents
from lcm.cli.documents.sources import STDIN, DocumentSource, read_files
from lcm.cli.documents.texts import ParsedDocument
from lcm.cli.output import connection, render
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Invalid
from lcm.model.base.resource import API_VERSION
from lcm.model.base.yaml_tree import YamlMapping
from lcm.model.kinds.definition import LabletDefinition, PortTemplate, ResourceRequirements
from lcm.model.topology.lab import compute_needs
from lcm.model.topology.node_definitions import shipped_nodes

_FIRST_VERSION: Final = "1.0.0"
_LABEL: Final = 8
_SHOWN: Final = 12
_KIND: Final = "LabletDefinition"


@dataclass(frozen=True, slots=True)
class DefinitionRequest:
    """The name of the definition to make, and its options."""

    said: str
    namespace: str
    track: str
    activate: bool

    @property
    def version(self) -> str:
        """The version that was given, else the first."""
        return self.said.partition(":")[2] or _FIRST_VERSION

    @property
    def name(self) -> str:
        """The full name, with its version."""
        return f"{self.said.partition(':')[0]}:{self.version}"


def publish(files: Sequence[str], wanted: DefinitionRequest, context: str | None, *, dry_run: bool) -> None:
    """Upload a lab file, apply a definition made of it, and print what was derived."""
    file, data = _single_file(files)
    before = connection.with_plane(lambda plane: _find_existing(plane, wanted), context)
    source = DocumentSource(file, ParsedDocument(_write_document(wanted, before, file), YamlMapping({}, {}, 1)))
    what = prepare_documents([source], {_lab_file_name(file): data})
    if what.faults:
        raise Invalid(*what.faults)
    apply.print_results(apply.apply_documents(what, context, dry_run=dry_run), dry_run=dry_run)
    spec = source.value["spec"]
    needs = msgspec.convert(spec.get("resource_requirements"), ResourceRequirements | None)
    for label, text in _summarize(what.labs[0], needs, spec):
        render.print_text(f"  {label + ':':<{_LABEL}}{text}")
    if spec.get("state", "draft") == "draft":
        render.print_message(
            f"a draft cannot be booked: repeat it with --activate once {wanted.name} is as it should be"
        )


def _single_file(files: Sequence[str]) -> tuple[str, bytes]:
    found = list(read_files(files, recursive=False))
    if len(found) != 1:
        raise typer.BadParameter(f"name one lab file; these are {len(found)}", param_hint="-f")
    return found[0]


async def _find_existing(plane: Plane, wanted: DefinitionRequest) -> LabletDefinition | None:
    return await plane.get(Ref(LabletDefinition, wanted.name, wanted.namespace))


def _write_document(wanted: DefinitionRequest, before: LabletDefinition | None, file: str) -> dict[str, Any]:
    """Write the definition. An existing one keeps what it says, except for what was asked for."""
    spec: dict[str, Any] = msgspec.to_builtins(before.spec) if before else {"version": wanted.version}
    spec["topology"] = {"uri": _lab_file_name(file)}
    if wanted.track:
        spec["lab_track"] = wanted.track
    if wanted.activate:
        spec["state"] = "active"
    metadata: dict[str, Any] = {"name": wanted.name, "namespace": wanted.namespace}
    if before:
        metadata |= {"labels": dict(before.metadata.labels), "annotations": dict(before.metadata.annotations)}
    return {"api_version": API_VERSION, "kind": _KIND, "metadata": metadata, "spec": spec}


def _lab_file_name(file: str) -> str:
    """Return a lab file's name as a definition in the same folder would write it."""
    return STDIN if file == STDIN else file.rpartition("/")[2]


def _summarize(
    found: LocalLabFile, needs: ResourceRequirements | None, spec: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    lab = found.lab
    if lab.title:
        yield "Title", lab.title
    yield "Nodes", f"{lab.node_count} ({', '.join(lab.node_definitions)}), {lab.link_count} links"
    yield "Needs", format_needs(needs or compute_needs(lab, shipped_nodes()))
    yield "Ports", _ports(lab.port_template)
    yield "Track", spec.get("lab_track") or "none"
    yield "State", spec.get("state", "draft")
    yield "File", found.digest


def _ports(template: PortTemplate) -> str:
    names = sorted(template)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)}: {', '.join(names[:_SHOWN])}{more}" if names else "none"
