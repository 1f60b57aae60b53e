"""The collector that fails the suite when a step of a state machine is taken by no test."""

from enum import StrEnum
from pathlib import Path

from harness import suite
from lcm.model.base.machine import SCHEDULER, WORKER_CONTROLLER, PhaseStep, StateMachine
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


def test_a_step_that_no_test_took_is_found() -> None:
    assert ("Lamp", "OFF", "ON", SCHEDULER) in suite.untaken([LAMP], set())


def test_only_what_is_never_stored_is_left_out() -> None:
    targets = [target for _, source, target, _ in suite.untaken([RESERVATION_MACHINE], set()) if source == "PENDING"]
    assert targets == ["PROMISED"]


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
    assert ("Lamp", "OFF", "ON", SCHEDULER) not in suite.untaken([LAMP], taken)
