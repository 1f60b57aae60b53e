"""A timetable as a table: `definition,start,end,count,track`, with `minutes` in place of `end`. Called by `reading`."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from lcm.model.errors import Fault, Invalid
from lcm.sim.plan.slots import Row, minutes_of, moment_of, sound_count, sound_length, whole

_COLUMNS: Final = ("definition", "start", "end", "minutes", "count", "track", "owner")
_MOST_ROWS: Final = 20_000
_DELIMITERS: Final = (",", ";", "\t")
_MINUTE: Final = timedelta(minutes=1)
_EXAMPLE: Final = "write definition,start,end,count,track in the first line"


def read_csv(text: str, zone: str = "UTC") -> Sequence[Row]:
    """Read every line; Invalid with every fault. Moments without an offset are those of the zone."""
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_between(text), strict=True)
    rows: list[Row] = []
    faults: list[Fault] = []
    try:
        heading = _heading(next(lines, []))
        for cells in lines:
            if any(cell.strip() for cell in cells):
                rows += _read(cells, heading, f"line {lines.line_num}", zone, faults)
            if len(rows) > _MOST_ROWS:
                raise Invalid(Fault(f"line {lines.line_num}", f"more than {_MOST_ROWS} lines", "plan a shorter time"))
    except csv.Error as error:
        faults.append(Fault(f"line {lines.line_num}", f"no CSV: {error}", "put cells with commas in double quotes"))
    if faults:
        raise Invalid(*faults)
    return rows


def _between(text: str) -> str:
    """Say what stands between cells: spreadsheets of many countries write semicolons, and what is pasted has tabs."""
    first = text.partition("\n")[0]
    return max(_DELIMITERS, key=first.count)


def _read(cells: Sequence[str], heading: Sequence[str], where: str, zone: str, faults: list[Fault]) -> Sequence[Row]:
    if len(cells) != len(heading):
        faults.append(Fault(where, f"{len(cells)} cells below {len(heading)} headings", "give each column its cell"))
        return ()
    try:
        return [_row({name: cell.strip() for name, cell in zip(heading, cells, strict=True)}, where, zone)]
    except Invalid as error:
        faults += error.faults
        return ()


def _heading(cells: Sequence[str]) -> Sequence[str]:
    names = [cell.strip().lower() for cell in cells]
    if unknown := [name for name in names if name not in _COLUMNS]:
        told = ", ".join(name or "one without a name" for name in unknown)
        raise Invalid(Fault("line 1", f"no such column: {told}", _EXAMPLE))
    missing = [name for name in ("definition", "start") if name not in names]
    if missing or not {"end", "minutes"} & set(names):
        raise Invalid(Fault("line 1", f"no column {', '.join(missing) or 'end or minutes'}", _EXAMPLE))
    if len(set(names)) < len(names):
        raise Invalid(Fault("line 1", "a column is there twice", "remove one of them"))
    return names


def _row(cells: Mapping[str, str], where: str, zone: str) -> Row:
    if not cells["definition"]:
        raise Invalid(Fault(f"{where}: definition", "which lab?", "write the name of a lab"))
    start = moment_of(cells["start"], zone, f"{where}: start")
    if end := cells.get("end", ""):
        minutes = sound_length((moment_of(end, zone, f"{where}: end") - start) // _MINUTE, f"{where}: end")
    else:
        said, place = cells.get("minutes", ""), f"{where}: minutes"
        number = whole(said)
        minutes = minutes_of(said, place) if number is None else sound_length(number, place)
    return Row(
        where=where,
        definition=cells["definition"],
        minutes=minutes,
        start=start,
        count=sound_count(cells.get("count") or "1", f"{where}: count"),
        track=cells.get("track", ""),
        owner=cells.get("owner", ""),
    )
