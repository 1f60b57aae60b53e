"""What a check found."""

from dataclasses import dataclass

from lcm.model.kinds.registry import Resource


@dataclass(frozen=True, slots=True)
class Violation:
    """Something happened that must never happen."""

    rule: str
    """The line of "what must never happen" that is broken."""
    text: str
    about: tuple[str, ...] = ()
    """The names of the objects whose stories explain it."""


def violation(rule: str, text: str, *about: Resource) -> Violation:
    """Return a violation about some objects."""
    return Violation(rule, text, tuple(dict.fromkeys(object_name(one) for one in about)))


def object_name(resource: Resource) -> str:
    """Return the name of an object, as stories write it."""
    return f"{resource.kind}/{resource.metadata.name}"
