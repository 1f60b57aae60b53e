"""All people of a world, and what they share: which version of each lab is the one to book."""

from typing import Final

from lcm.model.access.identity import Role
from world.checked import CheckedWorld
from world.people.auditor import Auditor
from world.people.greedy import Greedy
from world.people.listener import Listener
from world.people.monitor import Monitor
from world.people.operator import Operator
from world.people.returner import Returner
from world.people.stranger import Stranger
from world.people.subscriber import Subscriber
from world.people.visitors import Visitors
from world.scenarios import definition_name

_LISTENERS: Final = (("lena", Role.OPERATOR), ("person-1", Role.USER), ("zed", Role.USER))


class Population:
    """All people of a world."""

    def __init__(self, world: CheckedWorld) -> None:
        self._world = world
        self._current = {lab.name: definition_name(lab) for lab in world.scenario.labs}

    def start(self) -> None:
        """Start all people; they come until the scenario's end."""
        world = self._world
        if world.scenario.sessions_a_day:
            world.begin(Visitors(world, self._current).book_sessions())
        world.begin(Monitor(world).watch_processes())
        for number in range(world.scenario.returners):
            world.begin(Returner(world, self._current, f"ruth-{number}").come_back())
        if not world.scenario.bystanders:
            return
        world.begin(Greedy(world, self._current, "gus").grab())
        operator = Operator(world, self._current)
        world.begin(operator.meddle())
        world.begin(operator.answer_alerts())
        world.begin(Stranger(world).pry())
        world.begin(Auditor(world).audit())
        world.begin(Subscriber(world).read_feeds())
        for name, role in _LISTENERS:
            world.begin(Listener(world, name, role).listen())
