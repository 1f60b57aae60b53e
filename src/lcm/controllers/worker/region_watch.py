"""What is asked of whole regions: which spot machines are taken away, and whether templates can be launched there.

Run by `controller`. `SpotWatch` asks every few seconds, about all spot workers of a region at once, and only where
there are any; what it sees is written into the worker's facts, and the lifecycle acts by them. `TemplateCheck` asks
seldom, and when a template or a pool changes. A template that is in order has no condition, unless it once was not.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, TypeVar

import structlog
from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, Plane, ref_of
from lcm.controllers.worker.measure import MEASURED
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Gone, Later, Refused, Stuck
from lcm.model.base.resource import Condition, Truth, find_condition, shorten_text, with_condition
from lcm.model.kinds.pool import LabWorkerPool, TemplateCondition, WorkerTemplate
from lcm.model.kinds.worker import LabWorker, LabWorkerSpec, is_spot
from lcm.providers.protocols.compute import Compute, MachineType
from lcm.system.tasks import cancel_and_wait

SPOT_INTERVAL: Final = timedelta(seconds=10)
"""How often spot machines are asked about: their notice is two minutes long."""
TEMPLATE_INTERVAL: Final = timedelta(hours=1)
T = TypeVar("T")
_log: Final = structlog.get_logger()


class _RegionQuestions:
    """Questions to the cloud. That it does not answer in a region is logged once, until it does."""

    def __init__(self) -> None:
        self._silent: set[str] = set()

    async def ask(self, region: str, question: Awaitable[T]) -> T | None:
        """Return an answer; None if there was none."""
        try:
            answer = await question
        except (Later, Stuck) as error:
            if region not in self._silent:
                _log.warning("the cloud does not say", region=region, error=str(error))
            self._silent.add(region)
            return None
        self._silent.discard(region)
        return answer


class SpotWatch:
    """Writes down when the cloud takes machines away, as soon as it says so."""

    def __init__(self, plane: Plane, cache: Cache, cloud: Compute, *, every: timedelta = SPOT_INTERVAL) -> None:
        self._plane = plane
        self._cache = cache
        self._cloud = cloud
        self._every = every
        self._questions = _RegionQuestions()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled. Where there is no spot worker, nobody is asked and nothing is waited for."""
        await self._cache.ready()
        end, looks = self._cache.subscribe(self._on_change), dict[str, asyncio.Task[None]]()
        try:
            while True:
                self._changed.clear()
                workers = self._watched_workers()
                for region, here in workers.items():
                    if region in looks and not looks[region].done():
                        continue  # a region that is slow to answer keeps no other from being asked
                    if region in looks:
                        looks[region].result()
                    looks[region] = asyncio.create_task(self._look(region, here))
                if workers:
                    await asyncio.sleep(self._every.total_seconds())
                else:
                    await self._changed.wait()
        finally:
            end()
            await cancel_and_wait(list(looks.values()))

    def _on_change(self, seen: ObjectChange) -> None:
        if isinstance(seen.resource, LabWorker) and is_spot(seen.resource):
            self._changed.set()

    def _watched_workers(self) -> Mapping[str, Sequence[LabWorker]]:
        """Return the spot workers that have a machine and no notice yet, by region."""
        found: defaultdict[str, list[LabWorker]] = defaultdict(list)
        for one in self._cache.all(LabWorker):
            facts = one.status.ec2
            if is_spot(one) and facts.instance_id and one.status.phase in MEASURED and facts.reclaim_at is None:
                found[one.spec.aws.region].append(one)
        return found

    async def _look(self, region: str, workers: Sequence[LabWorker]) -> None:
        marked = await self._questions.ask(region, self._cloud.list_reclaimed(region))
        for worker in workers if marked else ():
            at = (marked or {}).get(worker.status.ec2.instance_id)
            if at is not None:
                await self._note(worker, at)

    async def _note(self, worker: LabWorker, at: datetime) -> None:
        status = replace(worker.status, ec2=replace(worker.status.ec2, reclaim_at=at))
        with suppress(Conflict, Gone, Refused, Later):  # it has changed, or cannot be written: the next look is soon
            self._cache.accept(await self._plane.step(worker, status))
            _log.warning("spot machine is taken away", worker=worker.metadata.name, at=f"{at:%Y-%m-%dT%H:%M:%SZ}")


Finding = tuple[str, str]
"""Why a template cannot be launched: a word, and a sentence with the remedy."""


