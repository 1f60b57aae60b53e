"""`lcm doctor`: what is wrong here, what to do about it, and every setting with its source.

Checks of this machine (packages, settings, folders, clock) and of what it connects to (store, artifacts, API), each
with a time limit. Nothing is changed.
"""

import asyncio
import platform
import re
import shutil
import stat
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import metadata
from os import W_OK, access
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
import typer

from lcm.cli.output import connection, render, table
from lcm.cli.output.connection import ApiContext
from lcm.cli.output.options import ContextName
from lcm.compose import api as compose_api
from lcm.compose import outside
from lcm.control.access.tokens import service_keys
from lcm.control.objects.records import find_record
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.protocol import Ref
from lcm.control.plane.transport import ClientTimeouts
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Forbidden, Invalid, LcmError, Stuck, Unreachable
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.rules import SETTINGS_NAME
from lcm.model.kinds.settings import SystemSettings
from lcm.providers.local.directory import FOLDERS
from lcm.providers.protocols.artifacts import temporary_address
from lcm.settings import load
from lcm.settings.checks import read_prices
from lcm.settings.load import Configuration, Settings, SettingValue
from lcm.settings.values import VARIABLES
from lcm.store.base import Store
from lcm.system.build import PACKAGE, build_name
from lcm.system.clock import SystemClock
from lcm.system.data_folder import STORE_FILE, has_store, is_open_to_others

_EXTRA: Final = re.compile(r"\bextra *==")
"""In the marker of a requirement that only an extra has."""
_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH
_LITTLE_BYTES, _TOO_LITTLE_BYTES = 1_000_000_000, 50_000_000
_YEARS: Final = range(2025, 2100)
_LONGEST_HOLD: Final = re.compile(r'lcm_loop_longest_hold_seconds\{culprit="([^"]*)"\} ([0-9.e+-]+)')
_LONG_HOLD_SECONDS: Final = 1.0
_METRICS_BYTES: Final = 4_000_000
_PRICES_GET_OLD: Final = timedelta(days=365)
_ASTRAY, _FAR_ASTRAY = timedelta(seconds=30), timedelta(minutes=5)


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class DoctorCheck(msgspec.Struct, frozen=True):
    """One check, its result, and what to do about it."""

    name: str
    state: CheckState
    detail: str
    remedy: str = ""


def check_packages(requirements: Sequence[str] | None = None) -> Iterator[DoctorCheck]:
    """Check that every package this one needs is installed; those of extras are optional."""
    lines = metadata.requires(PACKAGE) or () if requirements is None else requirements
    found, missing, optional = list[str](), list[str](), list[str]()
    for line in sorted(lines):
        name = re.split(r"[^A-Za-z0-9._-]", line)[0]
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            (optional if _EXTRA.search(line.partition(";")[2]) else missing).append(name)
    without = f"; not installed, and optional: {', '.join(optional)}" if optional else ""
    yield DoctorCheck("packages", CheckState.OK, f"{', '.join(found)}{without}")
    if missing:
        yield DoctorCheck("packages", CheckState.FAIL, f"missing: {', '.join(missing)}", "install this package again")


def check_configuration(found: Configuration) -> Iterator[DoctorCheck]:
    """Yield what is wrong, or may be wrong, with the settings."""
    where = f"file {found.file}" if found.file else "no file: environment variables and defaults are used"
    yield DoctorCheck("configuration", CheckState.FAIL if found.faults else CheckState.OK, where)
    for state, faults in ((CheckState.FAIL, found.faults), (CheckState.WARN, found.warnings)):
        yield from (DoctorCheck(fault.path, state, fault.problem, fault.remedy) for fault in faults)
    secret = [one.name for one in VARIABLES if one.secret and found.sources.get(one.name, "").startswith("file ")]
    if found.file and secret and found.file.stat().st_mode & _OTHERS:
        problem = f"others may read {', '.join(secret)} in {found.file}"
        yield DoctorCheck("configuration", CheckState.WARN, problem, f"chmod 600 {found.file}")


