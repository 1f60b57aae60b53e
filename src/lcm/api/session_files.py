"""What a session leaves to its owner, over HTTP: a list of files, each file, and its story as text."""

from typing import Final

from lcm.api.answers import Answer, value
from lcm.api.http import Request
from lcm.api.routes import GET, Route, permitted
from lcm.api.shapes import OCTETS, TEXT, FileBytes, OneQuery, SessionLog
from lcm.control.wire_learning import ArtifactList
from lcm.model.identity import Verb
from lcm.model.kinds import KINDS
from lcm.model.session import LabletSession

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
ROUTES: Final[tuple[Route, ...]] = (
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
