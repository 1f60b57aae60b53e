"""Saved labs: requests about a running lab, what a session continues from, and what is booked then.

A session that continues starts with a saved lab in place of its definition's. `as_continued` is the one place that says
what follows: everybody who asks a definition for the topology, the ports or the needs of a session asks it first.
"""

from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import END, Count, Moment, Name, Part, ShortText
from lcm.model.kinds.definition import LabletDefinition, PortTemplate, ResourceRequirements, Topology

LAB_FILE: Final = "lab.yaml"
"""The file of a lab that was collected at the end of its session."""
SAVES_KEPT: Final = 5
"""How many saves of one session are kept; the oldest goes when another comes."""
SAVES_BYTES: Final = 16 * 1024 * 1024
"""How many bytes the saves of one session may have together."""
_SAVE_PREFIX: Final = "save-"
_FILE_SUFFIX: Final = ".yaml"

SaveName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?" + END,
        max_length=40,
        description="lower-case letters, digits and -, at most 40",
        examples=["before-bgp"],
    ),
]


class LabRequest(Part):
    """What somebody wants of a running lab. It is answered once, and given up after its time limit."""

    limit: ClassVar[timedelta]
    deed: ClassVar[str]

    id: ShortText
    requested_at: Moment
    requested_by: ShortText

    @property
    def deadline(self) -> datetime:
        """The moment at which it is given up."""
        return self.requested_at + self.limit


def has_timed_out(request: LabRequest | None, now: datetime) -> bool:
    """Return True if a request about a running lab has waited longer than allowed."""
    return request is not None and now >= request.deadline


class ObservationRequest(LabRequest):
    """A request to observe what a running lab uses. The answer names its id."""

    limit: ClassVar[timedelta] = timedelta(seconds=30)
    deed: ClassVar[str] = "observed"


class SaveRequest(LabRequest):
    """A request to save a running lab as it is, under a name. The answer is a file of the session."""

    limit: ClassVar[timedelta] = timedelta(minutes=2)
    deed: ClassVar[str] = "saved"

    name: SaveName


class ContinueFrom(Part):
    """The session whose lab a booking continues, and which of its saves: without one, what was saved of it last."""

    session: Name
    save: SaveName | None = None


class SavedNeeds(Part):
    """What a saved lab needs whose nodes or ports are not those of the definition."""

    node_count: Count
    resource_requirements: ResourceRequirements
    port_template: PortTemplate
    node_definitions: tuple[str, ...] = ()


class ContinuedLab(Part):
    """The saved lab that a session starts with. Its file is kept for the session, whatever becomes of the source's.

    Without `needs` it has the nodes and ports of the definition, and needs what that says.
    """

    session: Name
    session_id: str
    definition: Name
    file: str
    saved_at: Moment
    topology: Topology
    needs: SavedNeeds | None = None


def as_continued(definition: LabletDefinition, lab: ContinuedLab | None) -> LabletDefinition:
    """Return a definition as a session uses it: with the topology, the ports and the needs of a saved lab, if any."""
    if lab is None:
        return definition
    spec, needs = msgspec.structs.replace(definition.spec, topology=lab.topology), lab.needs
    if needs is not None:
        spec = msgspec.structs.replace(
            spec,
            node_count=needs.node_count,
            resource_requirements=needs.resource_requirements,
            port_template=needs.port_template,
            ami_requirements=msgspec.structs.replace(spec.ami_requirements, node_definitions=needs.node_definitions),
        )
    return msgspec.structs.replace(definition, spec=spec)


def check_save_name(name: str) -> str:
    """Return a name for a save, or raise Invalid: it becomes part of the name of a file."""
    try:
        return msgspec.convert(name, SaveName)
    except msgspec.ValidationError as error:
        remedy = "use lower-case letters, digits and -, at most 40"
        raise Invalid(Fault("name", f"{name[:60]!r} is no name for a save", remedy)) from error


def file_of_save(name: str) -> str:
    """Return the file of a save."""
    return f"{_SAVE_PREFIX}{name}{_FILE_SUFFIX}"


def save_of_file(file: str) -> str | None:
    """Return the name of the save that a file is; None for any other file."""
    is_save = file.startswith(_SAVE_PREFIX) and file.endswith(_FILE_SUFFIX)
    return file.removeprefix(_SAVE_PREFIX).removesuffix(_FILE_SUFFIX) if is_save else None
