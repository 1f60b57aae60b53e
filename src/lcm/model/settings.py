"""SystemSettings: what an operator may change while the system runs."""

from typing import Annotated, Literal

import msgspec

from lcm.model.resource import API_VERSION, Metadata, Part, Region, Status


class DiscoverySettings(Part):
    """Where and how often strangers are looked for."""

    enabled: bool = True
    regions: tuple[Region, ...] = ("us-east-1",)
    ami_name_pattern: str = "CML-*"
    scan_interval_seconds: Annotated[int, msgspec.Meta(ge=10)] = 300


class SystemSettingsSpec(Part):
    """Every group of settings."""

    discovery: DiscoverySettings = DiscoverySettings()


class SystemSettings(Part):
    """The one object of settings; it wins over file and environment."""

    metadata: Metadata
    api_version: Literal["lcm/v1"] = API_VERSION
    kind: Literal["SystemSettings"] = "SystemSettings"
    spec: SystemSettingsSpec = SystemSettingsSpec()
    status: Status = Status()
