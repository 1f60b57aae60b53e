"""The verbs of the plane about what labs teach and leave behind, in process. A part of `local`."""

from collections.abc import Sequence

from lcm.control.access.audit import Deed
from lcm.control.admission import topologies
from lcm.control.objects import session_files
from lcm.control.objects.writer import Ledger
from lcm.control.plane.protocol import DefinitionRef, SessionRef
from lcm.control.telemetry import observations as learning
from lcm.control.telemetry import observations as observing
from lcm.control.telemetry.observations import Library
from lcm.model.access.identity import Verb
from lcm.model.base.errors import Refused
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import Artifact, LabletSession
from lcm.model.telemetry.learning import ObservationReport
from lcm.model.telemetry.observation import ResourceObservation
from lcm.model.topology.lab import TopologyReport
from lcm.providers.protocols.artifacts import Artifacts


class Learning:
    """What the lablet controller observed, and what people are told and given of it."""

    _ledger: Ledger
    _library: Library

    async def record_observation(
        self, ref: SessionRef, observation: ResourceObservation, *, request_id: str | None = None
    ) -> LabletSession:
        self._ledger.allow(Verb.STEP, LabletSession)
        observing.permit(self._ledger.caller.actor)
        async with self._library.turn:
            return await observing.record(self._ledger, ref, observation, request_id, self._library.review)

    async def observations(self, ref: DefinitionRef) -> ObservationReport:
        self._ledger.allow(Verb.READ, LabletDefinition)
        return await learning.report(self._ledger, ref)

    async def upload_topology(self, data: bytes) -> TopologyReport:
        self._ledger.allow(Verb.WRITE, LabletDefinition)
        told = await topologies.upload(self._artifacts, data)
        await self._ledger.submit((), deeds=[Deed(verb="upload", kind="Topology", name=told.digest)])
        return told

    async def artifacts(self, ref: SessionRef) -> Sequence[Artifact]:
        self._ledger.allow(Verb.READ, LabletSession)
        return await session_files.listed(self._ledger, ref)

    async def download(self, ref: SessionRef, name: str) -> bytes:
        self._ledger.allow(Verb.READ, LabletSession)
        if self._library.artifacts is None:
            await self._ledger.read(ref)
        return await session_files.read(self._ledger, self._artifacts, ref, name)

    async def logs(self, ref: SessionRef) -> str:
        self._ledger.allow(Verb.READ, LabletSession)
        return await session_files.told(self._ledger, ref)

    @property
    def _artifacts(self) -> Artifacts:
        if self._library.artifacts is None:
            raise Refused("no files are kept here: this control plane was made without a place for them")
        return self._library.artifacts
