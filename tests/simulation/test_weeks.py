"""Days of the simulated weeks: promises are kept, pools keep their rules, and the ledger is the cloud's bill."""

from collections import Counter

import msgspec
import pytest

from lcm.model.kinds.pool import ScalingPolicy
from world.weeks.figures import play_week
from world.weeks.run import RUNS, find_week
from world.weeks.table import WEEKS


@pytest.mark.parametrize(
    ("name", "policy"),
    [("class at nine", ScalingPolicy.HYBRID), ("spot reclaims", ScalingPolicy.CAPACITY_BASED)],
)
def test_nothing_goes_wrong_on_the_first_day_of_a_week(name: str, policy: ScalingPolicy) -> None:
    week = find_week(name)
    monday = msgspec.structs.replace(week.under(policy), hours=17, quiet_hours=6)
    report = play_week(name, policy, monday, week.people)
    assert report.is_right, report.told
    assert report.promised
    assert (report.reclaimed > 0) == (name == "spot reclaims")
    assert report.sessions > report.promised


def test_every_policy_has_two_weeks_and_every_week_is_played_under_hybrid() -> None:
    counted = Counter(policy for _, policy in RUNS)
    assert [policy for policy in ScalingPolicy if counted[policy] < 2] == []
    assert [week.name for week in WEEKS if ScalingPolicy.HYBRID not in week.policies] == []
