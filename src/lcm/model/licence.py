"""The fleet's licences: which token has how many seats, and which worker holds one.

An entry is opened in the commit in which a registration is about to be asked for and closed only in one that reports
the licence as seen given back. What remains when its worker is gone is `orphaned`: the seat is taken until a person
frees it at the licence server and says so.
"""

from collections.abc import Sequence
from enum import StrEnum

from lcm.model.resource import Count, Moment, Name, Part, ShortText
from lcm.model.worker import LicenseFlavour


class SeatState(StrEnum):
    """What is known of a seat that is not free."""

    REGISTERING = "registering"
    REGISTERED = "registered"
    RELEASING = "releasing"
    ORPHANED = "orphaned"


class LicenceSeat(Part):
    """A seat that is not free. `token` tells tokens apart and is no secret."""

    worker_id: ShortText
    worker_name: Name
    namespace: Name
    token: ShortText
    flavour: LicenseFlavour
    state: SeatState
    since: Moment


class LicenceToken(Part):
    """A token with its seats; `seats` None: nobody said how many there are."""

    token: ShortText
    seats: Count | None
    used: Count
    free: Count | None


class LicenceLedger(Part):
    """All tokens in use and all seats taken."""

    tokens: tuple[LicenceToken, ...]
    seats: tuple[LicenceSeat, ...]


def ledger(seats: Sequence[LicenceSeat], totals: dict[str, int]) -> LicenceLedger:
    """Add up the seats; `totals` says how many each token has."""
    names = sorted({*totals, *(seat.token for seat in seats)})
    used = {name: sum(seat.token == name for seat in seats) for name in names}
    tokens = (
        LicenceToken(
            token=name,
            seats=totals.get(name),
            used=used[name],
            free=max(0, totals[name] - used[name]) if name in totals else None,
        )
        for name in names
    )
    return LicenceLedger(tokens=tuple(tokens), seats=tuple(seats))
