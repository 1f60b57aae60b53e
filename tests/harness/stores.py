"""Store engines and artifact stores for tests: opened as often as a test likes, cut off, slow, or on bad disks."""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from aiobotocore.session import AioSession

from harness.servers import Authority
from lcm.model.base.clock import Stopwatch
from lcm.model.base.errors import Gone, LcmError, Relist
from lcm.providers.aws.s3 import S3Artifacts, S3Source
from lcm.providers.aws.s3_calls import S3Connection
from lcm.providers.local.directory import DirectoryArtifacts
from lcm.providers.local.files import FileSource
from lcm.providers.protocols.artifacts import Artifacts, Content, check_size, digest_of
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.store.base import LEASES_PREFIX, CommitChanges, Lease, Put, Store, StoreWatch, scan_all
from lcm.store.etcd.engine import EtcdStore
from lcm.store.hub import BACKLOG
from lcm.store.memory import MemoryStore
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.clock import SystemClock


class HandClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 3, 29, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.moment

    def step(self, **span: float) -> None:
        self.moment += timedelta(**span)


class HandStopwatch:
    """A stopwatch that a test sets."""

    def __init__(self) -> None:
        self.elapsed = 1_000_000.0

    def seconds(self) -> float:
        return self.elapsed

    def step(self, seconds: float) -> None:
        self.elapsed += seconds


@contextlib.asynccontextmanager
async def opened(path: Path, stopwatch: Stopwatch | None = None) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, stopwatch=stopwatch)
    try:
        yield store
    finally:
        await store.close()


async def following(watch: StoreWatch, count: int) -> list[CommitChanges]:
    async with asyncio.timeout(60):
        return [await anext(watch) for _ in range(count)]


async def puts(*entries: Put) -> AsyncIterator[Put]:
    for entry in entries:
        yield entry


_serial = itertools.count()


class Arena(Protocol):
    """One state; `open` gives another client of it."""

    async def open(self, *, backlog: int = BACKLOG) -> Store: ...


class MemoryArena:
    """The memory engine has one process only: every client is the same object."""

    def __init__(self) -> None:
        self._store: MemoryStore | None = None

    async def open(self, *, backlog: int = BACKLOG) -> Store:
        self._store = self._store or MemoryStore(backlog=backlog)
        return self._store


class OpenedArena:
    """Every client is opened anew, and closed at the end."""

    def __init__(self, opener: Callable[[int], Awaitable[Store]]) -> None:
        self._opener = opener
        self._opened: list[Store] = []

    async def open(self, *, backlog: int = BACKLOG) -> Store:
        store = await self._opener(backlog)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


class SharedArena(OpenedArena):
    """Several arenas share one server, on which a lease that ran out during a later test would spend a revision."""

    async def close(self) -> None:
        store = await self.open()
        for entry in (await scan_all(store, LEASES_PREFIX)).entries:
            lease = await store.lease(entry.key.removeprefix(LEASES_PREFIX))
            if lease is not None:
                await store.release(lease)
        await super().close()


def sqlite_arena(folder: Path, *, alone: bool = False) -> OpenedArena:
    path = folder / f"store-{next(_serial)}.db"
    return OpenedArena(lambda backlog: SqliteStore.open(path, backlog=backlog, alone=alone))


def etcd_arena(endpoint: str) -> OpenedArena:
    root = f"/test-{next(_serial)}/"
    return SharedArena(lambda backlog: EtcdStore.open([endpoint], root=root, backlog=backlog, call_seconds=60))


class FallibleStore(MemoryStore):
    """While `down` is set, every verb raises it and has no effect; each takes `latency_seconds` before its effect."""

    def __init__(self, *, backlog: int = BACKLOG) -> None:
        super().__init__(backlog=backlog)
        self.down: LcmError | None = None
        self.latency_seconds = 0.0
        self.renewal_seconds = 0.0
        """How long the answer to a renewal is under way."""
        self.asked = 0

    def cut(self) -> None:
        """End every watch, as a reader that was too slow is told."""
        self.break_watches(Relist("cut by a test"))

    def break_watches(self, error: LcmError) -> None:
        """End every watch with an error."""
        self._hub.end(error)

    def holder(self, lease: str) -> str | None:
        """Return who holds a lease at this very moment."""
        held = self._leases.get(lease)
        return held.lease.holder if held else None

    async def renew(self, *leases: Lease) -> None:
        await super().renew(*leases)
        await asyncio.sleep(self.renewal_seconds)

    async def _suspend(self) -> None:
        await super()._suspend()
        self.asked += 1
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
        if self.down is not None:
            raise self.down


