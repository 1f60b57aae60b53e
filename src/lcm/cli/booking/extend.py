"""`lcm extend`: make a session or a class end later, if there is room; `lcm cancel`: end bookings."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from lcm.cli.booking.classes import From, Occurrence, choose_part, parse_class_name
from lcm.cli.output import connection, options, render
from lcm.cli.output.batches import Together, act_in_batch, select_objects
from lcm.cli.output.nouns import (
    NOUNS,
    NamedObjects,
    missing,
    naming_missing,
    noun_of,
    parse_one_target,
    parse_targets,
    title,
)
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, DryRun, Namespace, Selector
from lcm.cli.output.times import format_distance, format_local, format_minutes, parse_minutes
from lcm.cli.output.zone import current_zone
from lcm.control.plane.batch import ActionItem, BatchItem, DeleteItem
from lcm.control.plane.protocol import Extend, Plane, Ref, Terminate
from lcm.model.base.errors import Gone, IllegalStep, LcmError
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, SessionPhase
from lcm.system.clock import SystemClock

_USAGE: Final = "write `lcm extend NAME TIME`, such as `lcm extend basics-x7k2p 30m`"
_MIN_WORDS: Final = 2


def extend(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[KIND] NAME TIME",
            help="Name of a session, or `reservation NAME`; and how much longer: 30m, 1h.",
            autocompletion=options.complete_sessions,
        ),
    ],
    *,
    occurrence: Occurrence = None,
    onward: From = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Make a session or a class end later. If there is no room for that, it stays as it is.

    What runs keeps its planned worker. Of a series everything that is not over gets longer, or a part of it.
    """
    if len(words) < _MIN_WORDS:
        raise typer.BadParameter(f"how much longer? {_USAGE}", param_hint="NAME TIME")
    minutes, part = parse_minutes(words[-1], "TIME"), choose_part(occurrence, onward)
    if (len(words) > _MIN_WORDS or "/" in words[0]) and parse_one_target(words[:-1])[0].struct is Reservation:
        whole: Ref[Reservation] = Ref(Reservation, parse_class_name(words[:-1]), namespace)
        _extend_class(whole, Extend(minutes=minutes, **part), context, dry_run=dry_run)
        return
    ref: Ref[LabletSession] = Ref(LabletSession, parse_session_name(words[:-1], _USAGE), namespace)
    if occurrence is not None or onward is not None:
        raise typer.BadParameter("a session has no occurrences; name a reservation", param_hint="--occurrence")

    async def work(plane: Plane) -> None:
        session = await _extend(plane, ref, minutes, dry_run=dry_run)
        ends = session.status.ends_at
        assert ends is not None, "what was extended has an end"
        when = f"{format_local(ends, current_zone())} ({format_distance(ends, SystemClock().now())})"
        verb = "would end" if dry_run else "ends"
        render.print_text(f"{title(session)} {verb} {format_minutes(minutes)} later: {when}")
        if dry_run:
            render.print_message("nothing was done: --dry-run")

    connection.with_plane(work, context)


def _extend_class(ref: Ref[Reservation], action: Extend, context: str | None, *, dry_run: bool) -> None:
    async def work(plane: Plane) -> None:
        with naming_missing(ref):
            made = await plane.act(ref, action, dry_run=dry_run)
        verb = "would end" if dry_run else "ends"
        what = f"occurrence {action.occurrence} of " if action.occurrence and not action.onward else ""
        since = f" from occurrence {action.occurrence} on" if action.onward else ""
        render.print_text(f"{what}{title(made)} {verb} {format_minutes(action.minutes)} later{since}")
        if dry_run:
            render.print_message("nothing was done: --dry-run")

    connection.with_plane(work, context)


def parse_session_name(words: list[str], usage: str) -> str:
    """Parse `NAME`, `session NAME` or `session/NAME`."""
    if len(words) == 1 and "/" not in words[0]:
        return words[0]
    noun, name = parse_one_target(words)
    if noun.struct is not LabletSession:
        raise typer.BadParameter(f"a {noun.singular} cannot be used here; {usage}", param_hint="KIND")
    return name


async def _extend(plane: Plane, ref: Ref[LabletSession], minutes: int, *, dry_run: bool) -> LabletSession:
    try:
        with naming_missing(ref):
            return await plane.act(ref, Extend(minutes=minutes), dry_run=dry_run)
    except IllegalStep as error:
        session = await plane.get(ref)
        if session is None:
            raise
        again = f"`lcm book {session.spec.definition}` books another"
        raise IllegalStep(
            f"{title(session)} is {session.status.phase}: it is ending or has ended and cannot be extended; {again}"
        ) from error


