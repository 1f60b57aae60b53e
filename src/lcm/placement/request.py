"""The values of placement: what a session asks for, and where it could go."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.worker import LabType, LicenseFlavour

DRAINING: Final = "draining"
BOOTING: Final = "booting"
"""The words of `Place.closed` that placement tells apart; any other is the place's own."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one session asks for. Its claim covers instantiation, slot and clean-up; `ports` in it is a count.

    `movable` tells whether it may start later, as an ASAP session may and a booked slot may not.
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
    movable: bool = True


class Place(msgspec.Struct, frozen=True):
    """Somewhere a session can go: a worker, or a seat of a pool that has no worker yet.

    `closed` says in a word why it takes none now ("" if it does); `licensed` and `version` are None and "" for what is
    not known, which a seat's template promises. `usable_at` is when a machine that boots, or a seat opened now, can be
    used: it takes nothing that begins earlier. `template` is what a seat's worker would be made of. `whole` is what a
    worker holds without the labs on it that no session made, if there are any.
    """

    id: str
    name: str
    capacity: Amount
    region: str
    track: str = ""
    lab_types: frozenset[LabType] = frozenset({LabType.CML})
    licence: LicenseFlavour = LicenseFlavour.ENTERPRISE
    licensed: bool | None = True
    version: str = ""
    node_definitions: frozenset[str] | None = None
    closed: str = ""
    usable_at: datetime | None = None
    seat: bool = False
    template: str = ""
    whole: Amount | None = None


class Held(msgspec.Struct, frozen=True):
    """A claim on a place, and whose it is. Foreign labs hold without an end."""

    holder: str
    claim: Claim
