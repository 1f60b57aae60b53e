"""A worker's measurements of the last day, minute by minute, an hour to a key. Written by `reports`, read by `local`.

They lie beside the objects: nobody watches them, and no object grows by them.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from lcm.control.ledger import Ledger
from lcm.control.plane import Sample, WorkerRef
from lcm.control.records import CODEC, history_prefix, written
from lcm.model.resource import Part
from lcm.model.worker import LabWorker
from lcm.store.base import ABSENT, Delete, Op, Put, Store, everything

KEPT: Final = timedelta(hours=24)
_HOUR: Final = "%Y%m%d%H"


class Hour(Part):
    """The samples of one hour, oldest first."""

    samples: tuple[Sample, ...] = ()

    def having(self, new: Sample) -> "Hour":
        """Add a sample; of one minute the last counts."""
        return Hour(samples=(*(one for one in self.samples if _minute(one.at) != _minute(new.at)), new))


async def recorded(store: Store, worker: LabWorker, sample: Sample) -> Sequence[Op]:
    """Say how the store keeps one more sample; those that are too old go when an hour begins."""
    prefix = history_prefix(worker)
    key = f"{prefix}{_hour(sample.at)}"
    entry = await store.get(key)
    hour = CODEC.decode(entry.value, Hour) if entry else Hour()
    put = Put(key, written(hour.having(sample)), at=entry.revision if entry else ABSENT)
    if entry is not None:
        return (put,)
    page = await everything(store, prefix)
    oldest = f"{prefix}{_hour(sample.at - KEPT)}"
    return (put, *(Delete(one.key) for one in page.entries if one.key < oldest))


async def history(ledger: Ledger, ref: WorkerRef, since: datetime) -> Sequence[Sample]:
    """Read a worker's samples from a moment on, oldest first."""
    record = await ledger.need(ref)
    since = max(since, ledger.clock.now() - KEPT)
    prefix = history_prefix(record.resource)
    page = await everything(ledger.store, prefix)
    hours = [entry for entry in page.entries if entry.key >= f"{prefix}{_hour(since)}"]
    samples = [one for entry in hours for one in CODEC.decode(entry.value, Hour).samples]
    return [one for one in samples if one.at >= since]


def _hour(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime(_HOUR)


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)
