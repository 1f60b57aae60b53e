"""Idleness as the control plane judges it: by what is stored, kept in the worker, and told once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harness import given
from harness.booking_world import CountingStore
from harness.plane_world import ADA, ANNA, NOW, OTTO, ROOT, Stage, Standing, service
from harness.workers import beside
from lcm.control.booking.guards import pool_guard_key
from lcm.control.objects.records import creation_ops
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Ref, Snooze
from lcm.control.telemetry.idleness import IdleCriteria
from lcm.model.access.identity import Caller
from lcm.model.base.errors import Forbidden, Gone, IllegalStep
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.pool import FilledSeat, LabWorkerPool
from lcm.model.kinds.reservation import Reservation, ReservationClaim, ReservationPhase
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase
from lcm.model.kinds.settings import IdleSettings, MonitoringSettings, SchedulerSettings
from lcm.model.kinds.worker import IdleVerdict, LabWorker, WorkerPhase
from lcm.placement.claims import Terms
from lcm.store.base import Put

BY = service(WORKER_CONTROLLER)
W1 = Ref(LabWorker, "w1")
MINUTE = timedelta(minutes=1)


class Site:
    """A worker on which nothing happens any more from eight o'clock on, and a clock."""

    def __init__(self) -> None:
        self.clock = Standing(NOW)
        self.stage = Stage(clock=self.clock)

    async def open(self, **fields: Any) -> "Site":
        await self.stage.put(given.worker(**{"phase": WorkerPhase.READY, "ready_at": NOW} | fields))
        return self

    async def measure(self, **fields: Any) -> None:
        now = self.clock.moment
        fresh = {"cml_at": now, "activity_at": now, "active_labs_count": 0} | fields
        await self.stage[BY].report(W1, given.telemetry(collected_at=now, **fresh))

    async def look(self, clock: str, **fields: Any) -> IdleVerdict:
        self.clock.moment = given.moment(clock)
        await self.measure(**fields)
        return await self.stage[BY].detect_idle(W1)

    async def worker(self) -> LabWorker:
        found = await self.stage[ROOT].get(W1)
        assert found is not None
        return found

    async def warnings(self) -> list[Any]:
        return [one for one in await self.stage.told() if one.type == "worker.idle.warning"]


async def test_the_verdict_is_kept_and_the_warning_is_told_once() -> None:
    site = await Site().open()
    for minute in range(31):
        await site.look(f"08:{minute:02}")
    worker = await site.worker()
    assert worker.status.idle is not None
    assert (worker.status.idle.idle, worker.status.idle.pause_at) == (True, given.moment("08:30"))
    (event,) = await site.warnings()
    assert (event.worker_id, event.time) == ("uid-w1", given.moment("08:25"))
    assert msgspec.json.decode(event.data) == {
        "worker_id": "uid-w1",
        "worker_name": "w1",
        "namespace": "default",
        "idle_since": "2026-11-02T08:00:00Z",
        "pause_at": "2026-11-02T08:30:00Z",
        "reason": "nothing happened since 2026-11-02 08:00 UTC",
        "snooze_minutes": 60,
        "timestamp": "2026-11-02T08:25:00Z",
    }


async def test_a_verdict_that_says_nothing_new_spends_no_revision() -> None:
    site = await Site().open()
    await site.look("08:01")
    before = await site.worker()
    for minute in range(2, 20):
        found = await site.look(f"08:{minute:02}", last_activity_at=given.moment(f"08:{minute:02}"))
        assert found.judged_at == given.moment(f"08:{minute:02}"), "what is answered is fresh"
    assert await site.worker() == before


async def test_lesson_2_a_quiet_learner_keeps_the_machine() -> None:
    site = await Site().open(phase=WorkerPhase.ACTIVE)
    await site.stage.put(given.session(phase=SessionPhase.RUNNING, worker_id="uid-w1", cml_lab_id="lab-1"))
    await site.stage.put(given.session(name="s2", uid="u2", phase=SessionPhase.RUNNING, worker_id="uid-other"))
    for hour in range(9, 20):
        found = await site.look(f"{hour}:00", active_labs_count=1)
        assert (found.idle, found.pause_at, found.reason) == (False, None, "sessions are on it")
    assert await site.warnings() == []


async def test_lesson_28_the_countdown_survives_a_failover() -> None:
    site = await Site().open()
    await site.look("08:25")
    other = Stage(store=site.stage.store, clock=site.clock)
    for clock, idle in (("08:26", False), ("08:28", False), ("08:30", True)):
        site.clock.moment = given.moment(clock)
        await site.measure()
        found = await other[BY].detect_idle(W1)
        assert (found.pause_at, found.warned_at) == (given.moment("08:30"), given.moment("08:25"))
        assert found.idle is idle
    assert len(await site.warnings()) == 1


