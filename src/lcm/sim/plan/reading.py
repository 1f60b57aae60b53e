"""Timetables as people write them: YAML, CSV or a calendar's ICS. Every fault is told with its line and a remedy."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, count
from pathlib import PurePath
from typing import Final

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.definition import LabletDefinition, version_key
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import CLEAN_UP, SESSION, LabletSession
from lcm.sim.plan.documents import launchable, unmade
from lcm.sim.plan.reading_ics import read_ics
from lcm.sim.plan.reading_yaml import Stock, read_yaml
from lcm.sim.plan.slots import Row, minutes_of, moment_of, sound_count, sound_length, wanted, whole
from lcm.sim.plan.timetable import Timetable, Wanted, checked

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


MOST_BYTES: Final = 8_000_000
_SHEETS: Final = frozenset({".xlsx", ".xls", ".ods", ".numbers"})
_NOTHING: Final = Stock()


def read(name: str, data: bytes, stocks: Sequence[Stock] = ()) -> Timetable:
    """Read a timetable from a file of this name; `stocks` are labs and pools that are not in it."""
    zone = next((stock.zone for stock in stocks if stock.zone), "UTC")
    own, rows = _parts(name, data, zone)
    return combined((own, *stocks), rows)


def read_stock(name: str, data: bytes) -> Stock:
    """Read labs and pools alone."""
    return _parts(name, data, "UTC")[0]


def combined(stocks: Sequence[Stock], rows: Sequence[Row]) -> Timetable:
    """Put sessions together with the labs and pools they are of; of several that are named alike the first counts."""
    definitions = {one.metadata.name: one for stock in reversed(stocks) for one in stock.definitions}
    templates = {one.metadata.name: one for stock in reversed(stocks) for one in stock.templates}
    pools = {one.metadata.name: one for stock in reversed(stocks) for one in stock.pools}
    known = list(definitions.values())
    faults: list[Fault] = []
    # What runs on workers outside of pools is no matter of a plan, which is made of pools.
    served = {one.spec.lab_track for one in pools.values()}
    sessions = [one for stock in stocks for one in stock.sessions if one.track in served]
    for row in rows:
        found = definition_named(row.definition, known)
        if found is None:
            faults.append(Fault(row.where, f"nobody knows the lab {row.definition!r}", _remedy(known)))
        else:
            sessions += wanted(row, found, len(sessions))
    if faults:
        raise Invalid(*faults)
    return checked(
        Timetable(
            definitions=tuple(known),
            templates=tuple(templates.values()),
            pools=tuple(pools.values()),
            sessions=tuple(_apart(sessions)),
            zone=next((stock.zone for stock in stocks if stock.zone), "UTC"),
            prices={kind: price for stock in reversed(stocks) for kind, price in stock.prices.items()},
            now=next((stock.now for stock in stocks if stock.now), None),
        )
    )


def _apart(sessions: Sequence[Wanted]) -> Iterator[Wanted]:
    """Give those that are named alike names of their own: a live system may have promised one of any name."""
    taken: set[str] = set()
    for one in sessions:
        names = (f"{one.name[:50]}-{number}" for number in count(1))
        name = next(name for name in chain((one.name,), names) if name not in taken)
        taken.add(name)
        yield one if name == one.name else msgspec.structs.replace(one, name=name)


def definition_named(name: str, known: Sequence[LabletDefinition]) -> LabletDefinition | None:
    """Find a lab by its full name, or the newest of its versions."""
    alike = [one for one in known if name in {one.metadata.name, one.metadata.name.partition(":")[0]}]
    return max(alike, key=lambda one: version_key(one.spec.version), default=None)


def _parts(name: str, data: bytes, zone: str) -> tuple[Stock, Sequence[Row]]:
    """Read a file's labs and pools, and its sessions; what has no zone of its own is of the one given."""
    if PurePath(name).suffix.lower() in _SHEETS:
        raise Invalid(Fault(name, "a spreadsheet of its own form", "save it as CSV, in UTF-8"))
    if len(data) > MOST_BYTES:
        raise Invalid(Fault(name, f"more than {MOST_BYTES // 1_000_000} MB", "plan a shorter time"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(Fault(name, f"no UTF-8 at byte {error.start}", "save it as UTF-8")) from error
    match PurePath(name).suffix.lower():
        case ".csv":
            return _NOTHING, read_csv(text, zone)
        case ".ics" | ".ical":
            return _NOTHING, read_ics(text, zone)
        case _:
            return read_yaml(text)


def _remedy(known: Sequence[LabletDefinition]) -> str:
    names = sorted({one.metadata.name.partition(":")[0] for one in known})
    if not names:
        return "name a file with definitions and a fleet by --definitions, or plan on a live system with --from-now"
    shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")  # noqa: PLR2004  a line's worth
    return f"known are {shown}"


_ONE_MINUTE = timedelta(minutes=1)


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """What was listed of a live system, at a moment."""

    at: datetime
    definitions: tuple[LabletDefinition, ...] = ()
    templates: tuple[WorkerTemplate, ...] = ()
    pools: tuple[LabWorkerPool, ...] = ()
    sessions: tuple[LabletSession, ...] = ()
    reservations: tuple[Reservation, ...] = ()


def stock_of(live: Live) -> Stock:
    """Give what a plan goes on from; slots that have begun are as long as what is left of them."""
    now = live.at.replace(second=0, microsecond=0) + _ONE_MINUTE
    tracks = {one.metadata.name: one.spec.lab_track for one in live.definitions}
    promised = [*_sessions(live, now, tracks), *_reserved(live, now, tracks)]
    return Stock(
        definitions=live.definitions,
        templates=tuple(launchable(one) for one in live.templates),
        pools=tuple(unmade(one) for one in live.pools),
        sessions=tuple(promised),
        now=now,
    )


def _sessions(live: Live, now: datetime, tracks: dict[str, str]) -> Iterator[Wanted]:
    for session in live.sessions:
        spec, status = session.spec, session.status
        if status.phase in SESSION.final or spec.definition not in tracks:
            continue
        track = spec.lab_track or tracks[spec.definition]
        until = status.ends_at or spec.timeslot_end
        if until is None and spec.duration_minutes is not None:
            yield Wanted(
                name=session.metadata.name,
                definition=spec.definition,
                track=track,
                minutes=spec.duration_minutes,
                booked_at=now,
                standing=True,
            )
        elif until is not None:
            yield from _slot(session.metadata.name, spec.definition, track, spec.timeslot_start or now, until, now)


def _reserved(live: Live, now: datetime, tracks: dict[str, str]) -> Iterator[Wanted]:
    """Give what reservations hold for sessions that are not there yet."""
    for one in live.reservations:
        spec = one.spec
        long = spec.timeslot_end - spec.timeslot_start
        for held in one.status.held:
            if held.session is None and spec.definition in tracks:
                end = held.claim.end - CLEAN_UP
                name, track = f"{one.metadata.name}-{held.number}", spec.lab_track or tracks[spec.definition]
                yield from _slot(name, spec.definition, track, end - long, end, now)


def _slot(name: str, definition: str, track: str, start: datetime, end: datetime, now: datetime) -> Iterator[Wanted]:  # noqa: PLR0917
    begins = max(start, now)
    if (minutes := (end - begins) // _ONE_MINUTE) > 0:
        yield Wanted(name=name, definition=definition, track=track, minutes=minutes, start=begins, standing=True)
