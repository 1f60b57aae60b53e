"""Simulated CML machines on a clock that a test sets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from lcm.sim.cml.engine import Cml
from lcm.sim.cml.parts import Node, NodeState, SimLab
from lcm.sim.time.chance import Chance
from stores import HandClock

LONG = 3_600


class Bench:
    """A machine with its clock, and short words for what tests do with it."""

    def __init__(self, **options: Any) -> None:
        self.clock = HandClock()
        self.cml = Cml(self.clock, Chance(options.pop("seed", 1)), **options)

    def imported(self, topology: str | None = None, title: str | None = None) -> SimLab:
        return self.cml.import_lab(text() if topology is None else topology, self.cml.users.administrator, title)[0]

    def started(self, topology: str | None = None) -> SimLab:
        lab = self.imported(topology)
        self.cml.labs.start(lab)
        return lab

    def booted(self, topology: str | None = None) -> SimLab:
        lab = self.started(topology)
        self.wait(LONG)
        return lab

    def wait(self, seconds: float) -> None:
        self.clock.step(seconds=seconds)

    def states(self, lab: SimLab) -> list[NodeState]:
        age = self.cml.pace.age()
        return [node.life.state(age) for node in lab.nodes.values()]

    def state(self, lab: SimLab) -> NodeState:
        return lab.state(self.cml.pace.age())

    def converged(self, lab: SimLab) -> bool:
        return lab.is_converged(self.cml.pace.age())

    def through(self, lab: SimLab, seconds: int) -> Iterator[list[NodeState]]:
        """Let seconds go by one by one and say the states at each."""
        for _ in range(seconds):
            yield self.states(lab)
            self.wait(1)


def node(label: str, definition: str = "iosv", interfaces: int = 1, **more: Any) -> dict[str, Any]:
    ends = [{"id": f"i{n}", "label": f"p{n}", "type": "physical", "slot": n} for n in range(interfaces)]
    return {"id": label, "label": label, "node_definition": definition, "x": 0, "y": 0, "interfaces": ends, **more}


def link(a: str, b: str) -> dict[str, str]:
    """Connect `node/interface` to `node/interface`."""
    (n1, i1), (n2, i2) = (end.split("/") for end in (a, b))
    return {"id": f"{a}-{b}", "n1": n1, "i1": i1, "n2": n2, "i2": i2}


def document(*nodes: Mapping[str, Any], links: Sequence[Mapping[str, str]] = (), **heading: object) -> dict[str, Any]:
    return {"lab": {"version": "0.3.0", **heading}, "nodes": list(nodes), "links": list(links)}


def text(*nodes: Mapping[str, Any], links: Sequence[Mapping[str, str]] = ()) -> str:
    return yaml.safe_dump(document(*(nodes or (node("R1"),)), links=links))


def one(lab: SimLab, label: str) -> Node:
    return next(node for node in lab.nodes.values() if node.spec.label == label)
