"""Why a session goes where it goes, or does not. Called by `local_placing`."""

from lcm.control.desk import Desk
from lcm.control.ledger import Ledger
from lcm.control.plane import SessionRef
from lcm.model.placing import Explanation, Wish


async def preview(book: Ledger, desk: Desk, wish: Wish) -> Explanation:
    raise NotImplementedError


async def explain(book: Ledger, desk: Desk, ref: SessionRef) -> Explanation:
    raise NotImplementedError
