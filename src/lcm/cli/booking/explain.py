"""`lcm explain`: why a session is where it is or what it waits for; or what would become of a booking.

The explanation in words: the outcome, the reason, the remedy, free slots, and each place's answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

import typer

from lcm.cli.booking.book import longest_minutes
from lcm.cli.booking.extend import parse_session_name
from lcm.cli.booking.outcome import describe_price, describe_waiting, format_free_slots
from lcm.cli.fleet.pools import explain_pool
from lcm.cli.output import connection, options, render
from lcm.cli.output.columns import seat_label
from lcm.cli.output.follow import read_all
from lcm.cli.output.lookup import suggesting_definition
from lcm.cli.output.nouns import Noun, missing, naming_missing, noun_of, parse_one_target, title, title_of
from lcm.cli.output.options import (
    DEFAULT_NAMESPACE,
    AllowSpot,
    At,
    ContextName,
    Count,
    For,
    Namespace,
    Output,
    PreferredRegion,
    Region,
    TimeZone,
    Track,
)
from lcm.cli.output.printer import print_value
from lcm.cli.output.times import (
    format_distance,
    format_minutes,
    format_slot,
    parse_minutes,
    parse_moment,
)
from lcm.cli.output.zone import Zone, choose_zone
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.model.base.selector import ObjectSelector, SelectorTerm
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import Explanation, PlaceAnswer, PreviewRequest
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.system.clock import SystemClock

MOST_SESSIONS: Final = 6
"""Of a reservation's sessions, as many are explained; `-o wide` explains all."""
MOST_PLACES: Final = 25
"""A table shows at most this many places; `-o wide` shows all."""
_LABEL: Final = 10
_HEADINGS: Final = ("PLACE", "KIND", "FITS", "EARLIEST", "REASON")
_WIDEST_PLACE: Final = 24
_LEAST_REASON: Final = 24
_WEEKDAY_SUFFICES: Final = timedelta(days=6)


@dataclass(frozen=True, slots=True)
class Subject:
    """What an explanation is about. `thought` means it is not booked."""

    name: str
    thought: bool = False


def explanation_lines(
    found: Explanation, subject: Subject, now: datetime, zone: Zone, room: int, *, whole: bool = False
) -> Iterator[str]:
    """Yield an explanation in lines of at most `room` cells."""
    first, *rest = render.wrap_text(
        f"{subject.name} {outcome_sentence(found, zone, thought=subject.thought)}", room - 2
    )
    yield render.paint(first, _COLOURS[found.outcome])
    yield from (f"  {line}" for line in rest)
    for label, text in _detail_lines(found, now, zone):
        head, *more = render.wrap_text(text, room - _LABEL)
        yield f"{f'{label}:':<{_LABEL}}{head}"
        yield from (" " * _LABEL + line for line in more)
    slots = list(format_free_slots([(one.start, one.end) for one in found.nearest], now, zone))
    for number, slot in enumerate(slots):
        yield f"{'' if number else 'Free:':<{_LABEL}}{slot}"
    if found.places:
        yield ""
        yield from _place_lines(found, now, zone, room, whole=whole)


def outcome_sentence(found: Explanation, zone: Zone, *, thought: bool) -> str:
    """Return in a sentence what becomes of a session."""
    slot = f" for {format_slot(found.slot.start, found.slot.end, zone)}" if found.slot else ""
    seat = f"planned worker {seat_label(found.seat)}" if found.seat else ""
    where = ", ".join(filter(None, [found.worker and f"worker {found.worker}", seat]))
    match found.outcome:
        case "assign":
            sentence = f"{'would start' if thought else 'can start'} now on {where or 'a worker'}"
        case "scale_up":
            waits = "would wait" if thought else "waits"
            sentence = f"{waits} for a machine that is being started ({where or 'a planned worker'})"
        case "promise":
            sentence = (
                f"{'would be' if thought else 'is'} promised {where or 'a planned worker'}{'' if thought else slot}"
            )
        case "refuse":
            sentence = "would be refused" if thought else "cannot be placed at present"
        case "placed":
            sentence = f"is placed on {where or 'a worker'}"
        case "over":
            sentence = "is over"
        case _:
            sentence = "would wait" if thought else "waits"
    return f"{sentence}: {found.reason}" if found.reason else sentence


def _detail_lines(found: Explanation, now: datetime, zone: Zone) -> Iterator[tuple[str, str]]:
    if found.why:
        yield "Why", found.why
    if found.remedy:
        yield "Remedy", found.remedy
    if found.region:
        yield "Region", found.region
    if found.waiting:
        yield "Waiting", describe_waiting(found.waiting, now, zone)
    elif found.decision and found.decision.reason not in found.reason:
        yield "Decision", f"{found.decision.action}: {found.decision.reason}"
    if found.usd is not None and found.outcome != "refuse":
        yield "Cost", describe_price(found)


