"""Tables that fit the terminal. Called by `printer` and by commands that print small lists.

When width is short, the least important columns are dropped first, then cells are cut.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
    """One column. Rank 0 is always shown; when width is short, the column with the highest rank is dropped first."""

    heading: str
    cell: Callable[[R, datetime], str]
    rank: int = 0
    wide: bool = False
    colour: Callable[[str], str | None] | None = None
    whole: bool = False
    """Never cut, however narrow the output is."""


class TextTable(Generic[R]):
    """A table that may grow. The columns that fitted at first stay; later rows are cut to the available width."""

    def __init__(self, columns: Sequence[Column[R]], room: int | None) -> None:
        self._columns = tuple(columns)
        self._room = room
        self._widths = [len(column.heading) for column in columns]
        self._begun = False

    def lines(self, objects: Iterable[R], now: datetime) -> Iterator[str]:
        """Format objects as rows; the heading comes before the first of them."""
        rows = [[render.sanitize(column.cell(one, now)) for column in self._columns] for one in objects]
        self._widths = [
            max(before, *(render.text_width(row[number]) for row in rows), 0)
            for number, before in enumerate(self._widths)
        ]
        if not self._begun:
            rows = self._drop_columns(rows)
        widths = shrink_widths(
            self._widths, self._room, [number for number, one in enumerate(self._columns) if one.whole]
        )
        if not self._begun:
            self._begun = True
            yield self._line([column.heading for column in self._columns], widths, painted=False)
        yield from (self._line(row, widths, painted=True) for row in rows)

    def _drop_columns(self, rows: list[list[str]]) -> list[list[str]]:
        kept = fit_columns(self._widths, [column.rank for column in self._columns], self._room)
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
    """Choose the columns to keep. The least important are dropped until the rest fits or only rank 0 is left."""
    kept = list(range(len(widths)))
    while room is not None and _total_width([widths[number] for number in kept]) > room:
        last = max(kept, key=lambda number: (ranks[number], number))
        if not ranks[last]:
            break
        kept.remove(last)
    return kept


def shrink_widths(widths: Sequence[int], room: int | None, whole: Collection[int] = ()) -> list[int]:
    """Shrink the widest column cell by cell until all fit; columns in `whole` are never shrunk."""
    left = list(widths)
    others = [number for number in range(len(left)) if number not in whole]
    while room is not None and _total_width(left) > room:
        widest = max(others, key=left.__getitem__)
        if left[widest] <= (_MIN_WIDTH_BESIDE_WHOLE if whole else _MIN_WIDTH):
            break
        left[widest] -= 1
    return left


def print_rows(
    headings: Sequence[str], rows: Iterable[Sequence[str]], now: datetime, *, whole: Collection[str] = ()
) -> None:
    """Print a small table of texts; columns whose headings are in `whole` are never cut."""
    for line in table_of_texts(headings, whole).lines(rows, now):
        render.print_line(line)


def table_of_texts(headings: Sequence[str], whole: Collection[str] = ()) -> TextTable[Sequence[str]]:
    """Make a table whose rows are texts, as wide as the output."""

    def column(number: int, heading: str) -> Column[Sequence[str]]:
        return Column(heading, lambda row, _: row[number], whole=heading in whole)

    return TextTable([column(*one) for one in enumerate(headings)], render.output_width())


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)
