"""`lcm apply -f lab.yaml --as-definition NAME`: a definition made of a lab file alone. Called by `apply`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import typer

from lcm.cli.booking.observe import needs_said
from lcm.cli.documents import apply
from lcm.cli.documents.lab_files import LabFile, attached
from lcm.cli.documents.sources import STDIN, Source, texts
from lcm.cli.documents.texts import Place, Written
from lcm.cli.output import connection, render
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Invalid
from lcm.model.base.resource import API_VERSION
from lcm.model.kinds.definition import LabletDefinition, PortTemplate, ResourceRequirements
from lcm.model.topology.lab import needs
from lcm.model.topology.node_definitions import SHIPPED

_FIRST_VERSION: Final = "1.0.0"
_LABEL: Final = 8
_SHOWN: Final = 12
_KIND: Final = "LabletDefinition"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the definition is to be called, and how it differs from what is usual."""

    said: str
    namespace: str
    track: str
    activate: bool

    @property
    def version(self) -> str:
        """Its version: the one that was said, else the first."""
        return self.said.partition(":")[2] or _FIRST_VERSION

    @property
    def name(self) -> str:
        """Its whole name."""
        return f"{self.said.partition(':')[0]}:{self.version}"


def publish(files: Sequence[str], wanted: Wanted, context: str | None, *, dry_run: bool) -> None:
    """Upload a lab file, apply a definition made of it, and say what was derived."""
    file, data = _only(files)
    before = connection.with_plane(lambda plane: _before(plane, wanted), context)
    source = Source(file, Written(_document(wanted, before, file), Place(1)))
    what = attached([source], {_named(file): data})
    if what.faults:
        raise Invalid(*what.faults)
    apply.show(apply.applied(what, context, dry_run=dry_run), dry_run=dry_run)
    spec = source.value["spec"]
    said = msgspec.convert(spec.get("resource_requirements"), ResourceRequirements | None)
    for label, text in _derived(what.labs[0], said, spec):
        render.tell(f"  {label + ':':<{_LABEL}}{text}")
    if spec.get("state", "draft") == "draft":
        render.say(f"a draft cannot be booked: repeat it with --activate once {wanted.name} is as it should be")


def _only(files: Sequence[str]) -> tuple[str, bytes]:
    found = list(texts(files, recursive=False))
    if len(found) != 1:
        raise typer.BadParameter(f"name one lab file; these are {len(found)}", param_hint="-f")
    return found[0]


async def _before(plane: Plane, wanted: Wanted) -> LabletDefinition | None:
    return await plane.get(Ref(LabletDefinition, wanted.name, wanted.namespace))


def _document(wanted: Wanted, before: LabletDefinition | None, file: str) -> dict[str, Any]:
    """Write the definition; what one that is there already says stays as it is, but for what was asked for."""
    spec: dict[str, Any] = msgspec.to_builtins(before.spec) if before else {"version": wanted.version}
    spec["topology"] = {"uri": _named(file)}
    if wanted.track:
        spec["lab_track"] = wanted.track
    if wanted.activate:
        spec["state"] = "active"
    metadata: dict[str, Any] = {"name": wanted.name, "namespace": wanted.namespace}
    if before:
        metadata |= {"labels": dict(before.metadata.labels), "annotations": dict(before.metadata.annotations)}
    return {"api_version": API_VERSION, "kind": _KIND, "metadata": metadata, "spec": spec}


def _named(file: str) -> str:
    """Name a lab file as a definition beside it would."""
    return STDIN if file == STDIN else file.rpartition("/")[2]


def _derived(found: LabFile, said: ResourceRequirements | None, spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    lab = found.lab
    if lab.title:
        yield "Title", lab.title
    yield "Nodes", f"{lab.node_count} ({', '.join(lab.node_definitions)}), {lab.link_count} links"
    yield "Needs", needs_said(said or needs(lab, SHIPPED))
    yield "Ports", _ports(lab.port_template)
    yield "Track", spec.get("lab_track") or "none"
    yield "State", spec.get("state", "draft")
    yield "File", found.digest


def _ports(template: PortTemplate) -> str:
    names = sorted(template)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)}: {', '.join(names[:_SHOWN])}{more}" if names else "none"
