"""Putting sessions where the scheduler decided. Called by `local_placing`."""

from collections.abc import Sequence

from lcm.control.desk import Desk
from lcm.control.ledger import Ledger
from lcm.control.plane import Ref, SessionRef
from lcm.model.placing import Assignment, PortWish, SeatChange
from lcm.model.pool import LabWorkerPool
from lcm.model.session import LabletSession


async def schedule(book: Ledger, desk: Desk, session: LabletSession, assignment: Assignment) -> LabletSession:
    raise NotImplementedError


async def allocate_ports(book: Ledger, desk: Desk, ref: SessionRef, wish: PortWish) -> LabletSession:
    raise NotImplementedError


async def reseat(book: Ledger, desk: Desk, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
    raise NotImplementedError
