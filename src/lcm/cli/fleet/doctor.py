"""`lcm doctor`: what is wrong here, what to do about it, and every setting with its source."""

import asyncio
import platform
import re
import shutil
import stat
from collections.abc import Awaitable, Iterator, Sequence
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
from lcm.cli.output.connection import Context
from lcm.cli.output.options import ContextName
from lcm.compose import api as compose_api
from lcm.compose import outside
from lcm.control.access.tokens import keys_in
from lcm.control.objects.records import find
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.protocol import Ref
from lcm.control.plane.transport import Limits
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Forbidden, LcmError, Unreachable
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.rules import SETTINGS_NAME
from lcm.model.kinds.settings import SystemSettings
from lcm.providers.local.directory import PARTS
from lcm.providers.protocols.artifacts import named
from lcm.settings import load
from lcm.settings.load import Configuration, Settings, Value
from lcm.settings.values import VARIABLES
from lcm.store.base import Store
from lcm.system.clock import SystemClock
from lcm.system.data_folder import STORE, open_to_others

PACKAGE: Final = "lablet-cloud-manager"
_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH
_LITTLE_BYTES, _TOO_LITTLE_BYTES = 1_000_000_000, 50_000_000
_YEARS: Final = range(2025, 2100)
_ASTRAY, _FAR_ASTRAY = timedelta(seconds=30), timedelta(minutes=5)


