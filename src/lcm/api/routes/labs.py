"""Lab files over HTTP: an author sends one, and is told what is in it."""

from collections.abc import Iterator
from typing import Final

from lcm.api.http.answers import Answer, resource, value
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, POST, SERVICES, Route, permitted
from lcm.api.routes.shapes import OCTETS, TEXT, YAML, FileBytes, LabFile, OneQuery, SessionLog
from lcm.control.plane.wire import ArtifactList, ObservationAnswer
from lcm.model.access.identity import Verb
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import LabletSession
from lcm.model.telemetry.learning import ObservationReport
from lcm.model.topology.lab import TopologyReport


async def _upload(request: Request) -> Answer:
    plane = request.writing
    return value(await plane.upload_topology(await request.text()))


TOPOLOGY_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/topologies",
        _upload,
        "uploadTopology",
        "Store a lab file for definitions, and tell what is in it",
        policy=permitted(KINDS["LabletDefinition"], Verb.WRITE),
        body=LabFile,
        body_media=YAML,
        large=True,
        answer=TopologyReport,
    ),
)


async def _record(request: Request) -> Answer:
    ref, plane = request.ref(LabletSession, request.query(OneQuery).namespace), request.writing
    answer = await request.read(ObservationAnswer)
    return resource(await plane.record_observation(ref, answer.observation, request_id=answer.request_id))


async def _report(request: Request) -> Answer:
    return value(await request.plane.observations(request.ref(LabletDefinition, request.query(OneQuery).namespace)))


def _recording() -> Iterator[Route]:
    """Give the route of an observation under each name of a session."""
    for noun, operation in (("lablet-sessions", "LabletSession"), ("instances", "Instance")):
        yield Route(
            POST,
            f"/api/internal/{noun}/{{id}}/resource-observations",
            _record,
            f"record{operation}Observation",
            "Report what was observed of a session's lab",
            policy=SERVICES,
            kind=KINDS["LabletSession"],
            query=OneQuery,
            body=ObservationAnswer,
            answer=LabletSession,
        )


_DEFINITION: Final = KINDS["LabletDefinition"]
OBSERVATION_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/lablet-definitions/{id}/resource-observations",
        _report,
        "getLabletDefinitionObservations",
        "Tell what the sessions of a definition really used, against what it declares",
        policy=permitted(_DEFINITION, Verb.READ),
        kind=_DEFINITION,
        query=OneQuery,
        answer=ObservationReport,
    ),
    *_recording(),
)


_ATTACHED: Final = (b"content-disposition", b"attachment")


async def _list(request: Request) -> Answer:
    found = await request.plane.artifacts(request.ref(LabletSession, request.query(OneQuery).namespace))
    return value(ArtifactList(tuple(found)))


async def _download(request: Request) -> Answer:
    ref = request.ref(LabletSession, request.query(OneQuery).namespace)
    data = await request.plane.download(ref, request.params[1])
    return Answer(body=data, media=OCTETS, headers=(_ATTACHED,))


async def _logs(request: Request) -> Answer:
    told = await request.plane.logs(request.ref(LabletSession, request.query(OneQuery).namespace))
    return Answer(body=told.encode(), media=TEXT)


_SESSION: Final = KINDS["LabletSession"]
_READ: Final = permitted(_SESSION, Verb.READ)
SESSION_FILE_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/lablet-sessions/{id}/artifacts",
        _list,
        "listLabletSessionArtifacts",
        "List the files that were collected from a session",
        policy=_READ,
        kind=_SESSION,
        query=OneQuery,
        answer=ArtifactList,
    ),
    Route(
        GET,
        "/api/lablet-sessions/{id}/artifacts/{file}",
        _download,
        "getLabletSessionArtifact",
        "Download a file that was collected from a session",
        policy=_READ,
        kind=_SESSION,
        query=OneQuery,
        answer=FileBytes,
        answer_media=OCTETS,
        also=(409,),
    ),
    Route(
        GET,
        "/api/lablet-sessions/{id}/logs",
        _logs,
        "getLabletSessionLogs",
        "Read a session's story, its progress and the decisions about it, line by line",
        policy=_READ,
        kind=_SESSION,
        query=OneQuery,
        answer=SessionLog,
        answer_media=TEXT,
    ),
)
