"""Seats and workers against time. Called by `local_placing`."""

from datetime import datetime

from lcm.control.desk import Desk
from lcm.control.ledger import Ledger
from lcm.model.placing import CalendarView


async def calendar(
    book: Ledger, desk: Desk, *, since: datetime, until: datetime, namespace: str | None
) -> CalendarView:
    raise NotImplementedError
