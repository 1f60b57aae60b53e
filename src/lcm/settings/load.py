"""Settings: defaults, then a file, then the environment; at run time the SystemSettings object wins over all.

Read once, at start; a bad value stops the start, and all bad ones are named together. `lcm doctor` shows every value
and where it was said. Called by `compose` and `cli`, which hand each part what it needs.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.settings import SystemSettings
from lcm.settings.checks import contradictions, doubtful
from lcm.settings.documents import document_defaults, referred
from lcm.settings.sources import OURS, environment_layer, file_layer, links, read, strays
from lcm.settings.values import ELSEWHERE, VARIABLES, Settings

__all__ = [
    "Configuration",
    "Settings",
    "Value",
    "document_defaults",
    "effective",
    "examine",
    "explain",
    "load",
    "referred",
]

FILES: Final = (Path("lcm.toml"), Path("/etc/lcm/lcm.toml"))
"""Where a file is looked for when LCM_CONFIG names none; the first that exists counts."""

RUNTIME: Final = {
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
    "idle.check_interval_seconds": "idle_check_interval",
    "idle.threshold_minutes": "idle_threshold_minutes",
    "scaling.min_workers": "min_workers_per_pool",
    "scaling.max_workers": "max_workers_per_pool",
    "scaling.scale_up_threshold_cpu": "scale_up_threshold_cpu",
    "scaling.scale_down_threshold_cpu": "scale_down_threshold_cpu",
    "learning.review_difference": "review_difference",
    "learning.review_sessions": "review_sessions",
    "artifacts.retention_days": "artifacts_retention_days",
}
"""Which field of the SystemSettings object wins over which of ours."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of this process, where each was said, and everything that is wrong with them."""

    settings: Settings
    sources: Mapping[str, str]
    """By variable; what is not here is a default."""
    file: Path | None
    faults: tuple[Fault, ...] = ()
    doubts: tuple[Fault, ...] = ()
    """What may be a mistake and stops nothing."""


@dataclass(frozen=True, slots=True)
class Value:
    """A setting as it may be shown to anybody."""

    variable: str
    value: str
    source: str


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; raises Invalid with everything that is wrong with them."""
    found = examine(environment)
    if found.faults:
        raise Invalid(*found.faults)
    return found.settings


def examine(environment: Mapping[str, str] | None = None) -> Configuration:
    """Read the settings and what is wrong with them; a bad value leaves the word to the layers below."""
    environment = os.environ if environment is None else environment
    names = [*(name for one in VARIABLES for name in one.names), *ELSEWHERE]
    linked = links(environment)
    environment = {name: text for name, text in environment.items() if name not in linked}
    faults = list(strays(environment, names, ours=True))
    file = _file(environment)
    layers = [] if file is None else [file_layer(file, VARIABLES, faults)]
    reading = read(VARIABLES, [*layers, environment_layer(environment, VARIABLES)], faults)
    if "worker_discovery_regions" not in reading.values and "aws_region" in reading.values:
        reading.values["worker_discovery_regions"] = (reading.values["aws_region"],)
        reading.sources["WORKER_DISCOVERY_REGIONS"] = reading.sources["AWS_REGION"]
    settings = Settings(**reading.values)
    faults += contradictions(settings, [fault.path for fault in faults])
    ignored = [fault for name, fault in linked.items() if name in names or name.startswith(OURS)]
    doubts = [*strays(environment, names, ours=False), *ignored, *doubtful(settings)]
    return Configuration(settings, reading.sources, file, tuple(faults), tuple(doubts))


def effective(settings: Settings, system: SystemSettings | None) -> Settings:
    """Put what the SystemSettings object says over the settings of the process."""
    return msgspec.structs.replace(settings, **_said_by(system))


def explain(found: Configuration, system: SystemSettings | None = None) -> tuple[Value, ...]:
    """List every setting, its value as it may be shown, and where it was said."""
    settings, said = effective(found.settings, system), _said_by(system)
    return tuple(
        Value(
            one.name,
            shown(getattr(settings, one.field)),
            "settings object" if one.field in said else found.sources.get(one.name, "default"),
        )
        for one in VARIABLES
    )


def shown(value: object) -> str:
    """Write a value for people; of a secret only whether it is set."""
    if value is None or value == ():
        return "not set"
    if isinstance(value, Secret):
        return "set"
    if isinstance(value, tuple):
        return f"{len(value)} set" if isinstance(value[0], Secret) else ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _said_by(system: SystemSettings | None) -> dict[str, Any]:
    if system is None:
        return {}
    said = {field: attrgetter(path)(system.spec) for path, field in RUNTIME.items()}
    return {field: value for field, value in said.items() if value is not None}


def _file(environment: Mapping[str, str]) -> Path | None:
    if named := environment.get("LCM_CONFIG", "").strip():
        return Path(named).expanduser()
    return next((path for path in FILES if path.is_file()), None)
