"""What is read of bills and stays does not grow with the month, nor with the number of bookings."""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

from harness import given
from lcm.control.accounts.costs import CLOSED_PREFIX, format_stamp
from lcm.control.accounts.spending import KEPT_FOR, MonthSpending
from lcm.control.accounts.stays import STAYS, read_stays
from lcm.control.objects.records import encode_checked
from lcm.model.money.split import Stay
from lcm.store.base import Cursor, Page, Put
from lcm.store.memory import MemoryStore

MINUTE = timedelta(minutes=1)


class CountingStore(MemoryStore):
    """A store that counts what is read, by the first part of the key."""

    def __init__(self) -> None:
        super().__init__()
        self.read = Counter[str]()

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        page = await super().scan(prefix, labels=labels, limit=limit, cursor=cursor)
        self.read[prefix.split("/", maxsplit=1)[0] + "/"] += len(page.entries)
        return page


def stay(number: int) -> Stay:
    since = given.MONDAY + number * MINUTE
    return Stay(
        session=f"s{number}",
        session_id=f"uid-{number}",
        namespace="default",
        definition="basics:1.0.0",
        worker_id="uid-w",
        share=1,
        since=since,
        until=since + MINUTE,
    )


async def test_a_session_that_leaves_a_worker_reads_the_stays_beside_its_own_and_not_those_of_the_month() -> None:
    store = CountingStore()
    for one in map(stay, range(2000)):
        key = f"{STAYS}202611/uid-w/{format_stamp(one.until)}/{one.session_id}"
        await store.commit(Put(key, encode_checked(one)))
    end = given.MONDAY + 2000 * MINUTE
    found = await read_stays(store, "uid-w", end - 5 * MINUTE, end)
    assert [one.session for one in found] == [f"s{number}" for number in range(1995, 2000)]
    assert store.read[STAYS] < 10


async def test_the_bill_of_the_month_is_read_once_for_all_who_ask_within_some_seconds() -> None:
    store = CountingStore()
    for number in range(500):
        since = given.MONDAY + number * MINUTE
        one = given.interval(pool="ccna", since=since, until=since + MINUTE, usd_hourly=Decimal(60))
        await store.commit(Put(f"{CLOSED_PREFIX}{format_stamp(since + MINUTE)}/uid-w/{number}", encode_checked(one)))
    spending, now = MonthSpending(store), given.MONDAY + 600 * MINUTE
    for number in range(50):
        bill = await spending.read(now + number * KEPT_FOR / 50)
        assert bill.pool_usd("default", "ccna", (), now) == 500
    assert store.read[CLOSED_PREFIX] == 500
    await spending.read(now + KEPT_FOR)
    assert store.read[CLOSED_PREFIX] == 1000
