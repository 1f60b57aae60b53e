"""docs/configuration.md says what the tables say."""

import subprocess
import sys

from harness import suite
from lcm.settings.page import render_page
from lcm.settings.values import HEADINGS, OTHER_VARIABLES, VARIABLES, Settings

PAGE = suite.ROOT / "docs" / "configuration.md"


def test_the_page_is_made_from_the_tables() -> None:
    assert PAGE.read_text() == render_page(), "run `make docs`"


def test_the_page_holds_every_variable_and_alias_once() -> None:
    lines = [line for line in render_page().splitlines() if line.startswith("| `")]
    assert len(lines) == len(VARIABLES) + len(OTHER_VARIABLES)
    for name in [name for one in VARIABLES for name in one.names] + list(OTHER_VARIABLES):
        assert sum(f"`{name}`" in line.split("|")[1] for line in lines) == 1


def test_every_variable_stands_under_a_heading() -> None:
    assert set(HEADINGS) <= set(Settings.__struct_fields__)
    assert VARIABLES[0].field in HEADINGS
    assert all(f"## {heading}\n" in render_page() for heading in HEADINGS.values())


def test_the_command_prints_the_page() -> None:
    printed = subprocess.run([sys.executable, "-m", "lcm.settings.page"], capture_output=True, check=True, text=True)
    assert printed.stdout == render_page()