_KIND_WORDS: Final = {word for noun in NOUNS for word in noun.words}


def cancel(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND] [NAME…]",
            help="Names of sessions; or `reservation NAME…`, KIND/NAME.",
            autocompletion=options.complete_sessions,
        ),
    ] = None,
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason for the cancellation.")] = "",
    selector: Selector = "",
    together: Together = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Cancel bookings: a session ends now, even if it is running; a reservation ends with all its sessions."""
    if not (words or selector):
        raise typer.BadParameter("name bookings, or select sessions with -l", param_hint="NAME")
    parts = _parse_bookings(words) if words else [NamedObjects(noun_of(LabletSession))]

    async def find(plane: Plane) -> Sequence[BatchItem]:
        refs: list[Ref[Any]] = [Ref(part.noun.struct, name, namespace) for part in parts for name in part.names]
        for part in parts if selector else ():
            refs += await select_objects(plane, part.noun, selector, namespace)
        return [_cancellation_of(ref, reason) for ref in dict.fromkeys(refs)]

    act_in_batch(find, _describe_end, _explain_missing, context, together=together, dry_run=dry_run)


def _cancellation_of(ref: Ref[Any], reason: str) -> BatchItem:
    kind = ref.kind.__name__
    if ref.kind is Reservation:
        return DeleteItem(kind=kind, name=ref.name, namespace=ref.namespace)
    return ActionItem(kind=kind, name=ref.name, namespace=ref.namespace, action=Terminate(reason=reason))


async def _describe_end(_: Plane, booking: LabletSession | Reservation) -> str:
    return _reservation_outcome(booking) if isinstance(booking, Reservation) else _session_outcome(booking)


async def _explain_missing(plane: Plane, ref: Ref[Any], error: LcmError) -> LcmError:
    return await _missing_booking(plane, ref) if isinstance(error, Gone) else error


def _parse_bookings(words: Sequence[str]) -> list[NamedObjects]:
    """Parse names of sessions, or a kind and names, or KIND/NAME."""
    kind_first = len(words) > 1 and words[0].lower() in _KIND_WORDS
    if not kind_first and not any("/" in word for word in words):
        return [NamedObjects(noun_of(LabletSession), tuple(dict.fromkeys(words)))]
    parts = parse_targets(words)
    for part in parts:
        if part.noun.struct not in {LabletSession, Reservation}:
            advice = f"`lcm delete {part.noun.singular} {part.names[0]}` removes it"
            raise typer.BadParameter(f"a {part.noun.singular} is not a booking; {advice}", param_hint="KIND")
    return parts


def _session_outcome(session: LabletSession) -> str:
    name, status = session.metadata.name, session.status
    if status.outcome is not SessionPhase.TERMINATED:
        return f"{title(session)} is {status.phase}: there is nothing left to cancel"
    if status.phase in SESSION_MACHINE.final:
        return f"{title(session)} is cancelled: it has nothing on a worker"
    wait = f"`lcm wait session {name} --for phase=TERMINATED` waits for it"
    return (
        f"{title(session)} is ending: its lab is collected and removed from its worker first ({status.phase}); {wait}"
    )


def _reservation_outcome(left: Reservation) -> str:
    held, name = len(left.status.held), left.metadata.name
    if left.status.phase in RESERVATION_MACHINE.final or not left.metadata.finalizers:
        return f"{title(left)} is gone"
    sessions = f"{held} session{'' if held == 1 else 's'}"
    wait = f"`lcm wait reservation {name} --for delete` waits for it"
    return f"{title(left)} is being cancelled: its {sessions} end, and their planned workers become free; {wait}"


async def _missing_booking(plane: Plane, ref: Ref[Any]) -> Gone:
    """Return the error that a booking does not exist; it says whether the other kind of booking has that name."""
    other: type[Any] = Reservation if ref.kind is LabletSession else LabletSession
    found = await plane.get(Ref(other, ref.name, ref.namespace))
    if found is None:
        return missing(ref)
    kind = noun_of(other).singular
    return Gone(f"{missing(ref)}, but a {kind}: `lcm cancel {kind} {ref.name}` cancels that")
