"""Artifact stores for tests, each with what a test needs besides the protocol: files of a source, and bad disks."""

import uuid
from pathlib import Path
from typing import Protocol

from aiobotocore.session import AioSession

from harness.credentials import Authority
from lcm.providers.aws.s3 import S3Artifacts, S3Source
from lcm.providers.aws.s3_calls import S3Connection
from lcm.providers.local.directory import DirectoryArtifacts
from lcm.providers.local.files import FileSource
from lcm.providers.protocols.artifacts import Artifacts, digest_of
from lcm.sim.cloud.artifacts import SimulatedArtifacts, SimulatedSource
from lcm.system.clock import SystemClock

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
