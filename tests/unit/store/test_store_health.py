"""The store itself is watched: whether it takes writes, how full it is, and that it does not go back."""

import asyncio

import pytest
from structlog.testing import capture_logs

from harness.plane_world import NOW, ROOT, Stage, template
from harness.stores import FallibleStore
from lcm.control.delivery.feed import WHOLE_COMMIT, Feed, Position
from lcm.control.telemetry.alerts import list_alerts
from lcm.control.upkeep.housekeeping import HISTORY_RETENTION, Housekeeping
from lcm.control.upkeep.store_health import NEARLY_FULL, NOT_WRITABLE, StoreHealth
from lcm.model.base.errors import Relist, StoreFull, Unreachable, WentBack
from lcm.sim.time.loop import VirtualClock, run
from lcm.store.base import Cursor, Put, StoreUsage, went_back_error


class SizedStore(FallibleStore):
    """A store of a size that a test says; while `full` is set, it takes no writes, but it is read and compacted."""

    used = 0
    full = False

    async def usage(self) -> StoreUsage:
        return StoreUsage(self.used, 100)

    async def probe(self) -> None:
        self._check_room()
        await super().probe()

    async def commit(self, *ops: object, **more: object) -> int:
        self._check_room()
        return await super().commit(*ops, **more)  # type: ignore[arg-type]  # passed on as they came

    def _check_room(self) -> None:
        if self.full:
            raise StoreFull("no room")


async def test_an_alert_is_raised_before_the_store_is_full_and_cleared_well_below() -> None:
    store = SizedStore()
    one, other = (StoreHealth(store, clock=Stage().clock, alert_percent=80) for _ in range(2))
    counts = []
    for used in (10, 79, 80, 95, 78, 76, 74, 79, 81):
        store.used = used
        for health in (one, other):
            await health.probe()
        counts.append([alert.alert for alert in await list_alerts(store)])
    assert counts == [[], [], *[[NEARLY_FULL]] * 4, [], [], [NEARLY_FULL]]


async def test_an_alert_that_another_process_raised_is_known_after_a_restart() -> None:
    store = SizedStore()
    store.used = 85
    await StoreHealth(store, clock=Stage().clock).probe()
    store.used = 78
    await StoreHealth(store, clock=Stage().clock).probe()
    assert len(await list_alerts(store)) == 1


async def test_a_probe_of_a_healthy_store_costs_no_revision() -> None:
    store = SizedStore()
    before = (await store.scan("")).revision
    health = StoreHealth(store, clock=Stage().clock)
    for _ in range(3):
        await health.probe()
    assert (await store.scan("")).revision == before


async def test_a_full_store_is_told_without_a_write_and_logged_once() -> None:
    stage = Stage(store=SizedStore())
    store, health = stage.store, stage.core.health
    assert isinstance(store, SizedStore)
    store.full = True
    with capture_logs() as logs:
        for _ in range(5):
            await health.probe()
        assert not health.is_writable
        (alert,) = await stage[ROOT].alerts()
        assert (alert.alert, alert.reason, alert.severity) == (NOT_WRITABLE, "StoreFull", "critical")
        store.full = False
        await health.probe()
    assert health.is_writable
    assert await stage[ROOT].alerts() == []
    assert [one["event"] for one in logs] == ["store takes no writes", "store takes writes again"]


async def test_the_first_commit_that_is_refused_or_taken_tells_whether_the_store_takes_writes() -> None:
    stage = Stage(store=SizedStore())
    store, health = stage.store, stage.core.health
    assert isinstance(store, SizedStore)
    store.full = True
    with pytest.raises(StoreFull):
        await stage[ROOT].create(template())
    assert health.unstored_alerts[0].reason == "StoreFull"
    store.full = False
    await stage[ROOT].create(template())
    assert health.is_writable


async def test_a_store_that_is_away_takes_no_writes_either() -> None:
    store = SizedStore()
    health = StoreHealth(store, clock=Stage().clock)
    store.down = Unreachable("away")
    await health.probe()
    assert health.unstored_alerts[0].reason == "Unreachable"


async def test_a_store_that_went_back_ends_whoever_watches_it() -> None:
    store = SizedStore()
    store.down = went_back_error(440, 222)
    with pytest.raises(WentBack, match="at revision 440 and is now at 222"):
        await StoreHealth(store, clock=Stage().clock).run()


def test_a_full_store_is_compacted_although_nothing_can_be_noted() -> None:
    async def main() -> None:
        store = SizedStore()
        keeping = Housekeeping(store, clock=VirtualClock())
        first = await store.commit(Put("k/x", b"1"))
        await store.commit(Put("k/x", b"2"))
        await keeping.tidy()
        store.full = True
        await asyncio.sleep(HISTORY_RETENTION.total_seconds() + 60)
        await keeping.tidy()
        with pytest.raises(Relist):
            await store.scan("k/", cursor=Cursor(first, "k/"))

    run(main, start=NOW)


async def test_a_feed_on_a_store_that_went_back_ends() -> None:
    store = FallibleStore()
    feed = Feed(store, lambda *_: b"")
    store.down = went_back_error(9, 1)
    with pytest.raises(WentBack):
        await feed.run()
    store.down = None
    with pytest.raises(Relist):
        await anext(feed.follow(_Everything(), Position(440, WHOLE_COMMIT)))


class _Everything:
    rows = False

    def wants(self, _: object) -> bool:
        return True