def check_prices(settings: Settings, now: datetime) -> DoctorCheck:
    """Check how old the prices are."""
    whose = f"of {settings.price_book}" if settings.price_book else "that ship with this version"
    try:
        as_of = read_prices(settings.price_book).at(now).as_of
    except Invalid as error:
        return DoctorCheck("prices", CheckState.FAIL, str(error))
    if as_of is None or now.date() - as_of > _PRICES_GET_OLD:
        remedy = "compare them with your bill; set PRICE_BOOK to a TOML file with as_of = TODAY and what has changed"
        return DoctorCheck(
            "prices", CheckState.WARN, f"the prices {whose} are of {as_of}, more than a year ago", remedy
        )
    return DoctorCheck("prices", CheckState.OK, f"{whose}, as of {as_of}")


def check_data_folder(folder: Path) -> DoctorCheck:
    """Check the folder of the store and of the process's other data."""
    return _check_folder("data folder", folder, "LCM_DATA_DIR")


def check_artifacts_folder(folder: Path) -> DoctorCheck:
    """Check the folder of lab files and collected work, and the folders in it."""
    parts = [part for part in (folder / name for name in FOLDERS) if _is_there(part)]
    for part in parts:
        if not part.is_dir() or not access(part, W_OK):
            return DoctorCheck("artifacts", CheckState.FAIL, f"{part} cannot be written", f"chown or chmod {part}")
    return _check_folder("artifacts", folder, "ARTIFACTS_DIR")


def _check_folder(name: str, folder: Path, variable: str) -> DoctorCheck:
    """Check whether files can be written, and how much disk space is free."""
    whole = folder.absolute()
    there = next(path for path in (whole, *whole.parents) if _is_there(path))
    if not there.is_dir() or not access(there, W_OK):
        return DoctorCheck(
            name, CheckState.FAIL, f"{there} cannot be written", f"choose another folder with {variable}"
        )
    free = shutil.disk_usage(there).free
    detail = f"{whole}{'' if there == whole else ' (does not exist yet)'}, {free / 1e9:.1f} GB free"
    if free >= _LITTLE_BYTES and is_open_to_others(whole):
        return DoctorCheck(name, CheckState.WARN, f"{detail}; others may read it", f"chmod 700 {whole}")
    if free >= _LITTLE_BYTES:
        return DoctorCheck(name, CheckState.OK, detail)
    return DoctorCheck(
        name, CheckState.WARN if free >= _TOO_LITTLE_BYTES else CheckState.FAIL, detail, "free disk space"
    )


def _is_there(path: Path) -> bool:
    """Return whether a path is seen to exist; not below a folder that may not be entered."""
    try:
        return path.exists()
    except OSError:
        return False


def check_clock(now: datetime, *, elsewhere: datetime | None = None, written: datetime | None = None) -> DoctorCheck:
    """Compare the clock with the API's, with the store's newest write, and with a plausible range of years."""
    detail = f"{now:%Y-%m-%d %H:%M:%S}Z"
    remedy = "synchronise the clock with a time server"
    if now.year not in _YEARS:
        return DoctorCheck("clock", CheckState.FAIL, f"{detail} is not plausible", remedy)
    if elsewhere is not None and abs(now - elsewhere) > _ASTRAY:
        state = CheckState.FAIL if abs(now - elsewhere) > _FAR_ASTRAY else CheckState.WARN
        return DoctorCheck(
            "clock", state, f"{detail}, but the API's clock shows {elsewhere:%Y-%m-%d %H:%M:%S}Z", remedy
        )
    if written is not None and written - now > _ASTRAY:
        return DoctorCheck(
            "clock", CheckState.WARN, f"{detail}, but the store was written at {written:%Y-%m-%d %H:%M:%S}Z", remedy
        )
    return DoctorCheck("clock", CheckState.OK, detail)


TIME_LIMIT_SECONDS: Final = 5.0
_SHOWN: Final = 200
_ABSENT_URI: Final = temporary_address("doctor").uri
"""A bucket that answers that this does not exist can be read."""
_SETTINGS: Final = Ref(SystemSettings, SETTINGS_NAME)


class DoctorFindings(msgspec.Struct):
    """What the checks learned on the way: the settings object, the API's time, whether etcd holds a store."""

    system: SystemSettings | None = None
    system_is_known: bool = False
    there: datetime | None = None
    begun: bool = False


