"""The collector that fails the suite when a controller exists whose steps are not all taken by some test."""

from enum import StrEnum
from pathlib import Path

import pytest

from harness import suite
from lcm.model.base.machine import CONTROL_PLANE, SCHEDULER, WORKER_CONTROLLER, PhaseStep, StateMachine
from lcm.model.base.resource import Status
from lcm.model.kinds.reservation import RESERVATION_MACHINE


class Lamp(StrEnum):
    OFF = "OFF"
    ON = "ON"


LAMP = StateMachine(
    name="Lamp",
    initial=Lamp.OFF,
    final=frozenset({Lamp.ON}),
    steps=(
        PhaseStep(Lamp.OFF, Lamp.ON, SCHEDULER, "wanted"),
        PhaseStep(Lamp.OFF, Lamp.ON, WORKER_CONTROLLER, "wanted by another"),
    ),
    limits=(),
)


def test_a_step_of_a_built_controller_that_no_test_took_is_found() -> None:
    assert suite.untaken([LAMP], set(), built=lambda actor: actor == SCHEDULER) == [("Lamp", "OFF", "ON", SCHEDULER)]


def test_steps_of_a_controller_that_does_not_exist_are_not_asked_for() -> None:
    assert suite.untaken([LAMP], set(), built=lambda _: False) == []


def test_a_promise_is_asked_for_once_bookings_are_made() -> None:
    plane = suite.untaken([RESERVATION_MACHINE], set(), built=lambda part: part == CONTROL_PLANE)
    assert [target for _, _, target, _ in plane] == ["CANCELLING", "CANCELLING"]
    booking = suite.untaken([RESERVATION_MACHINE], set(), built=lambda part: part == suite.BOOKING)
    assert [target for _, _, target, _ in booking] == ["PROMISED", "FAILED"]


def test_a_step_taken_in_any_process_counts(tmp_path: Path) -> None:
    take = StateMachine.check_step
    try:
        write = suite.record(tmp_path / "notes", "gw0")
        LAMP.check_step(Lamp.OFF, Lamp.ON, by=SCHEDULER, status=Status())
        write()
    finally:
        StateMachine.check_step = take  # type: ignore[method-assign]
    taken = suite.collected(tmp_path / "notes")
    assert taken == {("Lamp", "OFF", "ON", SCHEDULER)}
    assert suite.untaken([LAMP], taken, built=lambda actor: actor == SCHEDULER) == []


def test_a_part_exists_when_its_module_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suite.MODULES, SCHEDULER, "lcm.nowhere.scheduler")
    assert not suite.exists(SCHEDULER)
    monkeypatch.setitem(suite.MODULES, SCHEDULER, "lcm.model.base.machine")
    assert suite.exists(SCHEDULER)
