"""The outside world of a process: machines and their hypervisors, simulated or on AWS, secrets, and files.

Called by `compose` only. Names implementations, as that does.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from lcm.providers.local.sealed import InstalledKeys
from lcm.providers.protocols.artifacts import MAX_BYTES, Artifacts, Listed, Source, Stored
from lcm.providers.protocols.compute import Compute
from lcm.providers.protocols.labhost import Hosts
from lcm.providers.protocols.secrets import EnvSecrets, FileSecrets, Lazily, SealedSecrets, Secrets, SecretSources
from lcm.settings.documents import referred
from lcm.settings.load import Settings
from lcm.sim.cloud.fleet import Fleet, SimHosts
from lcm.sim.cloud.patty_server import PattyServer, home
from lcm.sim.cml.patty_ports import MOST_PORTS
from lcm.sim.time.chance import Chance
from lcm.system.clock import SystemClock, files_allowed, new_epoch
from lcm.system.tasks import Parts

if TYPE_CHECKING:
    from lcm.providers.aws.clients import AwsClients, Identity
    from lcm.providers.aws.s3_calls import S3Wire
    from lcm.providers.aws.secrets import AwsSecrets


class LazyArtifacts:
    """A store that is not open yet; every verb may also raise what opening it raises, and opens it again next time."""

    def __init__(self, opening: Callable[[], Awaitable[Artifacts]]) -> None:
        self._opening = opening
        self._opened: Artifacts | None = None
        self._turn = asyncio.Lock()

    async def put(self, data: bytes) -> Stored:
        return await (await self._store()).put(data)

    async def put_temporary(self, name: str, data: bytes) -> Stored:
        return await (await self._store()).put_temporary(name, data)

    async def get(self, uri: str, *, digest: str = "", limit_bytes: int = MAX_BYTES) -> bytes:
        return await (await self._store()).get(uri, digest=digest, limit_bytes=limit_bytes)

    async def find(self, uri: str) -> Stored | None:
        return await (await self._store()).find(uri)

    async def remove(self, uri: str, *, before: datetime | None = None) -> None:
        await (await self._store()).remove(uri, before=before)

    async def list_temporary(self) -> Sequence[Listed]:
        return await (await self._store()).list_temporary()

    async def list_stored(self, *, before: datetime) -> Sequence[Listed]:
        return await (await self._store()).list_stored(before=before)

    async def close(self) -> None:
        async with self._turn:
            opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def _store(self) -> Artifacts:
        async with self._turn:
            if self._opened is None:
                self._opened = await self._opening()
            return self._opened


AWS: Final = "aws"
SIMULATED: Final = "simulated"
SIM_FILE: Final = "sim-cloud.json"
SIM_SECRETS: Final[Mapping[str, str]] = {"CML_ADMIN_PASSWORD": "admin", "CML_LICENSE_TOKEN": "simulated-licence-token"}
"""What references of examples lead to on a simulated cloud, unless somebody says it; they open nothing real."""
_REGIONS: Final = ("us-east-1", "us-east-2", "us-west-2", "eu-west-1", "eu-central-1")
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Outside:
    """What controllers act on."""

    cloud: Compute
    hosts: Hosts
    artifacts: Artifacts
    speed: float = 1.0
    """How fast the time of machines goes."""
    fleet: Fleet | None = None
    """The simulated account, if it is one."""


@asynccontextmanager
async def simulated(
    settings: Settings, parts: Parts, *, owner: str, speed: float = 1.0, file: Path | None = None
) -> AsyncIterator[Outside]:
    """Make up a cloud; with a file, one that outlives the process."""
    regions = dict.fromkeys([settings.aws_region, *settings.worker_discovery_regions, *_REGIONS])
    chance = Chance(new_epoch())
    fleet = await asyncio.to_thread(
        lambda: Fleet(SystemClock(), chance, owner=owner, regions=regions, speed=speed, file=file, network=home(owner))
    )
    if file is None:
        _log.warning("simulated cloud ends with this process")
    hosts = SimHosts(fleet.cloud)
    parts.start("simulated cloud", fleet.run())
    parts.start("simulated ports", PattyServer(fleet, most=min(MOST_PORTS, files_allowed() // 2)).run())
    async with artifact_store(settings) as artifacts:
        try:
            yield Outside(fleet.cloud, hosts, artifacts, speed, fleet)
        finally:
            await hosts.close()


@asynccontextmanager
async def on_aws(settings: Settings, secrets: Secrets, *, owner: str) -> AsyncIterator[Outside]:
    """Reach EC2 and the CML on its machines; nothing is sent before somebody asks."""
    from lcm.providers.aws.ec2 import Ec2  # noqa: PLC0415 - likewise
    from lcm.providers.cml.host import CmlHosts  # noqa: PLC0415 - slow to load, and a simulated cloud needs none

    cloud = Ec2(_clients(settings), SystemClock(), owner=owner, image_owners=settings.ec2_image_owners)
    hosts = CmlHosts(secrets)
    async with artifact_store(settings) as artifacts:
        try:
            yield Outside(cloud, hosts, artifacts)
        finally:
            await hosts.close()
            await cloud.close()


async def aws_identity(settings: Settings) -> "Identity":
    """Ask AWS whose credentials these are. Raises Stuck when they are nobody's."""
    clients = _clients(settings)
    try:
        return await clients.identity(settings.aws_region)
    finally:
        await clients.close()


