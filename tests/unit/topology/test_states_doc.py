"""docs/states.md says what the tables say."""

import subprocess
import sys

from harness import suite
from lcm.model.base.machine import describe_machine
from lcm.model.kinds.registry import STATE_MACHINES, render_states

PAGE = suite.ROOT / "docs" / "states.md"


def test_the_page_is_made_from_the_tables() -> None:
    assert PAGE.read_text() == render_states(), "run `make docs`"


def test_the_page_holds_every_machine_phase_and_reason() -> None:
    text = render_states()
    for machine in STATE_MACHINES:
        assert describe_machine(machine) in text
        assert all(f"--> {phase}" in text for phase in machine.phases)
        assert all(step.why in text for step in machine.steps)
        assert all(limit.why in text for limit in machine.limits)


def test_every_row_of_a_table_has_as_many_cells_as_its_heading() -> None:
    for machine in STATE_MACHINES:
        cells = {line.count("|") for line in describe_machine(machine).splitlines() if line.startswith("|")}
        assert cells == {5, 6}


def test_spans_are_written_for_people() -> None:
    text = render_states()
    assert "| PROVISIONING_EC2 | 10 min | FAILED |" in text
    assert "| TERMINATING | 1 h | stays, alert raised |" in text
    assert "| DRAINING | until `drain_deadline_at` | UNLICENSING |" in text


def test_the_command_prints_the_page() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "lcm.model.kinds.registry"], capture_output=True, check=True, text=True
    )
    assert printed.stdout == render_states()
