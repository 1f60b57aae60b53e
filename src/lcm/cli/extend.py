"""`lcm extend`: a session ends later, if its seat is free that long."""

from typing import Annotated, Final

import typer

from lcm.cli import names, render, run
from lcm.cli.book_times import length, minutes_of, near, shown, terminal_zone
from lcm.cli.nouns import one, title, title_of
from lcm.cli.options import DEFAULT_NAMESPACE, ContextName, DryRun, Namespace
from lcm.control.plane import Extend, Plane, Ref
from lcm.model.errors import Gone, IllegalStep
from lcm.model.session import LabletSession
from lcm.system import SystemClock

_USAGE: Final = "write `lcm extend NAME TIME`, such as `lcm extend basics-x7k2p 30m`"
_LEAST: Final = 2


def extend(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[session] NAME TIME",
            help="A session, and by how much: 30m, 1h.",
            autocompletion=names.sessions,
        ),
    ],
    *,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Make a session end later. It keeps its seat for longer, or is refused with the reason and stays as it is."""
    if len(words) < _LEAST:
        raise typer.BadParameter(f"how much longer? {_USAGE}", param_hint="NAME TIME")
    ref: Ref[LabletSession] = Ref(LabletSession, session_named(words[:-1], _USAGE), namespace)
    minutes = minutes_of(words[-1], "TIME")

    async def work(plane: Plane) -> None:
        session = await _extended(plane, ref, minutes, dry_run=dry_run)
        ends = session.status.ends_at
        assert ends is not None, "what was extended has an end"
        when = f"{shown(ends, terminal_zone())} ({near(ends, SystemClock().now())})"
        verb = "would end" if dry_run else "ends"
        render.tell(f"{title(session)} {verb} {length(minutes)} later: {when}")
        if dry_run:
            render.say("nothing was done: --dry-run")

    run.with_plane(work, context)


def session_named(words: list[str], usage: str) -> str:
    """Understand `NAME`, `session NAME` or `session/NAME`."""
    if len(words) == 1 and "/" not in words[0]:
        return words[0]
    noun, name = one(words)
    if noun.struct is not LabletSession:
        raise typer.BadParameter(f"a {noun.singular} is not meant here; {usage}", param_hint="KIND")
    return name


async def _extended(plane: Plane, ref: Ref[LabletSession], minutes: int, *, dry_run: bool) -> LabletSession:
    try:
        return await plane.act(ref, Extend(minutes=minutes), dry_run=dry_run)
    except Gone:
        raise Gone(f"there is no {title_of(LabletSession, ref.name)} in namespace {ref.namespace}") from None
    except IllegalStep as error:
        session = await plane.get(ref)
        if session is None:
            raise
        again = f"`lcm book {session.spec.definition}` books another"
        raise IllegalStep(
            f"{title(session)} is {session.status.phase}: it ends or has ended, so that it is not extended; {again}"
        ) from error
