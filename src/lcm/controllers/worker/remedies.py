"""How far an unhealthy worker is helped without anybody: a reboot, then another machine, twice. Pure.

`hosting` asks whether there is anything left to try, `complaints` what to tell. A machine that is not of our launch is
rebooted once; all else is for people.
"""

from datetime import timedelta
from typing import Final

from lcm.controllers.worker.failing import ours
from lcm.controllers.worker.measure import SERVING
from lcm.controllers.worker.view import View
from lcm.model.resource import Truth, condition
from lcm.model.worker import WorkerCondition

CURED_AFTER: Final = timedelta(hours=1)
"""What was done helped if nothing was wrong for so long; what comes later is another illness."""
_MOST: Final = 4
_MOST_OF_A_STRANGER: Final = 1


def ailing(view: View) -> bool:
    """Tell whether it has been unhealthy for so long that something must be done."""
    since = view.status.unhealthy_since
    return since is not None and view.status.phase in SERVING and view.now >= since + view.rules.unhealthy_for


def exhausted(view: View) -> bool:
    """Tell whether all was tried that may be."""
    return view.status.remedies >= (_MOST if ours(view) else _MOST_OF_A_STRANGER)


def well_for(view: View) -> timedelta:
    """Tell how long it has been seen healthy since it was last up; zero if it is not."""
    status = view.status
    known = condition(status.conditions, WorkerCondition.HEALTH_CHECK_PASSED)
    if status.phase not in SERVING or known is None or known.status is not Truth.TRUE:
        return timedelta(0)
    moments = (known.last_transition_at, status.ready_at, status.remedied_at)
    return view.now - max(one for one in moments if one is not None)
