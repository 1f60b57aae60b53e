"""Timetables as people write them: YAML, CSV or a calendar's ICS. Every fault is told with its line and a remedy."""

from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import PurePath
from typing import Final

import msgspec

from lcm.model.definition import LabletDefinition, version_key
from lcm.model.errors import Fault, Invalid
from lcm.sim.plan.reading_csv import read_csv
from lcm.sim.plan.reading_ics import read_ics
from lcm.sim.plan.reading_yaml import Stock, read_yaml
from lcm.sim.plan.slots import Row, wanted
from lcm.sim.plan.timetable import Timetable, Wanted, checked

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
