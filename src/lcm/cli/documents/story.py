"""`lcm story`: what an object went through, how long each phase lasted, and why."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Annotated, Any, Final

import typer

from lcm.cli.booking.extend import session_named
from lcm.cli.output import connection, options, render
from lcm.cli.output.nouns import one, title, title_of
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace, Target
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Gone
from lcm.model.base.machine import Machine
from lcm.model.base.resource import HISTORY_LIMIT, PhaseChange
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.session import LabletSession
from lcm.system.clock import SystemClock

_PHASE: Final = 18
_LASTED: Final = 6
_INDENT: Final = 4
_GLUE: Final = "\u00a0"
_LEAST: Final = 30
"""A reason that would have less room than this begins a line of its own."""


def story(target: Target = None, *, namespace: Namespace = DEFAULT_NAMESPACE, context: ContextName = None) -> None:
    """Tell what an object went through, and how long."""
    noun, name = one(target or [])

    async def work(plane: Plane) -> None:
        ref: Ref[Any] = Ref(noun.struct, name, namespace)
        resource = await find(plane, ref)
        for line in told(resource, SystemClock().now(), render.room() or render.WIDEST):
            render.out(line)

    connection.with_plane(work, context)


async def find(plane: Plane, ref: Ref[Any]) -> Resource:
    """Read one object; Gone when it is not there."""
    found: Resource | None = await plane.get(ref)
    if found is None:
        raise Gone(f"there is no {title_of(ref.kind, ref.name)} in namespace {ref.namespace}")
    return found


def told(resource: Resource, now: datetime, most: int) -> Iterator[str]:
    """Write an object's story, oldest first, in lines of at most so many cells."""
    history = resource.status.history
    machine = KINDS[resource.kind].machine
    if machine is None:
        yield f"{title(resource)} has no phases; it was made {render.age(resource.metadata.created_at, now)} ago"
        return
    if len(history) == HISTORY_LIMIT:
        yield f"(what was before the last {HISTORY_LIMIT} changes is forgotten)"
    over = bool(history) and history[-1].phase in machine.final
    for change, later in zip_longest(history, history[1:]):
        lasted = _lasted(change, later, now=now, over=over)
        yield from _chapter(change, lasted, most, render.phase_colour(change.phase) if later is None else None)
    if not over:
        yield from _limit(resource, machine, now, most)
    if resource.metadata.deletion_timestamp:
        yield f"asked to go {render.age(resource.metadata.deletion_timestamp, now)} ago"


def _lasted(change: PhaseChange, later: PhaseChange | None, *, now: datetime, over: bool) -> str:
    if later is not None:
        return render.span(later.at - change.at)
    return "" if over else f"{render.span(now - change.at)}…"


def _chapter(change: PhaseChange, lasted: str, most: int, colour: str | None) -> Iterator[str]:
    head = f"{change.at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}  {change.phase:<{_PHASE}}{lasted:<{_LASTED}}"
    text = f"{change.reason} (by{_GLUE}{change.by})" if change.reason else f"by {change.by}"
    indent = len(head)
    if most - indent >= _LEAST:
        first, *rest = render.wrapped(text, most - indent)
        yield f"{render.paint(head, colour)}{first.replace(_GLUE, ' ')}"
    else:
        indent, rest = _INDENT, render.wrapped(text, most - _INDENT)
        yield render.paint(head.rstrip(), colour)
    yield from (f"{' ' * indent}{line.replace(_GLUE, ' ')}" for line in rest)


def _limit(resource: Resource, machine: Machine[Any], now: datetime, most: int) -> Iterator[str]:
    """Say until when the present phase may last, and what comes then."""
    limit = machine.deadline(getattr(resource.status, "phase", None), resource.status)
    if limit is not None:
        moment, what = limit
        then = f"then {what.target}" if what.target else "then an alert is raised"
        yield from render.wrapped(f"may last until {render.relative(moment, now)}, {then}: {what.why}", most)


_USAGE: Final = "write `lcm logs NAME`, such as `lcm logs basics-x7k2p`"


def logs(
    words: Annotated[
        list[str], typer.Argument(metavar="[session] NAME", help="A session.", autocompletion=options.sessions)
    ],
    *,
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """Tell what happened to a session, what was decided about it and what went wrong, line by line."""
    ref: Ref[LabletSession] = Ref(LabletSession, session_named(words, _USAGE), namespace)

    async def work(plane: Plane) -> None:
        try:
            told = await plane.logs(ref)
        except Gone:
            raise Gone(f"there is no {title_of(LabletSession, ref.name)} in namespace {ref.namespace}") from None
        for line in told.splitlines():
            render.out(render.clean(line))

    connection.with_plane(work, context)
