"""The worlds that are played most, and the documents that a scenario stands for, as an operator applies them."""

from datetime import timedelta
from decimal import Decimal
from typing import Final

import msgspec

from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import (
    AmiRequirements,
    DefinitionState,
    LabletDefinition,
    LabletDefinitionSpec,
    ResourceRequirements,
    Topology,
)
from lcm.model.kinds.hours import AllowedHours, Weekday
from lcm.model.kinds.pool import (
    Budget,
    LabWorkerPool,
    LabWorkerPoolSpec,
    ScalingPolicy,
    WorkerTemplate,
    WorkerTemplateSpec,
)
from lcm.model.kinds.prebuilt import PrebuiltPolicy
from lcm.model.kinds.settings import QuotaRule, QuotaSettings, SystemSettings, SystemSettingsSpec
from lcm.model.kinds.worker import AwsSpec, CmlSpec, LabWorkerSpec
from lcm.providers.protocols.artifacts import StoredArtifact
from lcm.sim.time.chance import Chance
from lcm.sim.world.scenario import MONDAY, Scenario, ScenarioLab, ScenarioPool

VERSION: Final = "1.0.0"

UNHOSTABLE_PREFIX: Final = "unhostable-"
"""How the names of labs begin that nobody can host."""


def unhostable_labs(track: str) -> tuple[ScenarioLab, ...]:
    """Return labs that ask for a CML, for nodes, and for a machine that no pool has."""
    wanted = ScenarioLab(name=UNHOSTABLE_PREFIX, track=track, cpu_cores=8, memory_gb=16)
    differences: tuple[tuple[str, dict[str, object]], ...] = (
        ("version", {"cml_version_min": "3.1"}),
        ("nodes", {"node_definition": "router-of-tomorrow"}),
        ("size", {"cpu_cores": 900, "memory_gb": 4_000}),
    )
    return tuple(
        msgspec.structs.replace(wanted, name=UNHOSTABLE_PREFIX + name, **change) for name, change in differences
    )


CAMPUS: Final = Scenario(
    labs=(
        ScenarioLab(name="ccna-basics", track="ccna", cpu_cores=8, memory_gb=16),
        ScenarioLab(name="ccna-exam", track="ccna", cpu_cores=12, memory_gb=24, nodes=6),
        ScenarioLab(name="ccnp-core", track="ccnp", cpu_cores=16, memory_gb=32, nodes=5),
    ),
    unhostable=(*unhostable_labs("ccna")[:2], unhostable_labs("ccnp")[2]),
    pools=(
        ScenarioPool(track="ccna", most=10, instance_type="m8i.12xlarge", smaller_types=("m8i.8xlarge", "m8i.4xlarge")),
        ScenarioPool(track="ccnp", most=10, least=1),
    ),
    returners=3,
)
"""Twenty workers and three hundred sessions a day, with the settings that a new installation has."""

CLASSROOM: Final = Scenario(
    start=MONDAY + timedelta(hours=8),
    processes=2,
    labs=(ScenarioLab(name="ccna-basics", track="ccna", cpu_cores=8, memory_gb=16),),
    pools=(ScenarioPool(track="ccna", most=4),),
    sessions_a_day=60,
)
"""Four workers and sixty sessions a day, for tests and for scenarios that are written down."""

CROWDED: Final = msgspec.structs.replace(
    CLASSROOM,
    processes=3,
    sessions_a_day=480,
    labs=(msgspec.structs.replace(CLASSROOM.labs[0], prebuilt=PrebuiltPolicy(count=3, max_age_minutes=120)),),
    unhostable=unhostable_labs("ccna"),
    pools=(ScenarioPool(track="ccna", most=4, least=2),),
)
"""The same with workers that are always there, prebuilt labs, and far more sessions: much happens in little time."""


OTHER_REGION: Final = "us-west-2"
"""Another region of which prices are known."""
_SPOT_PRICE: Final = "1.3"
WORKDAYS: Final = tuple(Weekday)[:5]


def draw_campus(seed: int) -> Scenario:
    """Return the campus with pools and quotas that a seed draws: policies, regions, hours, budgets, spot."""
    dice = Chance(seed).stream("scenario")
    pools = [_draw_pool(dice, pool) for pool in CAMPUS.pools]
    if dice.random() < 0.5:
        pools.append(_draw_pool(dice, ScenarioPool(track="ccna", name="ccna-west", region=OTHER_REGION, most=4)))
    if dice.random() < 0.5:
        spot = ScenarioPool(
            track="ccna",
            name="ccna-spot",
            market="spot",
            most=4,
            policy=dice.choice((ScalingPolicy.HYBRID, ScalingPolicy.CAPACITY_BASED, ScalingPolicy.LAB_COUNT_BASED)),
            price_per_hour_usd=_SPOT_PRICE,
        )
        pools.append(spot)
    return msgspec.structs.replace(CAMPUS, seed=seed, pools=tuple(pools), quotas=_draw_quotas(dice))


