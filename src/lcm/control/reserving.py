"""Making the sessions of reservations. Called by `local_placing`."""

from collections.abc import Callable

from lcm.control.desk import Desk
from lcm.control.ledger import Ledger
from lcm.control.plane import Ref
from lcm.model.reservation import Reservation
from lcm.model.session import LabletSession


async def fulfil(
    book: Ledger, desk: Desk, ref: Ref[Reservation], number: int, *, ids: Callable[[], str]
) -> LabletSession:
    raise NotImplementedError
