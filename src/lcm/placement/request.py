"""The values of placement: what a session asks for, where it could go, and what is held there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

import msgspec

from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.worker import LabType, LicenseFlavour

DRAINING: Final = "draining"
BOOTING: Final = "booting"
"""With DRAINING, the values of `Place.closed` that placement distinguishes; others are the place's own words."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What one session asks for. Its claim covers instantiation, slot and clean-up; `ports` in it is a count.

    `movable` says whether it may start later, as an ASAP session may and a booked slot may not. `refused` are the
    places, by id, that were asked lately and said no, each with the filter and the reason; they may take others.
    """

    name: str
    claim: Claim
    lab_type: LabType = LabType.CML
    affinity: LicenseFlavour | None = None
    track: str = ""
    region_required: str | None = None
    region_preferred: str | None = None
    cml_version_min: str | None = None
    cml_version_max: str | None = None
    node_definitions: frozenset[str] = frozenset()
    require_licensed: bool = True
    allow_spot: bool = False
    movable: bool = True
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)


class Place(msgspec.Struct, frozen=True):
    """Somewhere a session can go: a worker, or a seat of a pool that has no worker yet.

    `closed` is a word for why it takes no sessions now ("" if it does). `licensed` None and `version` "" mean unknown:
    a seat's template promises them. A `spot` machine may be taken away by the cloud. `usable_at` is when a booting
    machine, or a seat opened now, can be used: it takes nothing that begins earlier. `template` is what a seat's worker
    would be made from, and `usd_hourly` what that costs. `whole` is what a worker holds without the labs on it that no
    session made, if there are any. `until` is when a machine of a smaller type makes way for another.
    """

    id: str
    name: str
    capacity: Amount
    region: str
    track: str = ""
    lab_types: frozenset[LabType] = frozenset({LabType.CML})
    licence: LicenseFlavour = LicenseFlavour.ENTERPRISE
    licensed: bool | None = True
    spot: bool = False
    version: str = ""
    node_definitions: frozenset[str] | None = None
    closed: str = ""
    usable_at: datetime | None = None
    seat: bool = False
    template: str = ""
    usd_hourly: Decimal | None = None
    whole: Amount | None = None
    until: datetime | None = None


def is_unopened_seat(place: Place) -> bool:
    """Return whether a place is a seat whose worker has not been started."""
    return place.seat and place.closed != BOOTING


class HeldClaim(msgspec.Struct, frozen=True):
    """A claim on a place, and who holds it. Labs that no session made hold without an end."""

    holder: str
    claim: Claim
