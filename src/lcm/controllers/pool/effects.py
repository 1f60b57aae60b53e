"""Carries out a pool's plan: workers are created, resumed, paused and deleted.

Used by `PoolReconciler`. Every action may be repeated. A worker is created before its seat is recorded. If the leader
dies in between, the worker's labels name its pool and seat, and the next look finds it; a leader that does not know of
it yet is refused because the name is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Final

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.controllers.pool.demand import PoolPlan
from lcm.controllers.pool.view import POOL_LABEL, SEAT_LABEL, SMALL_LABEL, PoolView, seat_number, seat_spec
from lcm.model.base.errors import Conflict, Gone, Refused
from lcm.model.base.resource import Metadata, Owner, shorten_text
from lcm.model.kinds.pool import SmallRun
from lcm.model.kinds.worker import LabWorker

LAUNCH_BATCH: Final = 20
"""How many workers one look creates; the next look follows at once and creates more."""
_PREFIX_LIMIT: Final = 48
_log: Final = structlog.get_logger()


@dataclass(slots=True)
class AppliedPlan:
    """What one look did, and what was refused."""

    launched: dict[int, LabWorker] = field(default_factory=dict)
    resumed: dict[int, LabWorker] = field(default_factory=dict)
    paused: dict[int, LabWorker] = field(default_factory=dict)
    retired: list[LabWorker] = field(default_factory=list)
    removed: list[LabWorker] = field(default_factory=list)
    trouble: str = ""

    @property
    def has_additions(self) -> bool:
        """Whether workers were added."""
        return bool(self.launched or self.resumed)

    @property
    def has_removals(self) -> bool:
        """Whether workers were taken away."""
        return bool(self.paused or self.retired or self.removed)


class PoolEffects:
    """Carries out plans."""

    def __init__(self, plane: Plane, cache: Cache) -> None:
        self._plane = plane
        self._cache = cache

    async def apply(self, view: PoolView, plan: PoolPlan) -> AppliedPlan:
        """Carry out a plan; afterwards `plan.seats` includes the workers that were created for it."""
        done = AppliedPlan()
        for number in plan.launch[:LAUNCH_BATCH]:
            try:
                plan.seats[number] = done.launched[number] = await self._launch(view, number, plan.small.get(number))
            except Refused as error:
                done.trouble = shorten_text(f"cannot create a machine for planned worker {number}: {error}")
                break
        for number, worker in plan.resume.items():
            if (made := await self._set_wanted_state(worker, "running", seat=number)) is not None:
                plan.seats[number] = done.resumed[number] = made
        for number, worker in plan.pause.items():
            if (made := await self._set_wanted_state(worker, "stopped")) is not None:
                plan.seats[number] = done.paused[number] = made
        done.retired += [worker for worker in plan.retire if await self._set_wanted_state(worker, "stopped")]
        done.removed += [worker for worker in plan.remove if await self._remove(worker)]
        return done

    async def _launch(self, view: PoolView, number: int, run: SmallRun | None) -> LabWorker:
        namespace = view.pool.metadata.namespace
        made = await self._plane.create(
            seat_worker(view, number, lambda name: self._cache.get(Ref(LabWorker, name, namespace)) is not None, run)
        )
        self._cache.accept(made)
        _log.info("worker launched", pool=str(ref_of(view.pool)), seat=number, worker=made.metadata.name)
        return made

    async def _set_wanted_state(self, worker: LabWorker, state: str, seat: int | None = None) -> LabWorker | None:
        """Set a worker's wanted state, and the seat that it is for. None means that it changed meanwhile.

        The next look decides again then.
        """
        ref, at = ref_of(worker), worker.metadata.resource_version
        moves = seat is not None and seat_number(worker) not in {None, seat}
        label = {"metadata": {"labels": {SEAT_LABEL: str(seat)}}} if moves else {}
        try:
            made = await self._plane.patch(ref, {"spec": {"wanted_state": state}, **label}, at=at)
        except (Conflict, Gone):
            return None
        self._cache.accept(made)
        _log.info("worker wanted", worker=str(ref), state=state)
        return made

    async def _remove(self, worker: LabWorker) -> bool:
        """Request a worker's deletion. Return False if it changed meanwhile."""
        ref = ref_of(worker)
        try:
            left = await self._plane.delete(ref, at=worker.metadata.resource_version)
        except (Conflict, Gone):
            return False
        if left.metadata.finalizers:
            self._cache.accept(left)
        _log.info("worker given up", worker=str(ref), phase=str(worker.status.phase))
        return True


def seat_worker(view: PoolView, number: int, is_taken: Callable[[str], bool], run: SmallRun | None = None) -> LabWorker:
    """Return the worker to create for a seat, as the template defines it, under a name that is not taken."""
    pool, template = view.pool, view.template.spec
    small = {SMALL_LABEL: run.instance_type} if run else {}
    return LabWorker(
        metadata=Metadata(
            name=_free_name(template.name_prefix, number, is_taken),
            namespace=pool.metadata.namespace,
            labels={**template.labels, POOL_LABEL: pool.metadata.name, SEAT_LABEL: str(number), **small},
            annotations=template.annotations,
            owner=Owner(kind=pool.kind, name=pool.metadata.name, uid=pool.metadata.uid),
        ),
        spec=seat_spec(view, run),
    )


def _free_name(prefix: str, number: int, is_taken: Callable[[str], bool]) -> str:
    first = f"{prefix[:_PREFIX_LIMIT].rstrip('.:-')}-{number}"
    others = (f"{first}-{again}" for again in count(2))
    return next(name for name in chain([first], others) if not is_taken(name))
