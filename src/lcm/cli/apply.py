"""`lcm apply`: objects created or changed from files, all of them or none."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import typer

from lcm.cli import render, run
from lcm.cli.nouns import noun_of
from lcm.cli.options import ContextName, DryRun, Files, Recursive
from lcm.cli.sources import Gathered, Source, checked_here, gather, key_of, traced
from lcm.control.plane import LONGEST_APPLY, Applied, Plane
from lcm.model.errors import Conflict, Fault, Invalid, Later, LcmError, TooLarge

_MANY: Final = 20
_COLOURS: Final = {"created": "green", "configured": "yellow"}
_HERE_ONLY: Final = "the API could not be asked, so this was checked here only"


def apply(
    files: Files = None, *, recursive: Recursive = False, dry_run: DryRun = False, context: ContextName = None
) -> None:
    """Create or change objects from files.

    All documents are checked before any is written; each fault is shown with its file and line.
    """
    if not files:
        raise typer.BadParameter("name a file, a folder, or - for standard input", param_hint="-f")
    found = gather(files, recursive=recursive)
    if not found.sources and not found.faults:
        raise typer.BadParameter("there is no document in what was given", param_hint="-f")
    if found.faults:
        raise Invalid(*_all_faults(found, context))
    if len(found.sources) > LONGEST_APPLY:
        raise TooLarge(f"{len(found.sources)} documents; apply at most {LONGEST_APPLY} at once")
    _show(_applied(found.sources, context, dry_run=dry_run), dry_run=dry_run)


def _applied(sources: Sequence[Source], context: str | None, *, dry_run: bool) -> Sequence[Applied]:
    async def work(plane: Plane) -> Sequence[Applied]:
        return await plane.apply([source.value for source in sources], dry_run=dry_run)

    try:
        return run.with_plane(work, context)
    except Invalid as error:
        raise Invalid(*traced(error.faults, sources)) from error
    except (run.NoContext, Later) as error:
        if faults := list(checked_here(sources)):
            render.say(_HERE_ONLY)
            raise Invalid(*faults) from error
        raise
    except Conflict as error:
        if source := next((one for one in sources if key_of(one.value) == error.key), None):
            render.say(f"{source.file}:{source.written.line_of('metadata')}: {source.value['kind']}: not written")
        raise


def _all_faults(found: Gathered, context: str | None) -> Sequence[Fault]:
    """Add what is wrong with the documents themselves; nothing is written."""
    if not found.sources:
        return found.faults
    # What a file that broke off would have held is not known: the API would miss it in the others.
    more = _faults_there(found.sources, context) if found.whole else list(checked_here(found.sources))
    known = {fault.path for fault in found.faults}
    return [*found.faults, *(fault for fault in more if fault.path not in known)]


def _faults_there(sources: Sequence[Source], context: str | None) -> list[Fault]:
    try:
        _applied(sources[:LONGEST_APPLY], context, dry_run=True)
    except Invalid as error:
        return list(error.faults)
    except LcmError:
        pass  # whatever else it says, what is known already is reason enough to stop
    return []


def _show(results: Sequence[Applied], *, dry_run: bool) -> None:
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
