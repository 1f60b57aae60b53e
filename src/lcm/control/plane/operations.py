"""The table of the plane's operations: name, arguments and answer, permission and route, and the contract of each.

These are the verbs that every plane has besides those that are the same for all kinds (`control.plane.protocol`).
`control.plane.operation` says what follows from a declaration.
"""

# mypy: disable-error-code="empty-body"
# What an operation does is said by each plane, in `perform`.

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from lcm.control.plane.bodies import (
    AlertList,
    AlertQuery,
    BudgetLine,
    BudgetList,
    BulkImport,
    ClassCost,
    ClearAlertQuery,
    CostQuery,
    CostReport,
    HistoryQuery,
    Imported,
    LedgerQuery,
    MetricsReport,
    QuotaQuery,
    Sample,
    WorkerHistory,
    metrics_report_of,
    telemetry_of,
)
from lcm.control.plane.booking_operations import NO_PROMISES, PlacementOperations, PoolOperations
from lcm.control.plane.lab_operations import LabOperations
from lcm.control.plane.operation import DELETE, GET, POST, Operation, OperationGroup, Permission, may
from lcm.model.access.identity import BOOKERS, COST_READERS, SEES_ALL, SERVICE, STAFF, Role, Verb
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.worker import IdleVerdict, LabWorker, WorkerTelemetry
from lcm.model.money.billing import BillingInterval
from lcm.model.money.ledger import CostGroup, CostLedger
from lcm.model.money.licences import LicenceLedger
from lcm.model.money.quotas import QuotaPage
from lcm.model.telemetry.alert import Alert, AlertFinding

if TYPE_CHECKING:
    from lcm.control.plane.protocol import Ref, WorkerRef

EARLIEST: Final = datetime.fromtimestamp(0, UTC)
"""Answered where the control plane makes no promises, so that there is nothing to show."""


class MeasurementOperations(OperationGroup):
    """A worker's measurements, for people."""

    @Operation(
        GET,
        "/api/workers/{id}/telemetry",
        "getWorkerTelemetry",
        "Read a worker's newest measurements",
        may(Verb.READ, LabWorker),
        kind=LabWorker,
        answer=WorkerTelemetry,
        missing="there are no measurements of {name} in namespace {namespace}",
    )
    async def telemetry(self, ref: "WorkerRef") -> WorkerTelemetry | None:
        """Read a worker's newest measurements; None means it was never measured."""

    @Operation(
        GET,
        "/api/workers/{id}/history",
        "getWorkerHistory",
        "Read a worker's measurements of the last day, minute by minute",
        may(Verb.READ, LabWorker),
        kind=LabWorker,
        query=HistoryQuery,
        answer=WorkerHistory,
        answer_field="items",
    )
    async def history(self, ref: "WorkerRef", *, since: datetime = EARLIEST) -> Sequence[Sample]:
        """Read a worker's measurements minute by minute, oldest first, of at most 24 hours."""


