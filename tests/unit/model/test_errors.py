"""The error tree is what its docstring draws, and errors say what to do."""

import re
from datetime import timedelta

import pytest

from lcm.model.base import errors
from lcm.model.base.errors import Conflict, Fault, Invalid, Later, LcmError, Stuck, Unreachable


def drawn() -> dict[str, str]:
    """Read child and parent off the picture in the docstring."""
    lines: list[tuple[int, str]] = []
    parents: dict[str, str] = {}
    picture = (errors.__doc__ or "").split("\n\n")[1]
    for line in picture.splitlines():
        name = re.search(r"[A-Z]\w+", line)
        assert name is not None
        depth = name.start() // 4
        lines = [one for one in lines if one[0] < depth]
        if lines:
            parents[name[0]] = lines[-1][1]
        lines.append((depth, name[0]))
    return parents


def real() -> dict[str, str]:
    found: dict[str, str] = {}
    waiting: list[type[LcmError]] = [LcmError]
    while waiting:
        parent = waiting.pop()
        for child in parent.__subclasses__():
            if child.__module__ == errors.__name__:
                found[child.__name__] = parent.__name__
                waiting.append(child)
    return found


def test_the_drawn_tree_is_the_real_one() -> None:
    assert drawn() == real()


def test_a_conflict_says_what_was_found() -> None:
    error = Conflict("workers/default/w1", wanted=0, found=7)
    assert str(error) == "workers/default/w1 exists already, at revision 7"
    assert (error.key, error.wanted, error.found) == ("workers/default/w1", 0, 7)
    assert str(Conflict("k", wanted=3, found=0)) == "k was expected at revision 3 but is gone"


def test_invalid_lists_every_fault_on_a_line_of_its_own() -> None:
    error = Invalid(Fault("spec.a", "missing", "write it"), Fault("spec.b", "odd"))
    assert str(error) == "spec.a: missing; write it\nspec.b: odd"
    assert [fault.path for fault in error.faults] == ["spec.a", "spec.b"]


@pytest.mark.parametrize("kind", [Later, errors.Throttled, Unreachable])
def test_later_says_when(kind: type[Later]) -> None:
    assert kind("busy").after == timedelta(seconds=1)
    assert kind("busy", after=timedelta(minutes=1)).after == timedelta(minutes=1)


def test_stuck_has_a_reason_that_machines_can_read() -> None:
    error = Stuck("NewerSchema", "upgrade first")
    assert (error.reason, str(error)) == ("NewerSchema", "upgrade first")