class State(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at, and what to do about it."""

    name: str
    state: State
    detail: str
    remedy: str = ""


def packages() -> Iterator[Check]:
    """Look for every package that this one needs."""
    found, missing = [], []
    for name in sorted(re.split(r"[^A-Za-z0-9._-]", line)[0] for line in metadata.requires(PACKAGE) or ()):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    yield Check("packages", State.OK, ", ".join(found))
    if missing:
        yield Check("packages", State.FAIL, f"missing: {', '.join(missing)}", "install this package anew")


def configuration(found: Configuration) -> Iterator[Check]:
    """Tell what is wrong with the settings, or may be."""
    where = f"file {found.file}" if found.file else "no file: the environment and defaults count"
    yield Check("configuration", State.FAIL if found.faults else State.OK, where)
    for state, faults in ((State.FAIL, found.faults), (State.WARN, found.doubts)):
        yield from (Check(fault.path, state, fault.problem, fault.remedy) for fault in faults)
    secret = [one.name for one in VARIABLES if one.secret and found.sources.get(one.name, "").startswith("file ")]
    if found.file and secret and found.file.stat().st_mode & _OTHERS:
        problem = f"others may read {', '.join(secret)} in {found.file}"
        yield Check("configuration", State.WARN, problem, f"chmod 600 {found.file}")


def data_folder(folder: Path) -> Check:
    """Look at the folder of the store and of what else the process keeps."""
    return _folder("data folder", folder, "LCM_DATA_DIR")


def artifacts_folder(folder: Path) -> Check:
    """Look at the folder of lab files and collected work, and at those in it."""
    parts = [part for part in (folder / name for name in PARTS) if part.exists()]
    for part in parts:
        if not part.is_dir() or not access(part, W_OK):
            return Check("artifacts", State.FAIL, f"{part} cannot be written", f"chown or chmod {part}")
    return _folder("artifacts", folder, "ARTIFACTS_DIR")


def _folder(name: str, folder: Path, variable: str) -> Check:
    """Look whether files can be written, and how much room there is for them."""
    whole = folder.absolute()
    there = next(path for path in (whole, *whole.parents) if path.exists())
    if not there.is_dir() or not access(there, W_OK):
        return Check(name, State.FAIL, f"{there} cannot be written", f"choose another folder by {variable}")
    free = shutil.disk_usage(there).free
    detail = f"{whole}{'' if there == whole else ' (not made yet)'}, {free / 1e9:.1f} GB free"
    if free >= _LITTLE_BYTES and open_to_others(whole):
        return Check(name, State.WARN, f"{detail}; others may look into it", f"chmod 700 {whole}")
    if free >= _LITTLE_BYTES:
        return Check(name, State.OK, detail)
    return Check(name, State.WARN if free >= _TOO_LITTLE_BYTES else State.FAIL, detail, "make room on the disk")


def clock(now: datetime, *, elsewhere: datetime | None = None, written: datetime | None = None) -> Check:
    """Hold the clock against the API's, against the newest write of the store, and against sense."""
    detail = f"{now:%Y-%m-%d %H:%M:%S}Z"
    remedy = "let the machine's clock follow a time server"
    if now.year not in _YEARS:
        return Check("clock", State.FAIL, f"{detail} cannot be", remedy)
    if elsewhere is not None and abs(now - elsewhere) > _ASTRAY:
        state = State.FAIL if abs(now - elsewhere) > _FAR_ASTRAY else State.WARN
        return Check("clock", state, f"{detail}, where the API runs {elsewhere:%Y-%m-%d %H:%M:%S}Z", remedy)
    if written is not None and written - now > _ASTRAY:
        return Check(
            "clock", State.WARN, f"{detail}, but the store was written at {written:%Y-%m-%d %H:%M:%S}Z", remedy
        )
    return Check("clock", State.OK, detail)


SECONDS: Final = 5.0
_SHOWN: Final = 200
_NO_FILE: Final = named("doctor").uri
"""A bucket that says that this is not there can be read."""
_SETTINGS: Final = Ref(SystemSettings, SETTINGS_NAME)


class Seen(msgspec.Struct):
    """What was learned on the way: the settings object, the time where the API runs, whether etcd holds a store."""

    system: SystemSettings | None = None
    system_is_known: bool = False
    there: datetime | None = None
    begun: bool = False


async def api(context: Context, seen: Seen) -> Sequence[Check]:
    """Ask an API how it is, and whom it takes us for."""
    health = await _limited("api", _healthy(context.url, "/healthz", seen))
    if seen.there is None and health[0].state is State.FAIL:
        return [msgspec.structs.replace(health[0], remedy="start it with `lcm up`, or see `lcm context list`")]
    ready = await _limited("api", _healthy(context.url, "/readyz", seen))
    return [*health, *ready, *await _limited("api", _as_whom(context, seen))]


async def store(settings: Settings, seen: Seen) -> Sequence[Check]:
    """Look into the store, without beginning one."""
    if settings.engine == "etcd":
        members = [await _limited(f"etcd {one}", _member(settings, one, seen)) for one in settings.etcd_addresses]
        where = f"etcd {settings.etcd_root}"
        rest = await _limited("store", _contents(settings, where, seen)) if seen.begun else ()
        return [*(check for member in members for check in member), *rest]
    file = settings.data_dir / STORE
    if not file.exists():
        return [Check("store", State.OK, f"{file}: not there yet; `lcm up` makes it")]
    return await _limited("store", _contents(settings, str(file), seen))


async def artifacts(settings: Settings) -> Sequence[Check]:
    """Look at where lab files and collected work are kept, without keeping anything there."""
    if settings.artifacts_s3_bucket is None:
        return [artifacts_folder(outside.artifacts_folder(settings))]
    found = await _limited("artifacts", _bucket(settings, settings.artifacts_s3_bucket))
    remedy = "see ARTIFACTS_S3_BUCKET, ARTIFACTS_S3_ENDPOINT, AWS_REGION and the AWS credentials"
    return [msgspec.structs.replace(one, remedy="" if one.state is State.OK else remedy) for one in found]


async def _bucket(settings: Settings, bucket: str) -> Sequence[Check]:
    async with outside.artifact_store(settings) as store:
        await store.find(_NO_FILE)
    return [Check("artifacts", State.OK, f"s3://{bucket}/{settings.artifacts_s3_prefix} answers")]


async def _limited(name: str, work: Awaitable[Sequence[Check]]) -> Sequence[Check]:
    try:
        async with asyncio.timeout(SECONDS):
            return await work
    except TimeoutError:
        return [Check(name, State.FAIL, f"no answer within {SECONDS:g} s")]
    except (LcmError, OSError) as error:
        return [Check(name, State.FAIL, str(error))]


async def _member(settings: Settings, endpoint: str, seen: Seen) -> Sequence[Check]:
    from lcm.store.etcd.keys import look  # noqa: PLC0415 - gRPC is slow to load, and few need it

    member = await look(
        endpoint,
        root=settings.etcd_root,
        tls=compose_api.etcd_tls(settings),
        user=settings.etcd_user or "",
        password=settings.etcd_password.reveal() if settings.etcd_password else "",
        seconds=SECONDS / 2,
    )
    seen.begun = seen.begun or member.begun
    detail = f"version {member.version}, revision {member.revision}"
    return [Check(f"etcd {endpoint}", State.OK, detail if member.begun else f"{detail}; no store of ours yet")]


async def _contents(settings: Settings, where: str, seen: Seen) -> Sequence[Check]:
    opened = await compose_api.open_store(settings)
    try:
        objects = [await _count(opened, f"{kind.plural}/") for kind in KINDS.values()]
        revision = (await opened.scan("", limit=1)).revision
        if not seen.system_is_known:
            record = await find(opened, _SETTINGS)
            seen.system = record.resource if record else None
        detail = f"{where}: {sum(objects)} objects, revision {revision}, epoch {opened.epoch}"
        return [Check("store", State.OK, detail)]
    finally:
        await opened.close()


async def _count(opened: Store, prefix: str) -> int:
    page = await opened.scan(prefix)
    count = len(page.entries)
    while page.next is not None:
        page = await opened.scan(prefix, cursor=page.next)
        count += len(page.entries)
    return count


async def _healthy(url: str, path: str, seen: Seen) -> Sequence[Check]:
    status, body, there = await asyncio.to_thread(_ask, url, path)
    seen.there = there or seen.there
    if status == HTTPStatus.OK:
        return [Check(f"api {path}", State.OK, url)]
    return [Check(f"api {path}", State.FAIL, f"{url} answers {status}: {body[:_SHOWN]}", "look at its log")]


def _ask(url: str, path: str) -> tuple[int, str, datetime | None]:
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    with closing(kind(parts.hostname or "", parts.port, timeout=SECONDS)) as line:
        try:
            line.request("GET", parts.path.rstrip("/") + path)
            answer = line.getresponse()
            body = answer.read(_SHOWN * 4).decode(errors="replace")
        except (OSError, HTTPException) as error:
            raise Unreachable(f"{url}{path}: {str(error) or type(error).__name__}") from error
    return answer.status, body, _moment(answer.headers["Date"])


def _moment(date: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(date) if date else None
    except ValueError:
        return None


async def _as_whom(context: Context, seen: Seen) -> Sequence[Check]:
    limits = Limits(connect_seconds=SECONDS / 2, request_seconds=SECONDS)
    async with HttpPlane.open(context.url, context.token, limits=limits) as plane:
        with suppress(Forbidden):
            seen.system = await plane.get(_SETTINGS)
            seen.system_is_known = True
        return [Check("api", State.OK, f"signed in as {plane.caller.name}, role {plane.caller.role}")]


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
    found, seen = load.examine(), Seen()
    reached = await _api(found, context, seen)
    stored = await store(found.settings, seen)
    kept = await artifacts(found.settings)
    checks = (
        Check("python", State.OK, f"{platform.python_version()} on {platform.platform()}"),
        *packages(),
        *configuration(found),
        data_folder(found.settings.data_dir),
        *stored,
        *kept,
        *reached,
        clock(SystemClock().now(), elsewhere=seen.there, written=_written(found)),
    )
    file = str(found.file) if found.file else None
    settings = load.explain(found, seen.system)
    return Report(metadata.version(PACKAGE), platform.python_version(), file, checks, settings)


async def _api(found: Configuration, name: str | None, seen: Seen) -> list[Check]:
    """Look at the API that the command line talks to, else at the one that controllers here would talk to."""
    try:
        context = connection.current(name)
    except LcmError as error:
        return [Check("api", State.FAIL, str(error))]
    key = found.settings.control_plane_api_key
    if context is None and keys_in(key) and "CONTROL_PLANE_API_URL" in found.sources:
        context = Context("CONTROL_PLANE_API_URL", found.settings.control_plane_api_url, Secret(keys_in(key)[0]))
    if context is None:
        return [Check("api", State.OK, "none is configured; `lcm up` starts one, LCM_URL and LCM_TOKEN name one")]
    return list(await api(context, seen))


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
