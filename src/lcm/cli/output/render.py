"""Text for terminals: widths, ages, moments, colours. Called by every command that prints.

Results go to standard output, messages to standard error; colours only to terminals. Text from elsewhere is stripped
of control characters, so that nobody's reason or label can control another person's terminal.
"""

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from textwrap import wrap
from typing import Final, TextIO

import typer

from lcm.cli.output.zone import current_zone, localize

MAX_TEXT_WIDTH: Final = 100
"""Running text is never wider than this, however wide the terminal is."""

UNSAFE: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal might obey or that change the direction of text. Line breaks are harmless."""

_REPLACEMENT: Final = "�"
_UNITS: Final = (
    (timedelta(days=730), timedelta(days=365), "y"),
    (timedelta(hours=48), timedelta(days=1), "d"),
    (timedelta(minutes=120), timedelta(hours=1), "h"),
    (timedelta(seconds=120), timedelta(minutes=1), "m"),
)
_GREEN: Final = frozenset({"READY", "ACTIVE", "RUNNING", "COMPLETED", "PROMISED", "True", "active"})
_RED: Final = frozenset({"FAILED", "EXPIRED", "False"})
_GREY: Final = frozenset({"STOPPED", "TERMINATED", "CANCELLED", "GONE", "deprecated"})


def print_line(text: str = "", end: str = "\n") -> None:
    """Print one line of a result to standard output."""
    typer.echo(f"{text}{end}", color=None if _colours_allowed() else False, nl=False)


def print_message(text: str, *, colour: str | None = None) -> None:
    """Print a message that is not a result, to standard error, wrapped to the terminal's width."""
    safe = wrap_message(UNSAFE.sub(_REPLACEMENT, localize(text)))
    typer.secho(safe, err=True, fg=colour, color=None if _colours_allowed() else False)


def wrap_message(text: str) -> str:
    """Wrap a message to the width of the terminal that standard error goes to, if it does."""
    most = _width_of(sys.stderr)
    return text if most is None else "\n".join(_wrap_lines(text, most))


def print_text(text: str) -> None:
    """Print a result that is running text, wrapped to the terminal's width."""
    for line in _wrap_lines(text, output_width()):
        print_line(line)


def _wrap_lines(text: str, most: int | None) -> Iterator[str]:
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        first, *rest = wrap_text(line.strip(), len(line) if most is None else most - len(indent) - 2)
        yield indent + first
        yield from (f"{indent or '  '}{more}" for more in rest)


def confirm(question: str, *, without: str, otherwise: str) -> None:
    """Ask a person; end the command unless the answer is yes."""
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as error:
        print_message(without)
        raise typer.Exit(1) from error
    if not agreed:
        print_message(otherwise)
        raise typer.Exit(1)


def join_some(words: Sequence[str], most: int) -> str:
    """Join the first words of a list with commas, and say how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(words[:most])}{more}"


def output_width() -> int | None:
    """Return how wide the output may be; None when it goes to a file or to another program."""
    return _width_of(sys.stdout)


def _width_of(stream: TextIO) -> int | None:
    if not stream.isatty() and "COLUMNS" not in os.environ:
        return None
    return shutil.get_terminal_size().columns


def paint(text: str, colour: str | None) -> str:
    """Colour a text if it goes to a terminal."""
    return typer.style(text, fg=colour) if colour and _colours_allowed() and sys.stdout.isatty() else text


def phase_colour(phase: str) -> str | None:
    """Return the colour of a phase or of a condition's status."""
    word = phase.partition(" ")[0]
    if word in _RED:
        return "red"
    if word in _GREEN:
        return "green"
    return "bright_black" if word in _GREY else "yellow" if word.isupper() else None


def text_width(text: str) -> int:
    """Return how many terminal cells a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)


def truncate(text: str, most: int, mark: str = "…") -> str:
    """Shorten a text to at most `most` cells; `mark` shows the cut."""
    if text_width(text) <= most:
        return text
    kept = text[:most]
    while text_width(kept) > most - 1:
        kept = kept[:-1]
    return f"{kept}{mark}"


def pad(text: str, least: int) -> str:
    """Pad a text with spaces to at least `least` cells."""
    return text + " " * (least - text_width(text))


def sanitize(text: str) -> str:
    """Make text from elsewhere safe for a terminal, as one line, with its moments in the zone in use."""
    return UNSAFE.sub(_REPLACEMENT, localize(text).replace("\n", " ↵ ").replace("\t", " "))


def escape_json(json: str) -> str:
    """Replace characters of a JSON text that a terminal might obey by JSON escapes."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def format_age(moment: datetime | None, now: datetime) -> str:
    """Return how long ago a moment was: 45s, 5m, 3h, 2d."""
    return format_span(now - moment) if moment else ""


def format_span(length: timedelta) -> str:
    """Format a duration in one unit."""
    length = max(length, timedelta())
    for least, unit, letter in _UNITS:
        if length >= least:
            return f"{length // unit}{letter}"
    return f"{length // timedelta(seconds=1)}s"


def format_wait(length: timedelta) -> str:
    """Format how long something is still ahead, in one unit, rounded: what was asked for 4 hours ahead is 4h away."""
    for least, unit, letter in _UNITS:
        if length >= least:
            return f"{round(length / unit)}{letter}"
    return format_span(length)


def format_moment(moment: datetime | None) -> str:
    """Format a moment to the minute, in the zone in use."""
    return current_zone().format(moment) if moment else ""


def format_second(moment: datetime) -> str:
    """Format a moment to the second, in the zone in use."""
    return current_zone().format(moment, "%Y-%m-%d %H:%M:%S")


def format_relative(moment: datetime, now: datetime) -> str:
    """Format a moment with its distance: `2026-11-02 09:00Z (in 3h)`."""
    distance = f"in {format_wait(moment - now)}" if moment > now else f"{format_span(now - moment)} ago"
    return f"{format_moment(moment)} ({distance})"


def wrap_text(text: str, most: int) -> list[str]:
    """Break running text into lines. Long words such as addresses stay whole."""
    return wrap(sanitize(text), max(most, 20), break_long_words=False, break_on_hyphens=False) or [""]


def _colours_allowed() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