def _place_lines(found: Explanation, now: datetime, zone: Zone, room: int, *, whole: bool) -> Iterator[str]:
    shown = found.places if whole else found.places[:MOST_PLACES]
    # When a place is free says nothing about a session before which others wait: its estimate is above.
    queues = found.waiting is not None and found.waiting.estimated_start is not None
    rows = [
        (
            render.sanitize(one.place),
            "planned worker" if one.kind == "seat" else one.kind,
            "yes" if one.fits else "no",
            *(() if queues else [_earliest(one.earliest, now, zone)]),
        )
        for one in shown
    ]
    headings = tuple(one for one in _HEADINGS if not (queues and one == "EARLIEST"))
    widths = [
        max(len(heading), *(render.text_width(row[number]) for row in rows))
        for number, heading in enumerate(headings[:-1])
    ]
    widths[0] = min(widths[0], max(_WIDEST_PLACE, room - sum(widths[1:]) - _LEAST_REASON - 2 * len(widths)))
    yield _row(headings, widths)
    for answer, row in zip(shown, rows, strict=True):
        yield from _answer_lines(answer, row, widths, room, whole=whole)
    if left := len(found.places) - len(shown) + found.places_left_off:
        more = "" if whole else "; `-o wide` shows more of them"
        yield f"and {left} more{more}"


def _answer_lines(
    one: PlaceAnswer, row: Sequence[str], widths: Sequence[int], room: int, *, whole: bool
) -> Iterator[str]:
    """Yield a place's answer; a reason that does not fit continues below itself."""
    indent = sum(widths) + 2 * len(widths)
    score = f" (score {one.score:.3g})" if whole and one.score is not None else ""
    remedy = f"; {one.remedy}" if whole and one.remedy else ""
    first, *rest = render.wrap_text(f"{one.reason}{remedy}{score}", room - indent)
    yield render.paint(_row([*row, first], widths), "green" if one.fits else None)
    yield from (" " * indent + line for line in rest)


def _earliest(moment: datetime | None, now: datetime, zone: Zone) -> str:
    if moment is None:
        return "never"
    if moment <= now or format_distance(moment, now) == "now":
        return "now"
    local = zone.local(moment)
    return f"{local:%a %H:%M}" if moment - now < _WEEKDAY_SUFFICES else f"{local:%Y-%m-%d %H:%M}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [render.pad(render.truncate(cell, wide), wide) for cell, wide in zip(cells, widths, strict=False)]
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


_USAGE: Final = (
    "write `lcm explain session NAME`, `lcm explain reservation NAME`, `lcm explain pool NAME`,"
    " or `lcm explain --definition NAME --at TIME --for TIME`"
)


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[session] NAME",
            help="Name of a session; or `reservation NAME`, `definition NAME` or `pool NAME`.",
            autocompletion=options.complete_sessions,
        ),
    ] = None,
    *,
    definition: Annotated[
        str,
        typer.Option("--definition", metavar="NAME", help="Explain a booking of this lab without making it."),
    ] = "",
    at: At = None,
    span: For = None,
    count: Count = 1,
    track: Track = "",
    region: Region = None,
    prefer_region: PreferredRegion = None,
    spot: AllowSpot = False,
    time_zone: TimeZone = "",
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="Output format; wide shows every place.")
    ] = Output.TABLE,
    context: ContextName = None,
) -> None:
    """Explain why sessions are where they are, or what they wait for; with --definition, what a booking would get.

    `lcm explain pool NAME` explains why a pool did or did not scale.
    """
    if output is Output.NAME:
        raise typer.BadParameter("an explanation has no name; use json or yaml", param_hint="--output")
    zone, now = choose_zone(time_zone), SystemClock().now()
    noun, name = (noun_of(LabletDefinition), definition) if definition else _parse_subject(words or [])
    lab = name if noun.struct is LabletDefinition else ""
    if not lab:
        if at or span or track or region or prefer_region or spot or count > 1:
            raise typer.BadParameter(
                "--at, --for, --count, --track, --spot and the regions need --definition", param_hint="--definition"
            )
        if noun.struct is Reservation:
            several: Ref[Reservation] = Ref(Reservation, name, namespace)
            connection.with_plane(lambda plane: _explain_reservation(plane, several, zone, output), context)
            return
        if noun.struct is LabWorkerPool:
            pool: Ref[LabWorkerPool] = Ref(LabWorkerPool, name, namespace)
            connection.with_plane(lambda plane: explain_pool(plane, pool, output), context)
            return
        ref: Ref[LabletSession] = Ref(LabletSession, parse_session_name(words or [], _USAGE), namespace)
        connection.with_plane(lambda plane: _explain_session(plane, ref, zone, output), context)
        return
    start = parse_moment(at, now, zone) if at else None
    minutes = parse_minutes(span, "--for") if span else None

    async def work(plane: Plane) -> None:
        async with suggesting_definition(plane, lab, namespace):
            long = minutes or await longest_minutes(plane, lab, namespace)
            request = PreviewRequest(
                definition=lab,
                namespace=namespace,
                timeslot_start=start,
                timeslot_end=start + timedelta(minutes=long) if start else None,
                duration_minutes=None if start else long,
                lab_track=track,
                region_required=region,
                region_preferred=prefer_region,
                allow_spot=spot,
                count=count,
            )
            found = await plane.preview(request)
        _print_explanation(found, Subject(_describe_request(request, zone, long), thought=True), zone, output)

    connection.with_plane(work, context)


