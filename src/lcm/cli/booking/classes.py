"""`lcm move`, `skip`, `resize`, `learners` and `swap`: change a class, or move one session, all or none.

What cannot be is refused with the reason and, for a move, with the nearest times that would be accepted.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lcm.cli.booking.roster import read_learners
from lcm.cli.output import connection, exit_codes, options, render
from lcm.cli.output.nouns import missing, naming_missing, parse_one_target, title
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, DryRun, Namespace, TimeZone
from lcm.cli.output.times import format_distance, format_for_paste, format_slot, parse_day, parse_minutes, parse_moment
from lcm.cli.output.zone import Zone, choose_zone
from lcm.control.plane.booking_actions import Move, Resize, SetLearners, Skip, Swap
from lcm.control.plane.protocol import Action, Plane, Ref
from lcm.model.base.errors import NoRoom
from lcm.model.kinds.reservation import OCCURRENCES_LIMIT, Reservation, ReservationClaim, held_slot, occurrence_of
from lcm.model.kinds.session import LabletSession
from lcm.system.clock import SystemClock

Booking = LabletSession | Reservation
_LEARNERS_SHOWN: Final = 5
_WEEK_SUFFIX: Final = "w"
_WEEK_MINUTES: Final = 7 * 24 * 60
ClassName = Annotated[
    list[str],
    typer.Argument(metavar="[reservation] NAME", help="Name of a class.", autocompletion=options.complete_targets),
]
Occurrence = Annotated[
    int | None, typer.Option("--occurrence", metavar="N", min=1, help="Only this occurrence of a series.")
]
From = Annotated[
    int | None, typer.Option("--from", metavar="N", min=1, help="This occurrence of a series and all after it.")
]
LearnerFile = Annotated[
    Path | None,
    typer.Option("--from", metavar="FILE", help="CSV file with the header email[,name], or addresses line by line."),
]


def parse_class_name(words: Sequence[str]) -> str:
    """Parse `NAME`, `reservation NAME` or `reservation/NAME`."""
    if len(words) == 1 and "/" not in words[0]:
        return words[0]
    noun, name = parse_one_target(words)
    if noun.struct is not Reservation:
        raise typer.BadParameter(f"a {noun.singular} is no class; name a reservation", param_hint="KIND")
    return name


def choose_part(occurrence: int | None, onward: int | None) -> dict[str, Any]:
    """Return the part of a series that an action is about, as its fields."""
    if occurrence is not None and onward is not None:
        raise typer.BadParameter("--occurrence and --from cannot be used together", param_hint="--from")
    return {"occurrence": onward if occurrence is None else occurrence, "onward": onward is not None}


def move(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND NAME", help="A session or a reservation.", autocompletion=options.complete_targets
        ),
    ],
    *,
    by: Annotated[
        str | None, typer.Option("--by", metavar="TIME", help="How much later: 1h, 2d, 1w; -30m is earlier.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="New start: tue 10:00, 2026-12-01 09:00.")
    ] = None,
    occurrence: Occurrence = None,
    onward: From = None,
    time_zone: TimeZone = "",
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Move a class or a session to another time, with everything that was booked for it, or not at all.

    `lcm move reservation routing --by 1h`, `lcm move reservation routing --to 'tue 10:00' --from 3`,
    `lcm move session ada-monday --to 'tomorrow 9:00'`

    A series moves by the wall clock of its own time zone. What has begun stays; the rest of a series moves.
    """
    noun, name = parse_one_target(target)
    if noun.struct not in (LabletSession, Reservation):
        raise typer.BadParameter(f"a {noun.singular} is not a booking", param_hint="KIND")
    if (by is None) == (to is None):
        raise typer.BadParameter("use one of --by and --to", param_hint="--by")
    zone, now = choose_zone(time_zone), SystemClock().now()
    action = Move(
        start=parse_moment(to, now, zone, "--to") if to else None,
        minutes=parse_shift(by) if by else None,
        time_zone=zone.name or None,
        **choose_part(occurrence, onward),
    )
    ref: Ref[Any] = Ref(noun.struct, name, namespace)
    _perform(ref, action, lambda made: _describe_move(made, action, zone, dry_run=dry_run), context, dry_run=dry_run)


