"""`lcm get`: objects as tables or documents, once or as they change."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

import typer

from lcm.cli.booking import calendar
from lcm.cli.output import connection, render, screen
from lcm.cli.output.columns import TelemetryByUid
from lcm.cli.output.follow import FollowedChange, filter_by_name, follow, read_all
from lcm.cli.output.lookup import read_versions
from lcm.cli.output.nouns import CALENDAR, NOUNS, NamedObjects, Noun, missing, noun_of, parse_targets
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, FieldSelector, Namespace, Output, Selector, Targets
from lcm.cli.output.printer import Printer
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.model.base.errors import Forbidden, Gone, Invalid
from lcm.model.base.selector import ObjectSelector, parse_selector
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker, WorkerPhase
from lcm.system.clock import SystemClock

_MOST_MEASURED: Final = 40
"""A list of more workers than this shows no measurements."""
_ENDED_SHOWN: Final = timedelta(minutes=1)
"""How long --watch still shows a session that has ended."""
_RUNNING: Final = HOSTING_PHASES | {WorkerPhase.LICENSING, WorkerPhase.DRAINING}


def get(
    targets: Targets = None,
    *,
    selector: Selector = "",
    field_selector: FieldSelector = "",
    namespace: Namespace = DEFAULT_NAMESPACE,
    all_namespaces: Annotated[bool, typer.Option("-A", "--all-namespaces", help="Objects of all namespaces.")] = False,
    output: Annotated[Output, typer.Option("-o", "--output", help="Output format.")] = Output.TABLE,
    archived: Annotated[bool, typer.Option("--all", help="Include sessions that have ended.")] = False,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Show changes until Ctrl-C.")] = False,
    begin: calendar.From = None,
    days: calendar.Days = None,
    hours: calendar.Hours = None,
    pool: calendar.Pool = "",
    context: ContextName = None,
) -> None:
    """List objects, or follow them with --watch.

    `lcm get workers`, `lcm get w,s -A`, `lcm get session s1 -o yaml`, `lcm get all`.
    Sessions that have ended are shown only by name, by their phase or with --all, which includes the archive.
    `lcm get calendar --days 7` shows when each planned worker is booked.
    """
    span = calendar.CalendarOptions(begin, days, hours, pool)
    if [word.lower() for word in targets or []] == [CALENDAR]:
        if selector or field_selector or watch or archived:
            raise typer.BadParameter(
                "the calendar accepts only --from, --days, --hours and --pool", param_hint=CALENDAR
            )
        calendar.print_calendar(span, None if all_namespaces else namespace, output, context)
        return
    if span != calendar.CalendarOptions():
        raise typer.BadParameter("--from, --days, --hours and --pool need `lcm get calendar`", param_hint="KIND")
    parts = parse_targets(targets or [])
    if any(part.names for part in parts) and (selector or field_selector or all_namespaces):
        raise typer.BadParameter("names cannot be used with -l, --field-selector or -A", param_hint="NAME")
    wheres = {part.noun: parse_filter(part.noun, selector, field_selector) for part in parts}
    if archived and watch:
        raise typer.BadParameter("sessions that have ended do not change: leave out --watch", param_hint="--all")
    asked = _Query(parts, wheres, None if all_namespaces else namespace, archived)
    printer = Printer(output, parts, clock=SystemClock(), with_namespace=all_namespaces)
    work = asked.watch if watch else asked.show
    connection.with_plane(lambda plane: work(plane, printer), context)


def parse_filter(noun: Noun, labels: str, fields: str) -> ObjectSelector:
    """Parse selectors; one that cannot be parsed is wrong usage."""
    try:
        return parse_selector(noun.struct, labels, fields)
    except Invalid as error:
        fault = error.faults[0]
        hint = "--selector" if fault.path == "label_selector" else "--field-selector"
        raise typer.BadParameter(f"{fault.problem}; {fault.remedy}", param_hint=hint) from error


async def _read_telemetry(plane: Plane, workers: Sequence[LabWorker]) -> TelemetryByUid:
    """Read the latest measurements of a few workers; each takes a request of its own."""
    asked = [one for one in workers if one.status.phase in _RUNNING]
    answers = await asyncio.gather(*(plane.telemetry(ref_of(one)) for one in asked))
    return {one.metadata.uid: found for one, found in zip(asked, answers, strict=True) if found is not None}


def _words_for(resource: Resource) -> set[str]:
    """Return what an object can be asked for by."""
    meta = resource.metadata
    family = {meta.name.partition(":")[0]} if isinstance(resource, LabletDefinition) else set[str]()
    return {meta.name, meta.uid, *family}


@dataclass(frozen=True, slots=True)
class _Query:
    """The objects that were asked for."""

    parts: Sequence[NamedObjects]
    wheres: Mapping[Noun, ObjectSelector]
    namespace: str | None
    archived: bool = False

    async def show(self, plane: Plane, printer: Printer) -> None:
        all_found = [one for part in self.parts for one in await self._find(plane, part)]
        found = [one for one in all_found if not self._is_hidden(one)]
        workers = [one for one in found if isinstance(one, LabWorker)] if printer.is_tabular else []
        printer.print_all(found, await _read_telemetry(plane, workers) if len(workers) <= _MOST_MEASURED else None)
        there = {(noun_of(one.kind), word) for one in found for word in _words_for(one)}
        asked = [(part.noun, name) for part in self.parts for name in part.names]
        absent = [(noun, name) for noun, name in asked if (noun, name) not in there]
        if len(absent) == 1:
            raise missing(Ref(absent[0][0].struct, absent[0][1], self.namespace or DEFAULT_NAMESPACE))
        if absent:
            names = ", ".join(f"{noun.singular}/{name}" for noun, name in absent)
            raise Gone(f"there is no {names} in namespace {self.namespace}")
        hidden = len(all_found) - len(found)
        if not found:
            render.print_message(self._nothing_message())
        if hidden and printer.is_tabular:
            prebuilt = any(isinstance(one, LabletSession) and one.spec.prebuilt for one in all_found)
            what = f"{'ended or prebuilt' if prebuilt else 'ended'} session{' is' if hidden == 1 else 's are'}"
            render.print_message(f"{hidden} {what} not shown; --all shows them")

    async def watch(self, plane: Plane, printer: Printer) -> None:
        wheres = {part.noun.struct: await self._filter_for(plane, part) for part in self.parts}
        changes = follow(plane, wheres, namespace=self.namespace)
        if printer.is_tabular and screen.can_redraw():
            await self._draw_changes(changes, printer)
        else:
            await self._print_changes(changes, printer)

    async def _draw_changes(self, following: AsyncIterator[Sequence[FollowedChange]], printer: Printer) -> None:
        """Keep a table of everything on the terminal up to date."""
        known: dict[str, Resource] = {}
        listed = asyncio.Event()

        async def collect() -> None:
            async for changes in following:
                for change in changes:
                    if change.resource is None:
                        known.pop(change.ref.key, None)
                    else:
                        known[change.ref.key] = change.resource
                listed.set()

        collecting = asyncio.create_task(collect())
        drawn = screen.LiveLines()
        try:
            while not collecting.done():
                if listed.is_set():
                    drawn.draw(self._screen_lines(known, printer))
                await asyncio.wait({collecting}, timeout=screen.REDRAW_SECONDS)
            collecting.result()
        finally:
            collecting.cancel()
            await asyncio.gather(collecting, return_exceptions=True)

    def _screen_lines(self, known: Mapping[str, Resource], printer: Printer) -> Sequence[str]:
        now = SystemClock().now()
        there = [one for _, one in sorted(known.items()) if not self._is_hidden(one, now - _ENDED_SHOWN)]
        return [*printer.table_lines(there)] or [f"{self._nothing_message()} yet; waiting"]

    async def _print_changes(self, following: AsyncIterator[Sequence[FollowedChange]], printer: Printer) -> None:
        """Print each change below those before it."""
        first = True
        async for found in following:
            changes = [one for one in found if not (first and one.resource and self._is_hidden(one.resource))]
            printer.print_more([change.resource for change in changes if change.resource is not None])
            for change in changes:
                if change.resource is None and change.last is not None:
                    printer.print_deleted(change.last)
            if first and not changes:
                render.print_message(f"{self._nothing_message()} yet; waiting")
            first = False

    async def _find(self, plane: Plane, part: NamedObjects) -> Sequence[Resource]:
        if part.names:
            return await self._read_named(plane, part)
        try:
            kind, where = part.noun.struct, self.wheres[part.noun]
            found: list[Resource] = []
            for archived in (True, False) if self.archived and kind is LabletSession else (False,):
                page = await read_all(plane, kind, namespace=self.namespace, where=where, archived=archived)
                found += page.items
        except Forbidden:
            if len(self.parts) < len(NOUNS):
                raise
            return []  # `all` means everything the caller may see
        return found

    async def _read_named(self, plane: Plane, part: NamedObjects) -> Sequence[Resource]:
        refs = [Ref(part.noun.struct, name, self.namespace or DEFAULT_NAMESPACE) for name in part.names]
        found = await asyncio.gather(*map(plane.get, refs))
        # A definition without its version means all of them.
        versions = [await read_versions(plane, ref) for ref, one in zip(refs, found, strict=True) if one is None]
        return [*(one for one in found if one is not None), *(one for these in versions for one in these)]

    async def _filter_for(self, plane: Plane, part: NamedObjects) -> ObjectSelector:
        if not part.names:
            return self.wheres[part.noun]
        by_uid = {one.metadata.uid: one.metadata.name for one in await self._read_named(plane, part)}
        return filter_by_name(*(by_uid.get(name, name) for name in part.names))

    def _is_hidden(self, resource: Resource, since: datetime | None = None) -> bool:
        """Return whether a session is prebuilt or has ended, before `since`, and nobody asked for such sessions."""
        ended = isinstance(resource, LabletSession) and resource.status.phase in SESSION_MACHINE.final
        if not isinstance(resource, LabletSession) or not (ended or resource.spec.prebuilt):
            return False
        part = next(part for part in self.parts if part.noun.struct is LabletSession)
        by_phase = any(term.name == "status.phase" for term in self.wheres[part.noun].fields)
        history = resource.status.history
        lately = ended and since is not None and bool(history) and history[-1].at >= since
        return not (self.archived or part.names or by_phase or lately)

    def _nothing_message(self) -> str:
        what = "objects" if len(self.parts) == len(NOUNS) else ", ".join(part.noun.plural for part in self.parts)
        return f"no {what} " + (f"in namespace {self.namespace}" if self.namespace else "in any namespace")
