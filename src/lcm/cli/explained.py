"""An explanation in words: what becomes of a session, why, what helps, what each place says. Called by `explain`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lcm.cli import render
from lcm.cli.book_times import Zone, near, slot_shown
from lcm.cli.booked import free_slots, waiting_said
from lcm.cli.columns import seat_of
from lcm.model.placing import Explanation, PlaceAnswer

MOST_PLACES: Final = 25
"""A table shows so many; `-o wide` all."""
_LABEL: Final = 10
_HEADINGS: Final = ("PLACE", "KIND", "FITS", "EARLIEST", "REASON")
_WIDEST_PLACE: Final = 24
_LEAST_REASON: Final = 24
_WEEK: Final = timedelta(days=6)


@dataclass(frozen=True, slots=True)
class Subject:
    """What an explanation is about; `thought` when nobody has booked it."""

    name: str
    thought: bool = False


def explained(
    found: Explanation, subject: Subject, now: datetime, zone: Zone, room: int, *, whole: bool = False
) -> Iterator[str]:
    """Write an explanation in lines of at most `room` cells."""
    first, *rest = render.wrapped(f"{subject.name} {outcome(found, zone, thought=subject.thought)}", room - 2)
    yield render.paint(first, _COLOURS[found.outcome])
    yield from (f"  {line}" for line in rest)
    for label, text in _about(found, now, zone):
        yield from _labelled(label, text, room)
    slots = list(free_slots([(one.start, one.end) for one in found.nearest], now, zone))
    for number, slot in enumerate(slots):
        yield f"{'' if number else 'Free:':<{_LABEL}}{slot}"
    if found.places:
        yield ""
        yield from _places(found, now, zone, room, whole=whole)


def outcome(found: Explanation, zone: Zone, *, thought: bool) -> str:
    """Say in a sentence what becomes of a session."""
    slot = f" for {slot_shown(found.slot.start, found.slot.end, zone)}" if found.slot else ""
    seat = f"seat {seat_of(found.seat)}" if found.seat else ""
    where = ", ".join(filter(None, [found.worker and f"worker {found.worker}", seat]))
    match found.outcome:
        case "assign":
            said = f"{'would start' if thought else 'can start'} now on {where or 'a worker'}"
        case "scale_up":
            said = f"{'would wait' if thought else 'waits'} for a machine that is started for it ({where or 'a seat'})"
        case "promise":
            said = f"{'would be' if thought else 'is'} promised {where or 'a seat'}{'' if thought else slot}"
        case "refuse":
            said = "would be refused" if thought else "cannot be placed as things are"
        case "placed":
            said = f"is placed on {where or 'a worker'}"
        case "over":
            said = "is over"
        case _:
            said = "would wait" if thought else "waits"
    return f"{said}: {found.reason}" if found.reason else said


def _about(found: Explanation, now: datetime, zone: Zone) -> Iterator[tuple[str, str]]:
    if found.why:
        yield "Why", found.why
    if found.remedy:
        yield "Remedy", found.remedy
    if found.waiting:
        yield "Waiting", waiting_said(found.waiting, now, zone)
    if found.decision and found.decision.reason not in found.reason:
        yield "Decision", f"{found.decision.action}: {found.decision.reason}"


def _labelled(label: str, text: str, room: int) -> Iterator[str]:
    first, *rest = render.wrapped(text, room - _LABEL)
    yield f"{f'{label}:':<{_LABEL}}{first}"
    yield from (" " * _LABEL + line for line in rest)


def _places(found: Explanation, now: datetime, zone: Zone, room: int, *, whole: bool) -> Iterator[str]:
    shown = found.places if whole else found.places[:MOST_PLACES]
    rows = [_cells(one, now, zone) for one in shown]
    widths = [
        max(len(heading), *(render.width(row[number]) for row in rows)) for number, heading in enumerate(_HEADINGS[:-1])
    ]
    widths[0] = min(widths[0], max(_WIDEST_PLACE, room - sum(widths[1:]) - _LEAST_REASON - 2 * len(widths)))
    yield _row(_HEADINGS, widths)
    for one, row in zip(shown, rows, strict=True):
        yield from _answer(one, row, widths, room, whole=whole)
    if left := len(found.places) - len(shown) + found.places_left_off:
        more = "" if whole else "; `-o wide` shows more of them"
        yield f"and {left} more{more}"


def _answer(one: PlaceAnswer, row: Sequence[str], widths: Sequence[int], room: int, *, whole: bool) -> Iterator[str]:
    """Write a place's answer; a reason that does not fit goes on below itself."""
    indent = sum(widths) + 2 * len(widths)
    score = f" (score {one.score:.3g})" if whole and one.score is not None else ""
    remedy = f"; {one.remedy}" if whole and one.remedy else ""
    first, *rest = render.wrapped(f"{one.reason}{remedy}{score}", room - indent)
    yield render.paint(_row([*row, first], widths), "green" if one.fits else None)
    yield from (" " * indent + line for line in rest)


def _cells(one: PlaceAnswer, now: datetime, zone: Zone) -> Sequence[str]:
    return render.clean(one.place), one.kind, "yes" if one.fits else "no", _earliest(one.earliest, now, zone)


def _earliest(moment: datetime | None, now: datetime, zone: Zone) -> str:
    if moment is None:
        return "never"
    if moment <= now or near(moment, now) == "now":
        return "now"
    local = zone.local(moment)
    return f"{local:%a %H:%M}" if moment - now < _WEEK else f"{local:%Y-%m-%d %H:%M}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [render.padded(render.cut(cell, wide), wide) for cell, wide in zip(cells, widths, strict=False)]
    return "  ".join([*padded, *cells[len(widths) :]]).rstrip()


_COLOURS: Final = {
    "assign": "green",
    "promise": "green",
    "placed": "green",
    "refuse": "red",
    "scale_up": "yellow",
    "wait": "yellow",
    "over": None,
}
