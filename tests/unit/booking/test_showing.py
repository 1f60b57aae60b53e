"""The calendar: every seat and worker against time, and names only for those who may know them."""

from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from harness import given
from harness.booking_world import HOUR, Counter, attended, counter_lab, pool, running, warm
from harness.plane_world import ADA, BOB, NOW, OTTO
from lcm.control.plane.protocol import Extend, Ref
from lcm.model.access.identity import Caller
from lcm.model.base.errors import Invalid
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.placement import Booked, CalendarRow, CalendarView, Slot
from lcm.model.kinds.pool import PoolPacking
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SchedulerSettings
from lcm.placement.seats import Seats

DAY = timedelta(days=1)
W1, EXTRA = warm("w1"), warm("stray")


async def furnished(counter: Counter) -> None:
    """One pool of two seats, the first with a worker; a worker outside; bookings of three people."""
    await counter.put(counter_lab(), given.template(), W1, EXTRA, pool(W1))
    await counter.put(running("on-stray", EXTRA), running("on-w1", W1, 1))
    await counter[ADA].create(booking("of-ada"))
    await counter[OTTO].create(given.reservation(name="class", uid="", owner="anna", count=1))


def booking(name: str) -> LabletSession:
    return given.session(name=name, uid="", timeslot_start=given.moment("09:00"), timeslot_end=given.moment("11:00"))


async def shown(counter: Counter, caller: Caller, *, hours: float = 24, namespace: str | None = None) -> CalendarView:
    return await counter[caller].calendar(since=NOW, until=NOW + hours * HOUR, namespace=namespace)


def rows(view: CalendarView) -> list[tuple[str, int, str, str]]:
    return [(one.pool, one.seat, one.worker, one.phase) for one in view.rows]


def names(row: CalendarRow) -> list[tuple[str, str, str]]:
    return [(one.kind, one.name, one.owner) for one in row.booked]


def test_seats_come_pool_by_pool_and_workers_outside_of_pools_last() -> None:
    async def look(counter: Counter) -> None:
        await furnished(counter)
        view = await shown(counter, OTTO)
        assert rows(view) == [("ccna", 1, "w1", "READY"), ("ccna", 2, "", ""), ("", 0, "stray", "READY")]
        first, second, extra = view.rows
        assert names(first) == [
            ("LabletSession", "on-w1", "bob"),
            ("Reservation", "class", "anna"),
            ("LabletSession", "of-ada", "ada"),
        ]
        assert names(second) == []
        assert names(extra) == [("LabletSession", "on-stray", "bob")]
        assert (view.since, view.until, view.rows_left_off) == (NOW, NOW + DAY, 0)

    attended(look)


def test_staff_see_how_well_a_pool_is_packed() -> None:
    async def look(counter: Counter) -> None:
        packing = PoolPacking(at=NOW, until=NOW + DAY, claims=2, moved=1, machine_hours=4.5, least_machine_hours=4)
        await counter.put(counter_lab(), given.template(), W1, pool(W1, packing=packing))
        assert (await shown(counter, OTTO)).packing == {"default/ccna": packing}
        assert (await shown(counter, ADA)).packing == {}

    attended(look)


def test_others_bookings_are_shown_without_their_names() -> None:
    async def look(counter: Counter) -> None:
        await furnished(counter)
        (first, _, extra), everything = (await shown(counter, ADA)).rows, await shown(counter, OTTO)
        assert names(first) == [("", "", ""), ("", "", ""), ("LabletSession", "of-ada", "ada")]
        assert names(extra) == [("", "", "")]
        assert [one.start for one in first.booked] == [one.start for one in everything.rows[0].booked]
        slot = Slot(start=given.moment("09:00"), end=given.moment("11:00"))
        hidden = Booked(start=given.moment("08:45"), end=given.moment("11:10"), slot=slot, share=0.083333)
        assert first.booked[1] == hidden
        bobs = (await shown(counter, BOB)).rows
        assert [one.name for row in bobs for one in row.booked] == ["on-w1", "", "", "on-stray"]

    attended(look)


def test_a_worker_that_always_runs_does_so_in_the_hours_of_its_pool() -> None:
    async def look(counter: Counter) -> None:
        hours = AllowedHours(start_hour=9, end_hour=18)
        await counter.put(counter_lab(), given.template(), pool(min_workers=1, max_workers=1, allowed_hours=hours))
        (row,) = (await shown(counter, OTTO)).rows
        assert [(f"{one.start:%d %H}", f"{one.end:%d %H}") for one in row.runs] == [("02 09", "02 18")]

    attended(look)