async def test_lesson_31_a_verdict_changes_no_phase_and_an_illegal_change_is_refused() -> None:
    site = await Site().open()
    await site.look("09:00")
    await site.look("09:05")
    worker = await site.worker()
    assert (worker.status.phase, worker.status.history) == (WorkerPhase.READY, ())
    with pytest.raises(IllegalStep):
        await site.stage[BY].step(worker, msgspec.structs.replace(worker.status, phase=WorkerPhase.PENDING))
    assert await site.worker() == worker


async def test_an_outage_of_an_hour_makes_nobody_idle() -> None:
    site = await Site().open()
    await site.look("08:20")
    for minute in range(24, 60):
        site.clock.moment = given.moment(f"08:{minute:02}")
        found = await site.stage[BY].detect_idle(W1)
        assert (found.idle, found.pause_at) == (False, None)
    back = await site.look("09:20")
    assert (back.idle, back.pause_at) == (True, given.moment("09:25")), "warned first, all the same"


async def test_a_snooze_puts_off_the_pause() -> None:
    site = await Site().open()
    await site.look("08:25")
    await site.stage[OTTO].act(W1, Snooze())
    assert (await site.look("08:30")).idle is False
    assert (await site.look("09:19")).pause_at is None
    assert (await site.look("09:20")).pause_at == given.moment("09:25")
    assert (await site.look("09:25")).idle
    assert len(await site.warnings()) == 2


async def test_what_happens_to_the_worker_meanwhile_is_judged_too() -> None:
    site = await Site().open()
    site.clock.moment = given.moment("09:00")
    await site.measure()
    patches = (site.stage[ROOT].patch(W1, {"metadata": {"labels": {f"l{n}": "x"}}}) for n in range(5))
    await asyncio.gather(site.stage[BY].detect_idle(W1), *patches, site.stage[BY].detect_idle(W1))
    worker = await site.worker()
    assert len(worker.metadata.labels) == 5
    assert worker.status.idle is not None
    assert len(await site.warnings()) == 1


async def test_settings_of_the_moment_count() -> None:
    site = await Site().open()
    start = {"timeslot_start": given.moment("10:00"), "timeslot_end": given.moment("12:00")}
    await site.stage.put(given.session(phase=SessionPhase.SCHEDULED, worker_id="uid-w1", **start))
    assert (await site.look("09:10")).idle
    await site.stage.put(
        given.settings(
            scheduler=SchedulerSettings(worker_bootup_delay_minutes=40),
            idle=IdleSettings(threshold_minutes=90),
            monitoring=MonitoringSettings(metrics_poll_interval_seconds=600),
        )
    )
    found = await site.stage[BY].detect_idle(W1)
    active = [one.name for one in found.signals if one.active == "True"]
    assert active == ["booked_soon", "cml_activity"]
    site.clock.moment = given.moment("09:29")
    late = await site.stage[BY].detect_idle(W1)
    assert "not known" not in late.reason, "measured every ten minutes, it is not stale before the next but one"


@pytest.mark.parametrize(("own", "wished", "minutes"), [(30, None, 30), (30, 10, 10), (45, 10, 45), (45, None, 45)])
def test_a_threshold_that_its_author_chose_stays(own: int, wished: int | None, minutes: int) -> None:
    worker = given.changed(given.worker(), {"spec": {"idle": {"threshold_minutes": own}}})
    system = given.settings(idle=IdleSettings(threshold_minutes=wished))
    assert IdleCriteria(threshold_minutes=30).with_system_settings(system).threshold(worker) == minutes * MINUTE
    assert IdleCriteria(threshold_minutes=30).with_system_settings(None).threshold(worker) == own * MINUTE


async def test_a_process_says_by_what_it_judges() -> None:
    site = await Site().open()
    core = ControlPlane(site.stage.store, clock=site.clock, judgement=IdleCriteria(poll_seconds=3600))
    await site.look("08:05")
    site.clock.moment = given.moment("09:00")
    assert (await core.plane_for(BY).detect_idle(W1)).idle
    assert not (await site.stage[BY].detect_idle(W1)).idle


async def test_a_worker_that_does_not_serve_is_left_as_it_is() -> None:
    site = await Site().open(phase=WorkerPhase.STARTING)
    before = await site.worker()
    found = await site.look("09:00")
    assert (found.idle, found.signals) == (False, ())
    assert await site.worker() == before


@pytest.mark.parametrize("caller", [ADA, ANNA, OTTO, ROOT])
async def test_only_our_own_processes_judge(caller: Caller) -> None:
    site = await Site().open()
    with pytest.raises(Forbidden):
        await site.stage[caller].detect_idle(W1)
    with pytest.raises(Gone):
        await site.stage[BY].detect_idle(Ref(LabWorker, "w2"))


