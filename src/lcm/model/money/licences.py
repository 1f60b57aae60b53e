"""The fleet's CML licences: how many seats each token has, and which workers hold them.

An entry is opened in the commit before a registration is requested, and closed only in a commit that reports the
licence
as returned. An entry whose worker is gone becomes `orphaned`: the seat stays taken until a person frees it at the
licence server and reports that.
"""

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

from lcm.model.base.resource import Count, Moment, Name, Part, ShortText
from lcm.model.kinds.worker import LicenseFlavour

SEAT_UNKNOWN: Final = "LicenceSeatUnknown"
UNRETURNED: Final = frozenset({"LicenceSeatNotReturned", SEAT_UNKNOWN})
"""Values of `cml.license_status` for which CML lost its licence and the seat is, or may be, still taken."""
UNKNOWN_TOKEN: Final = "unknown"  # noqa: S105 - says that it is not known
"""Stands for the token of a machine that somebody licensed by hand."""
_TOKEN_ID_LENGTH: Final = 12


class SeatState(StrEnum):
    """The state of a licence seat that is not free."""

    REGISTERING = "registering"
    REGISTERED = "registered"
    RELEASING = "releasing"
    ORPHANED = "orphaned"


class LicenceSeat(Part):
    """A licence seat that is not free. `token` identifies the token and is not a secret."""

    worker_id: ShortText
    worker_name: Name
    namespace: Name
    token: ShortText
    flavour: LicenseFlavour
    state: SeatState
    since: Moment


class LicenceToken(Part):
    """A licence token and its seats. `seats` is None when their number was never configured."""

    token: ShortText
    seats: Count | None
    used: Count
    free: Count | None


class LicenceLedger(Part):
    """All licence tokens in use and all seats taken."""

    tokens: tuple[LicenceToken, ...]
    seats: tuple[LicenceSeat, ...]


@lru_cache(1024)
def token_id(ref: str | None) -> str:
    """Return an identifier of a token, derived from where it is kept, which is not a secret."""
    return UNKNOWN_TOKEN if ref is None else hashlib.sha256(ref.encode()).hexdigest()[:_TOKEN_ID_LENGTH]


def build_ledger(seats: Sequence[LicenceSeat], totals: Mapping[str, int]) -> LicenceLedger:
    """Return the ledger of these seats; `totals` says how many seats each token has."""
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
