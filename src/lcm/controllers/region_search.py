"""One look at one region: what runs there, which of it has no record, and records for that. Called by `discover`.

The cloud is listed before the records are read: a record made in between is then seen. Nothing is ever written off: of
what a list does not show, its own controller is asked to look.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from lcm.control.plane import BulkImport, DiscoveredInstance, Plane, Ref, WorkerRef
from lcm.controllers.orphans import UNKNOWN, Sorting, Stray
from lcm.model.clock import Clock
from lcm.model.worker import LabWorker
from lcm.providers.compute import ENDING, WORKER_TAG, Compute, Instance

STRANGERS: Final = "worker-controller-discovery"
ORPHANS: Final = "worker-controller-orphan"
BATCH: Final = 200
"""So many instances go into one import, which over HTTP is one request with a limited body."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found in a region. With an `error` nothing is known about it."""

    region: str
    at: datetime
    found: int = 0
    known: int = 0
    imported: int = 0
    orphans: int = 0
    strays: Sequence[Stray] = ()
    workers: Sequence[LabWorker] = ()
    """Those of the region, with those just made of orphans."""
    error: str = ""


class RegionSearch:
    """Searches a region."""

    def __init__(self, plane: Plane, cloud: Compute, *, clock: Clock, poke: Callable[[WorkerRef], object]) -> None:
        self._plane = plane
        self._cloud = cloud
        self._clock = clock
        self._poke = poke

    async def run(self, region: str, pattern: str | None) -> Searched:
        """Search it once, for strangers too if there is a pattern. May be repeated, and stopped anywhere."""
        began = self._clock.now()
        owned = await self._cloud.list_owned(region)
        matching = () if pattern is None else await self._cloud.list_by_image(region, pattern)
        workers = await self._workers()
        sorted_out = Sorting(region, workers, self._clock.now()).sort(owned, matching)
        for ref in sorted_out.look_at:
            self._poke(ref)
        made = await self._import(region, STRANGERS, sorted_out.strangers)
        orphans = [_named(one) for one in sorted_out.orphans if await self._lives(one)]
        found_again = await self._read(await self._import(region, ORPHANS, orphans))
        return Searched(
            region,
            began,
            found=sorted_out.total,
            known=len(sorted_out.known),
            imported=len(made) + len(found_again),
            orphans=len(orphans),
            strays=[one for one in sorted_out.strays if await self._lives(one.instance)],
            workers=[*(one for one in workers if one.spec.aws.region == region), *found_again],
        )

    async def _workers(self) -> Sequence[LabWorker]:
        page = await self._plane.list(LabWorker)
        found = [*page.items]
        while page.next is not None:
            page = await self._plane.list(LabWorker, cursor=page.next)
            found += page.items
        return found

    async def _import(self, region: str, source: str, instances: Sequence[Instance]) -> Sequence[str]:
        made: list[str] = []
        for at in range(0, len(instances), BATCH):
            some = tuple(map(_discovered, instances[at : at + BATCH]))
            found = BulkImport(discovered_instances=some, aws_region=region, source=source)
            made += (await self._plane.import_workers(found)).imported
        return made

    async def _read(self, names: Sequence[str]) -> Sequence[LabWorker]:
        found = [await self._plane.get(Ref(LabWorker, name)) for name in names]
        return [one for one in found if one is not None]

    async def _lives(self, instance: Instance) -> bool:
        """Ask for one machine: between the list and the records it may have ended, and its record with it."""
        found = await self._cloud.find(instance.region, instance.instance_id)
        return found is not None and found.state not in ENDING


def _named(orphan: Instance) -> Instance:
    """Have an orphan say whose it was, by which everybody knows that it is one."""
    return msgspec.structs.replace(orphan, tags={WORKER_TAG: UNKNOWN, **orphan.tags})


def _discovered(instance: Instance) -> DiscoveredInstance:
    return DiscoveredInstance(
        instance_id=instance.instance_id,
        instance_type=instance.instance_type,
        state=str(instance.state),
        name=instance.tags.get("Name", ""),
        ami_id=instance.image_id,
        availability_zone=instance.zone,
        private_ip=instance.private_ip,
        public_ip=instance.public_ip,
        launched_at=instance.launched_at,
        tags=instance.tags,
    )
