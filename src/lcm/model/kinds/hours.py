"""Hours of the day in which something is allowed or wanted: of pools, and of prebuilt labs."""

from enum import StrEnum
from typing import Annotated

import msgspec

from lcm.model.base.resource import Part, ZoneName


class Weekday(StrEnum):
    """A day of the week."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


Hour = Annotated[int, msgspec.Meta(ge=0, le=24)]


class AllowedHours(Part):
    """The hours of the day, in a time zone, in which a pool may run machines for what is not promised.

    They may span midnight, and then belong to the day on which they begin. No weekdays means every day.
    """

    start_hour: Hour = 0
    end_hour: Hour = 24
    time_zone: ZoneName = "UTC"
    weekdays: Annotated[tuple[Weekday, ...], msgspec.Meta(max_length=7)] = ()
