"""Reads timetables as people write them: YAML, CSV or a calendar's ICS. Every fault has its line and a remedy.

A CSV table has the columns `definition,start,end,count,track`, with `minutes` in place of `end`. A live system can
be the start of a plan: its labs, its pools, and what it has promised. Machines that run now are not taken over: the
simulated pools start, in the hours before, what promised sessions need.
"""

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
from lcm.model.kinds.session import CLEAN_UP_TIME, SESSION_MACHINE, LabletSession, LabletSessionSpec
from lcm.sim.plan.documents import fresh_pool, launchable_template
from lcm.sim.plan.reading_yaml import Inventory, read_yaml
from lcm.sim.plan.slots import (
    TimetableRow,
    check_length,
    parse_count,
    parse_minutes,
    parse_moment,
    parse_whole_number,
    sessions_of,
)
from lcm.sim.plan.timetable import SessionRequest, SessionWish, Timetable, check_timetable, track_of_place

_COLUMNS: Final = ("definition", "start", "end", "minutes", "count", "track", "owner")
_MOST_ROWS: Final = 20_000
_DELIMITERS: Final = (",", ";", "\t")
_MINUTE: Final = timedelta(minutes=1)
_EXAMPLE: Final = "write definition,start,end,count,track in the first line"


def read_csv(text: str, zone: str = "UTC") -> Sequence[TimetableRow]:
    """Read every line. Raises Invalid with every fault. Times without an offset are in the zone."""
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter_of(text), strict=True)
    rows: list[TimetableRow] = []
    faults: list[Fault] = []
    try:
        heading = _read_heading(next(lines, []))
        for cells in lines:
            if any(cell.strip() for cell in cells):
                rows += _read_cells(cells, heading, f"line {lines.line_num}", zone, faults)
            if len(rows) > _MOST_ROWS:
                raise Invalid(Fault(f"line {lines.line_num}", f"more than {_MOST_ROWS} lines", "plan a shorter time"))
    except csv.Error as error:
        faults.append(Fault(f"line {lines.line_num}", f"no CSV: {error}", "put cells with commas in double quotes"))
    if faults:
        raise Invalid(*faults)
    return rows


def _delimiter_of(text: str) -> str:
    """Return the delimiter: spreadsheets of many countries write semicolons, and pasted cells have tabs."""
    first = text.partition("\n")[0]
    return max(_DELIMITERS, key=first.count)


def _read_cells(
    cells: Sequence[str], heading: Sequence[str], where: str, zone: str, faults: list[Fault]
) -> Sequence[TimetableRow]:
    if len(cells) != len(heading):
        faults.append(
            Fault(where, f"{len(cells)} cells below {len(heading)} headings", "write one cell for each column")
        )
        return ()
    try:
        return [_csv_row({name: cell.strip() for name, cell in zip(heading, cells, strict=True)}, where, zone)]
    except Invalid as error:
        faults += error.faults
        return ()


def _read_heading(cells: Sequence[str]) -> Sequence[str]:
    names = [cell.strip().lower() for cell in cells]
    if unknown := [name for name in names if name not in _COLUMNS]:
        told = ", ".join(name or "one without a name" for name in unknown)
        raise Invalid(Fault("line 1", f"no such column: {told}", _EXAMPLE))
    missing = [name for name in ("definition", "start") if name not in names]
    if missing or not {"end", "minutes"} & set(names):
        raise Invalid(Fault("line 1", f"no column {', '.join(missing) or 'end or minutes'}", _EXAMPLE))
    if len(set(names)) < len(names):
        raise Invalid(Fault("line 1", "a column appears twice", "remove one of them"))
    return names


