"""The verbs of the plane about placing and booking, in process. A part of `local`."""

from collections.abc import Callable, Sequence
from datetime import datetime

from lcm.control.booking import calendar_view, reservations
from lcm.control.booking import explain as explaining
from lcm.control.booking import schedule as scheduling
from lcm.control.booking.promise import Desk
from lcm.control.objects.writer import Ledger
from lcm.control.plane.protocol import R, Ref, SessionRef
from lcm.model.access.identity import Verb
from lcm.model.base.errors import Fault, Invalid, Refused
from lcm.model.kinds.placement import Assignment, CalendarView, Explanation, PortWish, SeatChange, Wish
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession


class Placing:
    """What the scheduler and the pool controller do to bookings, and what people ask about them."""

    def __init__(self, ledger: Ledger, desk: Desk | None, ids: Callable[[], str]) -> None:
        self._ledger = ledger
        self._at = desk
        self._ids = ids

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        self._ledger.allow(Verb.STEP, LabletSession)
        return await scheduling.schedule(self._ledger, self._desk, session, assignment)

    async def allocate_ports(self, ref: SessionRef, wish: PortWish) -> LabletSession:
        self._ledger.allow(Verb.STEP, LabletSession)
        return await scheduling.allocate_ports(self._ledger, await self._about(ref), ref, wish)

    async def reseat(self, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
        self._ledger.allow(Verb.STEP, LabWorkerPool)
        await scheduling.reseat(self._ledger, await self._about(pool), pool, changes)

    async def fulfil(self, ref: Ref[Reservation], *numbers: int) -> Sequence[LabletSession]:
        self._ledger.allow(Verb.STEP, Reservation)
        return await reservations.fulfil(self._ledger, await self._about(ref), ref, numbers, ids=self._ids)

    async def preview(self, wish: Wish) -> Explanation:
        self._ledger.allow(Verb.READ, LabletSession)
        return await explaining.preview(self._ledger, self._desk, wish)

    async def explain(self, ref: SessionRef) -> Explanation:
        self._ledger.allow(Verb.READ, LabletSession)
        return await explaining.explain(self._ledger, await self._about(ref), ref)

    async def calendar(self, *, since: datetime, until: datetime, namespace: str | None = None) -> CalendarView:
        self._ledger.allow(Verb.READ, LabletSession)
        if since >= until:
            raise Invalid(Fault("since", "not before until", "use an earlier moment"))
        return await calendar_view.calendar(self._ledger, self._desk, since=since, until=until, namespace=namespace)

    async def _about(self, ref: Ref[R]) -> Desk:
        """Give the desk for something about an object; where there is none, what is not there is told first."""
        if self._at is None:
            await self._ledger.need(ref)
        return self._desk

    @property
    def _desk(self) -> Desk:
        if self._at is None:
            raise Refused("nothing is promised here: this control plane was made without terms")
        return self._at
