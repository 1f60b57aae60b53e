"""Uploaded lab files: whose they are, how many bytes one may store, and the removal of those nothing refers to.

`control.plane.local_operations` stores what people upload; `control.upkeep.housekeeping` sweeps. Each upload leaves a
record under its owner's name. All uploads of one owner touch a common key, so that two at once cannot exceed a quota.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote

import structlog

from lcm.control.access.audit import AuditedAction
from lcm.control.objects.records import read_entry
from lcm.control.objects.writer import Writer, commit_ops, retry_conflicts
from lcm.model.access.identity import SEES_ALL
from lcm.model.base.errors import Later, NoRoom, Stuck
from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import LabletSession
from lcm.model.topology.lab import TopologyReport
from lcm.providers.protocols.artifacts import Artifacts, digest_of, parse_address
from lcm.store.base import ABSENT, Delete, Entry, Put, Store
from lcm.store.codec import Codec

UPLOADS_PREFIX: Final = "uploads/"
UPLOAD_GRACE: Final = timedelta(days=1)
"""How long a file may wait for a definition that refers to it."""
DEFAULT_QUOTA_BYTES: Final = 1_000_000_000
_GUARDS_PREFIX: Final = "upload-guards/"
_CONTINUES: Final = b'"continues":{'
_LEAST_BYTES: Final = 4_096
"""What the smallest file counts for: many small files fill a disk, too."""
_PAGE: Final = 500
_MB: Final = 1_000_000
_CODEC: Final = Codec()
_log: Final = structlog.get_logger()


class UploadRecord(Part):
    """One file that somebody uploaded."""

    size_bytes: int
    uploaded_at: Moment


async def store_upload(
    writer: Writer, data: bytes, store: Callable[[], Awaitable[TopologyReport]], *, quota_bytes: int
) -> TopologyReport:
    """Store a file, and record whose it is. Raise NoRoom when its owner has no room for it. May be repeated."""
    owner, digest = quote(writer.caller.name, safe=""), digest_of(data)
    made: TopologyReport | None = None

    async def attempt() -> TopologyReport:
        nonlocal made
        guard = await writer.store.get(_GUARDS_PREFIX + owner)
        if writer.caller.role not in SEES_ALL:
            await _check_quota(writer.store, owner, digest, len(data), quota_bytes)
        made = made or await store()
        record = UploadRecord(size_bytes=len(data), uploaded_at=writer.clock.now())
        ops = [
            Put(_GUARDS_PREFIX + owner, b"", at=guard.revision if guard else ABSENT),
            Put(_key_of(owner, digest), _CODEC.encode(record)),
        ]
        await writer.submit(ops, deeds=[AuditedAction(verb="upload", kind="Topology", name=digest)])
        return made

    return await retry_conflicts(attempt, unless=lambda error: not error.key.startswith(_GUARDS_PREFIX))


async def _check_quota(store: Store, owner: str, digest: str, size: int, quota_bytes: int) -> None:
    held = 0
    async for entry in _scan(store, f"{UPLOADS_PREFIX}{owner}/"):
        if entry.key != _key_of(owner, digest):
            held += max(_LEAST_BYTES, _CODEC.decode(entry.value, UploadRecord).size_bytes)
    if held + max(_LEAST_BYTES, size) > quota_bytes:
        raise NoRoom(
            f"your uploads hold {held / _MB:.1f} of {quota_bytes / _MB:.1f} MB, too much for {size / _MB:.1f} MB more: "
            "delete definitions that nobody needs; what nothing refers to is removed after a day"
        )


async def sweep_uploads(store: Store, artifacts: Artifacts, now: datetime) -> int:
    """Remove the files that were uploaded a day ago or earlier and that nothing refers to; return how many.

    A definition stores its file again when it is made, and so does a session that continues a saved lab: one made
    meanwhile keeps it. May be repeated.
    """
    before, removed = now - UPLOAD_GRACE, 0
    try:
        listed = await artifacts.list_stored(before=before)
        needed = await _referenced_digests(store)
        for one in listed:
            digest = parse_address(one.uri).digest
            if digest not in needed:
                await artifacts.remove(one.uri, before=before)
                removed += 1
    except (Later, Stuck) as error:
        _log.warning("uploads not swept", error=str(error))
        return removed
    await _sweep_records(store, needed, before)
    return removed


async def _sweep_records(store: Store, needed: set[str], before: datetime) -> None:
    async for entry in _scan(store, UPLOADS_PREFIX):
        record = _CODEC.decode(entry.value, UploadRecord)
        if record.uploaded_at < before and entry.key.rpartition("/")[2] not in needed:
            await commit_ops(store, Delete(entry.key, at=entry.revision))


async def _referenced_digests(store: Store) -> set[str]:
    found = set[str]()
    async for entry in _scan(store, KINDS[LabletDefinition.__name__].prefix):
        topology = read_entry(entry, LabletDefinition).spec.topology
        found |= {topology.digest, topology.uri.removeprefix("artifact://")}
    async for entry in _scan(store, KINDS[LabletSession.__name__].prefix):
        # Searching the bytes is much faster than decoding every session.
        lab = read_entry(entry, LabletSession).status.continues if _CONTINUES in entry.value else None
        found |= {lab.topology.digest} if lab else set()
    return found


async def _scan(store: Store, prefix: str) -> AsyncIterator[Entry]:
    page = await store.scan(prefix, limit=_PAGE)
    while True:
        for entry in page.entries:
            yield entry
        if page.next is None:
            return
        page = await store.scan(prefix, limit=_PAGE, cursor=page.next)


def uploads_of(name: str) -> tuple[str, str]:
    """Return the prefix of the records of somebody's uploads, and the key of their guard."""
    owner = quote(name, safe="")
    return f"{UPLOADS_PREFIX}{owner}/", f"{_GUARDS_PREFIX}{owner}"


def _key_of(owner: str, digest: str) -> str:
    return f"{UPLOADS_PREFIX}{owner}/{digest}"
