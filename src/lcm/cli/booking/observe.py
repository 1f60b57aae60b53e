"""`lcm observe`: what a running lab really uses, and what a definition learned, which a person may apply to it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from math import ceil
from typing import Annotated, Final

import msgspec
import typer

from lcm.cli.documents.describe_worker import Line
from lcm.cli.documents.wait import span_of
from lcm.cli.output import connection, render
from lcm.cli.output.follow import Wheres, follow, named
from lcm.cli.output.nouns import one, title, title_of
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, DryRun, Namespace, Output, Target
from lcm.cli.output.printer import print_value
from lcm.cli.output.table import print_rows
from lcm.control.plane.protocol import ObserveResources, Plane, Ref, ref_of
from lcm.model.base.errors import Gone, IllegalStep, Refused
from lcm.model.kinds.definition import LabletDefinition, PortTemplate, ResourceRequirements, Spread
from lcm.model.kinds.session import OBSERVATION_LIMIT, SESSION, LabletSession
from lcm.model.telemetry.learning import MEASURES, Learned, Measure, ObservationReport, compared
from lcm.model.telemetry.observation import ResourceObservation, drift
from lcm.model.topology.ports import observable
from lcm.system.clock import SystemClock

_MB_PER_GB: Final = 1024
_MILLIS: Final = 1000
_NAMES: Final[Mapping[Measure, str]] = {"cpu_cores": "CPU", "memory_mb": "memory", "storage_mb": "disk"}
UNKNOWN: Final = "-"


class Statistic(StrEnum):
    """By which figure of many sessions a definition's needs are to be declared."""

    P95 = "p95"
    MAX = "max"
    AVG = "avg"


def needs_said(needs: ResourceRequirements) -> str:
    """Write what a lab needs."""
    return f"{needs.cpu_cores:g} CPU, {needs.memory_gb:g} GB memory, {needs.storage_gb:g} GB disk"


def definition_lines(definition: LabletDefinition) -> Iterator[Line]:
    """Say what sessions of a definition had, against what it declares, and how to apply that."""
    status, name = definition.status, definition.metadata.name
    rows = [one for one in compared(definition) if one.observed]
    for number, row in enumerate(rows):
        yield "" if number else "Observed", _sentence(row)
    if boot := status.boot_seconds:
        yield "Boot", f"{boot.p95:.0f} s or less for 95 % of {boot.count} sessions, {boot.max:.0f} s at most"
    if status.needs_review:
        yield "Review", status.review_reason
    if rows and any(one.difference for one in rows):
        yield "To apply", f"`lcm observe definition {name} --apply {Statistic.P95}` shows before and after, and asks"


def applied_needs(definition: LabletDefinition, by: Statistic) -> ResourceRequirements | None:
    """Say what would be declared by a figure of what was observed; None while that is not known.

    Cores are rounded up to thousandths and the rest to whole MB: nobody gets less than was seen.
    """
    status, declared = definition.status, definition.spec.resource_requirements
    cores, memory = _figure(status.cpu_cores, by), _figure(status.memory_mb, by)
    if not cores or not memory:
        return None
    disk = _figure(status.storage_mb, by)
    known = declared.storage_gb if declared else 0.0
    return ResourceRequirements(
        cpu_cores=ceil(cores * _MILLIS) / _MILLIS,
        memory_gb=ceil(memory) / _MB_PER_GB,
        storage_gb=ceil(disk) / _MB_PER_GB if disk else known,
    )


def measured(declared: float | None, measure: Measure, seen: float | None) -> tuple[str, str, str, str]:
    """Write a row: what, declared, observed, and by how much that differs."""
    difference = f"{(seen - declared) / declared:+.0%}" if declared and seen is not None else UNKNOWN
    return _NAMES[measure], amount_said(measure, declared), amount_said(measure, seen), difference


def session_rows(seen: ResourceObservation, definition: LabletDefinition | None) -> Iterator[tuple[str, str, str, str]]:
    """Hold what was observed of one session against what its definition declares."""
    declared = {one.measure: one.declared for one in compared(definition)} if definition else {}
    figures = (seen.total_cpu_cores, seen.total_memory_mb, seen.total_storage_mb)
    for measure, figure in zip(MEASURES, figures, strict=True):
        yield measured(declared.get(measure), measure, figure)
    nodes = definition.spec.node_count if definition else None
    more = seen.actual_node_count - nodes if nodes is not None else None
    yield (
        "nodes",
        UNKNOWN if nodes is None else str(nodes),
        str(seen.actual_node_count),
        UNKNOWN if more is None else f"{more:+d}",
    )


def drifted(
    session: LabletSession, seen: ResourceObservation, template: PortTemplate
) -> Iterator[tuple[str, str, str]]:
    """Name the ports that are not what the session was given: name, allocated, observed."""
    given = observable(session.status.allocated_ports or {}, template)
    for name, (allocated, observed) in drift(given, seen.observed_ports).items():
        yield name, str(allocated or UNKNOWN), str(observed or UNKNOWN)


def amount_said(measure: Measure, value: float | None) -> str:
    """Write an amount of a measure with its unit."""
    if value is None:
        return UNKNOWN
    return f"{value:.4g}" if measure == "cpu_cores" else f"{value / _MB_PER_GB:.4g} GB"


def _figure(spread: Spread | None, by: Statistic) -> float | None:
    if spread is None:
        return None
    return {Statistic.P95: spread.p95, Statistic.MAX: spread.max, Statistic.AVG: spread.avg}[by]


def _sentence(one: Learned) -> str:
    observed = one.observed
    assert observed is not None, "only what was observed is told"
    figures = ", ".join(
        f"{name} {amount_said(one.measure, value)}"
        for name, value in (("p95", observed.p95), ("max", observed.max), ("avg", observed.avg))
    )
    declared = f", declared {amount_said(one.measure, one.declared)}" if one.declared else ", not declared"
    differs = f" ({one.difference:+.0%})" if one.difference is not None else ""
    return f"{_NAMES[one.measure]} {figures} of {observed.count} sessions{declared}{differs}"


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
        connection.with_plane(lambda plane: _definition(plane, lab, how), context)
        return
    if noun.struct is not LabletSession:
        raise typer.BadParameter(f"a {noun.singular} is not observed; {_USAGE}", param_hint="KIND")
    if by or dry_run:
        raise typer.BadParameter("goes with a definition", param_hint="--apply" if by else "--dry-run")
    session: Ref[LabletSession] = Ref(LabletSession, name, namespace)
    limit = span_of(timeout)
    connection.with_plane(lambda plane: _session(plane, session, limit, output), context)


async def _session(plane: Plane, ref: Ref[LabletSession], limit: timedelta, output: Output) -> None:
    asked = await _asked(plane, ref)
    try:
        async with asyncio.timeout(limit.total_seconds()):
            session = await _answered(plane, asked)
    except TimeoutError as error:
        why = "the lablet controller gave no answer"
        raise connection.TimeIsUp(f"{title(asked)} was not observed within {render.span(limit)}: {why}") from error
    if session.status.observation_error:
        raise connection.TimeIsUp(f"{title(session)}: {session.status.observation_error}")
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
    raise connection.Impossible(f"{title(asked)} has ended before it was observed")


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
