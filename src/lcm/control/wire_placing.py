"""What the API and its callers exchange about placing. Used by `api` and `client_placing`."""

from typing import Annotated

import msgspec

from lcm.model.placing import LONGEST_LIST, Assignment, SeatChange
from lcm.model.resource import Count, Part, Positive


class ScheduleWish(Part):
    """Where the scheduler wants a session that it saw at exactly this revision."""

    resource_version: Count
    assignment: Assignment


class SeatChanges(Part):
    """Claims that are to change their seats, all or none."""

    changes: Annotated[tuple[SeatChange, ...], msgspec.Meta(max_length=LONGEST_LIST)]


class ClaimNumber(Part):
    """Which of a reservation's claims is meant."""

    number: Positive
