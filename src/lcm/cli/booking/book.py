"""`lcm book`: a session now or at a time, or a reservation for several; promised, or refused with free slots."""

from calendar import day_name
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Annotated, Final, Literal, cast

import msgspec
import typer

from lcm.cli.booking.outcome import (
    describe_price,
    describe_reservation,
    describe_session,
    describe_spending,
    format_free_slots,
    watch_until_running,
)
from lcm.cli.output import connection, exit_codes, options, render
from lcm.cli.output.lookup import read_object, suggesting_definition
from lcm.cli.output.nouns import NamedObjects, noun_of, title, title_of
from lcm.cli.output.options import (
    AllowSpot,
    At,
    ContextName,
    Count,
    DryRun,
    For,
    Namespace,
    Output,
    PreferredRegion,
    Region,
    TimeZone,
    Track,
)
from lcm.cli.output.printer import Printer
from lcm.cli.output.times import parse_day, parse_minutes, parse_moment
from lcm.cli.output.zone import Zone, choose_zone
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Later, NoRoom, Refused, Unreachable
from lcm.model.base.resource import DEFAULT_NAMESPACE, Metadata, find_condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.hours import Weekday
from lcm.model.kinds.placement import Explanation, PreviewRequest
from lcm.model.kinds.reservation import Recurrence, Reservation, ReservationSpec
from lcm.model.kinds.saved_lab import ContinueFrom
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, SessionCondition
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
    preferred_region: str | None = None
    spot: bool = False
    emails: tuple[str, ...] = ()
    priority: int = 0
    count: int = 1
    series: Recurrence | None = None
    give_up_at: datetime | None = None
    source: ContinueFrom | None = None

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
                region_preferred=self.preferred_region,
                allow_spot=self.spot,
                priority=self.priority,
                continue_from=self.source,
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
            region_preferred=self.preferred_region,
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
            metavar="[DEFINITION]",
            help="The lab to book; without a version: the newest active one. With --continue: that of the session.",
            autocompletion=options.complete_definitions,
        ),
    ] = "",
    *,
    continue_: Annotated[
        str,
        typer.Option(
            "--continue",
            metavar="SESSION[/SAVE]",
            help="Start with the saved lab of an earlier session; without SAVE: what was saved last.",
            autocompletion=options.complete_sessions,
        ),
    ] = "",
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
    prefer_region: PreferredRegion = None,
    spot: AllowSpot = False,
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
    `lcm book basics --at '2026-12-01 09:00' --for 2h --every week --until 2027-01-31`,
    `lcm book --continue basics-x7k2p`

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
    if spot and start:
        problem = "cannot be used with --at: a booking for a time is promised, and a spot machine may be taken away"
        raise typer.BadParameter(problem, param_hint="--spot")
    if on and not every:
        raise typer.BadParameter("can only be used with --every week", param_hint="--on")
    if give_up_after and start:
        raise typer.BadParameter(
            "cannot be used with --at: a booking for a time is accepted or refused at once",
            param_hint="--give-up-after",
        )
    patience = parse_moment(f"+{give_up_after}", clock.now(), zone, "--give-up-after") if give_up_after else None
    source = parse_source(continue_, several=count > 1 or bool(every)) if continue_ else None
    if not definition and source is None:
        raise typer.BadParameter("name a lab, or a session to --continue", param_hint="DEFINITION")
    asked = BookingRequest(
        definition=definition,
        source=source,
        namespace=namespace,
        start=start,
        minutes=parse_minutes(span, "--for") if span else None,
        name=name,
        owner=owner,
        track=track,
        region=region,
        preferred_region=prefer_region,
        spot=spot,
        emails=tuple(email or ()),
        priority=priority,
        count=count,
        series=parse_recurrence(every, on, parse_day(until, "--until"), zone) if every else None,
        give_up_at=patience,
    )
    _BookingCommand(clock, zone, output, dry_run=dry_run, follow=follow).book(asked, context)


