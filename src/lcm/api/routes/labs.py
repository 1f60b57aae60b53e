"""Lab files, observations of labs, and the files that a session leaves.

An author uploads a lab file and learns what is in it; our own processes report what a session's lab really used; an
owner reads the collected files and the log of a session.
"""

from collections.abc import Iterator
from typing import Final

from lcm.api.http.answers import Answer, json_answer, resource_answer
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, POST, SERVICES, Route, policy_for
from lcm.api.routes.shapes import OCTETS, TEXT, YAML, FileBytes, LabFile, OneQuery, SessionLog
from lcm.control.plane.wire import ArtifactList, ObservationAnswer
from lcm.model.access.identity import Verb
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import LabletSession
from lcm.model.telemetry.learning import ObservationReport
from lcm.model.topology.lab import TopologyReport


async def _upload_topology(request: Request) -> Answer:
    plane = request.write_plane
    return json_answer(await plane.upload_topology(await request.text()))


TOPOLOGY_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/topologies",
        _upload_topology,
        "uploadTopology",
        "Store a lab file for definitions, and tell what is in it",
        policy=policy_for(KINDS["LabletDefinition"], Verb.WRITE),
        body=LabFile,
        body_media=YAML,
        large=True,
        answer=TopologyReport,
    ),
)


async def _record_observation(request: Request) -> Answer:
    ref, plane = request.ref(LabletSession, request.query(OneQuery).namespace), request.write_plane
    answer = await request.read(ObservationAnswer)
    return resource_answer(await plane.record_observation(ref, answer.observation, request_id=answer.request_id))


async def _get_observations(request: Request) -> Answer:
    return json_answer(
        await request.plane.observations(request.ref(LabletDefinition, request.query(OneQuery).namespace))
    )


def _observation_routes() -> Iterator[Route]:
    """Yield the route that reports an observation, under each name of a session."""
    for noun, operation in (("lablet-sessions", "LabletSession"), ("instances", "Instance")):
        yield Route(
            POST,
            f"/api/internal/{noun}/{{id}}/resource-observations",
            _record_observation,
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
        _get_observations,
        "getLabletDefinitionObservations",
        "Tell what the sessions of a definition really used, against what it declares",
        policy=policy_for(_DEFINITION, Verb.READ),
        kind=_DEFINITION,
        query=OneQuery,
        answer=ObservationReport,
    ),
    *_observation_routes(),
)


_ATTACHMENT: Final = (b"content-disposition", b"attachment")


async def _list_artifacts(request: Request) -> Answer:
    found = await request.plane.artifacts(request.ref(LabletSession, request.query(OneQuery).namespace))
    return json_answer(ArtifactList(tuple(found)))


async def _download_artifact(request: Request) -> Answer:
    ref = request.ref(LabletSession, request.query(OneQuery).namespace)
    data = await request.plane.download(ref, request.params[1])
    return Answer(body=data, media=OCTETS, headers=(_ATTACHMENT,))


async def _get_logs(request: Request) -> Answer:
    told = await request.plane.logs(request.ref(LabletSession, request.query(OneQuery).namespace))
    return Answer(body=told.encode(), media=TEXT)


_SESSION: Final = KINDS["LabletSession"]
_READ_POLICY: Final = policy_for(_SESSION, Verb.READ)
SESSION_FILE_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/lablet-sessions/{id}/artifacts",
        _list_artifacts,
        "listLabletSessionArtifacts",
        "List the files that were collected from a session",
        policy=_READ_POLICY,
        kind=_SESSION,
        query=OneQuery,
        answer=ArtifactList,
    ),
    Route(
        GET,
        "/api/lablet-sessions/{id}/artifacts/{file}",
        _download_artifact,
        "getLabletSessionArtifact",
        "Download a file that was collected from a session",
        policy=_READ_POLICY,
        kind=_SESSION,
        query=OneQuery,
        answer=FileBytes,
        answer_media=OCTETS,
        also=(409,),
    ),
    Route(
        GET,
        "/api/lablet-sessions/{id}/logs",
        _get_logs,
        "getLabletSessionLogs",
        "Read a session's story, its progress and the decisions about it, line by line",
        policy=_READ_POLICY,
        kind=_SESSION,
        query=OneQuery,
        answer=SessionLog,
        answer_media=TEXT,
    ),
)