MAX_BYTES = 3_000_000
REGION = "eu-central-1"
KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"


def aws_session(folder: Path) -> AioSession:
    """Make a session with made-up credentials, and one authority to read for each client instead of the world's."""
    (folder / "authority.pem").write_bytes(Authority(folder).pem)
    session = AioSession()
    session.set_credentials(KEY, SECRET)
    session.set_config_variable("ca_bundle", str(folder / "authority.pem"))
    return session


class Depot(Protocol):
    """A store and what surrounds it."""

    artifacts: Artifacts
    missing: str
    """An address that a source may read, where nothing is."""

    async def publish(self, name: str, data: bytes) -> str:
        """Make a file that the store may read from its source; return its address."""
        ...

    async def damage(self, uri: str) -> None:
        """Change the bytes of a stored artifact behind the store's back."""
        ...


class SimulatedSource:
    """Made-up files and objects, by address."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def allows(self, uri: str) -> bool:
        return uri.startswith(("file://", "s3://"))

    def meets(self, uri: str) -> bool:
        return self.allows(uri)

    async def read(self, uri: str, *, limit_bytes: int) -> Content:
        await asyncio.sleep(0)
        data = self._files.get(uri)
        if data is None:
            raise Gone(f"{uri} does not exist")
        check_size(uri, len(data), limit_bytes)
        return Content(data, digest_of(data))

    async def close(self) -> None:
        return None


class MemoryDepot:
    """The simulation's store."""

    missing = "s3://labs/missing.yaml"

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._simulated = SimulatedArtifacts(SystemClock(), sources=[SimulatedSource(self._files)], max_bytes=MAX_BYTES)
        self.artifacts: Artifacts = self._simulated

    async def publish(self, name: str, data: bytes) -> str:
        self._files[f"s3://labs/{name}"] = data
        return f"s3://labs/{name}"

    async def damage(self, uri: str) -> None:
        self._simulated.damage(uri)


class DirectoryDepot:
    """A folder, and another one to read from."""

    def __init__(self, folder: Path, artifacts: Artifacts) -> None:
        self._folder = folder
        self.artifacts = artifacts
        self.missing = (folder / "labs" / "missing.yaml").as_uri()

    @classmethod
    async def open(cls, folder: Path) -> "DirectoryDepot":
        (folder / "labs").mkdir()
        source = FileSource([folder / "labs"])
        opened = await DirectoryArtifacts.open(
            folder / "artifacts", clock=SystemClock(), sources=[source], max_bytes=MAX_BYTES
        )
        return cls(folder, opened)

    async def publish(self, name: str, data: bytes) -> str:
        path = self._folder / "labs" / name
        path.write_bytes(data)
        return path.as_uri()

    async def damage(self, uri: str) -> None:
        name = uri.rpartition("/")[2].rpartition(":")[2]
        (path,) = (self._folder / "artifacts").rglob(name)
        path.write_bytes(path.read_bytes() + b"!")


class S3Depot:
    """A bucket of its own, and another one to read from."""

    def __init__(self, wire: S3Connection, bucket: str) -> None:
        self._wire = wire
        self._bucket = bucket
        self.missing = f"s3://{bucket}-labs/missing.yaml"
        self.artifacts: Artifacts = S3Artifacts(
            wire, bucket, prefix="lcm/", sources=[S3Source(wire, [f"{bucket}-labs"])], max_bytes=MAX_BYTES
        )

    @classmethod
    async def open(cls, url: str, session: AioSession) -> "S3Depot":
        wire = await S3Connection.open(region=REGION, endpoint_url=url, session=session)
        depot = cls(wire, f"b-{uuid.uuid4().hex}")
        for bucket in (depot._bucket, f"{depot._bucket}-labs"):
            await wire._client.create_bucket(
                Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
            )
        return depot

    async def publish(self, name: str, data: bytes) -> str:
        await self._wire._client.put_object(Bucket=f"{self._bucket}-labs", Key=name, Body=data)
        return f"s3://{self._bucket}-labs/{name}"

    async def damage(self, uri: str) -> None:
        data, digest = await self.artifacts.get(uri), digest_of(await self.artifacts.get(uri))
        key = f"lcm/{uri.removeprefix('artifact://').replace(':', '/')}"
        await self._wire._client.put_object(
            Bucket=self._bucket, Key=key, Body=data + b"!", Metadata={"sha256": digest.removeprefix("sha256:")}
        )
