"""The verbs of the plane over HTTP about placing and booking. A part of `client`."""

from collections.abc import Sequence
from datetime import UTC, datetime

from lcm.control.client_line import read
from lcm.control.client_requests import Requests, internal, path_of, within
from lcm.control.plane import Ref, SessionRef, ref_of
from lcm.control.wire_placing import ClaimNumbers, MadeSessions, ScheduleWish, SeatChanges
from lcm.model.placing import Assignment, CalendarView, Explanation, PortWish, SeatChange, Wish
from lcm.model.pool import LabWorkerPool
from lcm.model.reservation import Reservation
from lcm.model.session import LabletSession


class Placing(Requests):
    """What the scheduler and the pool controller do to bookings, and what people ask about them."""

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        ref = ref_of(session)
        body = ScheduleWish(resource_version=session.metadata.resource_version, assignment=assignment)
        return read(await self._write("POST", f"{internal(ref)}/schedule", within(ref), body), LabletSession)

    async def allocate_ports(self, ref: SessionRef, wish: PortWish) -> LabletSession:
        return read(await self._write("POST", f"{internal(ref)}/allocate-ports", within(ref), wish), LabletSession)

    async def reseat(self, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
        await self._write("POST", f"{internal(pool)}/reseat", within(pool), SeatChanges(changes=tuple(changes)))

    async def fulfil(self, ref: Ref[Reservation], *numbers: int) -> Sequence[LabletSession]:
        body = ClaimNumbers(numbers=numbers)
        return read(await self._write("POST", f"{internal(ref)}/sessions", within(ref), body), MadeSessions).items

    async def preview(self, wish: Wish) -> Explanation:
        return read(await self._write("POST", "/api/placement/preview", {}, wish), Explanation)

    async def explain(self, ref: SessionRef) -> Explanation:
        return read(await self._ask("GET", f"{path_of(ref)}/explanation", within(ref)), Explanation)

    async def calendar(self, *, since: datetime, until: datetime, namespace: str | None = None) -> CalendarView:
        query = {"since": since.astimezone(UTC).isoformat(), "until": until.astimezone(UTC).isoformat()}
        query |= {} if namespace is None else {"namespace": namespace}
        return read(await self._ask("GET", "/api/calendar", query), CalendarView)