async def check_api(context: ApiContext, seen: DoctorFindings) -> Sequence[DoctorCheck]:
    """Ask an API for its health, and as whom it sees us."""
    health = await _with_time_limit("api", _check_health(context.url, "/healthz", seen))
    if seen.there is None and health[0].state is CheckState.FAIL:
        return [msgspec.structs.replace(health[0], remedy="start it with `lcm up`, or see `lcm context list`")]
    ready = await _with_time_limit("api", _check_health(context.url, "/readyz", seen))
    identity = await _with_time_limit("api", _check_identity(context, seen))
    return [*health, *ready, *identity, *await _with_time_limit("event loop", _check_loop(context))]


async def check_store(settings: Settings, seen: DoctorFindings) -> Sequence[DoctorCheck]:
    """Check the store without creating one."""
    if settings.engine == "etcd":
        members = [
            await _with_time_limit(f"etcd {one}", _check_etcd_member(settings, one, seen))
            for one in settings.etcd_addresses
        ]
        where = f"etcd {settings.etcd_root}"
        rest = await _with_time_limit("store", _check_contents(settings, where, seen)) if seen.begun else ()
        return [*(check for member in members for check in member), *rest]
    file = settings.data_dir / STORE_FILE
    try:
        if not has_store(settings.data_dir):
            return [DoctorCheck("store", CheckState.OK, f"{file}: does not exist yet; `lcm up` creates it")]
    except Stuck as error:
        return [DoctorCheck("store", CheckState.FAIL, str(error))]
    return await _with_time_limit("store", _check_contents(settings, str(file), seen))


async def check_artifacts(settings: Settings) -> Sequence[DoctorCheck]:
    """Check where lab files and collected work are stored, without storing anything."""
    if settings.artifacts_s3_bucket is None:
        return [check_artifacts_folder(outside.artifacts_folder(settings))]
    found = await _with_time_limit("artifacts", _check_bucket(settings, settings.artifacts_s3_bucket))
    remedy = "see ARTIFACTS_S3_BUCKET, ARTIFACTS_S3_ENDPOINT, AWS_REGION and the AWS credentials"
    return [msgspec.structs.replace(one, remedy="" if one.state is CheckState.OK else remedy) for one in found]


async def _check_bucket(settings: Settings, bucket: str) -> Sequence[DoctorCheck]:
    async with outside.artifact_store(settings) as store:
        await store.find(_ABSENT_URI)
    return [DoctorCheck("artifacts", CheckState.OK, f"s3://{bucket}/{settings.artifacts_s3_prefix} answers")]


async def _with_time_limit(name: str, work: Awaitable[Sequence[DoctorCheck]]) -> Sequence[DoctorCheck]:
    try:
        async with asyncio.timeout(TIME_LIMIT_SECONDS):
            return await work
    except TimeoutError:
        return [DoctorCheck(name, CheckState.FAIL, f"no answer within {TIME_LIMIT_SECONDS:g} s")]
    except (LcmError, OSError) as error:
        return [DoctorCheck(name, CheckState.FAIL, str(error))]


async def _check_etcd_member(settings: Settings, endpoint: str, seen: DoctorFindings) -> Sequence[DoctorCheck]:
    from lcm.store.etcd.keys import probe_member  # noqa: PLC0415 - gRPC is slow to load, and few need it

    member = await probe_member(
        endpoint,
        root=settings.etcd_root,
        tls=compose_api.etcd_tls(settings),
        user=settings.etcd_user or "",
        password=settings.etcd_password.reveal() if settings.etcd_password else "",
        seconds=TIME_LIMIT_SECONDS / 2,
    )
    seen.begun = seen.begun or member.begun
    detail = f"version {member.version}, revision {member.revision}"
    return [
        DoctorCheck(
            f"etcd {endpoint}", CheckState.OK, detail if member.begun else f"{detail}; no store of this system yet"
        )
    ]


async def _check_contents(settings: Settings, where: str, seen: DoctorFindings) -> Sequence[DoctorCheck]:
    opened = await compose_api.open_store(settings)
    try:
        objects = [await _count_keys(opened, kind.prefix) for kind in KINDS.values()]
        revision = (await opened.scan("", limit=1)).revision
        if not seen.system_is_known:
            record = await find_record(opened, _SETTINGS)
            seen.system = record.resource if record else None
        detail = f"{where}: {sum(objects)} objects, revision {revision}, epoch {opened.epoch}"
        return [DoctorCheck("store", CheckState.OK, detail)]
    finally:
        await opened.close()


