"""`lcm observe`: what a running lab really uses, and what a definition learned, which a person may apply to it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

import msgspec
import typer

from lcm.cli import render, run
from lcm.cli.follow import Wheres, follow, named
from lcm.cli.learned import (
    UNKNOWN,
    Statistic,
    amount_said,
    applied_needs,
    drifted,
    measured,
    needs_said,
    session_rows,
)
from lcm.cli.nouns import one, title, title_of
from lcm.cli.options import DEFAULT_NAMESPACE, ContextName, DryRun, Namespace, Output, Target
from lcm.cli.printer import print_value
from lcm.cli.table import print_rows
from lcm.cli.wait import span_of
from lcm.control.plane import ObserveResources, Plane, Ref, ref_of
from lcm.model.definition import LabletDefinition, ResourceRequirements
from lcm.model.errors import Gone, IllegalStep, Refused
from lcm.model.learning import ObservationReport
from lcm.model.session import OBSERVATION_LIMIT, SESSION, LabletSession
from lcm.system import SystemClock

_USAGE: Final = "write `lcm observe session NAME` or `lcm observe definition NAME`"
_HEADINGS: Final = ("MEASURE", "DECLARED", "OBSERVED", "DIFFERENCE")


@dataclass(frozen=True, slots=True)
class _How:
    """How what was learned is to be applied, and how results are written."""

    by: Statistic | None
    yes: bool
    dry_run: bool
    output: Output


def observe(
    target: Target = None,
    *,
    by: Annotated[
        Statistic | None,
        typer.Option("--apply", help="Declare for a definition what its sessions had, by this figure of theirs."),
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="With --apply: do not ask.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="How long to wait for a session's answer, at most.")
    ] = f"{OBSERVATION_LIMIT // timedelta(seconds=1)}s",
    output: Annotated[Output, typer.Option("-o", "--output", help="How to write it: table, json, yaml.")] = (
        Output.TABLE
    ),
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Look at what labs really use.

    `lcm observe session NAME` has a running lab looked at, and tells what it has against what is declared.
    `lcm observe definition NAME` tells what its sessions had; `--apply p95` declares that, after asking.
    """
    noun, name = one(target or [])
    if output in {Output.NAME, Output.WIDE}:
        raise typer.BadParameter("what was observed is a table, json or yaml", param_hint="--output")
    if noun.struct is LabletDefinition:
        how = _How(by, yes, dry_run, output)
        lab: Ref[LabletDefinition] = Ref(LabletDefinition, name, namespace)
        run.with_plane(lambda plane: _definition(plane, lab, how), context)
        return
    if noun.struct is not LabletSession:
        raise typer.BadParameter(f"a {noun.singular} is not observed; {_USAGE}", param_hint="KIND")
    if by or dry_run:
        raise typer.BadParameter("goes with a definition", param_hint="--apply" if by else "--dry-run")
    session: Ref[LabletSession] = Ref(LabletSession, name, namespace)
    limit = span_of(timeout)
    run.with_plane(lambda plane: _session(plane, session, limit, output), context)


async def _session(plane: Plane, ref: Ref[LabletSession], limit: timedelta, output: Output) -> None:
    asked = await _asked(plane, ref)
    try:
        async with asyncio.timeout(limit.total_seconds()):
            session = await _answered(plane, asked)
    except TimeoutError as error:
        why = "the lablet controller gave no answer"
        raise run.TimeIsUp(f"{title(asked)} was not observed within {render.span(limit)}: {why}") from error
    if session.status.observation_error:
        raise run.TimeIsUp(f"{title(session)}: {session.status.observation_error}")
    lab: Ref[LabletDefinition] = Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)
    _show_session(session, await plane.get(lab), output)


async def _asked(plane: Plane, ref: Ref[LabletSession]) -> LabletSession:
    try:
        return await plane.act(ref, ObserveResources())
    except Gone:
        raise Gone(f"there is no {title_of(LabletSession, ref.name)} in namespace {ref.namespace}") from None
    except IllegalStep as error:
        found = await plane.get(ref)
        if found is None:
            raise
        raise IllegalStep(f"{title(found)} is {found.status.phase}: only what runs is observed") from error


