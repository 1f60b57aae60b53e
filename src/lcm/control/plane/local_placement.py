"""The plane's verbs about placement and booking, in process. Part of `control.plane.local`."""

from collections.abc import Callable, Sequence
from datetime import datetime

from lcm.control.booking import calendar_view, reservations
from lcm.control.booking import explain as explaining
from lcm.control.booking import schedule as scheduling
from lcm.control.booking.promise import Promises
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import R, Ref, SessionRef
from lcm.model.access.identity import Verb
from lcm.model.base.errors import Fault, Invalid, Refused
from lcm.model.kinds.placement import Assignment, CalendarView, Explanation, PortRequest, PreviewRequest, SeatChange
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession


class LocalPlacement:
    """The verbs about placement and booking for the scheduler, the pool controller and people, in process."""

    def __init__(self, ledger: Writer, desk: Promises | None, ids: Callable[[], str]) -> None:
        self._writer = ledger
        self._promises_or_none = desk
        self._ids = ids

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        self._writer.require_permission(Verb.STEP, LabletSession)
        return await scheduling.schedule(self._writer, self._promises, session, assignment)

    async def allocate_ports(self, ref: SessionRef, wish: PortRequest) -> LabletSession:
        self._writer.require_permission(Verb.STEP, LabletSession)
        return await scheduling.allocate_ports(self._writer, await self._promises_about(ref), ref, wish)

    async def reseat(self, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
        self._writer.require_permission(Verb.STEP, LabWorkerPool)
        await scheduling.reseat(self._writer, await self._promises_about(pool), pool, changes)

    async def fulfil(self, ref: Ref[Reservation], *numbers: int) -> Sequence[LabletSession]:
        self._writer.require_permission(Verb.STEP, Reservation)
        return await reservations.fulfil(self._writer, await self._promises_about(ref), ref, numbers, ids=self._ids)

    async def preview(self, wish: PreviewRequest) -> Explanation:
        self._writer.require_permission(Verb.READ, LabletSession)
        return await explaining.preview(self._writer, self._promises, wish)

    async def explain(self, ref: SessionRef) -> Explanation:
        self._writer.require_permission(Verb.READ, LabletSession)
        return await explaining.explain(self._writer, await self._promises_about(ref), ref)

    async def calendar(self, *, since: datetime, until: datetime, namespace: str | None = None) -> CalendarView:
        self._writer.require_permission(Verb.READ, LabletSession)
        if since >= until:
            raise Invalid(Fault("since", "not before until", "use an earlier moment"))
        return await calendar_view.show_calendar(
            self._writer, self._promises, since=since, until=until, namespace=namespace
        )

    async def _promises_about(self, ref: Ref[R]) -> Promises:
        """Return the promises for a verb about an object. Where there are none, a missing object is reported first."""
        if self._promises_or_none is None:
            await self._writer.require(ref)
        return self._promises

    @property
    def _promises(self) -> Promises:
        if self._promises_or_none is None:
            raise Refused("nothing is promised here: this control plane was made without terms")
        return self._promises_or_none
