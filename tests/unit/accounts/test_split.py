"""A worker's bill, divided among sessions: exact, fair, and with what nobody used."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
from hypothesis import given as each
from hypothesis import strategies as st

from harness import given
from lcm.model.money.billing import Billing, BillingInterval, to_usd
from lcm.model.money.split import WHOLE, PricedClaim, Stay, apportion, owner_month_cost, split_bill

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def bill(minutes: float = 60, usd: str = "6", **changes: object) -> BillingInterval:
    fields = {"since": NOON, "until": NOON + minutes * MINUTE, "usd_hourly": Decimal(usd), **changes}
    return given.interval(**fields)


def stay(name: str, since: float, until: float, share: int = WHOLE // 4) -> Stay:
    """Return a stay from one minute to another."""
    return Stay(
        session=name,
        session_id=name,
        namespace="default",
        definition="basics:1.0.0",
        worker_id="uid-w1",
        share=share,
        since=NOON + since * MINUTE,
        until=NOON + until * MINUTE,
    )


def totals(intervals: list[BillingInterval], stays: list[Stay]) -> dict[str, Decimal]:
    found: dict[str, int] = {}
    for piece in split_bill(intervals, stays, NOON + 600 * MINUTE):
        for one, micros in piece.parts:
            found[one.session] = found.get(one.session, 0) + micros
        found["unused"] = found.get("unused", 0) + piece.unused
    return {name: to_usd(micros) for name, micros in found.items()}


def test_a_session_pays_its_share_of_its_time_and_the_rest_is_unused() -> None:
    assert totals([bill()], [stay("a", 10, 40)]) == {"a": Decimal("0.75"), "unused": Decimal("5.25")}


def test_shares_that_are_more_than_one_together_are_scaled_down() -> None:
    cpu, memory = stay("cpu", 0, 60, share=900_000), stay("memory", 30, 60, share=600_000)
    assert totals([bill()], [cpu, memory]) == {
        "cpu": Decimal("2.7") + Decimal("1.8"),
        "memory": Decimal("1.2"),
        "unused": Decimal("0.3"),
    }


def test_a_stay_goes_through_pauses_and_pays_what_they_cost() -> None:
    paid = [bill(30), bill(state=Billing.STOPPED, usd_hourly=Decimal(1), since=NOON + 30 * MINUTE)]
    paid[1] = msgspec.structs.replace(paid[1], until=NOON + 90 * MINUTE)
    assert totals(paid, [stay("a", 0, 90, WHOLE)]) == {"a": Decimal(4), "unused": Decimal(0)}


def test_a_start_that_ended_at_once_costs_a_minute_that_nobody_used() -> None:
    assert totals([bill(0)], [stay("a", 0, 0), stay("b", -5, 0)]) == {"unused": Decimal("0.1")}


def test_an_interval_without_a_price_is_in_no_part() -> None:
    assert totals([bill(usd_hourly=None)], [stay("a", 0, 60)]) == {}


def test_of_thirds_one_gets_what_is_left() -> None:
    assert apportion(100, [1, 1, 1]) == [34, 33, 33]
    assert apportion(7, [0, 0]) == [0, 7]


@each(
    st.lists(st.tuples(st.floats(-30, 300), st.floats(0, 200), st.integers(0, WHOLE)), max_size=8),
    st.lists(st.tuples(st.floats(0, 90), st.floats(0, 60), st.booleans()), min_size=1, max_size=5),
    st.decimals("0.0001", "40", places=6),
)
def test_all_parts_add_up_to_the_bill_to_the_last_micro_dollar(
    came: list[tuple[float, float, int]], ran: list[tuple[float, float, bool]], usd: Decimal
) -> None:
    at, paid = NOON, list[BillingInterval]()
    for pause, lasted, running in ran:
        start = at + pause * MINUTE
        at = start + lasted * MINUTE
        state = Billing.RUNNING if running else Billing.STOPPED
        paid.append(given.interval(since=start, until=at, usd_hourly=usd, state=state))
    stays = [stay(f"s{place}", since, since + lasted, share) for place, (since, lasted, share) in enumerate(came)]
    assert sum(totals(paid, stays).values()) == to_usd(sum(one.micros(at) for one in paid))


def test_an_owners_month_is_what_is_spent_and_what_is_claimed_in_it() -> None:
    month = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    across = PricedClaim(month[1] - timedelta(hours=1), month[1] + timedelta(hours=1), WHOLE // 2, Decimal(4))
    unknown = PricedClaim(*month, WHOLE, None)
    assert owner_month_cost([1_500_000, 1], [across, unknown], month) == Decimal("3.500001")
