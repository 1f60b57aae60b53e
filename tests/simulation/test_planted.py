"""Faults planted in production code are found by the simulation: a few of them here, other ones each day.

`make planted` searches for all.
"""

from collections import Counter

import pytest

from lcm.system.clock import SystemClock
from world.checks import (
    bills,
    capacity,
    events,
    hosting,
    labs,
    leaders,
    licences,
    machines,
    phases,
    places,
    pools,
    ports,
    prebuilt,
    privacy,
    quotas,
    restores,
    store,
    versions,
    writes,
)
from world.planted.faults import Planted, search
from world.planted.run import PLANTED, QUICK

NEVER = (
    capacity.OVERCOMMIT,
    ports.SHARED_PORT,
    capacity.NO_CAPACITY,
    machines.TWO_MACHINES,
    machines.NO_RECORD,
    machines.UNNOTICED,
    labs.LEFT,
    licences.UNRETURNED,
    writes.LOST,
    phases.ILLEGAL,
    events.GAP,
    leaders.DEPOSED,
    privacy.ANOTHERS,
    privacy.LEAK,
    machines.TAKEN,
    hosting.IN_THE_WAY,
    quotas.GREEDY,
    restores.RESTORED,
    store.UNTOLD,
    versions.UPGRADE,
    pools.COOLDOWN,
    pools.SIZE,
    pools.HOURS,
    pools.OVERSPENT,
    pools.FLAPPING,
    places.ELSEWHERE,
    places.LENT,
    bills.UNBALANCED,
    prebuilt.PREBUILT,
)
TODAY = SystemClock().now().toordinal()
COUNT = 4


def of_today() -> list[Planted]:
    first = TODAY * COUNT
    return [QUICK[number % len(QUICK)] for number in range(first, first + COUNT)]


@pytest.mark.parametrize("planted", of_today(), ids=lambda planted: planted.name)
def test_a_planted_fault_is_found(planted: Planted) -> None:
    found = search(planted)
    assert found.seed is not None, found.text


def test_every_line_of_what_must_never_happen_has_two_planted_faults() -> None:
    counted = Counter(one.rule for one in PLANTED)
    assert [rule for rule in NEVER if counted[rule] < 2] == []
    assert len(PLANTED) >= 30
    assert len({one.name for one in PLANTED}) == len(PLANTED)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_every_fault_finds_the_code_that_it_changes(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.plant(monkeypatch)
