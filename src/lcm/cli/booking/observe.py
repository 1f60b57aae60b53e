"""`lcm observe`: what a running lab really uses, and what was learned for a definition, which a person may apply.

The comparison of declared and observed resources in words is also used by `describe`.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from math import ceil
from typing import Annotated, Final

import msgspec
import typer

from lcm.cli.documents.describe_worker import LabelledText
from lcm.cli.documents.wait import parse_duration
from lcm.cli.output import connection, exit_codes, render
from lcm.cli.output.follow import watch_session
from lcm.cli.output.lookup import read_object
from lcm.cli.output.nouns import naming_missing, parse_one_target, title
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, DryRun, Namespace, Output, Target
from lcm.cli.output.printer import print_value
from lcm.cli.output.table import print_rows
from lcm.control.plane.protocol import ObserveResources, Plane, Ref, ref_of
from lcm.model.base.errors import IllegalStep, Refused
from lcm.model.kinds.definition import LabletDefinition, PortTemplate, ResourceRequirements, Spread
from lcm.model.kinds.saved_lab import ObservationRequest, as_continued
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.model.telemetry.learning import MEASURES, Learned, Measure, ObservationReport, compare_measures
from lcm.model.telemetry.observation import ResourceObservation, drift
from lcm.model.topology.ports import keep_observable
from lcm.system.clock import SystemClock

_MB_PER_GB: Final = 1024
_MILLIS: Final = 1000
_MEASURE_NAMES: Final[Mapping[Measure, str]] = {"cpu_cores": "CPU", "memory_mb": "memory", "storage_mb": "disk"}
UNKNOWN: Final = "-"


class Statistic(StrEnum):
    """The statistic over many sessions by which a definition's needs are declared."""

    P95 = "p95"
    MAX = "max"
    AVG = "avg"


def format_needs(needs: ResourceRequirements) -> str:
    """Format what a lab needs."""
    return f"{needs.cpu_cores:g} CPU, {needs.memory_gb:g} GB memory, {needs.storage_gb:g} GB disk"


def definition_lines(definition: LabletDefinition) -> Iterator[LabelledText]:
    """Yield what sessions of a definition used, compared with what it declares, and how to apply that."""
    status, name = definition.status, definition.metadata.name
    rows = [one for one in compare_measures(definition) if one.observed]
    for number, row in enumerate(rows):
        yield "" if number else "Observed", _measure_sentence(row)
    if boot := status.boot_seconds:
        yield "Boot", f"{boot.p95:.0f} s or less for 95 % of {boot.count} sessions, {boot.max:.0f} s at most"
    if status.needs_review:
        yield "Review", status.review_reason
    if rows and any(one.difference for one in rows):
        yield "To apply", f"`lcm observe definition {name} --apply {Statistic.P95}` shows before and after, and asks"


def needs_from_observations(definition: LabletDefinition, by: Statistic) -> ResourceRequirements | None:
    """Return the needs that a statistic of the observations gives; None while there are no observations.

    Cores are rounded up to thousandths and the rest to whole MB, so that nobody gets less than was observed.
    """
    status, declared = definition.status, definition.spec.resource_requirements
    cores, memory = _pick_statistic(status.cpu_cores, by), _pick_statistic(status.memory_mb, by)
    if not cores or not memory:
        return None
    disk = _pick_statistic(status.storage_mb, by)
    known = declared.storage_gb if declared else 0.0
    return ResourceRequirements(
        cpu_cores=ceil(cores * _MILLIS) / _MILLIS,
        memory_gb=ceil(memory) / _MB_PER_GB,
        storage_gb=ceil(disk) / _MB_PER_GB if disk else known,
    )


def measure_row(declared: float | None, measure: Measure, seen: float | None) -> tuple[str, ...]:
    """Return a table row: measure, declared, observed, and the difference."""
    difference = f"{(seen - declared) / declared:+.0%}" if declared and seen is not None else UNKNOWN
    return _MEASURE_NAMES[measure], format_measure(measure, declared), format_measure(measure, seen), difference


def session_rows(seen: ResourceObservation, definition: LabletDefinition | None) -> Iterator[tuple[str, ...]]:
    """Yield rows: what a definition declares, what its session's nodes were given, the difference, what they use."""
    declared = {one.measure: one.declared for one in compare_measures(definition)} if definition else {}
    figures = (seen.total_cpu_cores, seen.total_memory_mb, seen.total_storage_mb)
    used = (seen.used.cpu_cores, seen.used.memory_mb, None) if seen.used else (None, None, None)
    for measure, figure, use in zip(MEASURES, figures, used, strict=True):
        yield (*measure_row(declared.get(measure), measure, figure), format_measure(measure, use))
    nodes = definition.spec.node_count if definition else None
    more = seen.actual_node_count - nodes if nodes is not None else None
    yield (
        "nodes",
        UNKNOWN if nodes is None else str(nodes),
        str(seen.actual_node_count),
        UNKNOWN if more is None else f"{more:+d}",
        UNKNOWN,
    )


