"""The verbs of the plane over HTTP about what labs teach and leave behind. A part of `client`."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from lcm.control.client_line import read
from lcm.control.client_requests import Requests, internal, path_of, within
from lcm.control.plane import DefinitionRef, SessionRef
from lcm.control.wire_learning import ArtifactList, ObservationAnswer
from lcm.model.errors import Gone
from lcm.model.learning import ObservationReport
from lcm.model.observation import ResourceObservation
from lcm.model.session import Artifact, LabletSession
from lcm.model.topology_report import TopologyReport

_YAML: Final = "text/yaml"
_NO_FILES: Final = ("", ".", "..")


class Learning(Requests):
    """What the lablet controller observed, and what people are told and given of it."""

    async def record_observation(
        self, ref: SessionRef, observation: ResourceObservation, *, request_id: str | None = None
    ) -> LabletSession:
        body = ObservationAnswer(observation=observation, request_id=request_id)
        path = f"{internal(ref)}/resource-observations"
        return read(await self._write("POST", path, within(ref), body), LabletSession)

    async def observations(self, ref: DefinitionRef) -> ObservationReport:
        return read(await self._ask("GET", f"{path_of(ref)}/resource-observations", within(ref)), ObservationReport)

    async def upload_topology(self, data: bytes) -> TopologyReport:
        return read(await self._send("/api/topologies", data, _YAML), TopologyReport)

    async def artifacts(self, ref: SessionRef) -> Sequence[Artifact]:
        answer = await self._ask("GET", f"{path_of(ref)}/artifacts", within(ref))
        return read(answer, ArtifactList).items

    async def download(self, ref: SessionRef, name: str) -> bytes:
        if name in _NO_FILES:  # it would be another path
            raise Gone(f"there is no file {name!r} of session {ref.name}")
        return await self._ask("GET", f"{path_of(ref)}/artifacts/{quote(name, safe='')}", within(ref))

    async def logs(self, ref: SessionRef) -> str:
        return (await self._ask("GET", f"{path_of(ref)}/logs", within(ref))).decode()