class Seated(Site):
    """The worker fills the third seat of a pool, whose bookings are known."""

    def __init__(self) -> None:
        super().__init__()
        self.store = CountingStore()
        self.stage = Stage(clock=self.clock, store=self.store)

    async def open(self, **fields: Any) -> "Seated":
        await super().open()
        self.core = ControlPlane(self.stage.store, clock=self.clock, terms=Terms())
        await self.stage.put(given.template())
        filled = (FilledSeat(number=3, worker_id="uid-w1", worker_name="w1"),)
        await self.stage.put(given.pool(**{"seats": filled, "min_workers": 0} | fields))
        return self

    async def book(self, name: str, start: str, end: str, number: int = 3) -> None:
        claim, seat = given.claim(start, end), Seat(pool="ccna", number=number)
        await self.hold(given.session(name=name, uid=name, claim=claim, seat=seat))

    async def hold(self, booking: LabletSession | Reservation) -> None:
        """Put a booking with its claims, as whoever promises does."""
        guard = Put(pool_guard_key(Ref(LabWorkerPool, "ccna")), b"")
        await self.stage.store.commit(*creation_ops(booking), guard)

    async def judge(self, clock: str) -> IdleVerdict:
        self.clock.moment = given.moment(clock)
        await self.measure()
        return await self.core.plane_for(BY).detect_idle(W1)

    @asynccontextmanager
    async def known(self) -> AsyncIterator["Seated"]:
        assert self.core.promises is not None
        async with beside(self.core.promises.calendar.run()):
            yield self


def pool_signal(verdict: IdleVerdict) -> tuple[str, str]:
    (signal,) = (one for one in verdict.signals if one.name == "pool")
    return signal.active, signal.detail


async def test_a_worker_whose_seat_is_booked_soon_is_not_idle() -> None:
    async with (await Seated().open()).known() as site:
        await site.judge("08:20")
        await site.book("s1", "09:15", "11:00")
        assert (await site.judge("08:34")).pause_at is not None, "it would be back in time"
        found = await site.judge("08:35")
        assert (found.idle, found.pause_at) == (False, None)
        assert pool_signal(found) == ("True", "planned worker 3 of ccna is booked from 2026-11-02 09:15 UTC on")
        assert pool_signal(await site.judge("10:59"))[0] == "True", "in use now, though nothing is on it yet"
        assert (await site.judge("11:05")).warned_at == given.moment("11:05")
        assert (await site.judge("11:10")).idle


async def test_a_worker_whose_seat_always_has_one_is_never_idle() -> None:
    async with (await Seated().open(min_workers=3)).known() as site:
        for hour in range(9, 20):
            found = await site.judge(f"{hour}:00")
            assert (found.idle, found.reason) == (False, "planned worker 3 of ccna always runs")


async def test_what_is_booked_on_other_seats_or_later_keeps_nobody_up() -> None:
    async with (await Seated().open(min_workers=2)).known() as site:
        await site.book("s1", "08:40", "11:00", number=2)
        await site.book("s2", "12:00", "13:00")
        await site.judge("08:25")
        found = await site.judge("08:30")
        assert found.idle
        assert pool_signal(found) == ("False", "planned worker 3 of ccna is booked from 2026-11-02 12:00 UTC on")


async def test_what_is_booked_while_a_worker_is_judged_counts() -> None:
    async with (await Seated().open()).known() as site:
        await site.judge("08:25")
        site.clock.moment = given.moment("08:30")
        await site.measure()
        site.store.before_next = lambda: site.book("s1", "09:00", "11:00")
        found = await site.core.plane_for(BY).detect_idle(W1)
        assert (found.idle, pool_signal(found)[0]) == (False, "True")
        assert (await site.worker()).status.idle == found


async def test_a_reservation_keeps_the_worker_of_its_seat_up() -> None:
    async with (await Seated().open()).known() as site:
        held = ReservationClaim(number=1, claim=given.claim("09:00", "11:00"), seat=Seat(pool="ccna", number=3))
        await site.hold(given.reservation(phase=ReservationPhase.PROMISED, held=(held,)))
        assert pool_signal(await site.judge("08:30"))[0] == "True"


async def test_where_boots_took_long_a_worker_is_kept_up_for_as_long() -> None:
    async with (await Seated().open(boot_seconds=(3600,) * 20)).known() as site:
        await site.book("s1", "10:15", "11:00")
        assert pool_signal(await site.judge("08:54"))[0] == "False"
        assert pool_signal(await site.judge("08:55"))[0] == "True"


async def test_a_worker_outside_of_all_pools_has_no_seat_to_be_kept_for() -> None:
    async with (await Seated().open(seats=())).known() as site:
        await site.judge("08:25")
        found = await site.judge("08:30")
        assert found.idle
        assert "pool" not in {one.name for one in found.signals}


async def test_a_promise_without_a_worker_holds_no_step_of_a_worker_up() -> None:
    async with (await Seated().open()).known() as site:
        await site.book("s1", "08:15", "11:00")
        worker = await site.worker()
        stopping = msgspec.structs.replace(worker.status, phase=WorkerPhase.STOPPING)
        assert (await site.core.plane_for(BY).step(worker, stopping)).status.phase is WorkerPhase.STOPPING
