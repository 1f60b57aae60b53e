"""`lcm explain`: why a session is where it is or what it waits for; or what would become of a booking."""

from datetime import datetime, timedelta
from typing import Annotated, Final

import typer

from lcm.cli import names, render, run
from lcm.cli.book import longest
from lcm.cli.book_times import Zone, length, minutes_of, moment_of, slot_shown, terminal_zone, zone_of
from lcm.cli.explained import Subject, explained
from lcm.cli.extend import session_named
from lcm.cli.nouns import one, title_of
from lcm.cli.options import DEFAULT_NAMESPACE, At, ContextName, For, Namespace, Output, TimeZone
from lcm.cli.printer import print_value
from lcm.control.plane import Plane, Ref
from lcm.model.definition import LabletDefinition
from lcm.model.errors import Gone
from lcm.model.placing import Explanation, Wish
from lcm.model.session import LabletSession
from lcm.system import SystemClock

_USAGE: Final = "write `lcm explain session NAME`, or `lcm explain --definition NAME --at TIME --for TIME`"


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[session] NAME", help="A session; or `definition NAME`.", autocompletion=names.sessions
        ),
    ] = None,
    *,
    definition: Annotated[
        str,
        typer.Option("--definition", metavar="NAME", help="A lab that somebody only thinks of booking."),
    ] = "",
    at: At = None,
    span: For = None,
    count: Annotated[int, typer.Option("--count", metavar="N", help="How many at a time.", min=1, max=400)] = 1,
    track: Annotated[str, typer.Option("--track", metavar="TRACK", help="Another track than its lab's.")] = "",
    region: Annotated[str | None, typer.Option("--region", metavar="REGION", help="Only in this region.")] = None,
    time_zone: TimeZone = "",
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="How to write it; wide leaves no place out.")
    ] = Output.TABLE,
    context: ContextName = None,
) -> None:
    """Tell why a session is where it is, or what it waits for; with --definition, what would become of a booking."""
    if output is Output.NAME:
        raise typer.BadParameter("an explanation has no name; use json or yaml", param_hint="--output")
    zone, now = zone_of(time_zone) if time_zone else terminal_zone(), SystemClock().now()
    lab = definition or _definition(words or [])
    if not lab:
        if at or span or track or region or count > 1:
            raise typer.BadParameter("--at, --for and the like go with --definition", param_hint="--definition")
        ref: Ref[LabletSession] = Ref(LabletSession, session_named(words or [], _USAGE), namespace)
        run.with_plane(lambda plane: _session(plane, ref, zone, output), context)
        return
    start = moment_of(at, now, zone) if at else None
    minutes = minutes_of(span, "--for") if span else None

    async def work(plane: Plane) -> None:
        long = minutes or await longest(plane, lab, namespace)
        wish = Wish(
            definition=lab,
            namespace=namespace,
            timeslot_start=start,
            timeslot_end=start + timedelta(minutes=long) if start else None,
            duration_minutes=None if start else long,
            lab_track=track,
            region_required=region,
            count=count,
        )
        _print(await plane.preview(wish), Subject(_wished(wish, zone, long), thought=True), zone, output)

    run.with_plane(work, context)


def _definition(words: list[str]) -> str:
    """Give the definition that was named by kind; "" for anything else."""
    if not words:
        raise typer.BadParameter(_USAGE, param_hint="NAME")
    if len(words) == 1 and "/" not in words[0]:
        return ""
    noun, name = one(words)
    return name if noun.struct is LabletDefinition else ""


async def _session(plane: Plane, ref: Ref[LabletSession], zone: Zone, output: Output) -> None:
    try:
        found = await plane.explain(ref)
    except Gone:
        raise Gone(f"there is no {title_of(LabletSession, ref.name)} in namespace {ref.namespace}") from None
    _print(found, Subject(title_of(LabletSession, ref.name)), zone, output)


def _print(found: Explanation, subject: Subject, zone: Zone, output: Output) -> None:
    if output in {Output.JSON, Output.YAML}:
        print_value(found, output)
        return
    now: datetime = SystemClock().now()
    room = min(render.room() or render.WIDEST, render.WIDEST)
    for line in explained(found, subject, now, zone, room, whole=output is Output.WIDE):
        render.out(line)


def _wished(wish: Wish, zone: Zone, minutes: int) -> str:
    what = f"{wish.count} sessions of {wish.definition}" if wish.count > 1 else f"a session of {wish.definition}"
    if wish.timeslot_start and wish.timeslot_end:
        return f"{what}, {slot_shown(wish.timeslot_start, wish.timeslot_end, zone)},"
    return f"{what}, now for {length(minutes)},"
