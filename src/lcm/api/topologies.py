"""Lab files over HTTP: an author sends one, and is told what is in it."""

from typing import Final

from lcm.api.answers import Answer, value
from lcm.api.http import Request
from lcm.api.routes import POST, Route, permitted
from lcm.api.shapes import YAML, LabFile
from lcm.model.identity import Verb
from lcm.model.kinds import KINDS
from lcm.model.topology_report import TopologyReport


async def _upload(request: Request) -> Answer:
    plane = request.writing
    return value(await plane.upload_topology(await request.text()))


ROUTES: Final[tuple[Route, ...]] = (
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
