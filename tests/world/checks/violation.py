"""What a check found."""

from lcm.model.kinds.registry import Resource
from lcm.sim.world.world import Violation


def violation(rule: str, text: str, *about: Resource) -> Violation:
    """Return a violation about some objects."""
    return Violation(rule, text, tuple(dict.fromkeys(object_name(one) for one in about)))


def object_name(resource: Resource) -> str:
    """Return the name of an object, as stories write it."""
    return f"{resource.kind}/{resource.metadata.name}"
