"""Labs that are found stopped while their time goes on: how often lately, and what became of that. Pure.

All of it is in one condition of the session, so that whoever looks next goes on.
"""

from datetime import datetime
from typing import Final

from lcm.controllers.session.view import View, said
from lcm.model.resource import Condition, Truth, condition, with_condition
from lcm.model.session import INSTANTIATION_LIMIT, LabletSession

LAB_RUNS: Final = "LabRuns"
"""False: its lab was found stopped while its time went on, and has not come up again yet."""
_TRIED: Final = "Restarted"
_LEFT: Final = "NotRestarted"
_FOUND: Final = "its lab was found stopped"


def restarts(view: View) -> int:
    """Say how often its lab was started again; what is long past does not count."""
    known = _known(view.session)
    if known is None or view.now >= known.last_transition_at + view.rules.forgiven:
        return 0
    return int(known.reason.removeprefix(_LEFT).removeprefix(_TRIED))


def coming_up(session: LabletSession, now: datetime) -> bool:
    """Tell whether its lab is being started again, and has not taken longer over it than any may."""
    known = _known(session)
    if known is None or known.status is not Truth.FALSE or left_stopped(session):
        return False
    return now < known.last_transition_at + INSTANTIATION_LIMIT


def left_stopped(session: LabletSession) -> bool:
    """Tell whether its lab is left as it is, because it was started again often enough."""
    known = _known(session)
    return known is not None and known.reason.startswith(_LEFT)


def tried(view: View) -> tuple[Condition, ...]:
    """Give its conditions when its lab is to be started once more: each attempt has a time of its own."""
    new = Condition(
        type=LAB_RUNS,
        status=Truth.FALSE,
        last_transition_at=view.now,
        reason=f"{_TRIED}{restarts(view) + 1}",
        message=_FOUND,
    )
    others = tuple(one for one in view.status.conditions if one.type != LAB_RUNS)
    return with_condition(others, new)


def left(view: View) -> tuple[Condition, ...]:
    """Give its conditions when its lab is not started again for a while."""
    return said(view, LAB_RUNS, Truth.FALSE, f"{_LEFT}{restarts(view)}", _FOUND)


def up_again(view: View) -> tuple[Condition, ...]:
    """Give its conditions when its lab has come up again."""
    return said(view, LAB_RUNS, Truth.TRUE, f"{_TRIED}{restarts(view)}", _FOUND)


def _known(session: LabletSession) -> Condition | None:
    return condition(session.status.conditions, LAB_RUNS)
