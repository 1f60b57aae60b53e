"""The actions that change bookings: they are promised anew, all or none, or refused as a booking is.

Members of `SessionAction` and `ReservationAction` in `control.plane.protocol`; performed by `control.booking.changes`.
"""

from typing import Annotated

import msgspec

from lcm.model.base.resource import Moment, Part, Positive, ZoneName
from lcm.model.kinds.reservation import OCCURRENCES_LIMIT
from lcm.model.kinds.session import Email

_YEAR_MINUTES = 527_040
SignedMinutes = Annotated[int, msgspec.Meta(ge=-_YEAR_MINUTES, le=_YEAR_MINUTES)]
Learners = Annotated[tuple[Email, ...], msgspec.Meta(max_length=OCCURRENCES_LIMIT)]


class Move(Part, tag_field="action", tag="move"):
    """Move a session that has not started, or a class, so that it begins at a moment or by some minutes later.

    Of a series all that is left of it moves, or one occurrence, or from one `onward`. It moves by the wall clock of its
    own time zone; `time_zone` is that of a booking without one.
    """

    start: Moment | None = None
    minutes: SignedMinutes | None = None
    occurrence: Positive | None = None
    onward: bool = False
    time_zone: ZoneName | None = None


class Skip(Part, tag_field="action", tag="skip"):
    """Leave out an occurrence of a series: what is booked for it is released."""

    occurrence: Positive


class Resize(Part, tag_field="action", tag="resize"):
    """Change how many seats a class has from now on; with named learners, say who they are then."""

    seats: Annotated[int, msgspec.Meta(ge=1, le=OCCURRENCES_LIMIT)]
    student_emails: Learners = ()


class SetLearners(Part, tag_field="action", tag="learners"):
    """Name the learners of a class, one for each seat, or nobody. Who stays keeps the own seat."""

    student_emails: Learners


class Swap(Part, tag_field="action", tag="swap"):
    """Swap the seats of two learners of a class, or give the seat of one to somebody new."""

    learner: Email
    other: Email
