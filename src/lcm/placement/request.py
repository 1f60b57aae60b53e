"""The values of placement: what a session asks for, and where it could go."""

from dataclasses import dataclass
from datetime import datetime

from lcm.model.capacity import Amount, Claim
from lcm.model.worker import LabType, LicenseFlavour


@dataclass(frozen=True, slots=True)
class Request:
    """What one session asks for. Its claim covers instantiation, slot and clean-up; `ports` in it is a count."""

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


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere a session can go: a worker, or a seat of a pool that has no worker yet.

    `closed` says in a word why it takes none now ("" if it does); `licensed` and `version` are None and "" for what is
    not known, which a seat's template promises. `usable_at` is when a machine that boots can be used.
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


@dataclass(frozen=True, slots=True)
class Held:
    """A claim on a place, and whose it is. Foreign labs hold without an end."""

    holder: str
    claim: Claim
