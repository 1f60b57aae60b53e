"""What `lcm doctor` finds behind a socket or a file of ours: store, artifacts and API. Each has a time limit."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import closing, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lcm import compose_api, compose_outside
from lcm.cli.contexts import Context
from lcm.cli.doctor_checks import Check, State, artifacts_folder
from lcm.config import Settings
from lcm.control.client import HttpPlane
from lcm.control.client_line import Limits
from lcm.control.plane import Ref
from lcm.control.records import find
from lcm.data_folder import STORE
from lcm.model.errors import Forbidden, LcmError, Unreachable
from lcm.model.kinds import KINDS
from lcm.model.rules import SETTINGS_NAME
from lcm.model.settings import SystemSettings
from lcm.providers.artifacts import named
from lcm.store.base import Store

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
        return [artifacts_folder(compose_outside.artifacts_folder(settings))]
    found = await _limited("artifacts", _bucket(settings, settings.artifacts_s3_bucket))
    remedy = "see ARTIFACTS_S3_BUCKET, ARTIFACTS_S3_ENDPOINT, AWS_REGION and the AWS credentials"
    return [msgspec.structs.replace(one, remedy="" if one.state is State.OK else remedy) for one in found]


async def _bucket(settings: Settings, bucket: str) -> Sequence[Check]:
    async with compose_outside.artifact_store(settings) as store:
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
    from lcm.store.etcd_health import look  # noqa: PLC0415 - gRPC is slow to load, and few need it

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
