"""Every state machine as one Markdown page: `python -m lcm.model.states` writes docs/states.md."""

import sys
from typing import Final

from lcm.model.kinds import MACHINES
from lcm.model.machine import describe

_HEADING: Final = """\
# States

Made from the tables in `lcm.model` by `make docs`; a test compares. Only the control plane takes steps, for the part
named under *by*.
"""


def render() -> str:
    """Write the whole page."""
    return "\n".join([_HEADING, *map(describe, MACHINES)])


if __name__ == "__main__":
    sys.stdout.write(render())
