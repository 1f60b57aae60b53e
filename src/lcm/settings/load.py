"""Settings: defaults, then a file, then the environment; at run time the SystemSettings object overrides them.

Called by `compose` and `cli`, which pass each part what it needs. Read once, at start; bad values stop the start, and
all of them are reported together. `lcm doctor` shows every value and its source.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.settings import SystemSettings
from lcm.settings.checks import find_contradictions, find_warnings
from lcm.settings.documents import document_defaults, referenced_secrets
from lcm.settings.sources import (
    OWN_PREFIX,
    Variable,
    choices_of,
    describe_type,
    document_type,
    environment_layer,
    file_layer,
    misspelt_variables,
    read_layers,
    service_links,
)
from lcm.settings.values import HEADINGS, OTHER_VARIABLES, VARIABLES, Settings

__all__ = [
    "Configuration",
    "SettingValue",
    "Settings",
    "ShownSetting",
    "describe_settings",
    "document_defaults",
    "effective_settings",
    "list_values",
    "load_settings",
    "read_configuration",
    "referenced_secrets",
]

DEFAULT_FILES: Final = (Path("lcm.toml"), Path("/etc/lcm/lcm.toml"))
"""Where the file is looked for when LCM_CONFIG names none; the first that exists is used."""

RUNTIME_FIELDS: Final = {
    "discovery.enabled": "worker_discovery_enabled",
    "discovery.regions": "worker_discovery_regions",
    "discovery.ami_name_pattern": "worker_discovery_ami_name",
    "discovery.scan_interval_seconds": "worker_discovery_interval",
    "scheduler.strategy": "scheduler_strategy",
    "scheduler.reconcile_interval_seconds": "scheduler_reconcile_interval",
    "scheduler.require_licensed_for_cml": "require_licensed_for_cml",
    "scheduler.worker_bootup_delay_minutes": "worker_bootup_delay_minutes",
    "scheduler.lablet_instantiation_delay_minutes": "lablet_instantiation_delay_minutes",
    "monitoring.enabled": "worker_monitoring_enabled",
    "monitoring.metrics_poll_interval_seconds": "metrics_poll_interval",
    "monitoring.cpu_alert_percent": "cpu_alert_percent",
    "monitoring.memory_alert_percent": "memory_alert_percent",
    "monitoring.disk_alert_percent": "disk_alert_percent",
    "idle.check_interval_seconds": "idle_check_interval",
    "idle.threshold_minutes": "idle_threshold_minutes",
    "scaling.min_workers": "min_workers_per_pool",
    "scaling.max_workers": "max_workers_per_pool",
    "scaling.scale_up_threshold_cpu": "scale_up_threshold_cpu",
    "scaling.scale_down_threshold_cpu": "scale_down_threshold_cpu",
    "learning.review_difference": "review_difference",
    "learning.review_sessions": "review_sessions",
    "artifacts.retention_days": "artifacts_retention_days",
    "quotas.max_pending": "max_pending_per_owner",
    "quotas.max_live": "max_live_per_owner",
    "quotas.max_ahead": "max_ahead_per_owner",
    "quotas.horizon_days": "booking_horizon_days",
    "quotas.max_nodes": "max_nodes_per_owner",
    "quotas.max_hours_ahead": "max_hours_ahead_per_owner",
    "quotas.max_hours_per_month": "max_hours_per_owner_month",
    "quotas.max_usd_per_month": "max_usd_per_owner_month",
}
"""Which field of the SystemSettings object overrides which setting."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of this process, the source of each, and everything that is wrong with them."""

    settings: Settings
    sources: Mapping[str, str]
    """By variable; a variable that is missing here has its default."""
    file: Path | None
    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    """What may be a mistake but does not stop the start."""


class ShownSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting as a page shows it: what it means, what it is, where that comes from, and how it is changed."""

    name: str
    group: str
    meaning: str
    form: str
    """What a value looks like, in words."""
    value: str
    """For people; of a secret only whether it is set."""
    default: str
    source: str
    """`default`, `settings object`, `command line`, or which file or variable."""
    secret: bool = False
    field: str = ""
    """The field of the SystemSettings object that changes it at run time; without one, it needs a restart."""
    choices: tuple[str, ...] = ()
    type: Literal["boolean", "number", "text", "list"] = "text"
    """What a document holds for it."""
    below: str = ""
    """The value without the SystemSettings object; empty where that says nothing about it."""


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A setting in a form that may be shown to anybody."""

    variable: str
    value: str
    source: str


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; raises Invalid with everything that is wrong with them."""
    found = read_configuration(environment)
    if found.faults:
        raise Invalid(*found.faults)
    return found.settings


def read_configuration(environment: Mapping[str, str] | None = None) -> Configuration:
    """Read the settings and what is wrong with them; instead of a bad value, the layer below counts."""
    environment = os.environ if environment is None else environment
    names = [*(name for one in VARIABLES for name in one.names), *OTHER_VARIABLES]
    linked = service_links(environment)
    environment = {name: text for name, text in environment.items() if name not in linked}
    faults = list(misspelt_variables(environment, names, ours=True))
    file = _find_file(environment)
    layers = [] if file is None else [file_layer(file, VARIABLES, faults)]
    reading = read_layers(VARIABLES, [*layers, environment_layer(environment, VARIABLES)], faults)
    if "worker_discovery_regions" not in reading.values and "aws_region" in reading.values:
        reading.values["worker_discovery_regions"] = (reading.values["aws_region"],)
        reading.sources["WORKER_DISCOVERY_REGIONS"] = reading.sources["AWS_REGION"]
    settings = Settings(**reading.values)
    faults += find_contradictions(settings, [fault.path for fault in faults])
    ignored = [fault for name, fault in linked.items() if name in names or name.startswith(OWN_PREFIX)]
    doubts = [*misspelt_variables(environment, names, ours=False), *ignored, *find_warnings(settings)]
    return Configuration(settings, reading.sources, file, tuple(faults), tuple(doubts))


def effective_settings(settings: Settings, system: SystemSettings | None) -> Settings:
    """Return the settings of the process with those of the SystemSettings object over them."""
    return msgspec.structs.replace(settings, **_runtime_values(system))


def list_values(found: Configuration, system: SystemSettings | None = None) -> tuple[SettingValue, ...]:
    """List every setting, its value as it may be shown, and its source."""
    settings, said = effective_settings(found.settings, system), _runtime_values(system)
    return tuple(
        SettingValue(
            one.name,
            format_value(getattr(settings, one.field)),
            "settings object" if one.field in said else found.sources.get(one.name, "default"),
        )
        for one in VARIABLES
    )


def describe_settings(
    found: Configuration, running: Settings, system: SystemSettings | None
) -> tuple[ShownSetting, ...]:
    """List every setting of a process that runs with these, whatever its command line and the object say."""
    settings, said = effective_settings(running, system), _runtime_values(system)
    fields = {field: path for path, field in RUNTIME_FIELDS.items()}
    headings = [HEADINGS.get(one.field, "") for one in VARIABLES]
    groups: Iterator[str] = accumulate(headings, lambda last, new: new or last)
    return tuple(
        ShownSetting(
            name=one.name,
            group=group,
            meaning=one.meaning,
            form=describe_type(one.hint),
            value=format_value(getattr(settings, one.field)),
            default=format_value(one.default),
            source="settings object" if one.field in said else _source_of(one, found, running),
            secret=one.secret,
            field=fields.get(one.field, ""),
            choices=choices_of(one.hint),
            type=document_type(one.hint),
            below=format_value(getattr(running, one.field)) if one.field in said else "",
        )
        for one, group in zip(VARIABLES, groups, strict=True)
    )


def _source_of(one: Variable, found: Configuration, running: Settings) -> str:
    if getattr(running, one.field) != getattr(found.settings, one.field):
        return "command line"
    return found.sources.get(one.name, "default")


def format_value(value: object) -> str:
    """Write a value for people; of a secret only whether it is set."""
    if value is None or value == ():
        return "not set"
    if isinstance(value, Secret):
        return "set"
    if isinstance(value, tuple):
        return f"{len(value)} set" if isinstance(value[0], Secret) else ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _runtime_values(system: SystemSettings | None) -> dict[str, Any]:
    if system is None:
        return {}
    said = {field: attrgetter(path)(system.spec) for path, field in RUNTIME_FIELDS.items()}
    return {field: value for field, value in said.items() if value is not None}


def _find_file(environment: Mapping[str, str]) -> Path | None:
    if named := environment.get("LCM_CONFIG", "").strip():
        return Path(named).expanduser()
    return next((path for path in DEFAULT_FILES if path.is_file()), None)
