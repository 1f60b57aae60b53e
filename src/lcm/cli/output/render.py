"""Text for terminals: widths, ages, moments, colours. Called by every command that prints.

Results go to standard output, messages to standard error; colours to terminals only. Text that came from somewhere
else is stripped of control characters, so that nobody's reason or label can write to another's terminal.
"""

import os
import re
import shutil
import sys
import unicodedata
from datetime import UTC, datetime, timedelta
from textwrap import wrap
from typing import Final

import typer

WIDEST: Final = 100
"""Running text is not wider than this, however wide the terminal is."""

UNSAFE: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What a terminal might obey, or what turns the direction of text; line breaks are harmless."""

_HARMLESS: Final = "�"
_UNITS: Final = (
    (timedelta(days=730), timedelta(days=365), "y"),
    (timedelta(hours=48), timedelta(days=1), "d"),
    (timedelta(minutes=120), timedelta(hours=1), "h"),
    (timedelta(seconds=120), timedelta(minutes=1), "m"),
)
_GREEN: Final = frozenset({"READY", "ACTIVE", "RUNNING", "COMPLETED", "PROMISED", "True", "active"})
_RED: Final = frozenset({"FAILED", "EXPIRED", "False"})
_GREY: Final = frozenset({"STOPPED", "TERMINATED", "CANCELLED", "GONE", "deprecated"})


def out(text: str = "") -> None:
    """Print a result."""
    typer.echo(text, color=None if _colours() else False)


def say(text: str, *, colour: str | None = None) -> None:
    """Tell a person something that is no result."""
    typer.secho(UNSAFE.sub(_HARMLESS, text), err=True, fg=colour, color=None if _colours() else False)


def tell(text: str) -> None:
    """Print a result in words, in lines that fit a terminal."""
    most = room()
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        first, *rest = wrapped(line.strip(), len(line) if most is None else most - len(indent) - 2)
        out(indent + first)
        for more in rest:
            out(f"{indent or '  '}{more}")


def room() -> int | None:
    """Say how wide the output may be; None when it goes to a file or another program."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    return shutil.get_terminal_size().columns


def paint(text: str, colour: str | None) -> str:
    """Colour a text, if it goes to a terminal."""
    return typer.style(text, fg=colour) if colour and _colours() and sys.stdout.isatty() else text


def phase_colour(phase: str) -> str | None:
    """Give the colour of a phase or a truth."""
    word = phase.partition(" ")[0]
    if word in _RED:
        return "red"
    if word in _GREEN:
        return "green"
    return "bright_black" if word in _GREY else "yellow" if word.isupper() else None


def width(text: str) -> int:
    """Say how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)


def cut(text: str, most: int) -> str:
    """Shorten a text to so many cells, with … where something is missing."""
    if width(text) <= most:
        return text
    kept = text[:most]
    while width(kept) > most - 1:
        kept = kept[:-1]
    return f"{kept}…"


def padded(text: str, least: int) -> str:
    """Fill a text up to so many cells."""
    return text + " " * (least - width(text))


def clean(text: str) -> str:
    """Make foreign text harmless to a terminal, in one line."""
    return UNSAFE.sub(_HARMLESS, text.replace("\n", " ↵ ").replace("\t", " "))


def escaped(json: str) -> str:
    """Write what a terminal might obey in a JSON text as JSON escapes."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def age(moment: datetime | None, now: datetime) -> str:
    """Say how long ago a moment is: 45s, 5m, 3h, 2d."""
    return span(now - moment) if moment else ""


def span(length: timedelta) -> str:
    """Write a length of time in one unit."""
    length = max(length, timedelta())
    for least, unit, letter in _UNITS:
        if length >= least:
            return f"{length // unit}{letter}"
    return f"{length // timedelta(seconds=1)}s"


def when(moment: datetime | None) -> str:
    """Write a moment to the minute."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%MZ}" if moment else ""


def relative(moment: datetime, now: datetime) -> str:
    """Write a moment with its distance: `2026-11-02 09:00Z (in 3h)`."""
    distance = f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"
    return f"{when(moment)} ({distance})"


def wrapped(text: str, most: int) -> list[str]:
    """Break running text into lines; long words such as addresses stay whole."""
    return wrap(clean(text), max(most, 20), break_long_words=False, break_on_hyphens=False) or [""]


def _colours() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
