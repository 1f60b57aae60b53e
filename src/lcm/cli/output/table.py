"""Tables that fit the terminal. Called by `printer` and by commands that print small lists.

When width is short, running text is cut first, then the least important columns are dropped, then other cells are cut.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, TypeVar

from lcm.cli.output import render

R = TypeVar("R")
_GAP: Final = 2
_MIN_WIDTH: Final = 6
_MIN_WIDTH_BESIDE_WHOLE: Final = 4
"""The minimum when another column must not be cut."""


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column. Rank 0 is always shown; when width is short, columns with higher ranks are dropped first."""

    heading: str
    cell: Callable[[R, datetime], str]
    rank: int = 0
    wide: bool = False
    colour: Callable[[str], str | None] | None = None
    whole: bool = False
    """Never cut, however narrow the output is."""
    least: int | None = None
    """Running text may be cut to this many cells before another column is dropped or cut; None means not at all."""

    def needed_width(self, width: int) -> int:
        """Return the width that the column needs if its widest cell has this width."""
        return width if self.least is None else min(width, max(self.least, len(self.heading)))


class TextTable(Generic[R]):
    """A table that may grow. The columns that fitted at first stay; later rows are cut to the available width."""

    def __init__(self, columns: Sequence[Column[R]], room: int | None, before: "TextTable[R] | None" = None) -> None:
        """Make an empty table; one in the place of another has columns at least as wide, so that they do not jump."""
        self._columns = tuple(columns)
        self._room = room
        self._widths: list[int] = before.first_widths if before else [len(column.heading) for column in columns]
        self.first_widths: list[int] = self._widths
        """How wide its first rows are, before columns are dropped."""
        self._begun = False

    def lines(self, objects: Iterable[R], now: datetime) -> Iterator[str]:
        """Format objects as rows; the heading comes before the first of them."""
        rows = [[render.sanitize(column.cell(one, now)) for column in self._columns] for one in objects]
        self._widths = [
            max(before, *(render.text_width(row[number]) for row in rows), 0)
            for number, before in enumerate(self._widths)
        ]
        if not self._begun:
            self.first_widths = self._widths
            rows = self._drop_columns(rows)
        whole = [number for number, one in enumerate(self._columns) if one.whole]
        needed = [column.needed_width(wide) for column, wide in zip(self._columns, self._widths, strict=True)]
        widths = shrink_widths(shrink_widths(self._widths, self._room, least=needed), self._room, whole)
        if not self._begun:
            self._begun = True
            yield self._line([column.heading for column in self._columns], widths, painted=False)
        yield from (self._line(row, widths, painted=True) for row in rows)

    def _drop_columns(self, rows: list[list[str]]) -> list[list[str]]:
        needed = [column.needed_width(wide) for column, wide in zip(self._columns, self._widths, strict=True)]
        kept = fit_columns(needed, [column.rank for column in self._columns], self._room)
        self._columns = tuple(self._columns[number] for number in kept)
        self._widths = [self._widths[number] for number in kept]
        return [[row[number] for number in kept] for row in rows]

    def _line(self, row: Sequence[str], widths: Sequence[int], *, painted: bool) -> str:
        cells = []
        for column, cell, wide in zip(self._columns, row, widths, strict=True):
            colour = column.colour(cell) if painted and column.colour else None
            cells.append(render.paint(render.pad(render.truncate(cell, wide), wide), colour))
        return (" " * _GAP).join(cells).rstrip()


def fit_columns(widths: Sequence[int], ranks: Sequence[int], room: int | None) -> list[int]:
    """Choose the columns to keep: those of rank 0, then by importance each that fits beside the ones before it."""
    kept = [number for number, rank in enumerate(ranks) if not rank]
    others = sorted((number for number, rank in enumerate(ranks) if rank), key=ranks.__getitem__)
    for number in others:
        if room is None or _total_width([widths[one] for one in (*kept, number)]) <= room:
            kept.append(number)
    return sorted(kept)


def shrink_widths(
    widths: Sequence[int], room: int | None, whole: Collection[int] = (), least: Sequence[int] | None = None
) -> list[int]:
    """Shrink the widest column cell by cell until all fit.

    Columns in `whole` are never shrunk, the others not below `least`, or not below a few cells.
    """
    left = list(widths)
    floors = least or [_MIN_WIDTH_BESIDE_WHOLE if whole else _MIN_WIDTH] * len(left)
    while room is not None and _total_width(left) > room:
        able = [number for number, wide in enumerate(left) if number not in whole and wide > floors[number]]
        if not able:
            break
        left[max(able, key=left.__getitem__)] -= 1
    return left


def print_rows(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    now: datetime,
    *,
    whole: Collection[str] = (),
    ranks: Mapping[str, int] | None = None,
    least: Mapping[str, int] | None = None,
) -> None:
    """Print a small table of texts."""
    for line in table_of_texts(headings, whole, ranks, least).lines(rows, now):
        render.print_line(line)


def table_of_texts(
    headings: Sequence[str],
    whole: Collection[str] = (),
    ranks: Mapping[str, int] | None = None,
    least: Mapping[str, int] | None = None,
) -> TextTable[Sequence[str]]:
    """Make a table whose rows are texts, as wide as the output.

    By heading: `whole` columns are never cut, the highest `ranks` are dropped first, running text is cut to `least`.
    """

    def column(number: int, heading: str) -> Column[Sequence[str]]:
        return Column(
            heading,
            lambda row, _: row[number],
            (ranks or {}).get(heading, 0),
            whole=heading in whole,
            least=(least or {}).get(heading),
        )

    return TextTable([column(*one) for one in enumerate(headings)], render.output_width())


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)