def _parse_subject(words: list[str]) -> tuple[Noun, str]:
    """Parse what is to be explained: an object with its kind, or a session by its name alone."""
    if not words:
        raise typer.BadParameter(_USAGE, param_hint="NAME")
    if len(words) == 1 and "/" not in words[0]:
        return noun_of(LabletSession), words[0]
    return parse_one_target(words)


async def _explain_session(plane: Plane, ref: Ref[LabletSession], zone: Zone, output: Output) -> None:
    with naming_missing(ref):
        found = await plane.explain(ref)
    _print_explanation(found, Subject(title_of(LabletSession, ref.name)), zone, output)


async def _explain_reservation(plane: Plane, ref: Ref[Reservation], zone: Zone, output: Output) -> None:
    """Explain a reservation by the sessions that are still to come or run, and by what it holds for others."""
    found = await plane.get(ref)
    if found is None:
        raise missing(ref)
    where = ObjectSelector(fields=(SelectorTerm("metadata.owner.uid", (found.metadata.uid,)),))
    made = (await read_all(plane, LabletSession, namespace=found.metadata.namespace, where=where)).items
    live = sorted((one for one in made if one.status.phase not in SESSION_MACHINE.final), key=_start_of)
    shown = live if output is not Output.TABLE else live[:MOST_SESSIONS]
    answers = [(one.metadata.name, await plane.explain(ref_of(one))) for one in shown]
    if output in {Output.JSON, Output.YAML}:
        print_value({"reservation": found.metadata.name, "sessions": dict(answers)}, output)
        return
    for text in reservation_texts(found, answers, zone):
        render.print_text(text)
    if left := len(live) - len(shown):
        render.print_text(f"and {left} more sessions; `-o wide` explains all of them")


def reservation_texts(found: Reservation, answers: Sequence[tuple[str, Explanation]], zone: Zone) -> Iterator[str]:
    """Yield what a reservation holds, then what becomes of each of its sessions, in sentences."""
    spec, status = found.spec, found.status
    last = status.history[-1].reason if status.history else ""
    yield f"{title(found)} is {status.phase}" + (f": {status.last_error or last}" if status.last_error or last else "")
    yield (
        f"it is for {spec.count} of {spec.definition} at a time,"
        f" from {format_slot(spec.timeslot_start, spec.timeslot_end, zone)}:"
        f" {status.sessions_made} sessions made, {status.sessions_ended} of them over"
    )
    for name, answer in answers:
        yield f"{title_of(LabletSession, name)} {outcome_sentence(answer, zone, thought=False)}"
        if answer.remedy:
            yield f"  {answer.remedy}"
    for held in [one for one in status.held if one.session is None][:MOST_SESSIONS]:
        seat = f"planned worker {seat_label(held.seat)} is" if held.seat else "room is"
        slot = format_slot(held.claim.start, held.claim.end, zone)
        yield f"session {held.number} is not made yet: {seat} held for it, {slot}"


def _start_of(session: LabletSession) -> tuple[datetime, str]:
    made = session.spec.timeslot_start or session.metadata.created_at
    assert made is not None, "reserved sessions have slots"
    return made, session.metadata.name


def _print_explanation(found: Explanation, subject: Subject, zone: Zone, output: Output) -> None:
    if output in {Output.JSON, Output.YAML}:
        print_value(found, output)
        return
    now: datetime = SystemClock().now()
    room = min(render.output_width() or render.MAX_TEXT_WIDTH, render.MAX_TEXT_WIDTH)
    for line in explanation_lines(found, subject, now, zone, room, whole=output is Output.WIDE):
        render.print_line(line)


def _describe_request(request: PreviewRequest, zone: Zone, minutes: int) -> str:
    what = f"{f'{request.count} sessions' if request.count > 1 else 'a session'} of {request.definition}"
    if request.timeslot_start and request.timeslot_end:
        return f"{what}, {format_slot(request.timeslot_start, request.timeslot_end, zone)},"
    return f"{what}, now for {format_minutes(minutes)},"