def test_staff_see_when_machines_must_run_and_what_an_hour_costs() -> None:
    async def look(counter: Counter) -> None:
        priced = given.template(price_per_hour_usd=Decimal(5))
        await counter.put(counter_lab(), priced, W1, EXTRA, pool(W1))
        await counter.put(running("on-stray", EXTRA))
        await counter[ADA].create(booking("of-ada"))
        first, second, extra = (await shown(counter, OTTO)).rows
        assert [(one.name, one.share) for one in first.booked] == [("of-ada", 0.083333)]
        # The boot lead of 25 minutes, and the 15 for the start of the lab, come before the slot; 10 for removal after.
        assert [(f"{one.start:%H:%M}", f"{one.end:%H:%M}") for one in first.runs] == [("08:20", "11:10")]
        assert (second.runs, extra.runs, extra.usd_hourly) == ((), (), None)
        assert first.usd_hourly is not None
        assert first.usd_hourly > 3
        with pytest.MonkeyPatch.context() as patched:
            patched.delattr(Seats, "runs")  # whoever sees none costs nothing
            assert all(row.runs == () and row.usd_hourly is None for row in (await shown(counter, ADA)).rows)

    attended(look)


def test_only_what_meets_the_span_is_shown() -> None:
    async def look(counter: Counter) -> None:
        await furnished(counter)
        early = await shown(counter, OTTO, hours=0.75)
        assert names(early.rows[0]) == [("LabletSession", "on-w1", "bob")]
        late = await counter[OTTO].calendar(since=given.moment("11:10"), until=given.moment("12:00"))
        assert [row.booked for row in late.rows] == [(), (), ()]

    attended(look)


def test_a_namespace_is_shown_by_itself() -> None:
    async def look(counter: Counter) -> None:
        await furnished(counter)
        await counter.put(warm("far", namespace="elsewhere"))
        assert rows(await shown(counter, OTTO, namespace="elsewhere")) == [("", 0, "far", "READY")]
        assert len((await shown(counter, OTTO, namespace="default")).rows) == 3
        assert len((await shown(counter, OTTO)).rows) == 4

    attended(look)


def test_what_has_ended_is_not_shown() -> None:
    async def look(counter: Counter) -> None:
        done = given.with_fields(running("on-w1", W1, 1), {"phase": "COMPLETED"})
        await counter.put(given.template(), W1, pool(W1, max_workers=1), done)
        assert [row.booked for row in (await shown(counter, OTTO)).rows] == [()]

    attended(look)


def test_a_long_list_is_cut_and_says_so() -> None:
    async def look(counter: Counter) -> None:
        pools = [pool(name=f"p{n}", uid=f"uid-p{n}", lab_track=f"t{n}", max_workers=1000) for n in range(3)]
        await counter.put(given.template(), *pools)
        view = await shown(counter, OTTO)
        assert (len(view.rows), view.rows_left_off) == (2000, 1000)

    attended(look)


@pytest.mark.parametrize(
    ("since", "until", "path"),
    [(NOW, NOW + 62 * DAY + HOUR, "until"), (NOW, NOW, "since"), (NOW + HOUR, NOW, "since")],
)
def test_a_span_must_be_one_and_not_too_long(since: datetime, until: datetime, path: str) -> None:
    async def look(counter: Counter) -> None:
        with pytest.raises(Invalid) as caught:
            await counter[ADA].calendar(since=since, until=until)
        assert [fault.path for fault in caught.value.faults] == [path]
        assert (await counter[ADA].calendar(since=NOW, until=NOW + 62 * DAY)).rows == ()

    attended(look)


def test_slots_are_shown_as_they_were_booked_whatever_the_settings_became() -> None:
    async def look(counter: Counter) -> None:
        await counter.put(counter_lab(), given.template(), pool())
        await counter[ADA].create(booking("of-ada"))
        await counter[OTTO].create(given.reservation(name="class", uid="", owner="anna", count=1))
        before = slots(await shown(counter, OTTO))
        delay = SchedulerSettings(lablet_instantiation_delay_minutes=120)
        await counter.put(given.settings(scheduler=delay))
        assert slots(await shown(counter, OTTO)) == before
        ref = Ref(LabletSession, "of-ada")
        await counter[ADA].act(ref, Extend(minutes=30))
        longer = Slot(start=given.moment("09:00"), end=given.moment("11:30"))
        assert longer in slots(await shown(counter, OTTO))
        assert (await counter[ADA].explain(ref)).slot == longer

    attended(look)


def slots(view: CalendarView) -> list[Slot]:
    return [one.slot for row in view.rows for one in row.booked]
