"""The plane's verbs about observations, topologies and session files, in process. Part of `control.plane.local`."""

from collections.abc import Sequence

from lcm.control.access.audit import AuditedAction
from lcm.control.admission import topologies
from lcm.control.objects import session_files
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import DefinitionRef, SessionRef
from lcm.control.telemetry import observations as learning
from lcm.control.telemetry import observations as observing
from lcm.control.telemetry.observations import LearningContext
from lcm.model.access.identity import Verb
from lcm.model.base.errors import Refused
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import Artifact, LabletSession
from lcm.model.telemetry.learning import ObservationReport
from lcm.model.telemetry.observation import ResourceObservation
from lcm.model.topology.lab import TopologyReport
from lcm.providers.protocols.artifacts import Artifacts


class LocalLearning:
    """The verbs about observations, lab files and collected files, in process."""

    _writer: Writer
    _library: LearningContext

    async def record_observation(
        self, ref: SessionRef, observation: ResourceObservation, *, request_id: str | None = None
    ) -> LabletSession:
        self._writer.require_permission(Verb.STEP, LabletSession)
        observing.check_observer(self._writer.caller.actor)
        async with self._library.lock:
            return await observing.record_observation(self._writer, ref, observation, request_id, self._library.review)

    async def observations(self, ref: DefinitionRef) -> ObservationReport:
        self._writer.require_permission(Verb.READ, LabletDefinition)
        return await learning.observation_report(self._writer, ref)

    async def upload_topology(self, data: bytes) -> TopologyReport:
        self._writer.require_permission(Verb.WRITE, LabletDefinition)
        told = await topologies.upload_topology(self._artifacts, data)
        await self._writer.submit((), deeds=[AuditedAction(verb="upload", kind="Topology", name=told.digest)])
        return told

    async def artifacts(self, ref: SessionRef) -> Sequence[Artifact]:
        self._writer.require_permission(Verb.READ, LabletSession)
        return await session_files.list_files(self._writer, ref)

    async def download(self, ref: SessionRef, name: str) -> bytes:
        self._writer.require_permission(Verb.READ, LabletSession)
        if self._library.artifacts is None:
            await self._writer.read(ref)
        return await session_files.read_file(self._writer, self._artifacts, ref, name)

    async def logs(self, ref: SessionRef) -> str:
        self._writer.require_permission(Verb.READ, LabletSession)
        return await session_files.read_story(self._writer, ref)

    @property
    def _artifacts(self) -> Artifacts:
        if self._library.artifacts is None:
            raise Refused("no files are kept here: this control plane was made without a place for them")
        return self._library.artifacts
