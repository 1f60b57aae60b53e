"""What a check found."""

from dataclasses import dataclass

from lcm.model.kinds.registry import Resource


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never happen has happened."""

    rule: str
    """Which line of "what must never happen" it breaks."""
    text: str
    about: tuple[str, ...] = ()
    """The names of the objects whose stories tell how it came to it."""


def violation(rule: str, text: str, *about: Resource) -> Violation:
    """Say what was found, and about which objects."""
    return Violation(rule, text, tuple(dict.fromkeys(name_of(one) for one in about)))


def name_of(resource: Resource) -> str:
    """Name an object, as stories do."""
    return f"{resource.kind}/{resource.metadata.name}"
