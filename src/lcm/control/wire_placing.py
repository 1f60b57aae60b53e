"""What the API and its callers exchange about placing. Used by `api` and `client_placing`."""

from typing import Annotated

import msgspec

from lcm.model.placing import FULFILLED_AT_ONCE, LONGEST_LIST, Assignment, SeatChange
from lcm.model.resource import Count, Part
from lcm.model.session import LabletSession


class ScheduleWish(Part):
    """Where the scheduler wants a session that it saw at exactly this revision."""

    resource_version: Count
    assignment: Assignment


class SeatChanges(Part):
    """Claims that are to change their seats, all or none."""

    changes: Annotated[tuple[SeatChange, ...], msgspec.Meta(max_length=LONGEST_LIST)]


class ClaimNumbers(Part):
    """Which of a reservation's claims are meant."""

    numbers: Annotated[tuple[Count, ...], msgspec.Meta(max_length=FULFILLED_AT_ONCE)]


class MadeSessions(msgspec.Struct, frozen=True):
    """The sessions that took over claims of a reservation."""

    items: tuple[LabletSession, ...]