def judge_template(
    spec: LabWorkerSpec, types: Mapping[str, MachineType], quota: int | None, most_workers: int
) -> Finding | None:
    """Return why machines of a template cannot be launched, or not as many as its pools plan; None if they can. Pure.

    `types` are those of its types that the region offers.
    """
    aws = spec.aws
    wanted = dict.fromkeys((aws.instance_type, *aws.instance_type_alternatives))
    missing = [one for one in wanted if one not in types]
    if missing:
        return "TypeNotOffered", f"{missing[0]} is not offered in {aws.region}: use another type, or another region"
    unable = [one for one in wanted if not types[one].metal and not (types[one].nested and aws.nested_virtualization)]
    if unable and spec.host_kind == "cml":
        known = types[unable[0]].nested
        remedy = "set nested_virtualization to true" if known else "use a metal type, or a c8i, m8i or r8i"
        return "NoVirtualization", f"{unable[0]} is not metal and does not nest virtual machines: {remedy}"
    vcpus = max(types[one].vcpus for one in wanted)
    if quota is not None and quota < vcpus * most_workers:
        need = f"{most_workers} machines of {vcpus} vCPUs" if most_workers > 1 else f"a machine of {vcpus} vCPUs"
        return "QuotaTooSmall", f"the quota of {quota} vCPUs in {aws.region} is too small for {need}: ask AWS for more"
    return None


def with_finding(template: WorkerTemplate, found: Finding | None, now: datetime) -> WorkerTemplate:
    """Return a template whose condition says what was found; the same one if that is no news."""
    known = find_condition(template.status.conditions, TemplateCondition.LAUNCHABLE)
    if found is None and known is None:
        return template
    reason, message = found or ("Offered", "")
    new = Condition(
        type=TemplateCondition.LAUNCHABLE,
        status=Truth.FALSE if found else Truth.TRUE,
        last_transition_at=now,
        reason=reason,
        message=shorten_text(message),
    )
    conditions = with_condition(template.status.conditions, new)
    return replace(template, status=replace(template.status, conditions=conditions))


class TemplateCheck:
    """Compares templates with what their regions offer."""

    def __init__(self, plane: Plane, cache: Cache, cloud: Compute, *, clock: Clock) -> None:
        self._plane = plane
        self._cache = cache
        self._cloud = cloud
        self._clock = clock
        self._questions = _RegionQuestions()
        self._changed = asyncio.Event()
        self._judged: dict[object, object] = {}
        """The spec by which each template was last judged, and the largest of its pools."""

    async def run(self) -> None:
        """Check until cancelled: at once what is new or was changed, and all once an interval."""
        await self._cache.ready()
        end = self._cache.subscribe(self._on_change)
        try:
            while True:
                self._changed.clear()
                for template in self._cache.all(WorkerTemplate):
                    await self._check(template)
                try:
                    async with asyncio.timeout(TEMPLATE_INTERVAL.total_seconds()):
                        await self._changed.wait()
                except TimeoutError:
                    self._judged.clear()
        finally:
            end()

    def _on_change(self, seen: ObjectChange) -> None:
        before, after = (one.spec if isinstance(one, _CHECKED) else None for one in (seen.before, seen.resource))
        if before != after:
            self._changed.set()

    async def _check(self, template: WorkerTemplate) -> None:
        aws, ref, most = template.spec.worker.aws, ref_of(template), self._most_workers(template)
        judged = aws, template.spec.smaller_types, most
        if self._judged.get(ref) == judged:
            return
        others = (*aws.instance_type_alternatives, *template.spec.smaller_types)
        names = (aws.instance_type, *others)
        types = await self._questions.ask(aws.region, self._cloud.machine_types(aws.region, names))
        if types is None:
            return  # no answer says nothing about the template
        asking = self._cloud.vcpu_quota(aws.region, aws.instance_type, spot=aws.market == "spot")
        quota = await self._questions.ask(aws.region, asking)
        self._judged[ref] = judged
        wanted = replace(template.spec.worker, aws=replace(aws, instance_type_alternatives=others))
        made = with_finding(template, judge_template(wanted, types, quota, most), self._clock.now())
        if made.status != template.status:
            with suppress(Conflict, Gone, Refused):
                self._cache.accept(await self._plane.step(template, made.status))

    def _most_workers(self, template: WorkerTemplate) -> int:
        """Return how many workers the largest pool of a template plans."""
        own = template.metadata.namespace, template.metadata.name
        pools = (one for one in self._cache.all(LabWorkerPool) if (one.metadata.namespace, one.spec.template) == own)
        return max((one.spec.max_workers for one in pools), default=1)


_CHECKED: Final = (WorkerTemplate, LabWorkerPool)