def parse_source(text: str, *, several: bool) -> ContinueFrom:
    """Parse SESSION or SESSION/SAVE."""
    if several:
        raise typer.BadParameter("one session continues another; book one at a time", param_hint="--continue")
    session, _, save = text.removeprefix("session/").partition("/")
    try:
        return msgspec.convert({"session": session, "save": save or None}, ContinueFrom)
    except msgspec.ValidationError as error:
        remedy = "write a session's name, or SESSION/SAVE"
        raise typer.BadParameter(f"{text!r} is neither: {remedy}", param_hint="--continue") from error


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

    def book(self, wanted: BookingRequest, context: str | None) -> None:
        async def work(plane: Plane) -> None:
            asked = await _with_definition(plane, wanted)
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
        minutes = asked.minutes or await longest_minutes(plane, asked.definition, asked.namespace, asked.source)
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
        if isinstance(made, LabletSession) and self._output in {Output.TABLE, Output.WIDE}:
            told = find_condition(made.status.conditions, SessionCondition.CONTINUES)
            if told is not None:
                render.print_text(told.message)
        if self._dry_run:
            await self._print_price(plane, made)
            render.print_message("nothing was booked: --dry-run")
        else:
            await self._warn_of_spending(plane, made)

    async def _print_price(self, plane: Plane, made: Booking) -> None:
        """Print what a booking would cost, in words only."""
        answer = await self._ask_placement(plane, made) if self._output in {Output.TABLE, Output.WIDE} else None
        if answer is not None and (price := describe_price(answer)):
            render.print_text(f"it would cost {price}")

    async def _warn_of_spending(self, plane: Plane, made: Booking) -> None:
        """Warn whoever books if most of their month's dollars are used. A missing answer is no reason to fail."""
        with suppress(Refused, Later):
            told = describe_spending(await plane.quotas(namespace=made.metadata.namespace, track=made.spec.lab_track))
            if told:
                render.print_message(told)

    async def _ask_placement(self, plane: Plane, made: Booking) -> Explanation | None:
        """Ask where the booking goes. A missing answer is no reason to report the booking as failed."""
        spec = made.spec
        request = PreviewRequest(
            definition=spec.definition,
            namespace=made.metadata.namespace,
            timeslot_start=spec.timeslot_start,
            timeslot_end=spec.timeslot_end,
            duration_minutes=spec.duration_minutes if isinstance(spec, LabletSessionSpec) else None,
            lab_track=spec.lab_track,
            region_required=spec.region_required,
            region_preferred=spec.region_preferred,
            allow_spot=spec.allow_spot if isinstance(spec, LabletSessionSpec) else False,
            count=spec.count if isinstance(spec, ReservationSpec) else 1,
            recurrence=spec.recurrence if isinstance(spec, ReservationSpec) else None,
        )
        try:
            if isinstance(made, LabletSession) and not self._dry_run:
                return await plane.explain(ref_of(made))
            return await plane.preview(request)
        except (Refused, Later):
            return None


async def _with_definition(plane: Plane, asked: BookingRequest) -> BookingRequest:
    """Return a booking with the lab of the session that it continues, in whichever version is booked now."""
    if asked.definition or asked.source is None:
        return asked
    found = await read_object(plane, Ref(LabletSession, asked.source.session, asked.namespace))
    assert isinstance(found, LabletSession), "the kind that was asked for"
    return replace(asked, definition=found.spec.definition.partition(":")[0])


async def longest_minutes(plane: Plane, definition: str, namespace: str, source: ContinueFrom | None = None) -> int:
    """Return how many minutes a lab may be booked for; the API knows which version is meant."""
    spec = LabletSessionSpec(definition=definition, duration_minutes=1, continue_from=source)
    name = make_up_name(definition, system.random_fraction)
    preview = await plane.create(
        LabletSession(metadata=Metadata(name=name, namespace=namespace), spec=spec), dry_run=True
    )
    found = await plane.get(Ref(LabletDefinition, preview.spec.definition, namespace))
    if found is None:
        missing = title_of(LabletDefinition, definition)
        raise typer.BadParameter(f"the longest duration of {missing} is not known; set one", param_hint="--for")
    return found.spec.max_duration_minutes
