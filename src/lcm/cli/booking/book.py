"""`lcm book`: a session now or at a time, or a reservation for several; promised, or refused with free slots."""

from calendar import day_name
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Final, Literal, cast

import typer

from lcm.cli.booking.outcome import describe_reservation, describe_session, format_free_slots, watch_until_running
from lcm.cli.output import connection, exit_codes, options, render
from lcm.cli.output.lookup import suggesting_definition
from lcm.cli.output.nouns import NamedObjects, noun_of, title, title_of
from lcm.cli.output.options import At, ContextName, Count, DryRun, For, Namespace, Output, Region, TimeZone, Track
from lcm.cli.output.printer import Printer
from lcm.cli.output.times import parse_day, parse_minutes, parse_moment
from lcm.cli.output.zone import Zone, choose_zone
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Later, NoRoom, Refused, Unreachable
from lcm.model.base.resource import DEFAULT_NAMESPACE, Metadata
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import Explanation, PreviewRequest
from lcm.model.kinds.reservation import Recurrence, Reservation, ReservationSpec, Weekday
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.system import clock as system
from lcm.system.clock import SystemClock

Booking = LabletSession | Reservation
_NAME_ALPHABET: Final = "bcdfghjkmnpqrstvwxz23456789"
"""No characters that look alike, and no vowels, which could form words."""
_SUFFIX: Final = 5
_LONGEST_FAMILY: Final = 53
_WORKDAYS: Final = (Weekday.MON, Weekday.TUE, Weekday.WED, Weekday.THU, Weekday.FRI)
_DAYS: Final = {word: day for day, name in zip(Weekday, day_name, strict=True) for word in (str(day), name.lower())}


@dataclass(frozen=True, slots=True, kw_only=True)
class BookingRequest:
    """A booking as it was requested. No `start` means as soon as possible; no `minutes`, as long as is allowed."""

    definition: str
    namespace: str = DEFAULT_NAMESPACE
    start: datetime | None = None
    minutes: int | None = None
    name: str | None = None
    owner: str = ""
    track: str = ""
    region: str | None = None
    emails: tuple[str, ...] = ()
    priority: int = 0
    count: int = 1
    series: Recurrence | None = None
    give_up_at: datetime | None = None

    @property
    def is_for_several(self) -> bool:
        """Whether it is for more than one session."""
        return self.count > 1 or self.series is not None

    def to_resource(self, minutes: int, name: str) -> Booking:
        """Make the session or reservation that requests it."""
        end = self.start + timedelta(minutes=minutes) if self.start else None
        metadata = Metadata(name=name, namespace=self.namespace)
        if not self.is_for_several:
            session = LabletSessionSpec(
                definition=self.definition,
                owner=self.owner,
                student_email=next(iter(self.emails), None),
                lab_track=self.track,
                timeslot_start=self.start,
                timeslot_end=end,
                duration_minutes=None if self.start else minutes,
                give_up_at=self.give_up_at,
                region_required=self.region,
                priority=self.priority,
            )
            return LabletSession(metadata=metadata, spec=session)
        assert self.start is not None, "several are booked for a time"
        assert end is not None, "likewise"
        spec = ReservationSpec(
            definition=self.definition,
            timeslot_start=self.start,
            timeslot_end=end,
            count=self.count,
            recurrence=self.series,
            owner=self.owner,
            student_emails=self.emails,
            lab_track=self.track,
            region_required=self.region,
            priority=self.priority,
        )
        return Reservation(metadata=metadata, spec=spec)


def make_up_name(definition: str, chance: Callable[[], float]) -> str:
    """Make up a name: `basics-x7k2p`."""
    family = definition.partition(":")[0][:_LONGEST_FAMILY].rstrip("-.")
    return f"{family}-{''.join(_NAME_ALPHABET[int(chance() * len(_NAME_ALPHABET))] for _ in range(_SUFFIX))}"


def parse_recurrence(every: str, on: str, until: date, zone: Zone) -> Recurrence:
    """Parse how often: day, week, weekday, or days such as mon,wed."""
    if not zone.name:
        raise typer.BadParameter("name the time zone of the series, such as Europe/Berlin", param_hint="--time-zone")
    word = every.strip().lower()
    days = _parse_weekdays(on, "--on")
    if word not in {"day", "week"}:
        if days:
            raise typer.BadParameter("can only be used with --every week", param_hint="--on")
        days = _WORKDAYS if word == "weekday" else _parse_weekdays(word, "--every")
        word = "week"
    if word == "day" and days:
        raise typer.BadParameter("cannot be used with --every day; use --every week", param_hint="--on")
    often = cast("Literal['day', 'week']", word)
    return Recurrence(every=often, until=until, time_zone=zone.name, weekdays=days)


