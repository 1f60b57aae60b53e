"""`lcm doctor`: what is wrong here, what to do about it, and every setting with its source."""

import asyncio
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from typing import Annotated, Final

import msgspec
import typer

from lcm import config
from lcm.cli import contexts, doctor_checks, doctor_reach, render, table
from lcm.cli.contexts import Context
from lcm.cli.doctor_checks import PACKAGE, Check, State
from lcm.cli.doctor_reach import Seen
from lcm.cli.options import ContextName
from lcm.config import Configuration, Value
from lcm.control.tokens import keys_in
from lcm.data_folder import STORE
from lcm.model.errors import LcmError
from lcm.model.secret import Secret
from lcm.system import SystemClock

_WHOSE: Final = "These are the settings that this shell gives; what already runs may have been started with others."
_COLOURS: Final = {State.OK: "green", State.WARN: "yellow", State.FAIL: "red"}


class Form(StrEnum):
    """How the report is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Report(msgspec.Struct, frozen=True):
    """Everything that was found."""

    version: str
    python: str
    file: str | None
    checks: tuple[Check, ...]
    settings: tuple[Value, ...]


def doctor(
    output: Annotated[Form, typer.Option("-o", "--output", help="How to write it.")] = Form.TABLE,
    context: ContextName = None,
) -> None:
    """Check settings and surroundings, and show every setting and where it was said. Ends with 1 if something fails."""
    report = asyncio.run(examine(context))
    if output is Form.TABLE:
        _print(report)
    elif output is Form.JSON:
        render.out(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        render.out(msgspec.yaml.encode(report).decode().rstrip("\n"))
    if any(check.state is State.FAIL for check in report.checks):
        raise typer.Exit(1)


async def examine(context: str | None = None) -> Report:
    """Look at everything."""
    found, seen = config.examine(), Seen()
    reached = await _api(found, context, seen)
    stored = await doctor_reach.store(found.settings, seen)
    kept = await doctor_reach.artifacts(found.settings)
    checks = (
        Check("python", State.OK, f"{platform.python_version()} on {platform.platform()}"),
        *doctor_checks.packages(),
        *doctor_checks.configuration(found),
        doctor_checks.data_folder(found.settings.data_dir),
        *stored,
        *kept,
        *reached,
        doctor_checks.clock(SystemClock().now(), elsewhere=seen.there, written=_written(found)),
    )
    file = str(found.file) if found.file else None
    settings = config.explain(found, seen.system)
    return Report(metadata.version(PACKAGE), platform.python_version(), file, checks, settings)


async def _api(found: Configuration, name: str | None, seen: Seen) -> list[Check]:
    """Look at the API that the command line talks to, else at the one that controllers here would talk to."""
    try:
        context = contexts.current(name)
    except LcmError as error:
        return [Check("api", State.FAIL, str(error))]
    key = found.settings.control_plane_api_key
    if context is None and keys_in(key) and "CONTROL_PLANE_API_URL" in found.sources:
        context = Context("CONTROL_PLANE_API_URL", found.settings.control_plane_api_url, Secret(keys_in(key)[0]))
    if context is None:
        return [Check("api", State.OK, "none is configured; `lcm up` starts one, LCM_URL and LCM_TOKEN name one")]
    return list(await doctor_reach.api(context, seen))


def _written(found: Configuration) -> datetime | None:
    file = found.settings.data_dir / STORE
    try:
        return datetime.fromtimestamp(file.stat().st_mtime, UTC)
    except OSError:
        return None


def _print(report: Report) -> None:
    """Write settings first: what is wrong then stands where a person looks, above the next prompt."""
    rows = [(one.variable, one.value, _short(one)) for one in report.settings]
    table.print_rows(("VARIABLE", "VALUE", "SOURCE"), rows, SystemClock().now(), whole=("VARIABLE",))
    for line in render.wrapped(_WHOSE, render.room() or render.WIDEST):
        render.out(line)
    render.out(f"\nLablet Cloud Manager {report.version}")
    for line in _lines(report.checks):
        render.out(line)


def _lines(checks: tuple[Check, ...]) -> Iterator[str]:
    """Write checks in three columns, the last of them broken into lines."""
    wide = max(len(check.name) for check in checks)
    margin = " " * (wide + len("fail") + 4)
    room = (render.room() or render.WIDEST + len(margin)) - len(margin)
    for check in checks:
        first, *rest = render.wrapped(check.detail, room)
        state = render.paint(f"{check.state:<4}", _COLOURS[check.state])
        yield f"{state}  {check.name:<{wide}}  {first}".rstrip()
        yield from (f"{margin}{line}" for line in rest)
        if check.remedy:
            yield from (f"{margin}{line}" for line in render.wrapped(check.remedy, room))


def _short(value: Value) -> str:
    """Leave out a variable's name where it is that of the line."""
    return "environment" if value.source == f"environment {value.variable}" else value.source