def _csv_row(cells: Mapping[str, str], where: str, zone: str) -> TimetableRow:
    if not cells["definition"]:
        raise Invalid(Fault(f"{where}: definition", "no lab", "write the name of a lab"))
    start = parse_moment(cells["start"], zone, f"{where}: start")
    if end := cells.get("end", ""):
        minutes = check_length((parse_moment(end, zone, f"{where}: end") - start) // _MINUTE, f"{where}: end")
    else:
        said, place = cells.get("minutes", ""), f"{where}: minutes"
        number = parse_whole_number(said)
        minutes = parse_minutes(said, place) if number is None else check_length(number, place)
    return TimetableRow(
        where=where,
        definition=cells["definition"],
        minutes=minutes,
        start=start,
        count=parse_count(cells.get("count") or "1", f"{where}: count"),
        track=cells.get("track", ""),
        owner=cells.get("owner", ""),
    )


MOST_BYTES: Final = 8_000_000
_SPREADSHEET_SUFFIXES: Final = frozenset({".xlsx", ".xls", ".ods", ".numbers"})
_EMPTY_INVENTORY: Final = Inventory()


def read_timetable(name: str, data: bytes, stocks: Sequence[Inventory] = ()) -> Timetable:
    """Read a timetable from a file of this name; `stocks` are labs and pools that are not in it."""
    zone = next((stock.zone for stock in stocks if stock.zone), "UTC")
    own, rows = _read_parts(name, data, zone)
    return combine((own, *stocks), rows)


def read_inventory(name: str, data: bytes) -> Inventory:
    """Read only the labs and pools of a file."""
    return _read_parts(name, data, "UTC")[0]


def combine(stocks: Sequence[Inventory], rows: Sequence[TimetableRow]) -> Timetable:
    """Combine sessions with their labs and pools; of several with the same name the first counts."""
    definitions = {one.metadata.name: one for stock in reversed(stocks) for one in stock.definitions}
    templates = {one.metadata.name: one for stock in reversed(stocks) for one in stock.templates}
    pools = {one.metadata.name: one for stock in reversed(stocks) for one in stock.pools}
    known = list(definitions.values())
    faults: list[Fault] = []
    # A plan is made of pools: sessions on workers outside of pools are left out.
    served = {one.spec.lab_track for one in pools.values()}
    sessions = [one for stock in stocks for one in stock.sessions if one.track in served]
    for row in rows:
        found = find_definition(row.definition, known)
        if found is None:
            faults.append(Fault(row.where, f"there is no lab {row.definition!r}", _known_labs_remedy(known)))
        else:
            sessions += sessions_of(row, found, len(sessions))
    if faults:
        raise Invalid(*faults)
    return check_timetable(
        Timetable(
            definitions=tuple(known),
            templates=tuple(templates.values()),
            pools=tuple(pools.values()),
            sessions=tuple(_with_unique_names(sessions)),
            zone=next((stock.zone for stock in stocks if stock.zone), "UTC"),
            prices={kind: price for stock in reversed(stocks) for kind, price in stock.prices.items()},
            now=next((stock.now for stock in stocks if stock.now), None),
        )
    )


def _with_unique_names(sessions: Sequence[SessionRequest]) -> Iterator[SessionRequest]:
    """Yield the sessions with unique names: a live system may have promised one of any name."""
    taken: set[str] = set()
    for one in sessions:
        names = (f"{one.name[:50]}-{number}" for number in count(1))
        name = next(name for name in chain((one.name,), names) if name not in taken)
        taken.add(name)
        yield one if name == one.name else msgspec.structs.replace(one, name=name)


def find_definition(name: str, known: Sequence[LabletDefinition]) -> LabletDefinition | None:
    """Return a definition by its full name, or the newest of its versions; None if there is none."""
    alike = [one for one in known if name in {one.metadata.name, one.metadata.name.partition(":")[0]}]
    return max(alike, key=lambda one: version_key(one.spec.version), default=None)


def _read_parts(name: str, data: bytes, zone: str) -> tuple[Inventory, Sequence[TimetableRow]]:
    """Read a file's labs and pools, and its sessions. Times without a zone of their own are in the given one."""
    if PurePath(name).suffix.lower() in _SPREADSHEET_SUFFIXES:
        raise Invalid(Fault(name, "a spreadsheet, which cannot be read", "save it as CSV, in UTF-8"))
    if len(data) > MOST_BYTES:
        raise Invalid(Fault(name, f"more than {MOST_BYTES // 1_000_000} MB", "plan a shorter time"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(Fault(name, f"no UTF-8 at byte {error.start}", "save it as UTF-8")) from error
    match PurePath(name).suffix.lower():
        case ".csv":
            return _EMPTY_INVENTORY, read_csv(text, zone)
        case ".ics" | ".ical":
            from lcm.sim.plan.reading_ics import read_ics  # noqa: PLC0415 - icalendar takes a while to import

            return _EMPTY_INVENTORY, read_ics(text, zone)
        case _:
            return read_yaml(text)


def _known_labs_remedy(known: Sequence[LabletDefinition]) -> str:
    names = sorted({one.metadata.name.partition(":")[0] for one in known})
    if not names:
        return "name a file with definitions and a fleet with --definitions, or plan on a live system with --from-now"
    shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")  # noqa: PLR2004  a line's worth
    return f"use one of {shown}"


_ONE_MINUTE = timedelta(minutes=1)


class LiveSystem(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a live system at one moment."""

    at: datetime
    definitions: tuple[LabletDefinition, ...] = ()
    templates: tuple[WorkerTemplate, ...] = ()
    pools: tuple[LabWorkerPool, ...] = ()
    sessions: tuple[LabletSession, ...] = ()
    reservations: tuple[Reservation, ...] = ()


def inventory_of(live: LiveSystem) -> Inventory:
    """Return what a plan continues from; slots that have begun count with what is left of them."""
    now = live.at.replace(second=0, microsecond=0) + _ONE_MINUTE
    tracks = {one.metadata.name: one.spec.lab_track for one in live.definitions}
    promised = [*_promised_sessions(live, now, tracks), *_held_reservations(live, now, tracks)]
    return Inventory(
        definitions=live.definitions,
        templates=tuple(launchable_template(one) for one in live.templates),
        pools=tuple(fresh_pool(one) for one in live.pools),
        sessions=tuple(promised),
        now=now,
    )


def _promised_sessions(live: LiveSystem, now: datetime, tracks: dict[str, str]) -> Iterator[SessionRequest]:
    for session in live.sessions:
        spec, status = session.spec, session.status
        if status.phase in SESSION_MACHINE.final or spec.definition not in tracks:
            continue
        served = track_of_place(live.pools, status.seat, session.metadata.namespace)
        track = spec.lab_track or tracks[spec.definition] or served
        until = status.ends_at or spec.timeslot_end
        if until is None and spec.duration_minutes is not None:
            yield SessionRequest(
                name=session.metadata.name,
                definition=spec.definition,
                track=track,
                minutes=spec.duration_minutes,
                booked_at=now,
                wish=_wish_of(spec),
                standing=True,
            )
        elif until is not None:
            named = SessionRequest(
                name=session.metadata.name, definition=spec.definition, track=track, minutes=1, wish=_wish_of(spec)
            )
            yield from _remaining_slot(named, spec.timeslot_start or now, until, now)


def _held_reservations(live: LiveSystem, now: datetime, tracks: dict[str, str]) -> Iterator[SessionRequest]:
    """Yield what reservations hold for sessions that do not exist yet."""
    for one in live.reservations:
        spec = one.spec
        long = spec.timeslot_end - spec.timeslot_start
        for held in one.status.held:
            if held.session is None and spec.definition in tracks:
                end = held.claim.end - CLEAN_UP_TIME
                name = f"{one.metadata.name}-{held.number}"
                served = track_of_place(live.pools, held.seat, one.metadata.namespace)
                track = spec.lab_track or tracks[spec.definition] or served
                wish = SessionWish(region_required=spec.region_required, region_preferred=spec.region_preferred)
                named = SessionRequest(name=name, definition=spec.definition, track=track, minutes=1, wish=wish)
                yield from _remaining_slot(named, end - long, end, now)


def _wish_of(spec: LabletSessionSpec) -> SessionWish:
    return SessionWish(
        region_required=spec.region_required, region_preferred=spec.region_preferred, allow_spot=spec.allow_spot
    )


def _remaining_slot(wanted: SessionRequest, start: datetime, end: datetime, now: datetime) -> Iterator[SessionRequest]:
    """Yield what is wanted in what is left of a slot, if anything is; a slot that runs is promised like any other."""
    begins = max(start, now)
    if (minutes := (end - begins) // _ONE_MINUTE) > 0:
        wish = msgspec.structs.replace(wanted.wish, allow_spot=False)
        yield msgspec.structs.replace(wanted, minutes=minutes, start=begins, standing=True, wish=wish)
