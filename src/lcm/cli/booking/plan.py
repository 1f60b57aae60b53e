"""`lcm plan`: simulate a timetable with the production code in virtual time before it is booked."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from lcm.cli.output import connection, render
from lcm.cli.output.follow import read_all
from lcm.cli.output.options import ContextName
from lcm.control.plane.protocol import Plane
from lcm.model.base.errors import Fault, Invalid, Stuck
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.sim.plan.fleet_search import OnProgress, PlanProgress, plan
from lcm.sim.plan.page import page_of, read_look
from lcm.sim.plan.reading import LiveSystem, inventory_of, read_inventory, read_timetable
from lcm.sim.plan.report import text_of
from lcm.sim.plan.results import Comparison
from lcm.sim.plan.summary import summary
from lcm.sim.plan.variant import read_variants
from lcm.system.clock import SystemClock

_ERASE_LINE: Final = "\r\x1b[K"
_EXIT_NO_FLEET: Final = 8
"""The exit code when no fleet within the bounds serves everything on time."""


def plan_(
    timetable: Annotated[Path, typer.Argument(metavar="TIMETABLE", help="Timetable file: .yaml, .csv or .ics.")],
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="KEY=A,B",
            help="Simulate each value; keys: max, min, instance, policy (each also @TRACK), strategy, lead, faults.",
        ),
    ] = None,
    definitions: Annotated[
        list[Path] | None,
        typer.Option("--definitions", metavar="FILE", help="File with definitions and a fleet; repeatable."),
    ] = None,
    *,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="Find the cheapest fleet that refuses nothing and is never late.")
    ] = False,
    from_now: Annotated[
        bool, typer.Option("--from-now", help="Start from the live system: its labs, pools and booked sessions.")
    ] = False,
    faults: Annotated[
        float, typer.Option("--faults", min=0, max=60, metavar="N", help="Simulated failures per hour.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random numbers.")] = 1,
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, help="Number of processes; default: one per core.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML page with plots to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    context: ContextName = None,
) -> None:
    """Simulate a timetable before it is booked: what is refused, what starts late, what it costs.

    `lcm plan week.yaml`, `lcm plan week.yaml --compare max=4,6,8 --html week.html`, `lcm plan week.csv --from-now`.
    Exits with 8 when --smallest finds no fleet within the bounds that serves everything on time.
    """
    wanted = read_variants(compare or [], faults=faults, seed=seed)
    stocks = [read_inventory(one.name, _read_bytes(one)) for one in definitions or []]
    if from_now:
        stocks.append(inventory_of(connection.with_plane(_read_live, context)))
    found = read_timetable(timetable.name, _read_bytes(timetable), stocks)
    with _show_progress() as heard:
        comparison = plan(timetable.stem, found, wanted, search=smallest, cores=cores, heard=heard)
    _print_comparison(comparison, as_json=as_json)
    if html is not None:
        _write_page(html, page_of(comparison, read_look()))
        render.print_message(f"the page with plots is {html}")
    if smallest and comparison.smallest is None:
        raise typer.Exit(_EXIT_NO_FLEET)


async def _read_live(plane: Plane) -> LiveSystem:
    """Read the live objects that a plan starts from."""
    return LiveSystem(
        at=SystemClock().now(),
        definitions=tuple((await read_all(plane, LabletDefinition)).items),
        templates=tuple((await read_all(plane, WorkerTemplate)).items),
        pools=tuple((await read_all(plane, LabWorkerPool)).items),
        sessions=tuple((await read_all(plane, LabletSession)).items),
        reservations=tuple((await read_all(plane, Reservation)).items),
    )


def _print_comparison(comparison: Comparison, *, as_json: bool) -> None:
    if as_json:
        render.print_line(
            render.escape_json(msgspec.json.format(msgspec.json.encode(summary(comparison)), indent=2).decode())
        )
    else:
        render.print_line(render.UNSAFE.sub("?", text_of(comparison)).rstrip("\n"))


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Invalid(Fault(str(path), f"cannot be read: {error.strerror}", "name a file that is there")) from error


def _write_page(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Stuck("PageNotWritten", f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def _show_progress() -> Iterator[OnProgress]:
    """Show progress in one line, which is erased at the end, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        yield lambda progress: _replace_line(_progress_text(progress))
    finally:
        _replace_line("")


def _progress_text(progress: PlanProgress) -> str:
    left = "" if progress.seconds_left is None else f"  {timedelta(seconds=round(progress.seconds_left))} left"
    return f"planning {progress.share:4.0%}  {progress.doing}{left}"


def _replace_line(text: str) -> None:
    shown = render.truncate(render.sanitize(text), shutil.get_terminal_size().columns - 1)
    typer.echo(f"{_ERASE_LINE}{shown}", err=True, nl=False)
