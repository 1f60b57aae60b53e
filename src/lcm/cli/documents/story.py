"""`lcm story`: the phases an object went through, how long each lasted, and why; `lcm logs`: a session's log lines."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Annotated, Any, Final

import typer

from lcm.cli.booking.extend import parse_session_name
from lcm.cli.output import connection, options, render
from lcm.cli.output.nouns import parse_one_target, title, title_of
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace, Target
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Gone
from lcm.model.base.machine import StateMachine
from lcm.model.base.resource import HISTORY_LIMIT, PhaseChange
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.session import LabletSession
from lcm.system.clock import SystemClock

_PHASE_WIDTH: Final = 18
_DURATION_WIDTH: Final = 6
_INDENT: Final = 4
_NO_BREAK_SPACE: Final = "\u00a0"
_MIN_REASON_WIDTH: Final = 30
"""A reason with less width than this begins on a line of its own."""


def story(target: Target = None, *, namespace: Namespace = DEFAULT_NAMESPACE, context: ContextName = None) -> None:
    """Show the phases an object went through, how long each lasted, and why."""
    noun, name = parse_one_target(target or [])

    async def work(plane: Plane) -> None:
        ref: Ref[Any] = Ref(noun.struct, name, namespace)
        resource = await read_object(plane, ref)
        for line in history_lines(resource, SystemClock().now(), render.output_width() or render.MAX_TEXT_WIDTH):
            render.print_line(line)

    connection.with_plane(work, context)


async def read_object(plane: Plane, ref: Ref[Any]) -> Resource:
    """Read one object; raise Gone when it does not exist."""
    found: Resource | None = await plane.get(ref)
    if found is None:
        raise Gone(f"there is no {title_of(ref.kind, ref.name)} in namespace {ref.namespace}")
    return found


def history_lines(resource: Resource, now: datetime, most: int) -> Iterator[str]:
    """Yield an object's history, oldest first, in lines of at most `most` cells."""
    history = resource.status.history
    machine = KINDS[resource.kind].machine
    if machine is None:
        yield f"{title(resource)} has no phases; it was made {render.format_age(resource.metadata.created_at, now)} ago"
        return
    if len(history) == HISTORY_LIMIT:
        yield f"(what was before the last {HISTORY_LIMIT} changes is forgotten)"
    over = bool(history) and history[-1].phase in machine.final
    for change, later in zip_longest(history, history[1:]):
        lasted = _duration_text(change, later, now=now, over=over)
        yield from _change_lines(change, lasted, most, render.phase_colour(change.phase) if later is None else None)
    if not over:
        yield from _deadline_lines(resource, machine, now, most)
    if resource.metadata.deletion_timestamp:
        yield f"asked to go {render.format_age(resource.metadata.deletion_timestamp, now)} ago"


def _duration_text(change: PhaseChange, later: PhaseChange | None, *, now: datetime, over: bool) -> str:
    if later is not None:
        return render.format_span(later.at - change.at)
    return "" if over else f"{render.format_span(now - change.at)}…"


def _change_lines(change: PhaseChange, lasted: str, most: int, colour: str | None) -> Iterator[str]:
    head = f"{change.at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}  {change.phase:<{_PHASE_WIDTH}}{lasted:<{_DURATION_WIDTH}}"
    text = f"{change.reason} (by{_NO_BREAK_SPACE}{change.by})" if change.reason else f"by {change.by}"
    indent = len(head)
    if most - indent >= _MIN_REASON_WIDTH:
        first, *rest = render.wrap_text(text, most - indent)
        yield f"{render.paint(head, colour)}{first.replace(_NO_BREAK_SPACE, ' ')}"
    else:
        indent, rest = _INDENT, render.wrap_text(text, most - _INDENT)
        yield render.paint(head.rstrip(), colour)
    yield from (f"{' ' * indent}{line.replace(_NO_BREAK_SPACE, ' ')}" for line in rest)


def _deadline_lines(resource: Resource, machine: StateMachine[Any], now: datetime, most: int) -> Iterator[str]:
    """Yield until when the present phase may last, and what happens then."""
    limit = machine.deadline(getattr(resource.status, "phase", None), resource.status)
    if limit is not None:
        moment, what = limit
        then = f"then {what.target}" if what.target else "then an alert is raised"
        yield from render.wrap_text(f"may last until {render.format_relative(moment, now)}, {then}: {what.why}", most)


_LOGS_USAGE: Final = "write `lcm logs NAME`, such as `lcm logs basics-x7k2p`"


def logs(
    words: Annotated[
        list[str], typer.Argument(metavar="[session] NAME", help="A session.", autocompletion=options.complete_sessions)
    ],
    *,
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """Show what happened to a session, what was decided about it and what went wrong, line by line."""
    ref: Ref[LabletSession] = Ref(LabletSession, parse_session_name(words, _LOGS_USAGE), namespace)

    async def work(plane: Plane) -> None:
        try:
            text = await plane.logs(ref)
        except Gone:
            raise Gone(f"there is no {title_of(LabletSession, ref.name)} in namespace {ref.namespace}") from None
        for line in text.splitlines():
            render.print_line(render.sanitize(line))

    connection.with_plane(work, context)
