"""`lcm apply`: objects created or changed from files, all of them or none; also a definition made of a lab file."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from lcm.cli.documents import lab_files
from lcm.cli.documents.lab_files import Attached, attached
from lcm.cli.documents.sources import Gathered, Source, checked_here, gather, key_of, placed, traced
from lcm.cli.output import connection, render
from lcm.cli.output.nouns import noun_of
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, DryRun, Files, Namespace, Recursive
from lcm.control.plane.protocol import LONGEST_APPLY, Applied, Plane
from lcm.model.base.errors import Conflict, Fault, Invalid, Later, LcmError, NoRoom, TooLarge
from lcm.system.clock import SystemClock

_MANY: Final = 20
_COLOURS: Final = {"created": "green", "configured": "yellow"}
_HERE_ONLY: Final = "the API could not be asked, so this was checked here only"


def apply(
    files: Files = None,
    *,
    recursive: Recursive = False,
    as_definition: Annotated[
        str,
        typer.Option(
            "--as-definition", metavar="NAME[:VERSION]", help="Make a definition of a lab file; else version 1.0.0."
        ),
    ] = "",
    track: Annotated[
        str, typer.Option("--track", metavar="TRACK", help="With --as-definition: whose workers it runs on.")
    ] = "",
    activate: Annotated[
        bool, typer.Option("--activate", help="With --as-definition: let it be booked; else it is a draft.")
    ] = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Create or change objects from files.

    All documents are checked before any is written; each fault is shown with its file and line. A definition may name
    its lab by a path that begins beside it, such as labs/basics.yaml: that is uploaded. Without such a document,
    `lcm apply -f basics.yaml --as-definition basics` makes a definition of the lab itself. A booking may say its slot
    from now on, such as `timeslot_start: +10m`; once it is there, it keeps the times it got.
    """
    if not files:
        raise typer.BadParameter("name a file, a folder, or - for standard input", param_hint="-f")
    if as_definition:
        from lcm.cli.documents.publish import Wanted, publish  # noqa: PLC0415 - most documents need none of it

        publish(files, Wanted(as_definition, namespace, track, activate=activate), context, dry_run=dry_run)
        return
    if track or activate or namespace != DEFAULT_NAMESPACE:
        raise typer.BadParameter("--track, --activate and --namespace go with it", param_hint="--as-definition")
    found = gather(files, recursive=recursive)
    if not found.sources and not found.faults:
        raise typer.BadParameter(_nothing(found), param_hint="-f")
    what = attached(found.sources, now=SystemClock().now())
    _note_labs(found, what)
    if found.faults or what.faults:
        raise Invalid(*_all_faults(found, what, context))
    if len(what.sources) > LONGEST_APPLY:
        raise TooLarge(f"{len(what.sources)} documents; apply at most {LONGEST_APPLY} at once")
    show(applied(what, context, dry_run=dry_run), dry_run=dry_run)


def applied(what: Attached, context: str | None, *, dry_run: bool) -> Sequence[Applied]:
    """Apply documents; faults are those of their files' lines."""

    async def work(plane: Plane) -> Sequence[Applied]:
        return await lab_files.applied(plane, what, dry_run=dry_run)

    try:
        return connection.with_plane(work, context)
    except Invalid as error:
        raise Invalid(*traced(error.faults, what.sources)) from error
    except NoRoom as error:
        raise NoRoom(placed(str(error), what.sources), why=error.why, nearest=error.nearest) from error
    except (connection.NoContext, Later) as error:
        if faults := list(checked_here(what.sources)):
            render.say(_HERE_ONLY)
            raise Invalid(*faults) from error
        raise
    except Conflict as error:
        if source := next((one for one in what.sources if key_of(one.value) == error.key), None):
            render.say(f"{source.file}:{source.written.line_of('metadata')}: {source.value['kind']}: not written")
        raise


def show(results: Sequence[Applied], *, dry_run: bool) -> None:
    """Say what became of each document."""
    note = " (dry run)" if dry_run else ""
    for one in results:
        outcome = render.paint(one.outcome, _COLOURS.get(one.outcome))
        render.out(f"{noun_of(one.kind).singular}/{one.name} {outcome}{note}")
    if len(results) > _MANY:
        counts = Counter(one.outcome for one in results)
        parts = (
            f"{counts[outcome]} {outcome}" for outcome in ("created", "configured", "unchanged") if counts[outcome]
        )
        render.say(f"{len(results)} objects: {', '.join(parts)}{note}")


def _nothing(found: Gathered) -> str:
    message = "there is no document in what was given"
    if not found.labs:
        return message
    return f"{message}, but a lab: `lcm apply -f {found.labs[0]} --as-definition NAME` makes a definition of it"


def _note_labs(found: Gathered, what: Attached) -> None:
    """Say of lab files that no definition names that they were left out."""
    used = what.files()
    for file in found.labs:
        if Path(file).resolve() not in used:
            render.say(f"{file} is a lab and no document: left out, for no definition given here names it")


def _all_faults(found: Gathered, what: Attached, context: str | None) -> Sequence[Fault]:
    """Add what is wrong with the documents themselves; nothing is written."""
    first = [*found.faults, *what.faults]
    if not what.sources:
        return first
    # What a file that broke off would have held is not known: the API would miss it in the others.
    more = _faults_there(what, context) if found.whole else list(checked_here(what.sources))
    known = {fault.path for fault in first}
    return [*first, *(fault for fault in more if fault.path not in known)]


def _faults_there(what: Attached, context: str | None) -> list[Fault]:
    few: list[Source] = what.sources[:LONGEST_APPLY]
    try:
        applied(Attached(few, what.labs, what.wrong, moving=what.moving), context, dry_run=True)
    except Invalid as error:
        return list(error.faults)
    except LcmError:
        pass  # whatever else it says, what is known already is reason enough to stop
    return []
