"""SystemSettings: what an operator may change while the system runs.

A field that is None leaves the value to the environment, the file and the default, in this order: `effective` in
`settings.load` combines them. The types are those of the environment variables.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from lcm.model.base.resource import (
    API_VERSION,
    DEFAULT_NAMESPACE,
    END,
    Fraction,
    Metadata,
    Minutes,
    Name,
    Part,
    Region,
    ShortText,
    Status,
)
from lcm.model.money.billing import Usd

Seconds = Annotated[int, msgspec.Meta(ge=1, le=86_400, description="whole seconds from 1 to 86400")]
ScanSeconds = Annotated[int, msgspec.Meta(ge=10, le=86_400, description="whole seconds from 10 to 86400")]
Share = Annotated[Fraction, msgspec.Meta(description="a fraction from 0 to 1")]
AlertPercent = Annotated[float, msgspec.Meta(gt=0, le=100, description="a percentage above 0, at most 100")]
FewestWorkers = Annotated[int, msgspec.Meta(ge=0, le=1000, description="a whole number from 0 to 1000")]
MostWorkers = Annotated[int, msgspec.Meta(ge=1, le=1000, description="a whole number from 1 to 1000")]
Days = Annotated[int, msgspec.Meta(ge=1, le=36_500, description="whole days from 1 to 36500")]
FewestSessions = Annotated[int, msgspec.Meta(ge=1, le=200, description="a whole number from 1 to 200")]
MostBookings = Annotated[int, msgspec.Meta(ge=0, le=1_000_000, description="a whole number from 0 to 1000000")]
MostHours = Annotated[int, msgspec.Meta(ge=0, le=100_000_000, description="whole hours from 0 to 100000000")]
MostDollars = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000, description="whole US dollars from 0 to 1000000000")]
MAX_QUOTA_RULES: Final = 200
QUOTA_SELECTORS: Final = ("owner", "role", "namespace", "track")
NamePattern = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"^\S(.*\S)?{END}",
        max_length=128,
        description="a name in which * and ? stand for others",
        examples=["CML-*"],
    ),
]


class Strategy(StrEnum):
    """How one of the workers that fit is chosen."""

    BIN_PACK = "BinPack"
    BEST_FIT = "BestFit"
    LEAST_UTILIZED = "LeastUtilized"
    LEAST_LABS = "LeastLabs"
    ROUND_ROBIN = "RoundRobin"
    RANDOM = "Random"


class DiscoverySettings(Part):
    """Where and how often unmanaged instances are searched for."""

    enabled: bool | None = None
    regions: Annotated[tuple[Region, ...], msgspec.Meta(max_length=64, description="a list of at most 64")] | None = (
        None
    )
    ami_name_pattern: NamePattern | None = None
    scan_interval_seconds: ScanSeconds | None = None


class SchedulerSettings(Part):
    """How sessions are placed, and how long machines and labs take to start."""

    strategy: Strategy | None = None
    reconcile_interval_seconds: Seconds | None = None
    require_licensed_for_cml: bool | None = None
    worker_bootup_delay_minutes: Minutes | None = None
    lablet_instantiation_delay_minutes: Minutes | None = None


class MonitoringSettings(Part):
    """Whether and how often workers are measured, and from how many percent on their usage is too high."""

    enabled: bool | None = None
    metrics_poll_interval_seconds: Seconds | None = None
    cpu_alert_percent: AlertPercent | None = None
    memory_alert_percent: AlertPercent | None = None
    disk_alert_percent: AlertPercent | None = None


class IdleSettings(Part):
    """How often workers are checked for idleness, and after how long an idle worker is paused."""

    check_interval_seconds: Seconds | None = None
    threshold_minutes: Minutes | None = None


class ScalingSettings(Part):
    """Defaults for pools. Bounds are set in pairs, so that values from two sources never contradict."""

    min_workers: FewestWorkers | None = None
    max_workers: MostWorkers | None = None
    scale_up_threshold_cpu: Share | None = None
    scale_down_threshold_cpu: Share | None = None


class LearningSettings(Part):
    """When a definition needs review: how much, and over how many sessions, use must differ from what it declares."""

    review_difference: Share | None = None
    review_sessions: FewestSessions | None = None


class ArtifactSettings(Part):
    """How long artifacts of a session are kept. Those collected earlier keep the time they were promised."""

    retention_days: Days | None = None


class PrivacySettings(Part):
    """After how many days those are forgotten who are named in what has ended; never, without it.

    Their names are replaced by pseudonyms, and what was collected from their labs is removed.
    """

    retention_days: Days | None = None


class QuotaRule(Part):
    """Limits for those bookings that it selects; what it does not name is left to other rules.

    With an owner or a role it bounds each owner, without both everybody together. Hours are those of slots.
    """

    owner: ShortText | None = None
    role: Literal["admin", "operator", "author", "instructor", "user"] | None = None
    namespace: Name | None = None
    track: ShortText | None = None
    sessions: MostBookings | None = None
    pending: MostBookings | None = None
    ahead: MostBookings | None = None
    horizon_days: Days | None = None
    nodes: MostBookings | None = None
    hours_ahead: MostHours | None = None
    hours_per_month: MostHours | None = None
    usd_per_month: MostDollars | None = None


QUOTA_LIMITS: Final = tuple(name for name in QuotaRule.__struct_fields__ if name not in QUOTA_SELECTORS)
"""The names of all limits."""


def set_limits(rule: QuotaRule) -> dict[str, int]:
    """Return the limits that a rule names."""
    return {name: most for name in QUOTA_LIMITS if (most := getattr(rule, name)) is not None}


class QuotaSettings(Part):
    """How much one owner may book, unless a rule says otherwise. Staff are bound by rules alone.

    `max_pending` sessions waiting, `max_live` at once, `max_ahead` slots that have not begun, `max_nodes` CML nodes at
    once; hours are those of slots that have not begun, or of a calendar month in UTC.
    """

    max_pending: MostBookings | None = None
    max_live: MostBookings | None = None
    max_ahead: MostBookings | None = None
    horizon_days: Days | None = None
    max_nodes: MostBookings | None = None
    max_hours_ahead: MostHours | None = None
    max_hours_per_month: MostHours | None = None
    max_usd_per_month: MostDollars | None = None
    rules: Annotated[tuple[QuotaRule, ...], msgspec.Meta(max_length=MAX_QUOTA_RULES)] = ()


class TrackBudget(Part):
    """What the workers of one lab track may cost in a month, whichever pools they are in."""

    lab_track: ShortText
    monthly_usd: Usd
    namespace: Name = DEFAULT_NAMESPACE


class BudgetSettings(Part):
    """Budgets beside those of pools, which pools have themselves."""

    tracks: Annotated[tuple[TrackBudget, ...], msgspec.Meta(max_length=500)] = ()


class SystemSettingsSpec(Part):
    """All groups of settings."""

    discovery: DiscoverySettings = DiscoverySettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    monitoring: MonitoringSettings = MonitoringSettings()
    idle: IdleSettings = IdleSettings()
    scaling: ScalingSettings = ScalingSettings()
    learning: LearningSettings = LearningSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    quotas: QuotaSettings = QuotaSettings()
    budgets: BudgetSettings = BudgetSettings()
    privacy: PrivacySettings = PrivacySettings()


class SystemSettings(Part):
    """The single settings object. It takes precedence over file and environment."""

    metadata: Metadata
    api_version: Literal["lcm/v1"] = API_VERSION
    kind: Literal["SystemSettings"] = "SystemSettings"
    spec: SystemSettingsSpec = SystemSettingsSpec()
    status: Status = Status()