async def _answered(plane: Plane, asked: LabletSession) -> LabletSession:
    """Wait until a request is answered or given up; a request that stands already is answered for all who wait."""
    request = asked.status.observation_request
    async for now in _states(plane, asked):
        if request is None or now.status.observation_request is None or now.status.observation_request.id != request.id:
            return now
        if now.status.phase in SESSION.final:
            break
    raise run.Impossible(f"{title(asked)} has ended before it was observed")


async def _states(plane: Plane, session: LabletSession) -> AsyncIterator[LabletSession]:
    """Give a session as it is now and whenever it changes, until it is gone."""
    wheres: Wheres = {LabletSession: named(session.metadata.name)}
    async for changes in follow(plane, wheres, namespace=ref_of(session).namespace):
        for change in changes:
            if not isinstance(change.resource, LabletSession):
                return
            yield change.resource


def _show_session(session: LabletSession, definition: LabletDefinition | None, output: Output) -> None:
    seen = session.status.observed_resources
    if seen is None:
        raise Refused(f"{title(session)} was observed, and what was seen is not told")
    if output is not Output.TABLE:
        print_value(seen, output)
        return
    now = SystemClock().now()
    print_rows(_HEADINGS, session_rows(seen, definition), now)
    template = (definition.spec.port_template if definition else None) or {}
    if ports := list(drifted(session, seen, template)):
        render.out()
        print_rows(("PORT", "ALLOCATED", "OBSERVED"), ports, now, whole=("ALLOCATED", "OBSERVED"))
        render.say(f"{len(ports)} ports have drifted: nobody else is given them on this worker while it runs")
    else:
        render.say(f"{len(seen.observed_ports)} ports, all as they were allocated")


async def _definition(plane: Plane, ref: Ref[LabletDefinition], how: _How) -> None:
    found = await plane.get(ref)
    if found is None:
        raise Gone(f"there is no {title_of(LabletDefinition, ref.name)} in namespace {ref.namespace}")
    if how.by is None:
        _show_report(await plane.observations(ref_of(found)), title(found), how.output)
        return
    wanted = applied_needs(found, how.by)
    if wanted is None:
        raise Refused(f"nothing was observed of {title(found)} yet; `lcm observe session NAME` looks at one that runs")
    if wanted == found.spec.resource_requirements:
        render.tell(f"{title(found)} declares that already: {needs_said(wanted)}")
        return
    _before_and_after(found, wanted)
    if how.dry_run:
        render.say("nothing was changed: --dry-run")
    elif not how.yes:
        _ask(title(found))
    change = {"spec": {"resource_requirements": msgspec.to_builtins(wanted)}}
    made = await plane.patch(ref_of(found), change, at=found.metadata.resource_version, dry_run=how.dry_run)
    if not how.dry_run:
        render.tell(f"{title(made)} declares {needs_said(wanted)}: what is booked from now on counts with that")


def _show_report(report: ObservationReport, name: str, output: Output) -> None:
    if output is not Output.TABLE:
        print_value(report, output)
        return
    rows = []
    for row in report.measures:
        seen = row.observed
        figures = [amount_said(row.measure, value) for value in ((seen.avg, seen.p50, seen.max) if seen else ())]
        rows.append([*measured(row.declared, row.measure, seen.p95 if seen else None), *(figures or [UNKNOWN] * 3)])
    headings = ("MEASURE", "DECLARED", "P95", "DIFFERENCE", "AVG", "P50", "MAX")
    print_rows(headings, rows, SystemClock().now())
    reason = f"; to be looked at: {report.review_reason}" if report.needs_review else ""
    render.say(f"{report.observed_sessions} sessions of {name} were observed{reason}")


def _before_and_after(definition: LabletDefinition, wanted: ResourceRequirements) -> None:
    declared = definition.spec.resource_requirements
    render.out(f"before: {needs_said(declared) if declared else 'nothing declared'}")
    render.out(f"after:  {needs_said(wanted)}")


def _ask(name: str) -> None:
    try:
        agreed = typer.confirm(f"Change what {name} declares?", err=True)
    except typer.Abort as error:
        render.say("nobody answered; add --yes to change it without being asked")
        raise typer.Exit(1) from error
    if not agreed:
        render.say("nothing was changed")
        raise typer.Exit(1)