def _draw_pool(dice: Chance, pool: ScenarioPool) -> ScenarioPool:
    """Return a pool with a policy, and perhaps a minimum, a warm tier, hours or budgets."""
    policy = dice.choice((*ScalingPolicy, ScalingPolicy.SCHEDULED, ScalingPolicy.HYBRID))
    existing = policy not in {ScalingPolicy.SCHEDULED, ScalingPolicy.HYBRID}
    hours = AllowedHours(start_hour=6, end_hour=21, time_zone=dice.choice(("UTC", "Europe/Prague")), weekdays=WORKDAYS)
    budget = Budget(hourly_usd=Decimal(dice.choice((16, 24))), monthly_usd=dice.choice((None, Decimal(2_000))))
    return msgspec.structs.replace(
        pool,
        policy=policy,
        least=dice.choice((2, 3) if existing else (0, 0, 1)),
        warm=dice.choice((0, 0, 1, 2)),
        hours=hours if dice.random() < 0.3 else None,
        budget=budget if dice.random() < 0.3 else Budget(),
    )


def _draw_quotas(dice: Chance) -> tuple[QuotaRule, ...]:
    """Return rules for an owner, for users of a track, and for a track, or none of them."""
    rules = (
        QuotaRule(owner="gus", sessions=4, pending=3, usd_per_month=40),
        QuotaRule(role="user", track="ccnp", sessions=2, hours_per_month=20, nodes=20),
        QuotaRule(track="ccna", sessions=60, nodes=300, hours_ahead=200),
    )
    return tuple(one for one in rules if dice.random() < 0.5)


def settings_document(rules: tuple[QuotaRule, ...]) -> SystemSettings:
    """Return the settings object with quota rules."""
    return SystemSettings(metadata=Metadata(name="system"), spec=SystemSettingsSpec(quotas=QuotaSettings(rules=rules)))


def definition_of(lab: ScenarioLab, stored: StoredArtifact) -> LabletDefinition:
    """Return the definition of a lab whose file is stored."""
    spec = LabletDefinitionSpec(
        version=VERSION,
        state=DefinitionState.ACTIVE,
        lab_track=lab.track,
        topology=Topology(uri=stored.uri, digest=stored.digest),
        resource_requirements=ResourceRequirements(
            cpu_cores=lab.cpu_cores, memory_gb=lab.memory_gb, storage_gb=lab.storage_gb
        ),
        ami_requirements=AmiRequirements(cml_version_min=lab.cml_version_min),
        prebuilt=lab.prebuilt,
    )
    return LabletDefinition(metadata=Metadata(name=definition_name(lab)), spec=spec)


def definition_name(lab: ScenarioLab) -> str:
    """Return the name by which a lab is booked."""
    return f"{lab.name}:{VERSION}"


def pool_documents(wanted: ScenarioPool) -> tuple[WorkerTemplate, LabWorkerPool]:
    """Return the documents of a pool: the template of its workers, and the pool itself."""
    cml = CmlSpec(admin_password="env:CML_ADMIN_PASSWORD")
    if wanted.licensed:
        cml = msgspec.structs.replace(cml, license_token="env:CML_LICENSE_TOKEN", license_flavour="enterprise")
    worker = LabWorkerSpec(
        lab_track=wanted.track,
        aws=AwsSpec(
            region=wanted.region,
            market=wanted.market,
            instance_type=wanted.instance_type,
            ami_name_pattern="CML-2.9*",
            nested_virtualization=".metal" not in wanted.instance_type,
        ),
        cml=cml,
    )
    name = Metadata(name=wanted.pool_name)
    price = Decimal(wanted.price_per_hour_usd) if wanted.price_per_hour_usd else None
    template = WorkerTemplateSpec(
        worker=worker, name_prefix=wanted.pool_name, price_per_hour_usd=price, smaller_types=wanted.smaller_types
    )
    spec = LabWorkerPoolSpec(
        lab_track=wanted.track,
        template=wanted.pool_name,
        min_workers=wanted.least,
        max_workers=wanted.most,
        warm_workers=wanted.warm,
        policy=wanted.policy,
        allowed_hours=wanted.hours,
        budget=wanted.budget,
    )
    return (WorkerTemplate(metadata=name, spec=template), LabWorkerPool(metadata=name, spec=spec))