def parse_shift(text: str) -> int:
    """Parse by how much something moves: `1h`, `-30m`, `1w`."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest.endswith(_WEEK_SUFFIX) and rest[:-1].isascii() and rest[:-1].isdigit():
        return sign * int(rest[:-1]) * _WEEK_MINUTES
    return sign * parse_minutes(rest, "--by")


def skip(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[reservation] NAME N|DATE", help="A class, and which occurrence: 3, 2026-12-01."),
    ],
    *,
    time_zone: TimeZone = "",
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Leave out an occurrence of a series. What was booked for it becomes free.

    `lcm skip reservation routing 3`, `lcm skip reservation routing 2026-12-24`
    """
    if len(words) < 2:  # noqa: PLR2004 - a name and a number
        raise typer.BadParameter("which occurrence? write `lcm skip reservation NAME 3`", param_hint="N")
    ref: Ref[Reservation] = Ref(Reservation, parse_class_name(words[:-1]), namespace)
    zone, which = choose_zone(time_zone), words[-1]

    async def work(plane: Plane) -> None:
        number = int(which) if which.isascii() and which.isdigit() else await _find_occurrence(plane, ref, which, zone)
        made = await _act(plane, ref, Skip(occurrence=number), dry_run=dry_run)
        left = len({occurrence_of(made.spec, one) for one in made.status.held})
        verb = "would be" if dry_run else "is"
        render.print_text(f"occurrence {number} of {title(made)} {verb} left out: {left} are left")
        _print_dry_run(dry_run=dry_run)

    connection.with_plane(work, context)


async def _find_occurrence(plane: Plane, ref: Ref[Reservation], text: str, zone: Zone) -> int:
    """Find the occurrence on a day, in the time zone of the series."""
    day = parse_day(text, "N")
    whole = await plane.get(ref)
    if whole is None:
        raise missing(ref)
    series = whole.spec.recurrence
    own = choose_zone(series.time_zone) if series else zone
    for one in whole.status.held:
        if own.local(held_slot(whole.spec, one)[0]).date() == day:
            return occurrence_of(whole.spec, one)
    raise typer.BadParameter(f"{title(whole)} has nothing on {day}; `lcm hand-out` shows when it is", param_hint="N")


