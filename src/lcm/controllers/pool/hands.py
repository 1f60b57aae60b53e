"""What is done for a plan: workers are made, resumed, paused, deleted. Every verb may be repeated. Used by `follower`.

A worker is made before it is written down. Whoever dies in between leaves one that names its pool and its seat, by
which the next look finds it; and who does not know of it yet is told that its name is taken.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from lcm.control.cache import Cache
from lcm.control.plane import Plane, ref_of
from lcm.controllers.pool.demand import Plan
from lcm.controllers.pool.view import POOL_LABEL, SEAT_LABEL, View
from lcm.model.errors import Conflict, Gone, Refused
from lcm.model.resource import Metadata, Owner
from lcm.model.worker import LabWorker

AT_ONCE: Final = 20
"""Workers that one look makes; the next, which comes at once, makes more."""
_LONGEST_PREFIX: Final = 48
_log: Final = structlog.get_logger()


@dataclass(slots=True)
class Done:
    """What a look did, by name, and what was refused."""

    launched: dict[int, LabWorker] = field(default_factory=dict)
    resumed: dict[int, LabWorker] = field(default_factory=dict)
    paused: dict[int, LabWorker] = field(default_factory=dict)
    retired: list[LabWorker] = field(default_factory=list)
    removed: list[LabWorker] = field(default_factory=list)
    trouble: str = ""

    @property
    def up(self) -> bool:
        """Whether workers were added."""
        return bool(self.launched or self.resumed)

    @property
    def down(self) -> bool:
        """Whether workers were taken away."""
        return bool(self.paused or self.retired or self.removed)


class Hands:
    """Carries plans out."""

    def __init__(self, plane: Plane, cache: Cache) -> None:
        self._plane = plane
        self._cache = cache

    async def do(self, view: View, plan: Plan) -> Done:
        """Do what a plan says; `plan.seats` has the workers made for it afterwards."""
        done = Done()
        for number in plan.launch[:AT_ONCE]:
            try:
                plan.seats[number] = done.launched[number] = await self._launch(view, number)
            except Refused as error:
                done.trouble = f"no worker can be made for seat {number}: {error}"[:2000]
                break
        for number, worker in plan.resume.items():
            if (made := await self._want(worker, "running")) is not None:
                plan.seats[number] = done.resumed[number] = made
        for number, worker in plan.pause.items():
            if (made := await self._want(worker, "stopped")) is not None:
                plan.seats[number] = done.paused[number] = made
        done.retired += [worker for worker in plan.retire if await self._want(worker, "stopped")]
        done.removed += [worker for worker in plan.remove if await self._remove(worker)]
        return done

    async def _launch(self, view: View, number: int) -> LabWorker:
        namespace = view.pool.metadata.namespace
        taken = {one.metadata.name for one in self._cache.all(LabWorker) if one.metadata.namespace == namespace}
        made = await self._plane.create(described(view, number, taken))
        self._cache.accept(made)
        _log.info("worker launched", pool=str(ref_of(view.pool)), seat=number, worker=made.metadata.name)
        return made

    async def _want(self, worker: LabWorker, state: str) -> LabWorker | None:
        """Want a worker running or stopped; None if it changed meanwhile, which the next look will judge."""
        ref, at = ref_of(worker), worker.metadata.resource_version
        try:
            made = await self._plane.patch(ref, {"spec": {"wanted_state": state}}, at=at)
        except (Conflict, Gone):
            return None
        self._cache.accept(made)
        _log.info("worker wanted", worker=str(ref), state=state)
        return made

    async def _remove(self, worker: LabWorker) -> bool:
        """Ask for a worker to go; tells whether it was as it had been seen."""
        ref = ref_of(worker)
        try:
            left = await self._plane.delete(ref, at=worker.metadata.resource_version)
        except (Conflict, Gone):
            return False
        if left.metadata.finalizers:
            self._cache.accept(left)
        _log.info("worker given up", worker=str(ref), phase=str(worker.status.phase))
        return True


def described(view: View, number: int, taken: Collection[str]) -> LabWorker:
    """Describe the worker of a seat, as its template says."""
    pool, template = view.pool, view.template.spec
    return LabWorker(
        metadata=Metadata(
            name=_free_name(template.name_prefix, number, taken),
            namespace=pool.metadata.namespace,
            labels={**template.labels, POOL_LABEL: pool.metadata.name, SEAT_LABEL: str(number)},
            annotations=template.annotations,
            owner=Owner(kind=pool.kind, name=pool.metadata.name, uid=pool.metadata.uid),
        ),
        spec=msgspec.structs.replace(template.worker, lab_track=pool.spec.lab_track, wanted_state="running"),
    )


def _free_name(prefix: str, number: int, taken: Collection[str]) -> str:
    first = f"{prefix[:_LONGEST_PREFIX].rstrip('.:-')}-{number}"
    if first not in taken:
        return first
    return next(name for again in range(2, len(taken) + 3) if (name := f"{first}-{again}") not in taken)