async def _count_keys(opened: Store, prefix: str) -> int:
    page = await opened.scan(prefix)
    count = len(page.entries)
    while page.next is not None:
        page = await opened.scan(prefix, cursor=page.next)
        count += len(page.entries)
    return count


async def _check_health(url: str, path: str, seen: DoctorFindings) -> Sequence[DoctorCheck]:
    status, body, there = await asyncio.to_thread(_fetch, url, path)
    seen.there = there or seen.there
    if status == HTTPStatus.OK:
        return [DoctorCheck(f"api {path}", CheckState.OK, url)]
    return [
        DoctorCheck(
            f"api {path}", CheckState.FAIL, f"{url} answers {status}: {shorten_text(body, _SHOWN)}", "check its log"
        )
    ]


async def _check_loop(context: ApiContext) -> Sequence[DoctorCheck]:
    """Return the longest step that kept all else in the API's process waiting; nothing if we may not ask."""
    signed = {"Authorization": f"Bearer {context.token.reveal()}"}
    status, body, _ = await asyncio.to_thread(_fetch, context.url, "/metrics", signed, _METRICS_BYTES)
    found = _LONGEST_HOLD.search(body)
    if status != HTTPStatus.OK or found is None:
        return ()
    culprit, seconds = found[1], float(found[2])
    if seconds < _LONG_HOLD_SECONDS:
        return [DoctorCheck("event loop", CheckState.OK, f"held for {seconds:.2f} s at most, by {culprit}")]
    remedy = "its log names each: `the event loop was held`; nothing else is served meanwhile"
    return [DoctorCheck("event loop", CheckState.WARN, f"held for {seconds:.1f} s by {culprit}", remedy)]


def _fetch(
    url: str, path: str, headers: Mapping[str, str] | None = None, most: int | None = None
) -> tuple[int, str, datetime | None]:
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    with closing(kind(parts.hostname or "", parts.port, timeout=TIME_LIMIT_SECONDS)) as line:
        try:
            line.request("GET", parts.path.rstrip("/") + path, headers=dict(headers or {}))
            answer = line.getresponse()
            body = answer.read(most or _SHOWN * 4).decode(errors="replace")
        except (OSError, HTTPException) as error:
            raise Unreachable(f"{url}{path}: {str(error) or type(error).__name__}") from error
    return answer.status, body, _parse_date(answer.headers["Date"])


