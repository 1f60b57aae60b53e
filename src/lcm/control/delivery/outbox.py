"""Delivers the events of the store to the sinks: at least once, in order for each sink, across restarts.

The store's own history of events is the outbox: each sink has a position in it (`progress`) and a `SinkDelivery`
(`courier`) that continues from there. Of all processes that run an outbox, the holder of a lease delivers. Started by
`compose.api`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from lcm.control.delivery.courier import DeliveryContext, Post, Reveal, SinkDelivery
from lcm.control.delivery.progress import DeadLetters, DeliveryProgress
from lcm.control.delivery.sinks import MAIL_SINK, SINKS
from lcm.control.objects.records import SINK_CODEC
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Deposed, Later, LcmError, Relist, Stuck
from lcm.model.kinds.sink import Sink
from lcm.store.base import LEASES_PREFIX, Entry, Lease, Store, deposed_error, scan_all
from lcm.system.tasks import first_error

LEASE: Final = "sink-delivery"
LEASE_SECONDS: Final = 15

_RENEWALS: Final = 3
"""How often the lease is renewed within its lifetime."""
_PAUSE_SECONDS: Final = 1.0
_RELEASE_SECONDS: Final = 5.0
_log: Final = structlog.get_logger()


class Outbox:
    """One process's part in delivering events."""

    def __init__(
        self,
        store: Store,
        post: Post,
        reveal: Reveal,
        *,
        clock: Clock,
        chance: Callable[[], float],
        source: str,
        holder: str = "outbox",
        ttl_seconds: int = LEASE_SECONDS,
        built_in: Sequence[Sink] = (),
        beside: Callable[[Callable[[Store], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]] | None = None,
        notices: Callable[[DeliveryContext], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Deliver with `post`, to the sinks of the store and to the `built_in` ones; `notices` sends mail meanwhile.

        `source` names the origin of the events: a URI of this installation. The lease is kept `beside` the loop; None
        means in it.
        """
        self._beside = beside or (lambda keep: keep(store))
        self._store = store
        self._post = post
        self._reveal = reveal
        self._clock = clock
        self._chance = chance
        self._source = source
        self._holder = holder
        self._ttl_seconds = ttl_seconds
        self._built_in = {sink.metadata.name: sink for sink in built_in}
        self._notices = notices
        self._work: asyncio.Task[None] | None = None
        self._closed = False

    async def run(self) -> None:
        """Deliver whenever this process holds the lease, until closed or cancelled; then release it at once."""
        if self._closed:
            return
        async with asyncio.TaskGroup() as group:
            self._work = group.create_task(self._campaign())

    async def close(self) -> None:
        """End `run`. May be repeated."""
        self._closed = True
        if self._work is not None and not self._work.done():
            self._work.cancel()
            await asyncio.wait({self._work})

    async def _campaign(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        # A task group that fails while it is cancelled raises only its failure; the cancellation is found here.
        while not me.cancelling():
            try:
                await self._lead(await self._acquire_lease())
            except* (Deposed, Later, Relist) as errors:
                _log.warning("delivery interrupted", error=str(first_error(errors)))
                if not me.cancelling():
                    await asyncio.sleep(_PAUSE_SECONDS * (1 + self._chance()))

    async def _acquire_lease(self) -> "_DeliveryLease":
        while True:
            asked_at = asyncio.get_running_loop().time()
            lease = await self._store.acquire(LEASE, self._holder, ttl_seconds=self._ttl_seconds)
            if lease is not None:
                return _DeliveryLease(lease, asked_at)
            await self._wait_until_free()

    async def _wait_until_free(self) -> None:
        """Wait until the lease is free, or might be."""
        key = LEASES_PREFIX + LEASE
        page = await self._store.scan(key, limit=1)
        if page.entries:
            async with self._store.watch(key, after=page.revision) as watch:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._ttl_seconds):
                        await anext(watch)

    async def _lead(self, term: "_DeliveryLease") -> None:
        fence = term.lease.fence()
        letters = DeadLetters(self._store, fence)
        ledger = DeliveryProgress(self._store, fence, self._clock, letters)
        means = DeliveryContext(
            store=self._store,
            fence=fence,
            post=self._post,
            reveal=self._reveal,
            clock=self._clock,
            chance=self._chance,
            source=self._source,
            ledger=ledger,
            letters=letters,
            check=term.check,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._beside(partial(self._renew, term)))
                await letters.read()
                group.create_task(letters.follow())
                group.create_task(ledger.keep_saving())
                group.create_task(ledger.keep_refreshing())
                if self._notices is not None:
                    group.create_task(self._notices(means))
                await self._follow_sinks(_SinkDeliveries(means, group))
        finally:
            with suppress(LcmError, TimeoutError):
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await ledger.save()
            with suppress(LcmError, TimeoutError):
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._store.release(term.lease)

    async def _renew(self, term: "_DeliveryLease", store: Store) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._ttl_seconds / _RENEWALS)
            asked_at = loop.time()
            with suppress(Later):  # `check` stops the deliveries if this goes on
                await store.renew(term.lease)
                term.extend(asked_at)
            term.check()

    async def _follow_sinks(self, couriers: "_SinkDeliveries") -> None:
        page = await scan_all(self._store, SINKS)
        sinks = {entry.key.removeprefix(SINKS): entry for entry in page.entries}
        await couriers.start_all(sinks, self._built_in, [MAIL_SINK] if self._notices else [])
        async with self._store.watch(SINKS, after=page.revision) as watch:
            async for changed in watch:
                for change in changed.changes:
                    await couriers.apply_change(change.key.removeprefix(SINKS), change.entry)


class _DeliveryLease:
    """A lease that we hold, and until when we may rely on it."""

    def __init__(self, lease: Lease, asked_at: float) -> None:
        self.lease = lease
        self._until = 0.0
        self.extend(asked_at)

    def extend(self, asked_at: float) -> None:
        """Count its lifetime from when the renewal was requested, not from when the answer came."""
        self._until = asked_at + self.lease.ttl_seconds

    def check(self) -> None:
        """Raise Deposed when another process may hold the lease by now."""
        if asyncio.get_running_loop().time() >= self._until:
            raise deposed_error(self.lease.fence())


class _SinkDeliveries:
    """The deliveries during one lease, one for each sink that is enabled."""

    def __init__(self, means: DeliveryContext, group: asyncio.TaskGroup) -> None:
        self._context = means
        self._group = group
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start_all(self, sinks: Mapping[str, Entry], built_in: Mapping[str, Sink], others: Iterable[str]) -> None:
        """Clean up after deleted sinks, and start the existing ones; what delivers to `others` is started elsewhere."""
        await self._context.ledger.remove_all_but({*sinks, *built_in, *others})
        for name, sink in built_in.items():
            await self._context.ledger.open_sink(name, None)
            self._run(sink)
        for name, entry in sinks.items():
            await self.apply_change(name, entry)

    async def apply_change(self, name: str, entry: Entry | None) -> None:
        """React to a sink that was created, changed or, with None, deleted."""
        ledger = self._context.ledger
        running = self._running.pop(name, None)
        if running is not None:
            running.cancel()
            await asyncio.wait({running})
            if entry is not None:
                await ledger.save()
            ledger.close_sink(name)
        if entry is not None:
            await self._start(name, entry)

    async def _start(self, name: str, entry: Entry) -> None:
        try:
            sink = SINK_CODEC.decode(entry.value, Sink)
            if not sink.spec.enabled:
                return
            await self._context.ledger.open_sink(name, entry)
        except Stuck as error:  # a sink that this version cannot read must not stop the others
            _log.error("sink left out", sink=name, error=str(error))
        else:
            self._run(sink)

    def _run(self, sink: Sink) -> None:
        self._running[sink.metadata.name] = self._group.create_task(SinkDelivery(sink, self._context).run())
