"""How many workers a pool should have, by each policy, and why."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from harness import given
from harness.suite import for_all
from lcm.model.base.capacity import Amount
from lcm.model.kinds.pool import CapacityThresholds, ScalingPolicy
from lcm.placement.limits import LoadRoom
from lcm.placement.scaling import (
    LOAD_POLICIES,
    MachineCount,
    PoolLoad,
    SizeDecision,
    decide_size,
    largest_first,
)

NOW = given.moment("10:00")
MACHINE = given.machine()
P = ScalingPolicy


def cores(number: float, memory_gb: int = 0) -> Amount:
    return Amount(cpu_millis=int(number * 1000), memory_mb=memory_gb * 1024)


def load(policy: ScalingPolicy = P.CAPACITY_BASED, **fields: Any) -> PoolLoad:
    """Return the load of a pool of one to three workers, of which one serves."""
    serving, coming = fields.setdefault("serving", 1), fields.setdefault("coming", 0)
    both = serving + coming
    whole = Amount(cpu_millis=both * MACHINE.cpu_millis, memory_mb=both * MACHINE.memory_mb)
    usual: dict[str, Any] = {
        "least": 1,
        "most": 3,
        "promised": 1,
        "current": both,
        "capacity": whole,
        "machine": MACHINE,
    }
    return PoolLoad(policy, NOW, **usual | fields)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def brief(found: SizeDecision) -> tuple[int, str]:
    return found.size, found.why


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        ({"claimed": cores(36)}, (1, "minimum")),  # 75 % is not above 75 %
        ({"claimed": cores(36.1)}, (2, "threshold")),
        ({"claimed": cores(1, memory_gb=154)}, (2, "threshold")),
        ({"claimed": cores(1), "measured_cpu": 0.76}, (2, "threshold")),
        ({"claimed": cores(1), "measured_memory": 0.81}, (2, "threshold")),
        ({"claimed": cores(1), "measured_cpu": 0.7, "measured_memory": 0.8}, (1, "minimum")),
        ({"claimed": cores(48), "coming": 1}, (2, "thresholds")),  # half of what serves and comes up
        ({"claimed": cores(80), "coming": 1}, (3, "threshold")),
        ({"waiting": 3, "machines": 2}, (3, "waiting")),
        ({"waiting": 30, "machines": 9}, (3, "waiting")),
        ({"serving": 3, "waiting": 3, "machines": 2}, (3, "maximum")),
        ({"serving": 2, "waiting": 3, "machines": 2, "leaving": 1}, (2, "maximum")),
        ({"serving": 1, "waiting": 3, "machines": 2, "leaving": 1}, (2, "waiting")),
        ({"serving": 3, "claimed": cores(144)}, (3, "maximum")),
        ({"coming": 1, "held": 2, "claimed": cores(50)}, (2, "booting")),
        ({"unsuited": 2, "claimed": cores(20)}, (1, "unsuited")),
        ({"serving": 3, "claimed": cores(20)}, (2, "idle")),
        ({"serving": 3, "claimed": cores(20, memory_gb=240)}, (3, "thresholds")),  # both must be low
        ({"serving": 3, "claimed": cores(20), "measured_cpu": 0.31}, (3, "thresholds")),
        ({"serving": 2, "claimed": cores(20), "unsuited": 1}, (1, "idle")),  # who suits no worker keeps none
        ({"serving": 2, "claimed": cores(20), "held": 1}, (2, "booting")),
        ({"serving": 2, "claimed": cores(20), "promised": 2}, (2, "promised")),
        ({"serving": 1, "claimed": cores(0)}, (1, "minimum")),
        ({"waiting": 1, "machines": 1, "failing": "it broke"}, (1, "launch_failed")),
    ],
)
def test_a_pool_by_capacity(facts: dict[str, Any], want: tuple[int, str]) -> None:
    assert brief(decide_size(load(**facts))) == want


def test_what_remains_must_stay_below_the_upper_threshold() -> None:
    wide = given.changed(load().thresholds, {"cpu_scale_down": 0.5, "cpu_scale_up": 0.6})
    assert brief(decide_size(load(serving=2, claimed=cores(40), thresholds=wide))) == (2, "remaining")
    assert brief(decide_size(load(serving=2, claimed=cores(28), thresholds=wide))) == (1, "idle")
    assert brief(decide_size(load(serving=2, measured_cpu=0.4, thresholds=wide))) == (2, "remaining")


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        ({"labs": 15}, (1, "minimum")),
        ({"labs": 16}, (2, "threshold")),
        ({"labs": 16, "coming": 1}, (2, "thresholds")),
        ({"labs": 31, "coming": 1}, (3, "threshold")),
        ({"labs": 5, "serving": 2}, (1, "idle")),
        ({"labs": 6, "serving": 2}, (2, "thresholds")),
        ({"labs": 1, "claimed": cores(48)}, (1, "minimum")),
        ({"labs": 1, "waiting": 2, "machines": 1}, (2, "waiting")),
    ],
)
def test_a_pool_by_labs(facts: dict[str, Any], want: tuple[int, str]) -> None:
    assert brief(decide_size(load(P.LAB_COUNT_BASED, **facts))) == want


def test_without_a_policy_and_by_bookings_load_opens_nothing() -> None:
    for policy in (P.NONE, P.SCHEDULED):
        assert decide_size(load(policy, claimed=cores(48), waiting=3, machines=2)).size == 1
        assert brief(decide_size(load(policy, serving=2))) == (1, "policy")
        assert brief(decide_size(load(policy, promised=2, serving=2))) == (2, "booked")
        assert brief(decide_size(load(policy, serving=3, promised=3, waiting=1))) == (3, "maximum")


def test_under_hybrid_what_is_booked_has_its_machines_already() -> None:
    class_room = {"serving": 2, "promised": 2, "claimed": cores(96), "booked": cores(96)}
    assert decide_size(load(P.HYBRID, **class_room)).size == 2
    assert decide_size(load(P.CAPACITY_BASED, **class_room)).size == 3
    beside = {"serving": 2, "promised": 2, "claimed": cores(48 + 40), "booked": cores(48)}
    assert brief(decide_size(load(P.HYBRID, **beside))) == (3, "threshold")
    alone = {"serving": 1, "claimed": cores(40)}
    assert brief(decide_size(load(P.HYBRID, **alone))) == brief(decide_size(load(P.CAPACITY_BASED, **alone)))


def test_one_step_is_taken_per_cooldown_and_the_moments_are_stored_ones() -> None:
    many: dict[str, Any] = {"waiting": 1, "machines": 1}
    found = decide_size(load(**many, up_at=ago(9)))
    assert (brief(found), found.due) == ((1, "cooldown"), NOW + timedelta(minutes=1))
    assert brief(decide_size(load(**many, down_at=ago(9)))) == (1, "cooldown")
    assert brief(decide_size(load(**many, up_at=ago(10), down_at=ago(30)))) == (2, "waiting")
    for name in ("up_at", "down_at"):
        last: dict[str, Any] = {name: ago(19)}
        found = decide_size(load(serving=2, **last))
        assert (brief(found), found.due) == ((2, "cooldown"), NOW + timedelta(minutes=1))
    assert brief(decide_size(load(serving=2, up_at=ago(20), down_at=ago(20)))) == (1, "idle")


def test_a_cooldown_of_the_longest_time_that_may_be_named_ends_at_a_moment() -> None:
    limits = CapacityThresholds(scale_up_cooldown_minutes=2**31, scale_down_cooldown_minutes=2**31)
    waits = decide_size(load(machines=1, waiting=1, up_at=ago(1), thresholds=limits))
    assert waits.due is not None
    assert (brief(waits), waits.due.year) == ((1, "cooldown"), 6109)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"scale_up_cooldown_minutes": 2**31 + 1}, CapacityThresholds)


@pytest.mark.parametrize("closed", ["hours", "paused"])
@pytest.mark.parametrize("policy", ScalingPolicy)
def test_a_closed_pool_has_what_was_promised_whatever_the_load_is(policy: ScalingPolicy, closed: Any) -> None:
    shut = {"closed": closed, "opens_at": NOW + timedelta(hours=1), "waiting": 3, "machines": 1}
    found = decide_size(load(policy, serving=3, promised=2, up_at=ago(1), **shut))
    assert (brief(found), found.action, found.due) == ((2, closed), "scale_down", shut["opens_at"])
    assert "paused until" not in found.reason, "its hours may begin later than the pause ends"
    assert decide_size(load(policy, serving=2, promised=2, **shut)).action == "none"


@pytest.mark.parametrize("why", ["hourly_budget", "monthly_budget", "licences"])
def test_budgets_and_licences_stop_what_nobody_booked(why: str) -> None:
    many: dict[str, Any] = {"waiting": 30, "machines": 2}
    none, one = LoadRoom(0, why, "too dear"), LoadRoom(1, why, "too dear")
    found = decide_size(load(**many, room=none))
    assert (brief(found), found.reason) == ((1, why), "no worker is started for load: too dear")
    assert brief(decide_size(load(**many, room=one))) == (2, "waiting")
    # A machine without sessions yields at once; one with sessions is paid for by them.
    assert brief(decide_size(load(serving=2, up_at=ago(1), room=none))) == (1, why)
    assert brief(decide_size(load(serving=2, busy=1, claimed=cores(50), room=none))) == (2, "thresholds")


def machines_for(needs: Sequence[Amount], most: int, *rooms: Amount) -> tuple[int, int]:
    """Return how many more machines hold needs, and how many of those no room that comes holds."""
    found, counts = MachineCount(MACHINE, most, rooms), Counter(needs)
    for need in largest_first(counts):
        found.add(need, counts[need])
    return found.machines, found.unheld


def test_lesson_3_those_who_wait_get_as_many_machines_as_hold_them_together() -> None:
    lab, large = given.amount(), given.amount(cpu_millis=40_000)
    assert machines_for([lab] * 500, 100) == (42, 500)
    assert machines_for([lab] * 500, 3) == (3, 500)
    assert machines_for([lab] * 12, 3) == (1, 12)
    assert machines_for([large] * 2 + [given.amount(cpu_millis=8_000)] * 2, 9) == (2, 4)
    assert machines_for([given.amount(cpu_millis=49_000)] * 9, 9) == (0, 9)
    assert machines_for([], 9) == (0, 0)


def test_lesson_3_machines_that_come_up_hold_those_who_wait_before_any_other_is_started() -> None:
    lab, large = given.amount(), given.amount(cpu_millis=40_000)
    assert machines_for([lab] * 24, 9, MACHINE, MACHINE) == (0, 0)
    assert machines_for([lab] * 25, 9, MACHINE, MACHINE) == (1, 1)
    assert machines_for([lab] * 12, 9, given.machine(cpu_millis=8_000)) == (1, 10)
    assert machines_for([large] * 2, 9, MACHINE) == (1, 1)


loads = st.builds(
    lambda policy, serving, promised, busy, claimed, waiting, room, **rest: load(
        policy,
        serving=max(serving, promised),
        promised=promised,
        busy=min(busy, max(0, serving - promised)),
        claimed=cores(claimed),
        waiting=waiting,
        machines=-(-waiting // 12),
        room=LoadRoom(room, "hourly_budget", "too dear"),
        **rest,
    ),
    st.sampled_from(ScalingPolicy),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 150),
    st.integers(0, 40),
    st.integers(0, 3),
    closed=st.sampled_from(["", "hours", "paused"]),
    up_at=st.none() | st.integers(0, 40).map(ago),
    down_at=st.none() | st.integers(0, 40).map(ago),
)


@for_all(loads)
def test_no_decision_breaks_a_limit_or_a_promise(facts: PoolLoad) -> None:
    found = decide_size(facts)
    assert found.size >= facts.promised
    assert found.size <= max(facts.most, facts.current)
    assert {"scale_up": found.size > facts.current, "scale_down": found.size < facts.current}.get(found.action, True)
    if found.action == "none":
        assert found.size == facts.current
    if found.action == "scale_up":
        assert facts.policy in LOAD_POLICIES
        assert not facts.closed
        assert found.size <= facts.affordable
        assert all(last is None or last <= ago(10) for last in (facts.up_at, facts.down_at))
    if found.action == "scale_down" and found.why == "idle":
        assert found.size == facts.current - 1
        assert all(last is None or last <= ago(20) for last in (facts.up_at, facts.down_at))
    assert found.reason
    assert found.why
    assert found.considered
