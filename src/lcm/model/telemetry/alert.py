"""Alerts: what an operator should look at. Each is raised once and cleared once, however often its cause is seen.

Controllers report an `AlertFinding`; `control.telemetry.alerts` turns it into an `Alert`.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from lcm.model.base.resource import END, Moment, Name, Part, ShortText, Text

AlertName = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Z][A-Za-z0-9]{0,63}" + END, description="one word", examples=["HighCpu"])
]


class Severity(StrEnum):
    """How soon somebody should look."""

    WARNING = "warning"
    CRITICAL = "critical"


class AlertFinding(Part):
    """What is wrong with an object.

    `alert` is its name for as long as it lasts; `reason` is one word, `message` a sentence.
    """

    alert: AlertName
    severity: Severity
    reason: ShortText
    message: Text


class Alert(Part):
    """A finding about an object, and since when it has lasted."""

    kind: ShortText
    name: Name
    namespace: Name
    uid: ShortText
    alert: AlertName
    severity: Severity
    reason: ShortText
    message: Text
    since: Moment