def _parse_date(date: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(date) if date else None
    except ValueError:
        return None


async def _check_identity(context: ApiContext, seen: DoctorFindings) -> Sequence[DoctorCheck]:
    limits = ClientTimeouts(connect_seconds=TIME_LIMIT_SECONDS / 2, request_seconds=TIME_LIMIT_SECONDS)
    async with HttpPlane.open(context.url, context.token, limits=limits, trust=connection.find_authority()) as plane:
        with suppress(Forbidden):
            seen.system = await plane.get(_SETTINGS)
            seen.system_is_known = True
        return [DoctorCheck("api", CheckState.OK, f"signed in as {plane.caller.name}, role {plane.caller.role}")]


_SETTINGS_NOTE: Final = (
    "These settings apply to commands in this shell; running processes may have been started with others."
)
_GRAVEST_FIRST: Final = (CheckState.FAIL, CheckState.WARN, CheckState.OK)
_COLOURS: Final = {CheckState.OK: "green", CheckState.WARN: "yellow", CheckState.FAIL: "red"}


class ReportFormat(StrEnum):
    """The format in which the report is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class DoctorReport(msgspec.Struct, frozen=True):
    """Everything that was found."""

    version: str
    python: str
    file: str | None
    checks: tuple[DoctorCheck, ...]
    settings: tuple[SettingValue, ...]


def doctor(
    output: Annotated[ReportFormat, typer.Option("-o", "--output", help="Output format.")] = ReportFormat.TABLE,
    context: ContextName = None,
) -> None:
    """Check this installation and show every setting with its source. Exits with 1 if a check fails."""
    report = asyncio.run(run_checks(context))
    if output is ReportFormat.TABLE:
        _print_report(report)
    elif output is ReportFormat.JSON:
        render.print_line(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        render.print_line(msgspec.yaml.encode(report).decode().rstrip("\n"))
    if any(check.state is CheckState.FAIL for check in report.checks):
        raise typer.Exit(1)


async def run_checks(context: str | None = None) -> DoctorReport:
    """Run all checks."""
    found, seen = load.read_configuration(), DoctorFindings()
    reached = await _check_configured_api(found, context, seen)
    stored = await check_store(found.settings, seen)
    kept = await check_artifacts(found.settings)
    checks = (
        DoctorCheck("python", CheckState.OK, f"{platform.python_version()} on {platform.platform()}"),
        *check_packages(),
        *check_configuration(found),
        check_prices(found.settings, SystemClock().now()),
        check_data_folder(found.settings.data_dir),
        *stored,
        *kept,
        *reached,
        check_clock(SystemClock().now(), elsewhere=seen.there, written=_store_written_at(found)),
    )
    file = str(found.file) if found.file else None
    settings = load.list_values(found, seen.system)
    return DoctorReport(build_name(), platform.python_version(), file, checks, settings)


async def _check_configured_api(found: Configuration, name: str | None, seen: DoctorFindings) -> list[DoctorCheck]:
    """Check the API that the command line talks to, else the one that controllers here would talk to."""
    try:
        context = connection.current_context(name)
    except LcmError as error:
        return [DoctorCheck("api", CheckState.FAIL, str(error))]
    key = found.settings.control_plane_api_key
    if context is None and service_keys(key) and "CONTROL_PLANE_API_URL" in found.sources:
        context = ApiContext(
            "CONTROL_PLANE_API_URL", found.settings.control_plane_api_url, Secret(service_keys(key)[0])
        )
    if context is None:
        return [
            DoctorCheck(
                "api", CheckState.OK, "none is configured; start one with `lcm up`, or set LCM_URL and LCM_TOKEN"
            )
        ]
    return list(await check_api(context, seen))


def _store_written_at(found: Configuration) -> datetime | None:
    file = found.settings.data_dir / STORE_FILE
    try:
        return datetime.fromtimestamp(file.stat().st_mtime, UTC)
    except OSError:
        return None


def _print_report(report: DoctorReport) -> None:
    """Print what was found, the problems first, then every setting; problems are counted at both ends."""
    problems = count_problems(report.checks)
    render.print_line(f"Lablet Cloud Manager {report.version}")
    render.print_line(problems or "no problems found")
    for line in _check_lines(sorted(report.checks, key=lambda check: _GRAVEST_FIRST.index(check.state))):
        render.print_line(line)
    render.print_line()
    rows = [(one.variable, one.value, _short_source(one)) for one in report.settings]
    table.print_rows(("VARIABLE", "VALUE", "SOURCE"), rows, SystemClock().now(), whole=("VARIABLE",))
    for line in render.wrap_text(_SETTINGS_NOTE, render.output_width() or render.MAX_TEXT_WIDTH):
        render.print_line(line)
    if problems:
        render.print_line(f"{problems}: see the top")


def count_problems(checks: Sequence[DoctorCheck]) -> str:
    """Return how many checks failed or warn, in words; "" if none does."""
    failed, warned = (sum(check.state is state for check in checks) for state in (CheckState.FAIL, CheckState.WARN))
    texts = [
        f"{number} {noun}{'' if number == 1 else 's'}"
        for number, noun in ((failed, "failed check"), (warned, "warning"))
        if number
    ]
    return ", ".join(texts)


def _check_lines(checks: Sequence[DoctorCheck]) -> Iterator[str]:
    """Yield checks in three columns; the last is wrapped."""
    wide = max(len(check.name) for check in checks)
    margin = " " * (wide + len("fail") + 4)
    room = (render.output_width() or render.MAX_TEXT_WIDTH + len(margin)) - len(margin)
    for check in checks:
        first, *rest = render.wrap_text(check.detail, room)
        state = render.paint(f"{check.state:<4}", _COLOURS[check.state])
        yield f"{state}  {check.name:<{wide}}  {first}".rstrip()
        yield from (f"{margin}{line}" for line in rest)
        if check.remedy:
            yield from (f"{margin}{line}" for line in render.wrap_text(check.remedy, room))


def _short_source(value: SettingValue) -> str:
    """Return a value's source, without the variable's name where it is that of the line."""
    return "environment" if value.source == f"environment {value.variable}" else value.source
