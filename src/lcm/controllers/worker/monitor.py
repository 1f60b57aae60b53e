"""Measuring every worker once per interval and keeping its status in step with what is seen. `controller` runs it.

Each worker that serves has its slot in the interval, so that the load is even, and a task of its own, so that none
waits for another. The cloud is asked once per region, and knows all there is to know of the others. Phases are not
touched: the lifecycle hears of every fact that changed. `MonitorLog` writes what operators grep for, once per change;
after a failover it is logged once more.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, Plane, WorkerRef, ref_of
from lcm.controllers.worker import measure
from lcm.controllers.worker.measure import ActivityWatermark, CloudView, HostView, session_labs
from lcm.controllers.worker.occupants import Occupants
from lcm.controllers.worker.polling import RegionSnapshot, next_slot, poll_host, slot_number
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Gone, Later, LcmError, Refused, Stuck
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker, LabWorkerStatus, WorkerPhase, WorkerTelemetry
from lcm.model.telemetry.measurement import CPU, DISK, MEMORY, UsageThresholds, calm_percent
from lcm.providers.protocols.compute import Compute, InstanceState
from lcm.providers.protocols.labhost import Hosts
from lcm.settings.load import Settings
from lcm.system.tasks import TimeSlice, cancel_and_wait

_log: Final = structlog.get_logger()
_HIGH_MESSAGES: Final = {
    "cpu": ("HIGH CPU", CPU),
    "memory": ("HIGH MEMORY", MEMORY),
    "disk": ("HIGH DISK", DISK),
}


class MonitorLog:
    """Logs each change once, and remembers what was last logged about each worker."""

    def __init__(self) -> None:
        self._log = _log.bind()  # measurements are frequent, and binding costs more than a line that is not written
        self._last_errors: dict[object, str] = {}
        self._high: set[tuple[WorkerRef, str]] = set()

    def log_collected(self, ref: WorkerRef, found: WorkerTelemetry, thresholds: UsageThresholds) -> None:
        """Log that a worker was measured, and which values have become too high."""
        first = self._last_errors.get(ref) != ""
        self._last_errors[ref] = ""
        tell = self._log.info if first else self._log.debug
        tell(
            "Collected metrics for worker", **_log_keys(ref), cpu=found.cpu_utilization, memory=found.memory_utilization
        )
        for metric, (message, field) in _HIGH_MESSAGES.items():
            value: float | None = getattr(found, field)
            threshold = thresholds.of(field)
            if value is not None and value >= threshold and (ref, metric) not in self._high:
                self._high.add((ref, metric))
                _log.warning(message, **_log_keys(ref), value=value, threshold=threshold)
                _log.warning("Threshold Violation", **_log_keys(ref), metric=metric, value=value, threshold=threshold)
            elif value is not None and value < calm_percent(threshold):
                self._high.discard((ref, metric))

    def log_failed(self, ref: WorkerRef, error: LcmError) -> None:
        """Log that a worker could not be measured, unless that was logged already."""
        if self._is_news(ref, error):
            _log.warning("Failed to collect metrics for worker", **_log_keys(ref), error=str(error))

    def log_region(self, region: str, error: LcmError | None) -> None:
        """Log that the cloud does not answer in a region, or does again."""
        if error is None and self._last_errors.pop(region, ""):
            _log.info("Collected facts of region again", region=region)
        elif error is not None and self._is_news(region, error):
            _log.warning("Failed to collect facts of region", region=region, error=str(error))

    def log_stopped(self, ref: WorkerRef) -> None:
        """Log that a worker is no longer measured, and forget it."""
        self._last_errors.pop(ref, None)
        self._high = {one for one in self._high if one[0] != ref}
        _log.info("Stopped monitoring worker", **_log_keys(ref))

    def _is_news(self, key: object, error: LcmError) -> bool:
        kind = type(error).__name__
        known = self._last_errors.get(key)
        self._last_errors[key] = kind
        return known != kind


def _log_keys(ref: WorkerRef) -> dict[str, Any]:
    return {"worker": f"{ref.namespace}/{ref.name}"}


MAX_CONCURRENT: Final = 512
"""How many workers are measured at once: enough to try a thousand silent ones once a minute each."""
SLOW_FACTS_EVERY: Final = 10
"""Facts that hardly ever change are read in one of so many turns."""
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_MAX_SLEEP: Final = timedelta(hours=1)
_SHORTEST_PAUSE: Final = timedelta(seconds=5)
_MAX_DOUBLINGS: Final = 16
_OTHERS: Final = ""
"""Names the task for workers that do not serve; no region has such a name."""


class Monitor:
    """Runs one task for each worker that serves, one for all the others, and one for each region that has workers."""

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
        """Measure the workers in the cache, which holds sessions too. `settings` returns the current settings."""
        self._plane = plane
        self._cache = cache
        self._cloud = cloud
        self._hosts = hosts
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._log = MonitorLog()
        self._workers: dict[WorkerRef, LabWorker] = {}
        """All that are measured, as they were when that began."""
        self._changed: dict[WorkerRef, None] = {}
        """The workers that may have begun or ceased to be measured or to serve."""
        self._regions: dict[str, RegionSnapshot] = {}
        self._in_region: Counter[str] = Counter()
        self._tasks: dict[WorkerRef | str, asyncio.Task[None]] = {}
        self._permits = asyncio.Semaphore(MAX_CONCURRENT)
        self._wake = asyncio.Event()
        self._sleepers: dict[asyncio.Future[None], None] = {}
        """Those who wait for a time, or until settings change."""
        self._failures: list[BaseException] = []
        self._occupants = Occupants()
        self._watermarks: dict[WorkerRef, ActivityWatermark] = {}
        self._on = False
        self._time_slice = TimeSlice()

    async def run(self) -> None:
        """Measure until cancelled, or until an error ends the term."""
        await self._cache.ready()
        self._occupants = await Occupants.follow(self._cache)
        end = self._cache.subscribe(self._on_change)
        self._start_task(_OTHERS, self._measure_others())
        try:
            while not self._failures:
                self._wake.clear()
                await self._adjust_tasks()
                await self._wake.wait()
            raise self._failures[0]
        finally:
            end()
            self._occupants.stop()
            await cancel_and_wait(list(self._tasks.values()))
            self._tasks.clear()

    @property
    def _interval(self) -> timedelta:
        return timedelta(seconds=self._settings().metrics_poll_interval)

    def _on_change(self, seen: ObjectChange) -> None:
        if seen.ref.kind is SystemSettings:
            self._wake.set()
            for sleeper in self._sleepers:
                _wake(sleeper)
        elif seen.ref.kind is LabWorker:
            worker = seen.resource if isinstance(seen.resource, LabWorker) else None
            measured, serves = (_is_measured(worker), _serves(worker)) if worker else (False, False)
            if measured is not (seen.ref in self._workers) or (serves and seen.ref not in self._tasks):
                self._changed[seen.ref] = None
                self._wake.set()

    async def _adjust_tasks(self) -> None:
        """Start with the workers that came, and stop with those that went."""
        on = self._settings().worker_monitoring_enabled
        if on is not self._on:
            self._on = on
            word = "Starting worker monitoring" if on else "Stopping worker monitoring"
            _log.info(word, interval_seconds=self._interval.total_seconds())
            self._changed.update(dict.fromkeys(ref_of(one) for one in self._cache.all(LabWorker)))
        while self._changed:
            ref = next(iter(self._changed))
            del self._changed[ref]
            await self._adjust_worker(ref)
            await self._time_slice.yield_if_over()

    async def _adjust_worker(self, ref: WorkerRef) -> None:
        worker = self._cache.get(ref)
        if worker is None or not self._on or not _is_measured(worker):
            if ref in self._workers:
                await self._stop_worker(ref)
            return
        if ref not in self._workers:
            self._start_worker(ref, worker)
        outdated = measure.with_host(worker, None, measure.SessionLabs(), self._clock.now()) != worker.status
        if ref not in self._tasks and (_serves(worker) or outdated):
            self._start_task(ref, self._measure_in_slots(ref))

    def _start_worker(self, ref: WorkerRef, worker: LabWorker) -> None:
        region = worker.spec.aws.region
        if not self._in_region[region]:
            self._regions[region] = RegionSnapshot(self._cloud, self._clock, region)
            self._start_task(region, self._poll_region(self._regions[region]))
        self._in_region[region] += 1
        self._workers[ref] = worker
        _log.info("Started monitoring worker", **_log_keys(ref))

    async def _stop_worker(self, ref: WorkerRef) -> None:
        worker = self._workers.pop(ref)
        region = worker.spec.aws.region
        self._in_region[region] -= 1
        ended = [ref] if self._in_region[region] else [ref, region]
        await cancel_and_wait([self._tasks.pop(one) for one in ended if one in self._tasks])
        if not self._in_region[region]:
            del self._regions[region]
        self._watermarks.pop(ref, None)
        self._log.log_stopped(ref)
        known = self._cache.get(ref)
        if known is None or known.status.phase is WorkerPhase.TERMINATED:
            await self._hosts.forget(worker)

    def _start_task(self, key: WorkerRef | str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[key] = task
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._failures.append(error)
            self._wake.set()

    async def _wait_for_slot(self, name: str, last: datetime) -> datetime:
        """Wait for a name's next slot after the last one. A changed interval counts at once."""
        every, now = self._interval, self._clock.now()
        due = self._next_slot(name, max(last, now))
        while due > now:
            await self._sleep(due - now)
            now = self._clock.now()
            if self._interval != every:
                every = self._interval
                due = self._next_slot(name, max(last, now))
        return due

    def _next_slot(self, name: str, after: datetime) -> datetime:
        return next_slot(
            name, self._interval, after=after, workers=None if name in self._regions else len(self._workers)
        )

    async def _poll_region(self, census: RegionSnapshot) -> None:
        last, failures = self._clock.now(), 0
        while True:
            workers = [one for one in self._cache.all(LabWorker) if _is_measured(one)]
            here = [one for one in workers if one.spec.aws.region == census.region]
            error = await census.refresh(here)
            self._log.log_region(census.region, error)
            for worker in here:
                await self._isolate(ref_of(worker), self._report_cloud_facts(ref_of(worker), census))
                await self._time_slice.yield_if_over()
            if error is None or census.was_listed:  # other failures do not justify asking for everything again
                last, failures = await self._wait_for_slot(census.region, last), 0
            else:
                said: timedelta = error.after if isinstance(error, Later) else self._interval
                longer = max(said, _SHORTEST_PAUSE) * (1 << min(failures, _MAX_DOUBLINGS))
                pause = min(longer, self._interval) * (1 + self._chance() / 2)
                await asyncio.sleep(pause.total_seconds())
                failures += 1

    async def _report_cloud_facts(self, ref: WorkerRef, census: RegionSnapshot) -> None:
        """Report what the cloud said of a machine, if it is news.

        The list is a moment old, and the lifecycle may have seen what came after. So news of the machine itself is
        confirmed by asking again, after reading the worker that it is compared with.
        """
        worker = self._cache.get(ref)
        view = census.of(worker) if worker else None
        if worker is None or view is None or self._with_cloud(worker, view) == worker.status:
            return
        if measure.contradicts(worker.status, view):
            view = replace(view, instance=await census.look(worker))
        await self._report_status(worker, self._with_cloud(worker, view))

    def _with_cloud(self, worker: LabWorker, view: CloudView) -> LabWorkerStatus:
        return measure.with_cloud(worker.status, view, self._clock.now())

    async def _measure_in_slots(self, ref: WorkerRef) -> None:
        """Measure a worker until it no longer serves, and once more then."""
        last, uid = self._clock.now(), self._workers[ref].metadata.uid
        while True:
            last = await self._wait_for_slot(uid, last)
            async with self._permits:
                await self._isolate(ref, self._measure(ref, last))
            worker = self._cache.get(ref)
            if worker is None or not _serves(worker):
                del self._tasks[ref]
                return

    async def _measure_others(self) -> None:
        """Measure the workers that do not serve, seldom and one after the other."""
        while True:
            while not self._settings().worker_monitoring_enabled:
                await self._sleep(_MAX_SLEEP)
            others = [ref for ref in self._workers if ref not in self._tasks]
            await self._pause(SLOW_FACTS_EVERY / (len(others) + 1))
            for ref in others:
                if ref not in self._tasks:
                    await self._isolate(ref, self._measure(ref, self._clock.now()))
                await self._pause(SLOW_FACTS_EVERY / (len(others) + 1))

    async def _pause(self, intervals: float) -> None:
        """Wait for so many intervals. A changed interval counts at once."""
        began = now = self._clock.now()
        while now < began + self._interval * intervals:
            await self._sleep(began + self._interval * intervals - now)
            now = self._clock.now()

    async def _sleep(self, span: timedelta) -> None:
        """Wait for a time, or until settings change."""
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(span.total_seconds(), _wake, sleeper)
        self._sleepers[sleeper] = None
        try:
            await sleeper
        finally:
            timer.cancel()
            del self._sleepers[sleeper]

    async def _measure(self, ref: WorkerRef, slot: datetime) -> None:
        worker = self._cache.get(ref)
        if worker is None or not _is_measured(worker):
            return
        census = self._regions.get(worker.spec.aws.region)
        cloud = census.of(worker) if census else None
        serves = _serves(worker)
        # Where the cloud is silent CML may answer.
        runs = cloud is None or (cloud.instance is not None and cloud.instance.state is InstanceState.RUNNING)
        host = await self._poll_host(ref, worker, slot) if serves and runs else None
        now = self._clock.now()
        found = measure.telemetry(cloud, host, last_activity_at=self._last_activity_at(ref, host), now=now)
        if found is not None:
            await self._plane.report(ref, found)
        if host is not None and host.error is not None:
            self._log.log_failed(ref, host.error)
        elif found is not None:
            at = self._settings()
            limits = UsageThresholds(at.cpu_alert_percent, at.memory_alert_percent, at.disk_alert_percent)
            self._log.log_collected(ref, found, limits)
        here = session_labs(self._occupants.on(worker))
        await self._report_status(worker, measure.with_host(worker, host, here, now))

    async def _poll_host(self, ref: WorkerRef, worker: LabWorker, slot: datetime) -> HostView:
        known = self._watermarks.get(ref)
        since = known.newest if known and known.newest else _BEGINNING
        seldom = self._is_seldom(worker, slot)
        return await poll_host(self._hosts, worker, now=self._clock.now(), since=since, seldom=seldom)

    def _is_seldom(self, worker: LabWorker, slot: datetime) -> bool:
        """Return whether what hardly ever changes is read in a slot."""
        return slot_number(worker.metadata.uid, self._interval, slot) % SLOW_FACTS_EVERY == 0

    def _last_activity_at(self, ref: WorkerRef, host: HostView | None) -> datetime | None:
        """Return when somebody was last active. It is remembered only to avoid reading CML's whole record each time."""
        if host is None or host.activity is None:
            return None
        self._watermarks[ref] = measure.advance_watermark(host.activity, host.at, self._watermarks.get(ref))
        return self._watermarks[ref].happened_at

    async def _report_status(self, worker: LabWorker, status: LabWorkerStatus) -> None:
        if status != worker.status:
            self._cache.accept(await self._plane.step(worker, status))

    async def _isolate(self, ref: WorkerRef, work: Coroutine[Any, Any, None]) -> None:
        """Keep a worker's errors from affecting others; it is tried again in its next slot."""
        try:
            await work
        except (Conflict, Gone):
            pass  # the worker changed meanwhile: what was observed is out of date
        except (Later, Stuck, Refused) as error:
            self._log.log_failed(ref, error)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _serves(worker: LabWorker) -> bool:
    """Return whether a worker's CML is to be asked; of the others the cloud says all that there is to know."""
    return worker.status.phase in measure.SERVING and bool(worker.status.cml.api_url)


def _is_measured(worker: LabWorker) -> bool:
    status = worker.status
    return bool(status.ec2.instance_id) and status.ec2.gone_at is None and status.phase in measure.MEASURED
