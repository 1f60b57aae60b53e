"""The simulated weeks, as values: which pools there are, who comes, and which policies are tried on each.

Nothing goes wrong in them but that the cloud takes back what it has lent, so every promise must be kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Final

import msgspec

from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.pool import Budget, ScalingPolicy
from lcm.model.kinds.prebuilt import PrebuiltPolicy
from lcm.model.kinds.settings import QuotaRule
from lcm.sim.world.scenario import REGION, Scenario, ScenarioLab, ScenarioPool
from world.scenarios import OTHER_REGION, WORKDAYS
from world.weeks.people import (
    DAY,
    HOUR,
    Deed,
    accounts_are_closed,
    class_at_nine,
    crowd,
    pools_come_and_go,
    reclaims,
    sittings,
    some_book,
    some_come,
)

_P: Final = ScalingPolicy
_BASIS: Final = Scenario(
    hours=7 * 24,
    quiet_hours=8,
    processes=2,
    labs=(ScenarioLab(name="basics", track="ccna", cpu_cores=4, memory_gb=8),),
    sessions_a_day=0,
    bystanders=False,
)
"""A week from Monday on, with labs of which twelve fit on a machine."""
_DAYTIME: Final = AllowedHours(start_hour=6, end_hour=20, time_zone="Europe/Prague", weekdays=WORKDAYS)


@dataclass(frozen=True)
class Week:
    """A week: its name, what is in it, who comes, and the policies that its pools are tried with."""

    name: str
    scenario: Scenario
    people: Sequence[Deed]
    policies: Sequence[ScalingPolicy]

    def under(self, policy: ScalingPolicy) -> Scenario:
        """Return the scenario with a policy for all its pools, which are planned with what they are billed with."""
        pools = tuple(
            msgspec.structs.replace(
                one, policy=policy, price_per_hour_usd=one.price_per_hour_usd if one.market == "spot" else None
            )
            for one in self.scenario.pools
        )
        return msgspec.structs.replace(self.scenario, pools=pools)


def _week(
    name: str,
    policies: Sequence[ScalingPolicy],
    people: Sequence[Deed],
    pools: Sequence[ScenarioPool],
    quotas: Sequence[QuotaRule] = (),
    *,
    prebuilt: PrebuiltPolicy | None = None,
) -> Week:
    labs = (msgspec.structs.replace(_BASIS.labs[0], prebuilt=prebuilt),)
    scenario = msgspec.structs.replace(_BASIS, labs=labs, pools=tuple(pools), quotas=tuple(quotas))
    return Week(name, scenario, (*people, accounts_are_closed), policies)


WEEKS: Final = (
    _week(
        "class at nine",
        (_P.HYBRID, _P.SCHEDULED, _P.LAB_COUNT_BASED),
        (class_at_nine(120), some_come(20, hours=(13, 17))),
        (ScenarioPool(track="ccna", most=12, warm=2),),
    ),
    _week(
        "exam day",
        (_P.HYBRID, _P.SCHEDULED, _P.NONE),
        (sittings(60, 2, (8 * HOUR, 11 * HOUR, 14 * HOUR), 90), some_come(5)),
        (ScenarioPool(track="ccna", most=8, least=2, hours=_DAYTIME, budget=Budget(monthly_usd=Decimal(4_000))),),
    ),
    _week(
        "slow season",
        (_P.HYBRID, _P.NONE, _P.LAB_COUNT_BASED),
        (some_book(8), some_come(4), pools_come_and_go),
        (ScenarioPool(track="ccna", most=3, least=1, warm=1, hours=_DAYTIME),),
    ),
    _week(
        "hackathon",
        (_P.HYBRID, _P.CAPACITY_BASED, _P.LAB_COUNT_BASED),
        (crowd(240, 4 * DAY + 17 * HOUR, 6 * DAY + 17 * HOUR),),
        (ScenarioPool(track="ccna", most=20, budget=Budget(hourly_usd=Decimal(36))),),
        (QuotaRule(role="user", sessions=2, pending=2), QuotaRule(track="ccna", sessions=90)),
    ),
    _week(
        "walk-in lab",
        (_P.HYBRID, _P.CAPACITY_BASED, _P.SCHEDULED),
        (class_at_nine(20), some_book(20), some_come(60)),
        (ScenarioPool(track="ccna", most=4, least=2, hours=_DAYTIME),),
        prebuilt=PrebuiltPolicy(count=4, hours=msgspec.structs.replace(_DAYTIME, start_hour=8), max_age_minutes=240),
    ),
    _week(
        "two regions",
        (_P.HYBRID, _P.SCHEDULED, _P.CAPACITY_BASED),
        (some_book(40, regions=(REGION, OTHER_REGION)), some_come(15, regions=(REGION, OTHER_REGION))),
        (
            ScenarioPool(track="ccna", name="ccna-east", most=5, least=1),
            ScenarioPool(track="ccna", name="ccna-west", most=5, least=1, region=OTHER_REGION),
        ),
    ),
    _week(
        "spot reclaims",
        (_P.HYBRID, _P.CAPACITY_BASED),
        (some_book(10), some_come(90, spot_share=0.8), reclaims(timedelta(hours=1))),
        (
            ScenarioPool(track="ccna", most=1, least=1),
            ScenarioPool(track="ccna", name="ccna-lent", most=6, market="spot", price_per_hour_usd="1.3"),
        ),
    ),
)
