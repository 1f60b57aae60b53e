"""Lines at the bottom of a terminal that are drawn again in place. Called by `get --watch` and by `up`."""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Final

from lcm.cli.output import render

REDRAW_SECONDS: Final = 0.5
_ERASE_REST_OF_LINE: Final = "\x1b[K"
_ERASE_BELOW: Final = "\x1b[J"


def can_redraw() -> bool:
    """Return whether standard output is a terminal on which lines can be drawn again."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class LiveLines:
    """Lines that replace each other on a terminal. Each must fit the terminal's width."""

    def __init__(self) -> None:
        self._drawn: Sequence[str] = ()

    def draw(self, lines: Sequence[str]) -> None:
        """Draw lines in the place of those drawn before; lines beyond the terminal's height are counted instead."""
        most = max(shutil.get_terminal_size().lines - 1, 2)
        if len(lines) > most:
            lines = [*lines[: most - 1], f"and {len(lines) - most + 1} more"]
        if list(lines) == list(self._drawn):
            return
        back = f"\x1b[{len(self._drawn)}A" if self._drawn else ""
        text = "".join(f"{line}{_ERASE_REST_OF_LINE}\n" for line in lines)
        render.print_line(f"{back}{text}{_ERASE_BELOW}", end="")
        self._drawn = lines
