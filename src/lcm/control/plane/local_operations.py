"""The plane's operations in process: each passes what its work needs to the module that does it.

`control.plane.local` checks the caller's permission before it calls one of these.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from lcm.control.accounts.costs import read_costs
from lcm.control.accounts.licences import free_seat, read_ledger
from lcm.control.admission import topologies
from lcm.control.admission.admit import Admission
from lcm.control.booking import (
    budget_watch,
    calendar_view,
    cost_report,
    pool_changes,
    pools,
    prebuilt,
    quota_view,
    reservations,
    seat_moves,
    slots,
)
from lcm.control.booking import explain as explaining
from lcm.control.booking import schedule as scheduling
from lcm.control.booking.changes import BookingChanges
from lcm.control.booking.promise import Promises
from lcm.control.objects import consoles, session_files, uploads
from lcm.control.objects.imports import WorkerImport
from lcm.control.objects.records import CODEC, DELETED_SESSIONS, NAME
from lcm.control.objects.requests import IdempotentRequest
from lcm.control.objects.writer import Writer, retry_conflicts
from lcm.control.plane.bodies import BudgetLine, BulkImport, ClassCost, Imported, LedgerQuery, QuotaQuery, Sample
from lcm.control.plane.operations import EARLIEST, PlaneOperations
from lcm.control.plane.protocol import Action, DefinitionRef, R, Ref, SessionRef, WorkerRef
from lcm.control.telemetry import alerts, idleness, reports
from lcm.control.telemetry import observations as observing
from lcm.model.access.identity import Role
from lcm.model.base.errors import Fault, Invalid, Refused
from lcm.model.kinds.console import Console
from lcm.model.kinds.placement import (
    Assignment,
    CalendarView,
    Explanation,
    PoolChange,
    PoolExplanation,
    PoolHeadroom,
    PoolPauseRequest,
    PoolScaleRequest,
    PortRequest,
    PreviewRequest,
    SeatChange,
    SlotOffers,
    SlotRequest,
)
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.prebuilt import PrebuiltUse
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import Artifact, DeletedSession, LabletSession
from lcm.model.kinds.worker import IdleVerdict, WorkerTelemetry
from lcm.model.money.billing import BillingInterval
from lcm.model.money.ledger import CostGroup, CostLedger
from lcm.model.money.licences import LicenceLedger
from lcm.model.money.quotas import QuotaPage
from lcm.model.telemetry.alert import Alert, AlertFinding
from lcm.model.telemetry.learning import ObservationReport
from lcm.model.telemetry.observation import ResourceObservation
from lcm.model.topology.lab import DefinitionTopology, LabGraph, TopologyReport
from lcm.model.topology.node_definitions import KnownNode
from lcm.providers.protocols.artifacts import Artifacts

if TYPE_CHECKING:
    from lcm.control.plane.local import ControlPlane


class LocalOperations(PlaneOperations):
    """The operations of a caller who may perform them, directly on the store."""

    def __init__(self, core: "ControlPlane", writer: Writer, admission: Admission) -> None:
        self._core = core
        self._writer = writer
        self._admission = admission

    async def telemetry(self, ref: WorkerRef) -> WorkerTelemetry | None:
        return await reports.read_telemetry(self._writer, ref)

    async def history(self, ref: WorkerRef, *, since: datetime = EARLIEST) -> Sequence[Sample]:
        return await reports.read_history(self._writer, ref, since)

    async def alerts(self) -> Sequence[Alert]:
        return [*await alerts.list_alerts(self._core.store), *self._core.health.unstored_alerts]

    async def raise_alert(self, ref: Ref[Any], complaint: AlertFinding) -> None:
        await alerts.raise_alert(self._writer, ref, complaint)

    async def clear_alert(self, ref: Ref[Any], alert: str) -> None:
        await alerts.clear_alert(self._writer, ref, alert)

    async def find_deletion(self, session_id: str) -> DeletedSession | None:
        entry = await self._core.store.get(DELETED_SESSIONS + session_id) if NAME.fullmatch(session_id) else None
        return CODEC.decode(entry.value, DeletedSession) if entry else None

    async def licences(self) -> LicenceLedger:
        return await read_ledger(self._core.store, self._core.fleet.seats)

    async def free_licence(self, worker_id: str) -> None:
        await retry_conflicts(lambda: free_seat(self._writer, worker_id), unless=lambda _: False)

    async def quotas(
        self,
        *,
        owner: str = "",
        role: Role | None = None,
        namespace: str = "",
        track: str | None = None,
        everybody: bool = False,
        limit: int = 100,
        cursor: str = "",
    ) -> QuotaPage:
        about = QuotaQuery(owner=owner, role=role, namespace=namespace, track=track)
        asked = msgspec.structs.replace(about, everybody=everybody, limit=limit, cursor=cursor)
        return await quota_view.list_quotas(self._writer, self._promises, asked)

    async def costs(self, *, since: datetime, until: datetime) -> Sequence[BillingInterval]:
        _check_span(since, until)
        return await read_costs(self._core.store, since=since, until=until, now=self._core.clock.now())

    async def budgets(self) -> Sequence[BudgetLine]:
        return await budget_watch.list_budgets(self._core.store, self._promises, self._core.clock.now())

    async def ledger(
        self,
        *,
        by: CostGroup = CostGroup.TRACK,
        month: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        time_zone: str = "",
        owner: str = "",
        limit: int = 500,
        cursor: str = "",
    ) -> CostLedger:
        query = LedgerQuery(
            by=by,
            month=month,
            since=since,
            until=until,
            time_zone=time_zone,
            owner=owner,
            limit=limit,
            cursor=cursor,
        )
        return await cost_report.report_costs(self._writer, self._core.ledgers, self._core.promises, query)

    async def class_cost(self, ref: Ref[Reservation]) -> ClassCost:
        return await cost_report.report_class_cost(self._writer, self._core.promises, ref)

    async def preview(self, wish: PreviewRequest) -> Explanation:
        return await explaining.preview(self._writer, self._promises, wish)

    async def slots(self, wish: SlotRequest) -> SlotOffers:
        return await slots.list_slots(self._writer, self._promises, wish)

    async def explain(self, ref: SessionRef) -> Explanation:
        return await explaining.explain(self._writer, await self._promises_about(ref), ref)

    async def calendar(self, *, since: datetime, until: datetime, namespace: str | None = None) -> CalendarView:
        _check_span(since, until)
        return await calendar_view.show_calendar(
            self._writer, self._promises, since=since, until=until, namespace=namespace
        )

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        return await scheduling.schedule(self._writer, self._promises, session, assignment)

    async def allocate_ports(self, ref: SessionRef, wish: PortRequest) -> LabletSession:
        return await scheduling.allocate_ports(self._writer, await self._promises_about(ref), ref, wish)

    async def headroom(self, pool: Ref[LabWorkerPool]) -> PoolHeadroom:
        return await pools.read_headroom(self._writer, await self._promises_about(pool), pool)

    async def explain_pool(self, ref: Ref[LabWorkerPool]) -> PoolExplanation:
        return await pools.explain_pool(self._writer, ref)

    async def pause_pool(self, ref: Ref[LabWorkerPool], wish: PoolPauseRequest, *, dry_run: bool = False) -> PoolChange:
        change = pool_changes.PoolChanges(
            self._writer, await self._promises_about(ref), self._admission, self._core.ids
        )
        return await change.pause(ref, wish, dry_run=dry_run)

    async def resume_pool(self, ref: Ref[LabWorkerPool], *, dry_run: bool = False) -> LabWorkerPool:
        return await pool_changes.resume_pool(self._writer, ref, dry_run=dry_run)

    async def scale_pool(self, ref: Ref[LabWorkerPool], wish: PoolScaleRequest, *, dry_run: bool = False) -> PoolChange:
        change = pool_changes.PoolChanges(
            self._writer, await self._promises_about(ref), self._admission, self._core.ids
        )
        return await change.scale(ref, wish, dry_run=dry_run)

    async def reseat(self, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
        await seat_moves.reseat(self._writer, await self._promises_about(pool), pool, changes)

    async def fulfil(self, ref: Ref[Reservation], *numbers: int) -> Sequence[LabletSession]:
        promises = await self._promises_about(ref)
        return await reservations.fulfil(self._writer, promises, ref, numbers, ids=self._core.ids)

    async def change_booking(
        self, ref: Ref[R], action: Action, *, at: int | None, dry_run: bool, asked: IdempotentRequest | None
    ) -> R:
        """Perform an action of a class, or the move of a session. Raise Forbidden for one whose learner asks it."""
        self._writer.require_managed(
            (await self._writer.require(ref)).resource, str(type(action).__struct_config__.tag)
        )
        work = BookingChanges(self._writer, await self._promises_about(ref))
        made = await work.run(ref, action, at=at, dry_run=dry_run, asked=asked)
        assert isinstance(made, ref.kind), "it is the same booking"
        return made

    async def observations(self, ref: DefinitionRef) -> ObservationReport:
        return await observing.observation_report(self._writer, ref)

    async def prebuilt(self, ref: DefinitionRef) -> PrebuiltUse:
        return await prebuilt.read_use(self._writer, await self._promises_about(ref), ref)

    async def record_observation(
        self, ref: SessionRef, observation: ResourceObservation, *, request_id: str | None = None
    ) -> LabletSession:
        observing.check_observer(self._writer.caller.actor)
        async with self._core.library.lock:
            review = self._core.library.review
            return await observing.record_observation(self._writer, ref, observation, request_id, review)

    async def upload_topology(self, data: bytes) -> TopologyReport:
        artifacts, store, library = self._artifacts, self._core.store, self._core.library
        return await uploads.store_upload(
            self._writer,
            data,
            lambda: topologies.upload_topology(artifacts, store, data, library.node_sizes),
            quota_bytes=library.quota_bytes,
        )

    async def topology(self, ref: DefinitionRef) -> DefinitionTopology:
        if self._core.library.artifacts is None:
            await self._writer.require(ref)
        definition = (await self._writer.require(ref)).resource
        return await topologies.read_topology(self._artifacts, self._core.graphs, definition)

    async def node_definitions(self) -> Sequence[KnownNode]:
        return await topologies.read_node_definitions(self._core.store, self._core.library.node_sizes)

    async def artifacts(self, ref: SessionRef) -> Sequence[Artifact]:
        return await session_files.list_files(self._writer, ref)

    async def download(self, ref: SessionRef, name: str) -> bytes:
        if self._core.library.artifacts is None:
            await self._writer.read(ref)
        return await session_files.read_file(self._writer, self._artifacts, ref, name)

    async def consoles(self, ref: SessionRef) -> Sequence[Console]:
        return await consoles.list_consoles(self._writer, ref)

    async def session_graph(self, ref: SessionRef) -> LabGraph:
        if self._core.library.artifacts is None:
            await self._writer.read(ref)
        return await topologies.read_session_graph(self._artifacts, self._core.graphs, self._writer, ref)

    async def logs(self, ref: SessionRef) -> str:
        return await session_files.read_story(self._writer, ref)

    async def import_workers(self, found: BulkImport) -> Imported:
        return await WorkerImport(self._writer, self._admission, found).run()

    async def report(self, ref: WorkerRef, telemetry: WorkerTelemetry) -> WorkerTelemetry:
        return await reports.record_telemetry(
            self._writer, self._core.report_commits, ref, telemetry, self._core.thresholds
        )

    async def detect_idle(self, ref: WorkerRef) -> IdleVerdict:
        return await idleness.detect_idle(self._writer, ref, self._core.judgement, self._core.promises)

    async def _promises_about(self, ref: Ref[R]) -> Promises:
        """Return the promises for a verb about an object. Where there are none, a missing object is reported first."""
        if self._core.promises is None:
            await self._writer.require(ref)
        return self._promises

    @property
    def _promises(self) -> Promises:
        if self._core.promises is None:
            raise Refused("this control plane makes no promises: it was started without terms")
        return self._core.promises

    @property
    def _artifacts(self) -> Artifacts:
        if self._core.library.artifacts is None:
            raise Refused("this control plane keeps no files: it was started without a place for them")
        return self._core.library.artifacts


def _check_span(since: datetime, until: datetime) -> None:
    if since >= until:
        raise Invalid(Fault("since", "not before until", "use an earlier moment"))
