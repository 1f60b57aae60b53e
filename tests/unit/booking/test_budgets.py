"""Budgets of tracks: bookings are refused by them on any replica, and people are warned before."""

import asyncio
from decimal import Decimal

import pytest

from harness import given
from harness.booking_world import NINE, Office, from_monday, slot
from lcm.control.accounts.spending import MonthBill
from lcm.control.booking.budget_watch import NEARLY_SPENT, SPENT, BudgetUse, BudgetWatch, find_alerts
from lcm.control.booking.estimates import price_booking, read_owner_month_cost
from lcm.control.booking.promise import spending_of
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Invalid, NoRoom
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import PreviewRequest
from lcm.model.kinds.pool import Budget, LabWorkerPool
from lcm.model.kinds.rules import SETTINGS_NAME
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import BudgetSettings, SystemSettings, SystemSettingsSpec, TrackBudget
from lcm.model.money.billing import start_of_month

POOL = Ref(LabWorkerPool, "ccna")
PRICE = Decimal(6)


async def limit_track(office: Office, usd: int, *more: TrackBudget) -> None:
    budgets = BudgetSettings(tracks=(TrackBudget(lab_track="ccna", monthly_usd=Decimal(usd)), *more))
    spec = SystemSettingsSpec(budgets=budgets)
    await office.otto.create(SystemSettings(metadata=Metadata(name=SETTINGS_NAME), spec=spec))


async def raised(office: Office) -> list[tuple[str, str]]:
    return [(one.alert, one.kind) for one in await office.otto.alerts()]


def watch(office: Office) -> BudgetWatch:
    promises = office.cores[0].promises
    assert promises is not None
    return BudgetWatch(office.store, promises, clock=office.clock)


@from_monday
async def test_a_tracks_budget_refuses_what_its_month_would_cost_too_much_for() -> None:
    async with Office().open(max_workers=10, price=PRICE) as office:
        await limit_track(office, 20)
        await office.book("s1")
        with pytest.raises(NoRoom, match=r"track ccna would cost 34\.00 USD in November 2026, more than the 20") as no:
            await office.book("s2", given.moment("09:00", day=1))
        assert (no.value.why, "raise the track's budget" in str(no.value)) == ("track_budget", True)
        await office.book("s3", NINE)
        await office.book("s4", given.moment("09:00", day=30))


@from_monday
async def test_two_replicas_cannot_both_take_the_last_of_a_tracks_budget() -> None:
    async with Office(planes=2).open(max_workers=10, price=PRICE) as office:
        await limit_track(office, 40)
        starts = [given.moment("09:00", day=day) for day in range(6)]
        asked = [
            core.plane_for(office.otto.caller).create(slot(f"s{day}-{number}", start))
            for number, core in enumerate(office.cores)
            for day, start in enumerate(starts)
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        made = [one for one in answers if isinstance(one, LabletSession)]
        assert all(isinstance(one, LabletSession | NoRoom) for one in answers)
        days = {one.spec.timeslot_start for one in made}
        assert len(days) == 2, "17 dollars a day: two days fit, on whichever replica they were booked"


@from_monday
async def test_people_are_warned_at_four_fifths_and_told_when_all_is_promised() -> None:
    async with Office().open(max_workers=10, price=PRICE, budget=Budget(monthly_usd=Decimal(21))) as office:
        await limit_track(office, 17)
        await watch(office).look()
        assert await raised(office) == []
        await office.book("s1")
        for _ in range(2):
            await watch(office).look()
        assert sorted(await raised(office)) == [(NEARLY_SPENT, "LabWorkerPool"), (SPENT, "SystemSettings")]
        await office.otto.delete(Ref(LabletSession, "s1"))
        await watch(office).look()
        assert await raised(office) == []


def test_an_alert_names_every_budget_of_its_object() -> None:
    settings = Ref(SystemSettings, SETTINGS_NAME)
    uses = [BudgetUse(settings, f"track {name}", Decimal(10), Decimal(2), Decimal(9)) for name in ("a", "b")]
    ((about, found),) = find_alerts([*uses, BudgetUse(POOL, "pool p", Decimal(10), Decimal(2), Decimal("7.9"))])
    assert (about, found.alert) == (settings, NEARLY_SPENT)
    assert "track a will cost 9.00 of the 10.00 USD" in found.message
    assert "track b" in found.message


def test_pools_of_one_track_have_their_own_spending_and_share_the_tracks() -> None:
    bill = MonthBill(start_of_month(given.MONDAY), given.moment("12:00"))
    for one in (given.interval(pool="ccna"), given.interval(pool="other"), given.interval(lab_track="ccnp")):
        bill.add(one)
    pool = given.pool(name="ccna", lab_track="ccna")
    spent = spending_of(pool, bill, given.moment("12:00"))
    assert (spent.pool, spent.track) == (Decimal(1), Decimal(2))


@from_monday
async def test_a_track_has_one_budget_and_none_below_zero() -> None:
    async with Office().open(max_workers=1) as office:
        twice = TrackBudget(lab_track="ccna", monthly_usd=Decimal(-1))
        with pytest.raises(Invalid) as no:
            await limit_track(office, 5, twice)
        assert [one.path for one in no.value.faults] == [
            "spec.budgets.tracks[1].monthly_usd",
            "spec.budgets.tracks[1].lab_track",
        ]


@from_monday
async def test_a_price_is_told_before_booking_and_counts_for_its_owner_after() -> None:
    async with Office().open(max_workers=10, price=PRICE) as office:
        promises = office.cores[0].promises
        assert promises is not None
        asked = {"definition": "basics:1.0.0", "timeslot_start": NINE, "timeslot_end": given.moment("11:00")}
        one = await office.otto.preview(PreviewRequest(**asked))  # type: ignore[arg-type]
        dozen = await office.otto.preview(PreviewRequest(**asked, count=12))  # type: ignore[arg-type]
        assert one.usd is not None
        assert (dozen.usd, dozen.sessions) == (12 * one.usd, 12)
        session = slot("s1", owner="ada")
        definition = promises.calendar.get(Ref(LabletDefinition, "basics:1.0.0"))
        assert definition is not None
        added = price_booking(promises.calendar, session, definition, office.clock.now())
        cost = [
            await read_owner_month_cost(office.store, promises.calendar, "ada", office.clock.now(), added=added),
            await read_owner_month_cost(office.store, promises.calendar, "ada", office.clock.now()),
        ]
        assert cost == [one.usd, 0]
        await office.book("s1", owner="ada")
        await asyncio.sleep(1)
        assert await read_owner_month_cost(office.store, promises.calendar, "ada", office.clock.now()) == one.usd
        assert (await office.otto.explain(Ref(LabletSession, "s1"))).usd == one.usd
