"""However people book, extend, cancel and come: no worker is over-committed, no port shared, no promise broken."""

import os
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from lcm.sim.time.loop import VirtualClock, run
from lcm.store.memory import MemoryStore
from simulation.random_bookings import Market, audited, furnish

OPERATIONS = int(os.environ.get("LCM_SOAK", "100000"))
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_no_booking_over_commits_shares_a_port_or_breaks_a_promise(part: int, tell: Callable[[str], None]) -> None:
    async def main() -> Counter[str]:
        store, clock = MemoryStore(), VirtualClock()
        await furnish(store, clock.now())
        async with Market(store, clock, seed=part, replicas=1 if part else 2).open() as market:
            await market.trade(OPERATIONS // PARTS)
            assert await audited(store) == (0, 0)
            return market.done

    done = run(main, horizon=timedelta(days=36_500))
    assert done["kept"] > 0
    assert done["refused"] > 0
    tell(f"bookings at random, part {part}: {done.total()} operations, {dict(sorted(done.items()))}")
