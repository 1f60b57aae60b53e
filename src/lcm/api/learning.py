"""What labs teach, over HTTP: observations that our own processes report, and what definitions learned, for people."""

from collections.abc import Iterator
from typing import Final

from lcm.api.answers import Answer, resource, value
from lcm.api.http import Request
from lcm.api.routes import GET, POST, SERVICES, Route, permitted
from lcm.api.shapes import OneQuery
from lcm.control.wire_learning import ObservationAnswer
from lcm.model.definition import LabletDefinition
from lcm.model.identity import Verb
from lcm.model.kinds import KINDS
from lcm.model.learning import ObservationReport
from lcm.model.session import LabletSession


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
ROUTES: Final[tuple[Route, ...]] = (
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
