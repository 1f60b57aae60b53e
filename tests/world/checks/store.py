"""Checks that a store that fills up is told about, by every process that can tell, and no longer than it is so."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.control.upkeep.store_health import ALERT_PERCENT, NEARLY_FULL, NOT_WRITABLE
from lcm.model.telemetry.alert import Alert
from lcm.sim.world.environment import HALF_FULL_PERCENT, Environment
from lcm.sim.world.world import Violation
from world.observed import ObservedState

UNTOLD: Final = "a full store that nobody is told of, or a store with room that is called full"
TOLD_WITHIN: Final = timedelta(minutes=3)
"""Several probes, with an outage between them."""


def full_store_is_told(
    seen: ObservedState, stage: Environment, now: datetime, process: str, alerts: Iterable[Alert] | None
) -> Sequence[Violation]:
    """Check what one process says of the store; None if it says nothing at all just now, which is no fault of it.

    That the store is full is told by each process for itself; that it is nearly full is written into the store.
    """
    names = {one.alert for one in alerts or ()}
    used, full = stage.store.used_percent, stage.store.is_full
    wrong = {
        f"{process} takes writes for possible": full and NOT_WRITABLE not in names,
        f"{process} takes writes for impossible": not full and NOT_WRITABLE in names,
        "nobody tells that the store is nearly full": used >= ALERT_PERCENT and not full and NEARLY_FULL not in names,
        "the store is called nearly full": used <= HALF_FULL_PERCENT and NEARLY_FULL in names,
    }
    return [
        Violation(UNTOLD, f"{text}, and {used} % of it are used")
        for text, is_wrong in wrong.items()
        if seen.duration_of((process, text), now, is_so=is_wrong and alerts is not None) > TOLD_WITHIN
    ]
