"""The fleet's licences: which token has how many seats, and which worker holds one.

An entry is opened in the commit in which a registration is about to be asked for and closed only in one that reports
the licence as seen given back. What remains when its worker is gone is `orphaned`: the seat is taken until a person
frees it at the licence server and says so.
"""

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from lcm.model.base.resource import Count, Moment, Name, Part, ShortText
from lcm.model.kinds.worker import LicenseFlavour

SEAT_UNKNOWN: Final = "LicenceSeatUnknown"
UNRETURNED: Final = frozenset({"LicenceSeatNotReturned", SEAT_UNKNOWN})
"""What `cml.license_status` says when CML has forgotten its licence and the seat is, or may be, still taken."""
UNKNOWN_TOKEN: Final = "unknown"  # noqa: S105 - says that it is not known
"""Stands for the token of a machine that somebody licensed by hand."""
_SHOWN: Final = 12


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


def token_id(ref: str | None) -> str:
    """Tell a token apart from others by where it is kept, which is no secret itself."""
    return UNKNOWN_TOKEN if ref is None else hashlib.sha256(ref.encode()).hexdigest()[:_SHOWN]


def ledger(seats: Sequence[LicenceSeat], totals: Mapping[str, int]) -> LicenceLedger:
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