def _parse_weekdays(text: str, hint: str) -> tuple[Weekday, ...]:
    words: Sequence[str] = [word.strip() for word in text.lower().split(",") if word.strip()]
    if unknown := [word for word in words if word not in _DAYS]:
        raise typer.BadParameter(f"{unknown[0]!r} is not a day; write mon,wed", param_hint=hint)
    return tuple(dict.fromkeys(_DAYS[word] for word in words))


_TRIES: Final = 5


def book(
    definition: Annotated[
        str,
        typer.Argument(
            metavar="DEFINITION",
            help="The lab to book; without a version: the newest active one.",
            autocompletion=options.complete_definitions,
        ),
    ],
    *,
    at: At = None,
    now: Annotated[bool, typer.Option("--now", help="Start as soon as possible; the default without --at.")] = False,
    span: For = None,
    owner: Annotated[str, typer.Option("--as", metavar="OWNER", help="Owner of the booking; default: you.")] = "",
    count: Count = 1,
    every: Annotated[
        str,
        typer.Option("--every", metavar="WHEN", help="Repeat every day, week, weekday, or on days such as mon,wed."),
    ] = "",
    on: Annotated[str, typer.Option("--on", metavar="DAYS", help="With --every week: the days, such as mon,wed.")] = "",
    until: Annotated[str, typer.Option("--until", metavar="DATE", help="With --every: the last day.")] = "",
    time_zone: TimeZone = "",
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the booking; default: a generated one.")
    ] = None,
    track: Track = "",
    region: Region = None,
    email: Annotated[
        list[str] | None, typer.Option("--email", metavar="EMAIL", help="E-mail address of the student; repeatable.")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="Higher numbers are placed first.")] = 0,
    give_up_after: Annotated[
        str | None, typer.Option("--give-up-after", metavar="TIME", help="Longest time to wait for the start: 30m, 4h.")
    ] = None,
    follow: Annotated[bool, typer.Option("-w", "--watch", help="Show progress until the session runs.")] = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Annotated[Output, typer.Option("-o", "--output", help="Output format.")] = Output.TABLE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Book a lab: now, at a time, for several at once, or repeatedly.

    `lcm book basics --for 2h`, `lcm book basics --at 'tomorrow 9:00' --for 90m --count 12`,
    `lcm book basics --at '2026-12-01 09:00' --for 2h --every week --until 2027-01-31`

    A booking for a time is promised or refused at once; if it is refused, the nearest free slots are shown.
    """
    clock = SystemClock()
    zone = choose_zone(time_zone)
    start = parse_moment(at, clock.now(), zone) if at else None
    _check_options(start is not None, now=now, several=count > 1 or bool(every), follow=follow, emails=len(email or ()))
    if bool(until) != bool(every):
        raise typer.BadParameter(
            "--every and --until must be used together", param_hint="--until" if until else "--every"
        )
    if on and not every:
        raise typer.BadParameter("can only be used with --every week", param_hint="--on")
    if give_up_after and start:
        raise typer.BadParameter(
            "cannot be used with --at: a booking for a time is accepted or refused at once",
            param_hint="--give-up-after",
        )
    patience = parse_moment(f"+{give_up_after}", clock.now(), zone, "--give-up-after") if give_up_after else None
    asked = BookingRequest(
        definition=definition,
        namespace=namespace,
        start=start,
        minutes=parse_minutes(span, "--for") if span else None,
        name=name,
        owner=owner,
        track=track,
        region=region,
        emails=tuple(email or ()),
        priority=priority,
        count=count,
        series=parse_recurrence(every, on, parse_day(until, "--until"), zone) if every else None,
        give_up_at=patience,
    )
    _BookingCommand(clock, zone, output, dry_run=dry_run, follow=follow).book(asked, context)


def _check_options(timed: bool, *, now: bool, several: bool, follow: bool, emails: int) -> None:  # noqa: FBT001 - what it is about
    if now and timed:
        raise typer.BadParameter("--at and --now cannot be used together", param_hint="--now")
    if several and not timed:
        raise typer.BadParameter("several sessions need a start time, such as --at +1h", param_hint="--at")
    if several and follow:
        raise typer.BadParameter(
            "can follow only one session; `lcm get sessions -w` follows many", param_hint="--watch"
        )
    if emails > 1 and not several:
        raise typer.BadParameter("one session has one student; add --count for several", param_hint="--email")


class _BookingCommand:
    """Books, and prints the result."""

    def __init__(self, clock: Clock, zone: Zone, output: Output, *, dry_run: bool, follow: bool) -> None:
        self._clock = clock
        self._zone = zone
        self._output = output
        self._dry_run = dry_run
        self._follow = follow and not dry_run

    def book(self, asked: BookingRequest, context: str | None) -> None:
        async def work(plane: Plane) -> None:
            try:
                async with suggesting_definition(plane, asked.definition, asked.namespace):
                    made = await self._create(plane, asked)
            except NoRoom as error:
                code = exit_codes.report_error(error)
                if error.nearest:
                    render.print_message("free slots:")
                for line in format_free_slots(error.nearest, self._clock.now(), self._zone):
                    render.print_message(f"  {line}")
                raise typer.Exit(code) from error
            await self._print_booking(plane, made)
            if self._follow and isinstance(made, LabletSession):
                await watch_until_running(plane, made, self._clock, self._zone)

        connection.with_plane(work, context)

    async def _create(self, plane: Plane, asked: BookingRequest) -> Booking:
        minutes = asked.minutes or await longest_minutes(plane, asked.definition, asked.namespace)
        for left in reversed(range(_TRIES)):
            name = asked.name or make_up_name(asked.definition, system.random_fraction)
            booking = asked.to_resource(minutes, name)
            try:
                return await plane.create(booking, dry_run=self._dry_run)
            except Conflict as error:
                if error.wanted:
                    raise
                if asked.name or not left:
                    raise Refused(f"there is a {title(booking)} already: choose another --name") from error
            except Unreachable as error:
                kind = noun_of(booking.kind).singular
                message = f"{error}; `lcm get {kind} {name}` shows whether {title(booking)} was booked"
                raise Unreachable(message) from error
        raise AssertionError

    async def _print_booking(self, plane: Plane, made: Booking) -> None:
        if self._output not in {Output.TABLE, Output.WIDE}:
            one = NamedObjects(noun_of(made.kind), (made.metadata.name,))
            Printer(self._output, [one], clock=self._clock, with_namespace=False).print_all([made])
        elif isinstance(made, LabletSession):
            answer = None if made.spec.timeslot_start else await self._ask_placement(plane, made)
            render.print_text(describe_session(made, answer, self._clock.now(), self._zone, dry_run=self._dry_run))
        else:
            render.print_text(describe_reservation(made, self._clock.now(), self._zone, dry_run=self._dry_run))
        if self._dry_run:
            render.print_message("nothing was booked: --dry-run")

    async def _ask_placement(self, plane: Plane, made: LabletSession) -> Explanation | None:
        """Ask where the session goes. A missing answer is no reason to report the booking as failed."""
        spec = made.spec
        request = PreviewRequest(
            definition=spec.definition,
            namespace=made.metadata.namespace,
            duration_minutes=spec.duration_minutes,
            lab_track=spec.lab_track,
            region_required=spec.region_required,
        )
        try:
            return await (plane.preview(request) if self._dry_run else plane.explain(ref_of(made)))
        except (Refused, Later):
            return None


async def longest_minutes(plane: Plane, definition: str, namespace: str) -> int:
    """Return how many minutes a lab may be booked for; the API knows which version is meant."""
    spec = LabletSessionSpec(definition=definition, duration_minutes=1)
    name = make_up_name(definition, system.random_fraction)
    preview = await plane.create(
        LabletSession(metadata=Metadata(name=name, namespace=namespace), spec=spec), dry_run=True
    )
    found = await plane.get(Ref(LabletDefinition, preview.spec.definition, namespace))
    if found is None:
        missing = title_of(LabletDefinition, definition)
        raise typer.BadParameter(f"the longest duration of {missing} is not known; set one", param_hint="--for")
    return found.spec.max_duration_minutes
