"""`lcm delete`: delete objects. Those with finalizers go once their work has ended."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from lcm.cli.documents.get import parse_filter
from lcm.cli.documents.sources import gather, identity
from lcm.cli.documents.wait import GONE, parse_duration, wait_until
from lcm.cli.fleet.workers import format_sessions, sessions_on_worker
from lcm.cli.output import connection, exit_codes, render
from lcm.cli.output.columns import phase_of
from lcm.cli.output.follow import read_all
from lcm.cli.output.lookup import suggest
from lcm.cli.output.nouns import MissingObject, NamedObjects, missing, parse_targets, title, title_of
from lcm.cli.output.options import (
    DEFAULT_NAMESPACE,
    ContextName,
    DryRun,
    FieldSelector,
    Files,
    Namespace,
    Recursive,
    Selector,
    Targets,
    Timeout,
)
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.model.base.errors import Conflict, Gone, Invalid, Refused
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.worker import LabWorker

_DELETE_ORDER: Final[Sequence[type[Resource]]] = (
    Reservation,
    LabletSession,
    LabWorkerPool,
    LabWorker,
    LabletDefinition,
    WorkerTemplate,
    Sink,
    SystemSettings,
)
"""Kinds that refer to others are deleted before those."""

_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class _DeleteOptions:
    """Options of one deletion."""

    dry_run: bool
    wait: bool
    limit: timedelta
    ignore_missing: bool


def delete(
    targets: Targets = None,
    *,
    files: Files = None,
    recursive: Recursive = False,
    selector: Selector = "",
    field_selector: FieldSelector = "",
    every: Annotated[bool, typer.Option("--all", help="Delete all objects of the kind in the namespace.")] = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the objects are gone.")] = False,
    timeout: Timeout = "10m",
    ignore_not_found: Annotated[
        bool, typer.Option("--ignore-not-found", help="Do not fail if an object does not exist.")
    ] = False,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Delete objects.

    A worker is drained first and a session is ended; --wait waits until they are gone.
    """
    how = _DeleteOptions(dry_run, wait, parse_duration(timeout), ignore_not_found)
    chosen = bool(selector or field_selector or every)
    if files and (targets or chosen):
        raise typer.BadParameter("-f cannot be used with kinds, names or selectors", param_hint="-f")
    if files:
        refs = _refs_from_files(files, recursive=recursive)
        connection.with_plane(lambda plane: _delete(plane, refs, how), context)
        return
    parts = parse_targets(targets or [])
    if chosen == any(part.names for part in parts):
        raise typer.BadParameter("name objects, or use -l, --field-selector or --all", param_hint="NAME")
    wheres = {part.noun.struct: parse_filter(part.noun, selector, field_selector) for part in parts}

    async def work(plane: Plane) -> None:
        refs = [ref for part in parts for ref in await _find_refs(plane, part, namespace, wheres)]
        if chosen and not yes and not dry_run and len(refs) > 1:
            shown = render.join_some([title_of(ref.kind, ref.name) for ref in refs], _SHOWN)
            render.confirm(
                f"Delete {len(refs)} objects: {shown}?",
                without="no answer; add --yes to delete without confirmation",
                otherwise="nothing was deleted",
            )
        if chosen and not refs:
            render.print_message(f"no object matches in namespace {namespace}")
        await _delete(plane, refs, how)

    connection.with_plane(work, context)


async def _find_refs(
    plane: Plane, part: NamedObjects, namespace: str, wheres: Mapping[type[Resource], Any]
) -> list[Ref[Any]]:
    struct = part.noun.struct
    if part.names:
        return [Ref(struct, name, namespace) for name in part.names]
    found = await read_all(plane, struct, namespace=namespace, where=wheres[struct])
    return [ref_of(one) for one in found.items]


def _refs_from_files(files: Sequence[str], *, recursive: bool) -> list[Ref[Any]]:
    found = gather(files, recursive=recursive)
    if found.faults:
        raise Invalid(*found.faults)
    named_in = [identity(source.value) for source in found.sources]
    refs = [Ref(KINDS[who[0]].struct, who[2], who[1]) for who in named_in if who and who[0] in KINDS]
    if not refs:
        raise typer.BadParameter("the files contain no document", param_hint="-f")
    return sorted(refs, key=lambda ref: _DELETE_ORDER.index(ref.kind))


async def _delete(plane: Plane, refs: Sequence[Ref[Any]], how: _DeleteOptions) -> None:
    """Delete kind by kind, so that with --wait nothing is refused because of objects that are still being deleted."""
    code = 0
    for kind in _DELETE_ORDER:
        going: list[Ref[Any]] = []
        for ref in (ref for ref in refs if ref.kind is kind):
            try:
                going += await _delete_one(plane, ref, how)
            except (Conflict, Gone, Refused) as error:
                told = await suggest(plane, error) if isinstance(error, MissingObject) else error
                failure = exit_codes.report_error(told)
                code = code or failure
        if how.wait and not how.dry_run:
            await _wait_until_gone(plane, going, how.limit)
    if code:
        raise typer.Exit(code)


async def _delete_one(plane: Plane, ref: Ref[Any], how: _DeleteOptions) -> Sequence[Ref[Any]]:
    """Request one deletion; return the object if it is not gone yet."""
    try:
        left: Resource = await plane.delete(ref, dry_run=how.dry_run)
    except Gone:
        if how.ignore_missing:
            return []
        raise missing(ref) from None
    verb = "would be" if how.dry_run else "is being" if left.metadata.finalizers else "is"
    phase = f" ({phase_of(left)})" if left.metadata.finalizers else ""
    awaited = await _awaited_sessions(plane, left)
    after = f", after {format_sessions(awaited)}" if awaited else ""
    render.print_text(f"{title(left)} {verb} deleted{phase}{after}")
    return [ref_of(left)] if left.metadata.finalizers else []


async def _awaited_sessions(plane: Plane, left: Resource) -> Sequence[LabletSession]:
    """Return the sessions that a worker has, or that are booked on a pool: these end before it goes."""
    if isinstance(left, LabWorker):
        return await sessions_on_worker(plane, left)
    if not isinstance(left, LabWorkerPool) or not left.metadata.finalizers:
        return ()
    found = (await read_all(plane, LabletSession, namespace=left.metadata.namespace)).items
    on_pool = (one for one in found if one.status.seat and one.status.seat.pool == left.metadata.name)
    return [one for one in on_pool if one.status.phase not in SESSION_MACHINE.final]


async def _wait_until_gone(plane: Plane, refs: Sequence[Ref[Any]], limit: timedelta) -> None:
    left = list(refs)
    try:
        async with asyncio.timeout(limit.total_seconds()):
            while left:
                await wait_until(plane, left[0], GONE)
                render.print_line(f"{title_of(left[0].kind, left[0].name)} is gone")
                left.pop(0)
    except TimeoutError as error:
        names = ", ".join(title_of(ref.kind, ref.name) for ref in left)
        raise exit_codes.WaitTimedOut(f"not gone after {render.format_span(limit)}: {names}") from error
