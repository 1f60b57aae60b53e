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
    BulkImport,
    CalendarQuery,
    ClaimNumbers,
    ClearAlertQuery,
    CostQuery,
    CostReport,
    HistoryQuery,
    Imported,
    MadeSessions,
    MetricsReport,
    Sample,
    ScheduleRequest,
    SeatChanges,
    WorkerHistory,
    metrics_report_of,
    telemetry_of,
)
from lcm.control.plane.lab_operations import LabOperations
from lcm.control.plane.operation import DELETE, GET, POST, Operation, OperationGroup, Permission, may
from lcm.model.access.identity import SEES_ALL, SERVICE, STAFF, Verb
from lcm.model.kinds.placement import (
    Assignment,
    CalendarView,
    Explanation,
    PortRequest,
    PreviewRequest,
    SeatChange,
    SlotOffers,
    SlotRequest,
)
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import IdleVerdict, LabWorker, WorkerTelemetry
from lcm.model.money.billing import BillingInterval
from lcm.model.money.licences import LicenceLedger
from lcm.model.telemetry.alert import Alert, AlertFinding

if TYPE_CHECKING:
    from lcm.control.plane.protocol import Ref, SessionRef, WorkerRef

EARLIEST: Final = datetime.fromtimestamp(0, UTC)
_NO_PROMISES: Final = (409,)
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
        "/api/costs",
        "listCosts",
        "Read what workers cost",
        Permission(SEES_ALL, "read what workers cost"),
        query=CostQuery,
        answer=CostReport,
        answer_field="intervals",
    )
    async def costs(self, *, since: datetime, until: datetime) -> Sequence[BillingInterval]:
        """List what workers cost in a span, by worker and time. Each interval is cut to the span."""


class PlacementOperations(OperationGroup):
    """Placement and booking, for people, the scheduler and the pool controller."""

    @Operation(
        POST,
        "/api/placement/preview",
        "previewPlacement",
        "Show what would become of a booking, without making it",
        may(Verb.READ, LabletSession),
        body=PreviewRequest,
        answer=Explanation,
        read_only=True,
    )
    async def preview(self, wish: PreviewRequest) -> Explanation:
        """Explain what would happen to a booking, without making it."""

    @Operation(
        POST,
        "/api/placement/slots",
        "listSlots",
        "Show which starts of a booking would be accepted, and at what price",
        may(Verb.READ, LabletSession),
        body=SlotRequest,
        answer=SlotOffers,
        read_only=True,
        also=_NO_PROMISES,
    )
    async def slots(self, wish: SlotRequest) -> SlotOffers:
        """Return which starts of a booking would be accepted if they were booked now. Raise Refused as `create` does.

        Raise Invalid when it asks about more than MAX_SLOTS starts.
        """

    @Operation(
        GET,
        "/api/lablet-sessions/{id}/explanation",
        "explainLabletSession",
        "Explain why a session is where it is, or what it waits for",
        may(Verb.READ, LabletSession),
        kind=LabletSession,
        answer=Explanation,
        also=_NO_PROMISES,
    )
    async def explain(self, ref: "SessionRef") -> Explanation:
        """Explain why a session is where it is, or what it waits for, with the answer of every worker and seat."""

    @Operation(
        GET,
        "/api/calendar",
        "getCalendar",
        "Show planned workers, and workers outside of pools, over time",
        may(Verb.READ, LabletSession),
        query=CalendarQuery,
        answer=CalendarView,
        also=_NO_PROMISES,
    )
    async def calendar(self, *, since: datetime, until: datetime, namespace: str | None = None) -> CalendarView:
        """Return seats, and workers outside of pools, over time. Bookings of others are shown without their names."""

    @Operation(
        POST,
        "/api/internal/lablet-sessions/{id}/schedule",
        "scheduleLabletSession",
        "Put a session onto a worker or a planned worker",
        may(Verb.STEP, LabletSession),
        kind=LabletSession,
        body=ScheduleRequest,
        answer=LabletSession,
    )
    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        """Put a session where the scheduler decided, at exactly its revision: claim, ports and time at once.

        With a worker, the session becomes SCHEDULED with ports. With a seat alone, its claim is kept there, and a
        session with a slot becomes SCHEDULED too. Raise NoRoom when it does not fit by what the plane knows, and
        Conflict when another write came first: read again and decide again.
        """

    @Operation(
        POST,
        "/api/internal/lablet-sessions/{id}/allocate-ports",
        "allocateLabletSessionPorts",
        "Allocate the ports of a session that has a worker",
        may(Verb.STEP, LabletSession),
        kind=LabletSession,
        body=PortRequest,
        body_needed=False,
        answer=LabletSession,
    )
    async def allocate_ports(self, ref: "SessionRef", wish: PortRequest) -> LabletSession:
        """Allocate ports to a session that has a worker; ports it has already are kept. May be repeated."""

    @Operation(
        POST,
        "/api/internal/worker-pools/{id}/reseat",
        "reseatLabWorkerPool",
        "Move claims of a pool to other planned workers",
        may(Verb.STEP, LabWorkerPool),
        kind=LabWorkerPool,
        body=SeatChanges,
    )
    async def reseat(self, pool: "Ref[LabWorkerPool]", changes: Sequence[SeatChange]) -> None:
        """Move claims that have no worker yet to other seats, all or none.

        Raise NoRoom and Conflict as `schedule` does.
        """

    @Operation(
        POST,
        "/api/internal/reservations/{id}/sessions",
        "fulfilReservation",
        "Make the sessions that take over some of a reservation's claims",
        may(Verb.STEP, Reservation),
        kind=Reservation,
        body=ClaimNumbers,
        answer=MadeSessions,
        answer_field="items",
    )
    async def fulfil(self, ref: "Ref[Reservation]", *numbers: int) -> Sequence[LabletSession]:
        """Create the sessions that take over some of a reservation's claims, in one commit; at most FULFILLED_AT_ONCE.

        May be repeated: it returns the same sessions, except for those that are gone.
        """


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


class PlaneOperations(MeasurementOperations, FleetOperations, PlacementOperations, LabOperations, ReportOperations):
    """All operations."""