@asynccontextmanager
async def secret_sources(
    settings: Settings, keys: InstalledKeys, beneath: Mapping[str, str] | None = None
) -> AsyncIterator[SecretSources]:
    """Find secrets by reference; `beneath` is what variables hold that nobody has set."""
    said = {name: secret.reveal() for name, secret in referred(settings).items()}
    sources: dict[str, Secrets] = {
        "env": EnvSecrets({**(beneath or {}), **environ, **said}, allowed=settings.secret_env_allowed),
        "file": FileSecrets(settings.secret_file_dirs),
        "aws": (aws := Lazily(lambda: _aws_secrets(settings))),
        "sealed": SealedSecrets(keys),
    }
    try:
        yield SecretSources(sources)
    finally:
        await aws.close()


@asynccontextmanager
async def artifact_store(settings: Settings) -> AsyncIterator[Artifacts]:
    """Keep files where the settings say, from when somebody needs one; several of one process may do so."""
    artifacts = LazyArtifacts(lambda: _artifacts(settings))
    try:
        yield artifacts
    finally:
        await artifacts.close()


async def _artifacts(settings: Settings) -> Artifacts:
    from lcm.providers.local.directory import DirectoryArtifacts  # noqa: PLC0415 - few processes need it
    from lcm.providers.local.files import FileSource  # noqa: PLC0415 - likewise

    bucket, allowed = settings.artifacts_s3_bucket, settings.artifacts_s3_allowed
    sources: list[Source] = [FileSource(settings.artifacts_file_dirs)]
    if bucket or allowed:
        from lcm.providers.aws.s3 import S3Artifacts, S3Source  # noqa: PLC0415 - slow to load, and few processes need it

        wire = await _s3(settings)
        sources.append(S3Source(wire, allowed))
        if bucket:
            return S3Artifacts(wire, bucket, prefix=settings.artifacts_s3_prefix, sources=sources)
    root = artifacts_folder(settings)
    return await DirectoryArtifacts.open(root, clock=SystemClock(), sources=sources)


def artifacts_folder(settings: Settings) -> Path:
    """Say in which folder files are kept, unless a bucket is named for them."""
    return settings.artifacts_dir or settings.data_dir / "artifacts"


async def _s3(settings: Settings) -> "S3Wire":
    from lcm.providers.aws.s3_calls import S3Wire  # noqa: PLC0415 - likewise

    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    keys = (key.reveal(), secret.reveal()) if key and secret else None
    return await S3Wire.open(region=settings.aws_region, endpoint_url=settings.artifacts_s3_endpoint or "", keys=keys)


def _clients(settings: Settings) -> "AwsClients":
    from lcm.providers.aws.clients import AwsClients, Keys  # noqa: PLC0415 - likewise

    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    return AwsClients(keys=Keys(key.reveal(), secret.reveal()) if key and secret else None)


def _aws_secrets(settings: Settings) -> "AwsSecrets":
    from lcm.providers.aws.secrets import AwsSecrets  # noqa: PLC0415 - slow to load, and few processes need it

    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    keys = (key, secret) if key and secret else None
    return AwsSecrets(region=settings.aws_region, clock=SystemClock(), keys=keys)
