"""Slots that begin and end so long from now, in documents that are applied: `timeslot_start: +10m`. Called by `apply`.

An example with dates in it is out of date by the time that somebody tries it. What is there already keeps the times
that it got when it was made, so that applying a file twice is the same as applying it once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.cli.documents import Written
from lcm.cli.sources import Source, identity
from lcm.control.plane import Plane, Ref
from lcm.control.records import nameable
from lcm.model.kinds import KINDS, Resource

_FROM_NOW: Final = re.compile(r"\+([0-9]{1,6})([smhd])")
_UNITS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_BOOKINGS: Final = frozenset({"LabletSession", "Reservation"})
_MOMENTS: Final = ("timeslot_start", "timeslot_end", "give_up_at")
_SERIES: Final = "recurrence"
_UNTIL: Final = "until"


def fixed(sources: Sequence[Source], now: datetime) -> tuple[list[Source], frozenset[int]]:
    """Put moments in place of what is said from now on, and say at which places there was something."""
    now = now.replace(microsecond=0) + _UNITS["s"]  # rounded up, so that it is never sooner than was said
    made = [_fixed(source, now) for source in sources]
    places = frozenset(
        place for place, (one, before) in enumerate(zip(made, sources, strict=True)) if one is not before
    )
    return made, places


async def kept(plane: Plane, sources: Sequence[Source], places: frozenset[int]) -> list[Source]:
    """Give bookings that are there already the times that they have."""
    made = list(sources)
    for place in places:
        ref = _ref(made[place].value)
        if ref is not None and (found := await plane.get(ref)) is not None:
            made[place] = _with(made[place], dict(_times(msgspec.to_builtins(found.spec))))
    return made


def _fixed(source: Source, now: datetime) -> Source:
    if source.value.get("kind") not in _BOOKINGS:
        return source
    said = _times(source.value.get("spec"))
    found = {name: moment for name, text in said if (moment := _moment(name, text, now)) is not None}
    return _with(source, found) if found else source


def _times(spec: object) -> Iterator[tuple[str, object]]:
    """Give what a booking says of times; that of its series under the name of the field in it."""
    if isinstance(spec, dict):
        yield from ((name, spec[name]) for name in _MOMENTS if name in spec)
        if isinstance(series := spec.get(_SERIES), dict) and _UNTIL in series:
            yield _UNTIL, series[_UNTIL]


def _moment(name: str, text: object, now: datetime) -> str | None:
    found = _FROM_NOW.fullmatch(text) if isinstance(text, str) else None
    if not found:
        return None
    moment = now + int(found[1]) * _UNITS[found[2]]
    return moment.date().isoformat() if name == _UNTIL else moment.isoformat()


def _with(source: Source, times: Mapping[str, object]) -> Source:
    spec: dict[str, Any] = dict(source.value["spec"])
    spec |= {name: moment for name, moment in times.items() if name != _UNTIL}
    if _UNTIL in times:
        spec[_SERIES] = {**spec[_SERIES], _UNTIL: times[_UNTIL]}
    return Source(source.file, Written({**source.value, "spec": spec}, source.written.place))


def _ref(value: dict[str, Any]) -> Ref[Resource] | None:
    who = identity(value)
    known = KINDS.get(who[0]) if who else None
    if who is None or known is None:
        return None
    ref: Ref[Resource] = Ref(known.struct, who[2], who[1])
    return ref if nameable(ref) else None