def drifted_ports(
    session: LabletSession, seen: ResourceObservation, template: PortTemplate
) -> Iterator[tuple[str, str, str]]:
    """Yield the ports that differ from those allocated to the session: name, allocated, observed."""
    given = keep_observable(session.status.allocated_ports or {}, template)
    for name, (allocated, observed) in drift(given, seen.observed_ports).items():
        yield name, str(allocated or UNKNOWN), str(observed or UNKNOWN)


def format_measure(measure: Measure, value: float | None) -> str:
    """Format an amount of a measure with its unit."""
    if value is None:
        return UNKNOWN
    return f"{value:.4g}" if measure == "cpu_cores" else f"{value / _MB_PER_GB:.4g} GB"


def _pick_statistic(spread: Spread | None, by: Statistic) -> float | None:
    if spread is None:
        return None
    return {Statistic.P95: spread.p95, Statistic.MAX: spread.max, Statistic.AVG: spread.avg}[by]


def _measure_sentence(one: Learned) -> str:
    observed = one.observed
    assert observed is not None, "only what was observed is told"
    figures = ", ".join(
        f"{name} {format_measure(one.measure, value)}"
        for name, value in (("p95", observed.p95), ("max", observed.max), ("avg", observed.avg))
    )
    declared = f", declared {format_measure(one.measure, one.declared)}" if one.declared else ", not declared"
    differs = f" ({one.difference:+.0%})" if one.difference is not None else ""
    boot = f", {format_measure(one.measure, one.boot_used.p95)} while booting" if one.boot_used else ""
    used = f"; used p95 {format_measure(one.measure, one.used.p95)}{boot}" if one.used else ""
    return f"{_MEASURE_NAMES[one.measure]} {figures} of {observed.count} sessions{declared}{differs}{used}"


_USAGE: Final = "write `lcm observe session NAME` or `lcm observe definition NAME`"
_HEADINGS: Final = ("MEASURE", "DECLARED", "OBSERVED", "DIFFERENCE", "USED")


@dataclass(frozen=True, slots=True)
class _ObserveOptions:
    """How learned figures are applied, and how results are printed."""

    by: Statistic | None
    yes: bool
    dry_run: bool
    output: Output


