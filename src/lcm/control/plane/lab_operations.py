"""The plane's operations on labs: topologies, what runs used, and what a session's lab shows and leaves behind."""

# mypy: disable-error-code="empty-body"
# What an operation does is said by each plane, in `perform`.

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lcm.control.plane.bodies import (
    ArtifactList,
    ConsoleList,
    FileBytes,
    LabFile,
    NodeDefinitionList,
    ObservationAnswer,
    SessionLog,
)
from lcm.control.plane.booking_operations import NO_PROMISES
from lcm.control.plane.operation import GET, POST, Operation, OperationGroup, Permission, may
from lcm.model.access.identity import SEES_ALL, Verb
from lcm.model.kinds.console import CONSOLES_PATH, Console
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.prebuilt import PrebuiltUse
from lcm.model.kinds.session import Artifact, DeletedSession, LabletSession
from lcm.model.telemetry.learning import ObservationReport
from lcm.model.telemetry.observation import ResourceObservation
from lcm.model.topology.lab import DefinitionTopology, LabGraph, TopologyReport
from lcm.model.topology.node_definitions import KnownNode

if TYPE_CHECKING:
    from lcm.control.plane.protocol import DefinitionRef, SessionRef


class LabOperations(OperationGroup):
    """Observations of labs, lab files, and the files that a session leaves."""

    @Operation(
        GET,
        "/api/lablet-definitions/{id}/resource-observations",
        "getLabletDefinitionObservations",
        "Show what the sessions of a definition really used, compared with what it declares",
        may(Verb.READ, LabletDefinition),
        kind=LabletDefinition,
        answer=ObservationReport,
    )
    async def observations(self, ref: "DefinitionRef") -> ObservationReport:
        """Compare what the sessions of a definition used with what it declares. A person applies that by `patch`."""

    @Operation(
        GET,
        "/api/lablet-definitions/{id}/prebuilt",
        "getLabletDefinitionPrebuilt",
        "Show how many labs of a definition are kept started, how many are ready, and who found one",
        Permission(SEES_ALL, "see prebuilt labs"),
        kind=LabletDefinition,
        answer=PrebuiltUse,
        also=NO_PROMISES,
    )
    async def prebuilt(self, ref: "DefinitionRef") -> PrebuiltUse:
        """Return the prebuilt labs of a definition and their use."""

    @Operation(
        GET,
        "/api/internal/deleted-sessions/{id}",
        "getSessionDeletion",
        "Read when a deleted session of this uid had ended; there is none of one of which nothing is known",
        may(Verb.STEP, LabletSession),
        answer=DeletedSession,
        missing="no session of this uid was deleted",
    )
    async def find_deletion(self, session_id: str) -> DeletedSession | None:
        """Return what is left of a deleted session; None if it lives, is archived, or never was here.

        Deletions are remembered for as long as archived sessions are kept.
        """

    @Operation(
        POST,
        "/api/internal/lablet-sessions/{id}/resource-observations",
        "recordLabletSessionObservation",
        "Report what was observed of a session's lab",
        may(Verb.STEP, LabletSession),
        kind=LabletSession,
        body=ObservationAnswer,
        answer=LabletSession,
    )
    async def record_observation(
        self, ref: "SessionRef", observation: ResourceObservation, *, request_id: str | None = None
    ) -> LabletSession:
        """Record an observation of a session's lab, on the session and for its definition; return the updated session.

        May be repeated: a request that was answered already, by anyone, and an observation that is not newer than the
        one stored change nothing. Raise IllegalStep when the session has no lab to observe.
        """

    @Operation(
        POST,
        "/api/topologies",
        "uploadTopology",
        "Store a lab file for definitions, and show what is in it",
        may(Verb.WRITE, LabletDefinition),
        body=LabFile,
        large=True,
        answer=TopologyReport,
    )
    async def upload_topology(self, data: bytes) -> TopologyReport:
        """Store a lab file for definitions, and report its contents. Raise Invalid, with lines, for an unusable file.

        May be repeated. Raise Refused, as `download` does, where no files are kept.
        """

    @Operation(
        GET,
        "/api/lablet-definitions/{id}/topology",
        "getLabletDefinitionTopology",
        "Read the lab file of a definition, with its nodes and links",
        may(Verb.WRITE, LabletDefinition),
        kind=LabletDefinition,
        answer=DefinitionTopology,
        also=(409,),
    )
    async def topology(self, ref: "DefinitionRef") -> DefinitionTopology:
        """Return the lab file of a definition. Raise Gone when it is not where the definition says."""

    @Operation(
        GET,
        "/api/node-definitions",
        "listNodeDefinitions",
        "List the node definitions that are known, their sizes, and how many workers have them",
        may(Verb.WRITE, LabletDefinition),
        answer=NodeDefinitionList,
        answer_field="items",
    )
    async def node_definitions(self) -> Sequence[KnownNode]:
        """List the node definitions that are known: declared in the settings, reported by workers, or shipped."""

    @Operation(
        GET,
        "/api/lablet-sessions/{id}/artifacts",
        "listLabletSessionArtifacts",
        "List the files that were collected from a session",
        may(Verb.READ, LabletSession),
        kind=LabletSession,
        answer=ArtifactList,
        answer_field="items",
    )
    async def artifacts(self, ref: "SessionRef") -> Sequence[Artifact]:
        """List the files that were collected from a session and have not expired."""

    @Operation(
        GET,
        "/api/lablet-sessions/{id}/artifacts/{file}",
        "getLabletSessionArtifact",
        "Download a file that was collected from a session",
        may(Verb.READ, LabletSession),
        kind=LabletSession,
        answer=FileBytes,
        also=(409,),
    )
    async def download(self, ref: "SessionRef", name: str) -> bytes:
        """Read a file that was collected from a session. Raise Gone when no file of that name is left."""

    @Operation(
        GET,
        CONSOLES_PATH,
        "listLabletSessionConsoles",
        "List a session's consoles, and where the gateway serves each",
        may(Verb.READ, LabletSession),
        kind=LabletSession,
        answer=ConsoleList,
        answer_field="items",
    )
    async def consoles(self, ref: "SessionRef") -> Sequence[Console]:
        """List a session's consoles: serial lines, screens and TCP ports of its nodes."""

    @Operation(
        GET,
        "/api/lablet-sessions/{id}/topology",
        "getLabletSessionTopology",
        "Read the nodes and links of a session's lab; what its nodes do is in the session's status",
        may(Verb.READ, LabletSession),
        kind=LabletSession,
        answer=LabGraph,
        also=(409,),
    )
    async def session_graph(self, ref: "SessionRef") -> LabGraph:
        """Return the nodes and links of a session's lab. Raise Gone when its file is gone, Refused if it has none."""

    @Operation(
        GET,
        "/api/lablet-sessions/{id}/logs",
        "getLabletSessionLogs",
        "Read a session's history, its progress and the decisions about it, line by line",
        may(Verb.READ, LabletSession),
        kind=LabletSession,
        answer=SessionLog,
    )
    async def logs(self, ref: "SessionRef") -> str:
        """Return a session's history, progress and the decisions about it, as lines of text."""