class FleetOperations(OperationGroup):
    """Alerts, licence seats, and what workers cost."""

    @Operation(
        GET,
        "/api/alerts",
        "listAlerts",
        "List the alerts that are raised",
        Permission(SEES_ALL, "read alerts"),
        answer=AlertList,
        answer_field="items",
    )
    async def alerts(self) -> Sequence[Alert]:
        """List the alerts that are raised and not cleared, oldest first."""

    @Operation(
        POST,
        "/api/internal/alerts/{id}",
        "raiseAlert",
        "Raise an alert about an object, unless it is raised",
        Permission(SERVICE, "raise alerts"),
        query=AlertQuery,
        body=AlertFinding,
    )
    async def raise_alert(self, ref: "Ref[Any]", complaint: AlertFinding) -> None:
        """Raise an alert about an object, unless it is raised already. One that becomes critical is announced again.

        May be repeated.
        """

    @Operation(
        DELETE,
        "/api/internal/alerts/{id}",
        "clearAlert",
        "Clear an alert about an object, if it is raised",
        Permission(SERVICE, "clear alerts"),
        query=ClearAlertQuery,
    )
    async def clear_alert(self, ref: "Ref[Any]", alert: str) -> None:
        """Clear an alert about an object, if it is raised. May be repeated."""

    @Operation(
        GET,
        "/api/licenses",
        "listLicenses",
        "List tokens and the workers that have their seats",
        Permission(SEES_ALL, "read the ledger of licences"),
        answer=LicenceLedger,
    )
    async def licences(self) -> LicenceLedger:
        """Return which licence seats are taken, by which workers, and how many are free."""

    @Operation(
        DELETE,
        "/api/licenses/{id}",
        "freeLicense",
        "Record that the licence seat which a worker of this uid left behind was freed at the licence server",
        Permission(STAFF, "free licence seats"),
    )
    async def free_licence(self, worker_id: str) -> None:
        """Record that a person freed an orphaned seat at the licence server. Raise Gone when there is no such seat."""

    @Operation(
        GET,
        "/api/quotas",
        "listQuotas",
        "Read what owners, namespaces and tracks may have, have, and have left",
        Permission(BOOKERS, "read quotas"),
        query=QuotaQuery,
        answer=QuotaPage,
        also=NO_PROMISES,
    )
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
        """Return the caller's quotas, those of an owner, of a namespace or a track in all, or a page of all there are.

        Raise Forbidden for anybody's but one's own, unless the caller is of the staff.
        """

    @Operation(
        GET,
        "/api/costs",
        "listCosts",
        "Read what workers cost",
        Permission(COST_READERS, "read what workers cost"),
        query=CostQuery,
        answer=CostReport,
        answer_field="intervals",
    )
    async def costs(self, *, since: datetime, until: datetime) -> Sequence[BillingInterval]:
        """List what workers cost in a span, by worker and time. Each interval is cut to the span."""

    @Operation(
        GET,
        "/api/budgets",
        "listBudgets",
        "Read the monthly budgets of pools and tracks: what is spent, and what the month will cost",
        Permission(COST_READERS, "read budgets"),
        answer=BudgetList,
        answer_field="items",
        also=NO_PROMISES,
    )
    async def budgets(self) -> Sequence[BudgetLine]:
        """List the monthly budgets of pools and tracks, by the forecast by which bookings are refused."""

    @Operation(
        GET,
        "/api/costs/ledger",
        "getCostLedger",
        "Read what sessions cost by session, class, owner, track, definition, pool, worker or day",
        Permission(BOOKERS, "read what sessions cost"),
        query=LedgerQuery,
        answer=CostLedger,
    )
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
        """Return a page of what groups of sessions cost in a month or span, what nobody used, and what is booked.

        Who does not see the fleet sees what the own sessions cost. Raise Invalid for a span that there is not,
        Forbidden for groups of machines, Throttled when too many ask at once.
        """

    @Operation(
        GET,
        "/api/reservations/{id}/cost",
        "getReservationCost",
        "Read what the sessions of a reservation cost, and will cost",
        may(Verb.READ, Reservation),
        kind=Reservation,
        answer=ClassCost,
    )
    async def class_cost(self, ref: "Ref[Reservation]") -> ClassCost:
        """Return what the sessions of a reservation cost: those that are over, and those that have claims."""


class ReportOperations(OperationGroup):
    """What our own processes report about workers."""

    @Operation(
        POST,
        "/api/internal/workers/bulk-import",
        "importWorkers",
        "Record machines found in the cloud",
        Permission(SERVICE, "import workers"),
        body=BulkImport,
        answer=Imported,
    )
    async def import_workers(self, found: BulkImport) -> Imported:
        """Create a worker record for each instance that has none. May be repeated."""

    @Operation(
        POST,
        "/api/internal/workers/{id}/metrics",
        "reportWorkerMetrics",
        "Report a worker's measurements",
        may(Verb.STEP, LabWorker),
        kind=LabWorker,
        body=MetricsReport,
        pack=metrics_report_of,
        unpack=telemetry_of,
        answer=WorkerTelemetry,
    )
    async def report(self, ref: "WorkerRef", telemetry: WorkerTelemetry) -> WorkerTelemetry:
        """Store a worker's newest measurements, and return the stored ones. Older measurements than those are dropped.

        Raise Invalid when they come from the future: they would keep out all that follow.
        """

    @Operation(
        POST,
        "/api/internal/workers/{id}/detect-idle",
        "detectIdleWorker",
        "Decide whether a worker is idle, and why",
        may(Verb.STEP, LabWorker),
        kind=LabWorker,
        answer=IdleVerdict,
    )
    async def detect_idle(self, ref: "WorkerRef") -> IdleVerdict:
        """Judge whether a worker is idle by everything the plane knows, store the verdict, and warn before a pause.

        May be repeated. The verdict alone pauses nothing: the worker controller pauses the worker when `pause_at` has
        come.
        """


class PlaneOperations(
    MeasurementOperations, FleetOperations, PlacementOperations, PoolOperations, LabOperations, ReportOperations
):
    """All operations."""