def observe(
    target: Target = None,
    *,
    by: Annotated[
        Statistic | None,
        typer.Option("--apply", help="Write this statistic of its sessions to the definition."),
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="With --apply: do not ask for confirmation.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Longest time to wait for the measurement.")
    ] = f"{ObservationRequest.limit // timedelta(seconds=1)}s",
    output: Annotated[Output, typer.Option("-o", "--output", help="Output format: table, json, yaml.")] = (
        Output.TABLE
    ),
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Show what labs really use.

    `lcm observe session NAME` measures a running lab and compares the result with its definition.
    `lcm observe definition NAME` shows what its sessions used; `--apply p95` writes that to the
    definition, after asking.
    """
    noun, name = parse_one_target(target or [])
    if output in {Output.NAME, Output.WIDE}:
        raise typer.BadParameter("use table, json or yaml", param_hint="--output")
    if noun.struct is LabletDefinition:
        how = _ObserveOptions(by, yes, dry_run, output)
        lab: Ref[LabletDefinition] = Ref(LabletDefinition, name, namespace)
        connection.with_plane(lambda plane: _observe_definition(plane, lab, how), context)
        return
    if noun.struct is not LabletSession:
        raise typer.BadParameter(f"a {noun.singular} cannot be observed; {_USAGE}", param_hint="KIND")
    if by or dry_run:
        raise typer.BadParameter("can only be used with a definition", param_hint="--apply" if by else "--dry-run")
    session: Ref[LabletSession] = Ref(LabletSession, name, namespace)
    limit = parse_duration(timeout)
    connection.with_plane(lambda plane: _observe_session(plane, session, limit, output), context)


async def _observe_session(plane: Plane, ref: Ref[LabletSession], limit: timedelta, output: Output) -> None:
    asked = await _request_observation(plane, ref)
    try:
        async with asyncio.timeout(limit.total_seconds()):
            session = await _wait_for_answer(plane, asked)
    except TimeoutError as error:
        why = "the lablet controller did not answer"
        raise exit_codes.WaitTimedOut(
            f"{title(asked)} was not observed within {render.format_span(limit)}: {why}"
        ) from error
    if session.status.observation_error:
        raise exit_codes.WaitTimedOut(f"{title(session)}: {session.status.observation_error}")
    lab: Ref[LabletDefinition] = Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)
    found = await plane.get(lab)
    _print_session(session, as_continued(found, session.status.continues) if found else None, output)


async def _request_observation(plane: Plane, ref: Ref[LabletSession]) -> LabletSession:
    try:
        with naming_missing(ref):
            return await plane.act(ref, ObserveResources())
    except IllegalStep as error:
        found = await plane.get(ref)
        if found is None:
            raise
        raise IllegalStep(f"{title(found)} is {found.status.phase}: only a running session can be observed") from error


async def _wait_for_answer(plane: Plane, asked: LabletSession) -> LabletSession:
    """Wait until a request is answered or given up; the answer to a pending request serves everybody who waits."""
    request = asked.status.observation_request
    async for now in watch_session(plane, asked):
        if request is None or now.status.observation_request is None or now.status.observation_request.id != request.id:
            return now
        if now.status.phase in SESSION_MACHINE.final:
            break
    raise exit_codes.Impossible(f"{title(asked)} has ended before it was observed")


def _print_session(session: LabletSession, definition: LabletDefinition | None, output: Output) -> None:
    seen = session.status.observed_resources
    if seen is None:
        raise Refused(f"{title(session)} was observed, but the API returned no figures; repeat the command")
    if output is not Output.TABLE:
        print_value(seen, output)
        return
    now = SystemClock().now()
    print_rows(_HEADINGS, session_rows(seen, definition), now)
    template = (definition.spec.port_template if definition else None) or {}
    if ports := list(drifted_ports(session, seen, template)):
        render.print_line()
        print_rows(("PORT", "ALLOCATED", "OBSERVED"), ports, now, whole=("ALLOCATED", "OBSERVED"))
        render.print_message(
            f"{len(ports)} ports differ from those allocated: no other session on this worker gets them while it runs"
        )
    else:
        render.print_message(f"{len(seen.observed_ports)} ports, all as allocated")


async def _observe_definition(plane: Plane, ref: Ref[LabletDefinition], how: _ObserveOptions) -> None:
    found = await read_object(plane, ref)
    assert isinstance(found, LabletDefinition), "the kind that was asked for"
    if how.by is None:
        _print_report(await plane.observations(ref_of(found)), title(found), how.output)
        return
    wanted = needs_from_observations(found, how.by)
    if wanted is None:
        raise Refused(
            f"nothing was observed of {title(found)} yet; `lcm observe session NAME` measures a running session"
        )
    if wanted == found.spec.resource_requirements:
        render.print_text(f"{title(found)} declares that already: {format_needs(wanted)}")
        return
    declared = found.spec.resource_requirements
    render.print_line(f"before: {format_needs(declared) if declared else 'nothing declared'}")
    render.print_line(f"after:  {format_needs(wanted)}")
    if how.dry_run:
        render.print_message("nothing was changed: --dry-run")
    elif not how.yes:
        render.confirm(
            f"Change what {title(found)} declares?",
            without="no answer; add --yes to change it without confirmation",
            otherwise="nothing was changed",
        )
    change = {"spec": {"resource_requirements": msgspec.to_builtins(wanted)}}
    made = await plane.patch(ref_of(found), change, at=found.metadata.resource_version, dry_run=how.dry_run)
    if not how.dry_run:
        render.print_text(f"{title(made)} declares {format_needs(wanted)}: new bookings use that")


def _print_report(report: ObservationReport, name: str, output: Output) -> None:
    if output is not Output.TABLE:
        print_value(report, output)
        return
    rows = []
    for row in report.measures:
        seen = row.observed
        figures = [format_measure(row.measure, value) for value in ((seen.avg, seen.p50, seen.max) if seen else ())]
        used = [format_measure(row.measure, one.p95 if one else None) for one in (row.used, row.boot_used)]
        given = measure_row(row.declared, row.measure, seen.p95 if seen else None)
        rows.append([*given, *(figures or [UNKNOWN] * 3), *used])
    headings = ("MEASURE", "DECLARED", "P95", "DIFFERENCE", "AVG", "P50", "MAX", "USED-P95", "BOOT-P95")
    ranks = {"MAX": 1, "AVG": 2, "P50": 3}
    print_rows(headings, rows, SystemClock().now(), whole=headings, ranks=ranks)
    reason = f"; needs review: {report.review_reason}" if report.needs_review else ""
    render.print_message(f"{report.observed_sessions} sessions of {name} were observed{reason}")
