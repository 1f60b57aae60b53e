"""The providers of a process: machines and their hypervisors, simulated or on AWS, secrets, artifacts, and mail.

Called by `compose` only. Names implementations. Artifacts are opened on first use, since most processes need none.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from lcm.control.delivery.sinks import make_mail_sink
from lcm.control.objects.cache import Cache
from lcm.model.base.clock import Clock
from lcm.model.kinds.sink import Sink
from lcm.model.topology.node_definitions import parse_node_size
from lcm.providers.local.sealed import InstalledKeys
from lcm.providers.local.secrets import EnvSecrets, FileSecrets
from lcm.providers.protocols.artifacts import MAX_BYTES, Artifacts, ArtifactSource, ListedArtifact, StoredArtifact
from lcm.providers.protocols.compute import Compute
from lcm.providers.protocols.labhost import Hosts
from lcm.providers.protocols.secrets import LazySecrets, SealedSecrets, Secrets, SecretSources
from lcm.settings.documents import referenced_secrets
from lcm.settings.load import Settings
from lcm.sim.cloud.fleet import SimFleet, SimHosts
from lcm.sim.cloud.patty_server import PattyServer, loopback_network
from lcm.sim.cml.patty_ports import MOST_PORTS
from lcm.sim.time.chance import Chance
from lcm.system.clock import SystemClock, new_epoch, open_file_limit
from lcm.system.tasks import Supervisor

if TYPE_CHECKING:
    from lcm.control.delivery.courier import DeliveryContext
    from lcm.providers.aws.clients import AwsClients, AwsIdentity
    from lcm.providers.aws.s3_calls import S3Connection
    from lcm.providers.aws.secrets import AwsSecrets


class LazyArtifacts:
    """A store that is opened on first use.

    Every verb may also raise what opening raises; the next call then tries to open it again.
    """

    def __init__(self, opening: Callable[[], Awaitable[Artifacts]]) -> None:
        self._open = opening
        self._opened: Artifacts | None = None
        self._lock = asyncio.Lock()

    async def put(self, data: bytes) -> StoredArtifact:
        return await (await self._need_store()).put(data)

    async def put_temporary(self, name: str, data: bytes) -> StoredArtifact:
        return await (await self._need_store()).put_temporary(name, data)

    async def get(self, uri: str, *, digest: str = "", limit_bytes: int = MAX_BYTES) -> bytes:
        return await (await self._need_store()).get(uri, digest=digest, limit_bytes=limit_bytes)

    async def find(self, uri: str) -> StoredArtifact | None:
        return await (await self._need_store()).find(uri)

    async def remove(self, uri: str, *, before: datetime | None = None) -> None:
        await (await self._need_store()).remove(uri, before=before)

    async def list_temporary(self) -> Sequence[ListedArtifact]:
        return await (await self._need_store()).list_temporary()

    async def list_stored(self, *, before: datetime) -> Sequence[ListedArtifact]:
        return await (await self._need_store()).list_stored(before=before)

    async def close(self) -> None:
        async with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def _need_store(self) -> Artifacts:
        async with self._lock:
            if self._opened is None:
                self._opened = await self._open()
            return self._opened


AWS: Final = "aws"
SIMULATED: Final = "simulated"
SIM_FILE: Final = "sim-cloud.json"
SIM_SECRETS: Final[Mapping[str, str]] = {"CML_ADMIN_PASSWORD": "admin", "CML_LICENSE_TOKEN": "simulated-licence-token"}
"""What the references of examples lead to on a simulated cloud, unless set; they open nothing real."""
_SIM_REGIONS: Final = ("us-east-1", "us-east-2", "us-west-2", "eu-west-1", "eu-central-1")
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Providers:
    """The outside world that controllers act on."""

    cloud: Compute
    hosts: Hosts
    artifacts: Artifacts
    speed: float = 1.0
    """How fast the time of machines runs."""
    fleet: SimFleet | None = None
    """The simulated account, if the cloud is simulated."""


def simulated_ports() -> int:
    """Return how many ports of simulated machines are open at most: each is a file of this process."""
    return min(MOST_PORTS, open_file_limit() // 2)


@asynccontextmanager
async def open_simulated(
    settings: Settings, parts: Supervisor, *, owner: str, speed: float = 1.0, file: Path | None = None
) -> AsyncIterator[Providers]:
    """Run a simulated cloud; with a file, its state outlives the process."""
    regions = dict.fromkeys([settings.aws_region, *settings.worker_discovery_regions, *_SIM_REGIONS])
    chance = Chance(new_epoch())
    fleet = await asyncio.to_thread(
        lambda: SimFleet(
            SystemClock(),
            chance,
            owner=owner,
            regions=regions,
            speed=speed,
            file=file,
            network=loopback_network(owner),
            node_sizes=dict(map(parse_node_size, settings.node_sizes)),
        )
    )
    if file is None:
        _log.warning("simulated cloud ends with this process")
    hosts = SimHosts(fleet.cloud, on_use=fleet.mark_unsaved)
    parts.start("simulated cloud", fleet.run())
    parts.start("simulated ports", PattyServer(fleet, most=simulated_ports()).run())
    async with artifact_store(settings) as artifacts:
        try:
            yield Providers(fleet.cloud, hosts, artifacts, speed, fleet)
        finally:
            await hosts.close()


@asynccontextmanager
async def open_aws(settings: Settings, secrets: Secrets, *, owner: str) -> AsyncIterator[Providers]:
    """Connect EC2 and the CML on its machines; nothing is sent before the first call."""
    from lcm.providers.aws.ec2 import Ec2  # noqa: PLC0415 - likewise
    from lcm.providers.cml.host import CmlHosts  # noqa: PLC0415 - slow to load, and a simulated cloud needs none

    cloud = Ec2(_aws_clients(settings), SystemClock(), owner=owner, image_owners=settings.ec2_image_owners)
    hosts = CmlHosts(secrets)
    async with artifact_store(settings) as artifacts:
        try:
            yield Providers(cloud, hosts, artifacts)
        finally:
            await hosts.close()
            await cloud.close()


async def aws_identity(settings: Settings) -> "AwsIdentity":
    """Ask AWS whose credentials these are. Raises Stuck when AWS does not accept them."""
    clients = _aws_clients(settings)
    try:
        return await clients.identity(settings.aws_region)
    finally:
        await clients.close()


@asynccontextmanager
async def secret_sources(
    settings: Settings, keys: InstalledKeys, beneath: Mapping[str, str] | None = None
) -> AsyncIterator[SecretSources]:
    """Open the sources that resolve secret references; `beneath` holds values of variables that are not set."""
    said = {name: secret.reveal() for name, secret in referenced_secrets(settings).items()}
    sources: dict[str, Secrets] = {
        "env": EnvSecrets({**(beneath or {}), **environ, **said}, allowed=settings.secret_env_allowed),
        "file": FileSecrets(settings.secret_file_dirs),
        "aws": (aws := LazySecrets(lambda: _aws_secrets(settings))),
        "sealed": SealedSecrets(keys),
    }
    try:
        yield SecretSources(sources)
    finally:
        await aws.close()


@asynccontextmanager
async def artifact_store(settings: Settings) -> AsyncIterator[Artifacts]:
    """Open the artifact store of the settings, on first use; one process may open several."""
    artifacts = LazyArtifacts(lambda: _open_artifacts(settings))
    try:
        yield artifacts
    finally:
        await artifacts.close()


async def _open_artifacts(settings: Settings) -> Artifacts:
    from lcm.providers.local.directory import DirectoryArtifacts  # noqa: PLC0415 - few processes need it
    from lcm.providers.local.files import FileSource  # noqa: PLC0415 - likewise

    bucket, allowed = settings.artifacts_s3_bucket, settings.artifacts_s3_allowed
    sources: list[ArtifactSource] = [FileSource(settings.artifacts_file_dirs)]
    if bucket or allowed:
        from lcm.providers.aws.s3 import S3Artifacts, S3Source  # noqa: PLC0415 - slow to load, and few processes need it

        wire = await _open_s3(settings)
        sources.append(S3Source(wire, allowed))
        if bucket:
            return S3Artifacts(wire, bucket, prefix=settings.artifacts_s3_prefix, sources=sources)
    root = artifacts_folder(settings)
    return await DirectoryArtifacts.open(root, clock=SystemClock(), sources=sources)


def artifacts_folder(settings: Settings) -> Path:
    """Return the folder in which files are kept, unless a bucket is named for them."""
    return settings.artifacts_dir or settings.data_dir / "artifacts"


async def _open_s3(settings: Settings) -> "S3Connection":
    from lcm.providers.aws.s3_calls import S3Connection  # noqa: PLC0415 - likewise

    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    keys = (key.reveal(), secret.reveal()) if key and secret else None
    return await S3Connection.open(
        region=settings.aws_region, endpoint_url=settings.artifacts_s3_endpoint or "", keys=keys
    )


def mail_sinks(settings: Settings) -> Sequence[Sink]:
    """Return the sink under which mail is listed, if there is a mail server."""
    return [make_mail_sink(settings.smtp_host, settings.smtp_port)] if settings.smtp_host else []


def make_notices(
    settings: Settings, cache: Cache, clock: Clock
) -> "Callable[[DeliveryContext], Coroutine[Any, Any, None]] | None":
    """Make what sends notices by mail; None without a mail server."""
    if settings.smtp_host is None or settings.mail_from is None:
        return None
    from lcm.control.notices.delivery import NoticeDelivery  # noqa: PLC0415 - slow to load, and few send mail
    from lcm.control.notices.texts import MailStyle  # noqa: PLC0415 - likewise
    from lcm.providers.mail.smtp import SmtpMailer, SmtpServer  # noqa: PLC0415 - likewise

    server = SmtpServer(
        host=settings.smtp_host,
        port=settings.smtp_port,
        starttls=settings.smtp_starttls,
        user=settings.smtp_user or "",
        password=settings.smtp_password,
        ca_file=settings.smtp_ca_file,
        sender=settings.mail_from,
        sender_name=settings.mail_from_name,
    )
    style = MailStyle(settings.mail_from, settings.public_url or "", settings.mail_time_zone)
    mailer = SmtpMailer(server, clock=clock)
    return NoticeDelivery(cache, mailer, style, mails_per_minute=settings.mail_per_minute).run


def _aws_clients(settings: Settings) -> "AwsClients":
    from lcm.providers.aws.clients import AwsClients, AwsKeys  # noqa: PLC0415 - likewise

    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    return AwsClients(keys=AwsKeys(key.reveal(), secret.reveal()) if key and secret else None)


def _aws_secrets(settings: Settings) -> "AwsSecrets":
    from lcm.providers.aws.secrets import AwsSecrets  # noqa: PLC0415 - slow to load, and few processes need it

    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    keys = (key, secret) if key and secret else None
    return AwsSecrets(region=settings.aws_region, clock=SystemClock(), keys=keys, allowed=settings.secret_aws_allowed)
