"""What the sessions of a definition taught, as the store keeps it and as people are told. Called by `local`.

Samples have a key of their own, which goes with the definition: they must not make each list of definitions longer.
"""

from typing import Final

from lcm.control.ledger import Ledger
from lcm.control.plane import Ref
from lcm.control.records import CODEC, find, observations_key
from lcm.model.definition import LabletDefinition
from lcm.model.identity import SEES_ALL
from lcm.model.learning import ObservationReport, Review, Samples, report_on
from lcm.model.rules import SETTINGS_NAME
from lcm.model.settings import SystemSettings
from lcm.store.base import ABSENT, Store

USUAL: Final = Review()


async def read_samples(store: Store, definition: LabletDefinition) -> tuple[Samples, int]:
    """Read a definition's samples, and the revision at which they are so."""
    entry = await store.get(observations_key(definition))
    return (CODEC.decode(entry.value, Samples), entry.revision) if entry else (Samples(), ABSENT)


async def review_by(store: Store, usual: Review) -> Review:
    """Say by what definitions are reviewed: what the process was told, unless the SystemSettings object says more."""
    found = await find(store, Ref(SystemSettings, SETTINGS_NAME))
    return usual.under(found.resource if found else None)


async def report(ledger: Ledger, ref: Ref[LabletDefinition]) -> ObservationReport:
    """Tell what the sessions of a definition taught."""
    found = await ledger.need(ref)
    samples, _ = await read_samples(ledger.store, found.resource)
    return report_on(found.resource, samples, named=ledger.caller.role in SEES_ALL)
