"""Tables that fit the terminal: the least important columns are left out, then cells are cut. Called by `printer`."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Generic, TypeVar

from lcm.cli.output import render

R = TypeVar("R")
_GAP: Final = 2
_NARROWEST: Final = 6
_NARROW: Final = 4
"""Beside a column that must stay whole."""


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column. Rank 0 always stays; when there is no room, the highest rank goes first."""

    heading: str
    cell: Callable[[R, datetime], str]
    rank: int = 0
    wide: bool = False
    colour: Callable[[str], str | None] | None = None
    whole: bool = False
    """Never cut, however little room there is."""


class Table(Generic[R]):
    """A table that may grow: the columns that fitted at first stay, and later rows are cut to the room there is."""

    def __init__(self, columns: Sequence[Column[R]], room: int | None) -> None:
        self._columns = tuple(columns)
        self._room = room
        self._widths = [len(column.heading) for column in columns]
        self._begun = False

    def lines(self, objects: Iterable[R], now: datetime) -> Iterator[str]:
        """Write objects as rows; the heading stands before the first of them."""
        rows = [[render.clean(column.cell(one, now)) for column in self._columns] for one in objects]
        self._widths = [
            max(before, *(render.width(row[number]) for row in rows), 0) for number, before in enumerate(self._widths)
        ]
        if not self._begun:
            rows = self._drop(rows)
        widths = squeezed(self._widths, self._room, [number for number, one in enumerate(self._columns) if one.whole])
        if not self._begun:
            self._begun = True
            yield self._line([column.heading for column in self._columns], widths, painted=False)
        yield from (self._line(row, widths, painted=True) for row in rows)

    def _drop(self, rows: list[list[str]]) -> list[list[str]]:
        kept = fitting(self._widths, [column.rank for column in self._columns], self._room)
        self._columns = tuple(self._columns[number] for number in kept)
        self._widths = [self._widths[number] for number in kept]
        return [[row[number] for number in kept] for row in rows]

    def _line(self, row: Sequence[str], widths: Sequence[int], *, painted: bool) -> str:
        cells = []
        for column, cell, wide in zip(self._columns, row, widths, strict=True):
            colour = column.colour(cell) if painted and column.colour else None
            cells.append(render.paint(render.padded(render.cut(cell, wide), wide), colour))
        return (" " * _GAP).join(cells).rstrip()


def fitting(widths: Sequence[int], ranks: Sequence[int], room: int | None) -> list[int]:
    """Choose the columns to keep: the least important go until the rest fits, or only indispensable ones are left."""
    kept = list(range(len(widths)))
    while room is not None and _total([widths[number] for number in kept]) > room:
        last = max(kept, key=lambda number: (ranks[number], number))
        if not ranks[last]:
            break
        kept.remove(last)
    return kept


def squeezed(widths: Sequence[int], room: int | None, whole: Collection[int] = ()) -> list[int]:
    """Take from the widest column, but not from whole ones, cell by cell, until all fit."""
    left = list(widths)
    others = [number for number in range(len(left)) if number not in whole]
    while room is not None and _total(left) > room:
        widest = max(others, key=left.__getitem__)
        if left[widest] <= (_NARROW if whole else _NARROWEST):
            break
        left[widest] -= 1
    return left


def print_rows(
    headings: Sequence[str], rows: Iterable[Sequence[str]], now: datetime, *, whole: Collection[str] = ()
) -> None:
    """Print a small table of texts; columns of some headings are never cut."""
    columns = [replace(_numbered(heading, number), whole=heading in whole) for number, heading in enumerate(headings)]
    for line in Table(columns, render.room()).lines(rows, now):
        render.out(line)


def _numbered(heading: str, number: int) -> Column[Sequence[str]]:
    return Column(heading, lambda row, _: row[number])


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)
