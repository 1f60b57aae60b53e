"""Which checks are asked when."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lcm.model.kinds import Resource
from lcm.model.session import LabletSession
from lcm.sim.world.checks.capacity import ports_are_not_shared, worker_is_not_overcommitted
from lcm.sim.world.checks.violation import Violation
from lcm.sim.world.seen import Seen, Turn

if TYPE_CHECKING:
    from lcm.sim.world.world import World

Check = Callable[[Seen, Turn[Any]], Sequence[Violation]]

ALWAYS: Final[Mapping[type[Resource], Sequence[Check]]] = {
    LabletSession: (worker_is_not_overcommitted, ports_are_not_shared),
}
"""After each commit, about each object of a kind that it changed."""

AT_REST: Final[Sequence[Callable[["World"], Sequence[Violation]]]] = ()
"""When nothing is going on any more."""


def at_rest(world: "World") -> Sequence[Violation]:
    """Ask everything that must be so when nothing is going on."""
    return [found for check in AT_REST for found in check(world)]
