"""The verbs of the plane over HTTP about placing and booking. A part of `client`."""

from collections.abc import Sequence
from datetime import datetime

from lcm.control.client_requests import Requests
from lcm.control.plane import Ref, SessionRef
from lcm.model.placing import Assignment, CalendarView, Explanation, PortWish, SeatChange, Wish
from lcm.model.pool import LabWorkerPool
from lcm.model.reservation import Reservation
from lcm.model.session import LabletSession


class Placing(Requests):
    """What the scheduler and the pool controller do to bookings, and what people ask about them."""

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        raise NotImplementedError

    async def allocate_ports(self, ref: SessionRef, wish: PortWish) -> LabletSession:
        raise NotImplementedError

    async def reseat(self, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
        raise NotImplementedError

    async def fulfil(self, ref: Ref[Reservation], number: int) -> LabletSession:
        raise NotImplementedError

    async def preview(self, wish: Wish) -> Explanation:
        raise NotImplementedError

    async def explain(self, ref: SessionRef) -> Explanation:
        raise NotImplementedError

    async def calendar(self, *, since: datetime, until: datetime, namespace: str | None = None) -> CalendarView:
        raise NotImplementedError