def resize(
    words: Annotated[
        list[str], typer.Argument(metavar="[reservation] NAME SEATS", help="A class, and how many seats it has then.")
    ],
    *,
    file: LearnerFile = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Change how many seats a class has, in every slot that has not begun.

    A class with named learners gets the whole new list of them: `lcm resize reservation routing 22 --from class.csv`
    """
    if len(words) < 2 or not (words[-1].isascii() and words[-1].isdigit()):  # noqa: PLR2004 - a name and a number
        raise typer.BadParameter("how many seats? write `lcm resize reservation NAME 20`", param_hint="SEATS")
    wanted = int(words[-1])
    if not 1 <= wanted <= OCCURRENCES_LIMIT:
        raise typer.BadParameter(f"must be 1 to {OCCURRENCES_LIMIT}", param_hint="SEATS")
    ref: Ref[Reservation] = Ref(Reservation, parse_class_name(words[:-1]), namespace)
    action = Resize(seats=wanted, student_emails=tuple(read_learners(file)) if file else ())
    _perform(ref, action, lambda made: _describe_learners(made, dry_run=dry_run), context, dry_run=dry_run)


def learners(
    words: ClassName,
    *,
    file: LearnerFile = None,
    email: Annotated[
        list[str] | None, typer.Option("--email", metavar="EMAIL", help="Address of a learner; repeatable.")
    ] = None,
    resize_: Annotated[bool, typer.Option("--resize", help="Give the class as many seats as learners.")] = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Name the learners of a class, one for each seat. Who stays keeps the own seat.

    `lcm learners reservation routing --from class.csv`
    """
    if bool(file) == bool(email):
        raise typer.BadParameter("use one of --from and --email", param_hint="--from")
    people = tuple(read_learners(file)) if file else tuple(email or ())
    ref: Ref[Reservation] = Ref(Reservation, parse_class_name(words), namespace)
    action = Resize(seats=len(people), student_emails=people) if resize_ else SetLearners(student_emails=people)
    _perform(ref, action, lambda made: _describe_learners(made, dry_run=dry_run), context, dry_run=dry_run)


def swap(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[reservation] NAME LEARNER OTHER", help="A class, and the addresses of two learners."),
    ],
    *,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Swap the seats of two learners of a class, or give the seat of one to somebody new."""
    if len(words) < 3:  # noqa: PLR2004 - a name and two learners
        raise typer.BadParameter("write `lcm swap reservation NAME ada@example.org ben@example.org`", param_hint="NAME")
    ref: Ref[Reservation] = Ref(Reservation, parse_class_name(words[:-2]), namespace)
    learner, other = words[-2:]

    def describe(made: Reservation) -> str:
        seats = {email: place for place, email in enumerate(made.spec.student_emails, start=1)}
        told = [
            f"{email} {'would have' if dry_run else 'has'} seat {seats[email]}"
            for email in (learner, other)
            if email in seats
        ]
        return f"{title(made)}: {', '.join(told)}"

    _perform(ref, Swap(learner=learner, other=other), describe, context, dry_run=dry_run)


def _perform(
    ref: Ref[Any], action: Action, describe: Callable[[Any], str], context: str | None, *, dry_run: bool
) -> None:
    async def work(plane: Plane) -> None:
        render.print_text(describe(await _act(plane, ref, action, dry_run=dry_run)))
        _print_dry_run(dry_run=dry_run)

    connection.with_plane(work, context)


async def _act(plane: Plane, ref: Ref[Any], action: Action, *, dry_run: bool) -> Any:  # noqa: ANN401 - of either kind
    try:
        with naming_missing(ref):
            return await plane.act(ref, action, dry_run=dry_run)
    except NoRoom as error:
        code = exit_codes.report_error(error)
        _print_free_slots(error.nearest)
        raise typer.Exit(code) from error


def _print_free_slots(slots: Sequence[tuple[datetime, datetime]]) -> None:
    zone, now = choose_zone(""), SystemClock().now()
    if slots:
        render.print_message("free slots:")
    for start, _ in slots:
        local = f"{zone.local(start):%a %H:%M %Z}, {format_distance(start, now)}"
        render.print_message(f"  --to {format_for_paste(start, zone)}  # {local}")


def _print_dry_run(*, dry_run: bool) -> None:
    if dry_run:
        render.print_message("nothing was done: --dry-run")


def _describe_move(made: Booking, action: Move, zone: Zone, *, dry_run: bool) -> str:
    verb = "would be" if dry_run else "is"
    if isinstance(made, LabletSession):
        start, end = made.spec.timeslot_start, made.status.ends_at
        assert start is not None, "what was moved has a slot"
        assert end is not None, "with an end"
        return f"{title(made)} {verb} moved: {format_slot(start, end, zone)}"
    now, spec = SystemClock().now(), made.spec
    slots = sorted({held_slot(spec, one) for one in made.status.held if _is_meant(made, one, action)})
    ahead = [slot for slot in slots if slot[0] > now] or slots
    more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
    own = choose_zone(spec.recurrence.time_zone) if spec.recurrence else zone
    return f"{title(made)} {verb} moved: {format_slot(*ahead[0], own)}{more}"


def _is_meant(made: Reservation, held: ReservationClaim, action: Move) -> bool:
    number = occurrence_of(made.spec, held)
    return action.occurrence is None or number == action.occurrence or (action.onward and number > action.occurrence)


def _describe_learners(made: Reservation, *, dry_run: bool) -> str:
    verb, people = "would have" if dry_run else "has", made.spec.student_emails
    named = f": {render.join_some(people, _LEARNERS_SHOWN)}" if people else ", nobody is named"
    return f"{title(made)} {verb} {made.spec.count} seats{named}"
