"""The plane's operations on bookings and pools: where sessions go, which slots there are, and how pools are scaled."""

# mypy: disable-error-code="empty-body"
# What an operation does is said by each plane, in `perform`.

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from lcm.control.plane.bodies import (
    CalendarQuery,
    ClaimNumbers,
    MadeSessions,
    RehearsalQuery,
    ScheduleRequest,
    SeatChanges,
)
from lcm.control.plane.operation import GET, POST, Operation, OperationGroup, Permission, may
from lcm.model.access.identity import BOOKERS, FLEET_READERS, Verb
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
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession

if TYPE_CHECKING:
    from lcm.control.plane.protocol import Ref, SessionRef

NO_PROMISES: Final = (409,)


class PlacementOperations(OperationGroup):
    """Placement and booking, for people, the scheduler and the pool controller."""

    @Operation(
        POST,
        "/api/placement/preview",
        "previewPlacement",
        "Show what would become of a booking, without making it",
        Permission(BOOKERS, "preview bookings"),
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
        Permission(BOOKERS, "look for slots"),
        body=SlotRequest,
        answer=SlotOffers,
        read_only=True,
        also=NO_PROMISES,
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
        also=NO_PROMISES,
    )
    async def explain(self, ref: "SessionRef") -> Explanation:
        """Explain why a session is where it is, or what it waits for, with the answer of every worker and seat."""

    @Operation(
        GET,
        "/api/calendar",
        "getCalendar",
        "Show planned workers, and workers outside of pools, over time",
        Permission(BOOKERS | FLEET_READERS, "read the calendar"),
        query=CalendarQuery,
        answer=CalendarView,
        also=NO_PROMISES,
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
        GET,
        "/api/internal/worker-pools/{id}/headroom",
        "getLabWorkerPoolHeadroom",
        "Read what budgets and licences leave for load in a pool, and what was measured of its workers",
        may(Verb.STEP, LabWorkerPool),
        kind=LabWorkerPool,
        answer=PoolHeadroom,
        also=NO_PROMISES,
    )
    async def headroom(self, pool: "Ref[LabWorkerPool]") -> PoolHeadroom:
        """Return how many workers may run in a pool for load alone, and how much of its workers was used lately."""

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


class PoolOperations(OperationGroup):
    """What staff ask about pools, and how they change them."""

    @Operation(
        GET,
        "/api/worker-pools/{id}/explanation",
        "explainLabWorkerPool",
        "Explain why a pool did or did not scale",
        may(Verb.READ, LabWorkerPool),
        kind=LabWorkerPool,
        answer=PoolExplanation,
    )
    async def explain_pool(self, ref: "Ref[LabWorkerPool]") -> PoolExplanation:
        """Explain why a pool has the size that it has, with its last decisions."""

    @Operation(
        POST,
        "/api/worker-pools/{id}/pause",
        "pauseLabWorkerPool",
        "Start nothing in a pool but what was promised, until a moment",
        may(Verb.ACT, LabWorkerPool),
        kind=LabWorkerPool,
        query=RehearsalQuery,
        body=PoolPauseRequest,
        body_needed=False,
        answer=PoolChange,
        also=NO_PROMISES,
    )
    async def pause_pool(
        self, ref: "Ref[LabWorkerPool]", wish: PoolPauseRequest, *, dry_run: bool = False
    ) -> PoolChange:
        """Pause a pool, and return the promises within the pause; with `refuse` those bookings end with that reason.

        May be repeated: another moment replaces the first. Raise Invalid when that has passed.
        """

    @Operation(
        POST,
        "/api/worker-pools/{id}/resume",
        "resumeLabWorkerPool",
        "End the pause of a pool",
        may(Verb.ACT, LabWorkerPool),
        kind=LabWorkerPool,
        query=RehearsalQuery,
        answer=LabWorkerPool,
    )
    async def resume_pool(self, ref: "Ref[LabWorkerPool]", *, dry_run: bool = False) -> LabWorkerPool:
        """End the pause of a pool; one that is not paused stays as it is."""

    @Operation(
        POST,
        "/api/worker-pools/{id}/scale",
        "scaleLabWorkerPool",
        "Change the minimum and the maximum of a pool",
        may(Verb.ACT, LabWorkerPool),
        kind=LabWorkerPool,
        query=RehearsalQuery,
        body=PoolScaleRequest,
        answer=PoolChange,
        also=NO_PROMISES,
    )
    async def scale_pool(
        self, ref: "Ref[LabWorkerPool]", wish: PoolScaleRequest, *, dry_run: bool = False
    ) -> PoolChange:
        """Change a pool's size, and return the promises on planned workers that are then too many.

        With `refuse` those bookings end with that reason; otherwise they are kept. May be repeated.
        """
