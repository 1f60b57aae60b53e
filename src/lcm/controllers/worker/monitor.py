"""Measures every worker once per interval and keeps its status in step with what is seen of it. Run by `compose`.

Each worker has its moment in the interval, so that the load is even, and a task of its own, so that none waits for
another. The cloud is asked once per region. Phases are not touched: whoever decides on them hears of every fact that
changed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Seen, WorkerRef, ref_of
from lcm.controllers.worker import measure
from lcm.controllers.worker.measure import CloudView, Heard, HostView, Ours, ours
from lcm.controllers.worker.polling import Census, ask, next_slot, turn
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Gone, Later, LcmError, Refused, Stuck
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker, LabWorkerStatus, WorkerPhase, WorkerTelemetry
from lcm.providers.protocols.compute import Compute, InstanceState
from lcm.providers.protocols.labhost import Hosts
from lcm.settings.load import Settings
from lcm.system.tasks import ended

THRESHOLD: Final = 90.0
CALM: Final = 10.0
"""How far below the threshold a value must fall before crossing it is worth another line."""
_log: Final = structlog.get_logger()
_LINES: Final = {
    "cpu": ("HIGH CPU", "cpu_utilization"),
    "memory": ("HIGH MEMORY", "memory_utilization"),
    "disk": ("HIGH DISK", "storage_utilization"),
}


class MonitorLog:
    """Remembers what was said last about each worker."""

    def __init__(self) -> None:
        self._trouble: dict[object, str] = {}
        self._high: set[tuple[WorkerRef, str]] = set()

    def collected(self, ref: WorkerRef, found: WorkerTelemetry) -> None:
        """Say that a worker was measured, and which values have become too high."""
        first = self._trouble.get(ref) != ""
        self._trouble[ref] = ""
        tell = _log.info if first else _log.debug
        tell("Collected metrics for worker", **_keys(ref), cpu=found.cpu_utilization, memory=found.memory_utilization)
        for metric, (message, field) in _LINES.items():
            self._value(ref, metric, message, getattr(found, field))

    def failed(self, ref: WorkerRef, error: LcmError) -> None:
        """Say that a worker could not be measured, unless that was said already."""
        if self._news(ref, error):
            _log.warning("Failed to collect metrics for worker", **_keys(ref), error=str(error))

    def region(self, region: str, error: LcmError | None) -> None:
        """Say that the cloud does not answer in a region, or does again."""
        if error is None and self._trouble.pop(region, ""):
            _log.info("Collected facts of region again", region=region)
        elif error is not None and self._news(region, error):
            _log.warning("Failed to collect facts of region", region=region, error=str(error))

    def started(self, ref: WorkerRef) -> None:
        """Say that a worker is measured from now on."""
        _log.info("Started monitoring worker", **_keys(ref))

    def stopped(self, ref: WorkerRef) -> None:
        """Say that a worker is measured no more, and forget it."""
        self._trouble.pop(ref, None)
        self._high = {one for one in self._high if one[0] != ref}
        _log.info("Stopped monitoring worker", **_keys(ref))

    def _news(self, key: object, error: LcmError) -> bool:
        kind = type(error).__name__
        known = self._trouble.get(key)
        self._trouble[key] = kind
        return known != kind

    def _value(self, ref: WorkerRef, metric: str, message: str, value: float | None) -> None:
        if value is None:
            return
        if value >= THRESHOLD and (ref, metric) not in self._high:
            self._high.add((ref, metric))
            _log.warning(message, **_keys(ref), value=value, threshold=THRESHOLD)
            _log.warning("Threshold Violation", **_keys(ref), metric=metric, value=value, threshold=THRESHOLD)
        elif value < THRESHOLD - CALM:
            self._high.discard((ref, metric))


def _keys(ref: WorkerRef) -> dict[str, Any]:
    return {"worker": f"{ref.namespace}/{ref.name}"}


AT_ONCE: Final = 512
"""How many are measured at once: enough to try a thousand that never answer once a minute each."""
GLANCE: Final = timedelta(seconds=60)
"""How long changed settings may go unnoticed, however long the interval is."""
SELDOM: Final = 10
"""In one of so many turns facts are read that hardly ever change."""
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_SOONEST: Final = timedelta(seconds=5)
_DOUBLINGS: Final = 16


class Monitor:
    """Has a task for each worker and for each region that there are workers in."""

    def __init__(
        self,
        plane: Plane,
        cache: Cache,
        cloud: Compute,
        hosts: Hosts,
        *,
        clock: Clock,
        chance: Callable[[], float],
        settings: Callable[[], Settings],
    ) -> None:
        """Measure the workers in the cache, which holds sessions too. `settings` gives those that count now."""
        self._plane = plane
        self._cache = cache
        self._cloud = cloud
        self._hosts = hosts
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._log = MonitorLog()
        self._workers: dict[WorkerRef, LabWorker] = {}
        self._regions: dict[str, Census] = {}
        self._tasks: dict[WorkerRef | str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._wake = asyncio.Event()
        self._failures: list[BaseException] = []
        self._ours: dict[str, Ours] | None = None
        self._heard: dict[WorkerRef, Heard] = {}
        self._on = False

    async def run(self) -> None:
        """Measure until cancelled, or until an error rises that ends the term."""
        await self._cache.ready()
        end = self._cache.subscribe(self._note)
        try:
            while not self._failures:
                self._wake.clear()
                await self._adjust()
                with suppress(TimeoutError):
                    async with asyncio.timeout(GLANCE.total_seconds()):
                        await self._wake.wait()
            raise self._failures[0]
        finally:
            end()
            await ended(list(self._tasks.values()))
            self._tasks.clear()

    @property
    def _interval(self) -> timedelta:
        return timedelta(seconds=self._settings().metrics_poll_interval)

    def _note(self, seen: Seen) -> None:
        if seen.ref.kind is LabletSession:
            self._ours = None
        elif seen.ref.kind is SystemSettings:
            self._wake.set()
        elif seen.ref.kind is LabWorker:
            measured = isinstance(seen.resource, LabWorker) and _measured(seen.resource)
            if measured is not (seen.ref in self._workers):
                self._wake.set()

    async def _adjust(self) -> None:
        """Begin with the workers that came, and end with those that went."""
        on = self._settings().worker_monitoring_enabled
        if on is not self._on:
            self._on = on
            word = "Starting worker monitoring" if on else "Stopping worker monitoring"
            _log.info(word, interval_seconds=self._interval.total_seconds())
        wanted = {ref_of(one): one for one in self._cache.all(LabWorker) if _measured(one)} if on else {}
        for ref in [ref for ref in self._workers if ref not in wanted]:
            await self._leave(ref)
        for ref, worker in wanted.items():
            if ref not in self._workers:
                self._begin(ref, worker)
        regions = {worker.spec.aws.region for worker in wanted.values()}
        for region in [region for region in self._regions if region not in regions]:
            del self._regions[region]
            await ended([self._tasks.pop(region)])

    def _begin(self, ref: WorkerRef, worker: LabWorker) -> None:
        region = worker.spec.aws.region
        if region not in self._regions:
            self._regions[region] = Census(self._cloud, self._clock, region)
            self._start(region, self._survey(self._regions[region]))
        self._workers[ref] = worker
        self._log.started(ref)
        self._start(ref, self._look_after(ref))

    async def _leave(self, ref: WorkerRef) -> None:
        worker = self._workers.pop(ref)
        await ended([self._tasks.pop(ref)])
        self._heard.pop(ref, None)
        self._log.stopped(ref)
        known = self._cache.get(ref)
        if known is None or known.status.phase is WorkerPhase.TERMINATED:
            await self._hosts.forget(worker)

    def _start(self, key: WorkerRef | str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[key] = task
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._failures.append(error)
            self._wake.set()

    async def _until_slot(self, name: str, last: datetime) -> datetime:
        """Wait for a name's next moment after the last one; a changed interval counts at once."""
        every, now = self._interval, self._clock.now()
        due = next_slot(name, every, after=max(last, now))
        while due > now:
            await asyncio.sleep(min(due - now, GLANCE).total_seconds())
            now = self._clock.now()
            if self._interval != every:
                every = self._interval
                due = next_slot(name, every, after=max(last, now))
        return due

    async def _survey(self, census: Census) -> None:
        last, failures = self._clock.now(), 0
        while True:
            workers = [one for one in self._cache.all(LabWorker) if _measured(one)]
            here = [one for one in workers if one.spec.aws.region == census.region]
            error = await census.take(here)
            self._log.region(census.region, error)
            for worker in here:
                await self._guarded(ref_of(worker), self._synchronise(ref_of(worker), census))
            if error is None or census.listed:  # what else failed is not worth asking everything again
                last, failures = await self._until_slot(census.region, last), 0
            else:
                await asyncio.sleep(self._pause(error, failures).total_seconds())
                failures += 1

    def _pause(self, error: LcmError, failures: int) -> timedelta:
        said: timedelta = error.after if isinstance(error, Later) else self._interval
        longer = max(said, _SOONEST) * (1 << min(failures, _DOUBLINGS))
        return min(longer, self._interval) * (1 + self._chance() / 2)

    async def _synchronise(self, ref: WorkerRef, census: Census) -> None:
        """Report what the cloud said of a machine, if it is news.

        The list is a moment old, and the lifecycle may have seen what came after. So news of the machine itself is
        looked at again, after the worker was read that it is held against.
        """
        worker = self._cache.get(ref)
        view = census.of(worker) if worker else None
        if worker is None or view is None or self._with_cloud(worker, view) == worker.status:
            return
        if measure.contradicts(worker.status, view):
            view = replace(view, instance=await census.look(worker))
        await self._put(worker, self._with_cloud(worker, view))

    def _with_cloud(self, worker: LabWorker, view: CloudView) -> LabWorkerStatus:
        return measure.with_cloud(worker.status, view, self._clock.now())

    async def _look_after(self, ref: WorkerRef) -> None:
        last, uid = self._clock.now(), self._workers[ref].metadata.uid
        while True:
            last = await self._until_slot(uid, last)
            async with self._places:
                await self._guarded(ref, self._measure(ref, last))

    async def _measure(self, ref: WorkerRef, slot: datetime) -> None:
        worker = self._cache.get(ref)
        if worker is None or not _measured(worker):
            return
        census = self._regions.get(worker.spec.aws.region)
        cloud = census.of(worker) if census else None
        host = await self._ask(ref, worker, slot) if _up(worker, cloud) else None
        now = self._clock.now()
        found = measure.telemetry(cloud, host, last_activity_at=self._activity(ref, host), now=now)
        if found is not None:
            await self._plane.report(ref, found)
        if host is not None and host.error is not None:
            self._log.failed(ref, host.error)
        elif found is not None:
            self._log.collected(ref, found)
        here = self._sessions().get(worker.metadata.uid, Ours())
        await self._put(worker, measure.with_host(worker, host, here, now))

    async def _ask(self, ref: WorkerRef, worker: LabWorker, slot: datetime) -> HostView:
        known = self._heard.get(ref)
        since = known.newest if known and known.newest else _EVER
        seldom = turn(worker.metadata.uid, self._interval, slot) % SELDOM == 0
        return await ask(self._hosts, worker, now=self._clock.now(), since=since, seldom=seldom)

    def _activity(self, ref: WorkerRef, host: HostView | None) -> datetime | None:
        """Tell when somebody was last active; remembered only so that CML's whole record is not read each time."""
        if host is None or host.activity is None:
            return None
        self._heard[ref] = measure.heard(host.activity, host.at, self._heard.get(ref))
        return self._heard[ref].happened_at

    def _sessions(self) -> dict[str, Ours]:
        if self._ours is None:
            self._ours = ours(self._cache.all(LabletSession))
        return self._ours

    async def _put(self, worker: LabWorker, status: LabWorkerStatus) -> None:
        if status != worker.status:
            self._cache.accept(await self._plane.step(worker, status))

    async def _guarded(self, ref: WorkerRef, work: Coroutine[Any, Any, None]) -> None:
        """Let what goes wrong with one worker concern no other; it is tried again at its next moment."""
        try:
            await work
        except (Conflict, Gone):
            pass  # somebody knows more: what was seen before is not held against what is now
        except (Later, Stuck, Refused) as error:
            self._log.failed(ref, error)


def _measured(worker: LabWorker) -> bool:
    status = worker.status
    return bool(status.ec2.instance_id) and status.ec2.gone_at is None and status.phase in measure.MEASURED


def _up(worker: LabWorker, cloud: CloudView | None) -> bool:
    """Tell whether CML should answer; where the cloud is silent it may."""
    if worker.status.phase not in measure.SERVING or not worker.status.cml.api_url:
        return False
    return cloud is None or (cloud.instance is not None and cloud.instance.state is InstanceState.RUNNING)
