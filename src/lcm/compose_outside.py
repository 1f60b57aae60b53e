"""The outside world of a process: machines and their hypervisors, simulated or on AWS, and where secrets are found.

Called by `compose` only. Names implementations, as that does.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from lcm.config import Settings
from lcm.config_documents import referred
from lcm.providers.compute import Compute
from lcm.providers.hosts import Hosts
from lcm.providers.installed_keys import InstalledKeys
from lcm.providers.secrets import EnvSecrets, FileSecrets, Lazily, SealedSecrets, Secrets, SecretSources
from lcm.sim.chance import Chance
from lcm.sim.fleet import Fleet
from lcm.sim.hosts import SimHosts
from lcm.supervise import Parts
from lcm.system import SystemClock, new_epoch

if TYPE_CHECKING:
    from lcm.providers.ec2_clients import AwsClients, Identity
    from lcm.providers.secrets_aws import AwsSecrets

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
        lambda: Fleet(SystemClock(), chance, owner=owner, regions=regions, speed=speed, file=file)
    )
    if file is None:
        _log.warning("simulated cloud ends with this process")
    hosts = SimHosts(fleet.cloud)
    parts.start("simulated cloud", fleet.run())
    try:
        yield Outside(fleet.cloud, hosts, speed, fleet)
    finally:
        await hosts.close()


@asynccontextmanager
async def on_aws(settings: Settings, secrets: Secrets, *, owner: str) -> AsyncIterator[Outside]:
    """Reach EC2 and the CML on its machines; nothing is sent before somebody asks."""
    from lcm.providers.cml_hosts import CmlHosts  # noqa: PLC0415 - slow to load, and a simulated cloud needs none
    from lcm.providers.ec2 import Ec2  # noqa: PLC0415 - likewise

    cloud = Ec2(_clients(settings), SystemClock(), owner=owner, image_owners=settings.ec2_image_owners)
    hosts = CmlHosts(secrets)
    try:
        yield Outside(cloud, hosts)
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


def _clients(settings: Settings) -> "AwsClients":
    from lcm.providers.ec2_clients import AwsClients, Keys  # noqa: PLC0415 - likewise

    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    return AwsClients(keys=Keys(key.reveal(), secret.reveal()) if key and secret else None)


def _aws_secrets(settings: Settings) -> "AwsSecrets":
    from lcm.providers.secrets_aws import AwsSecrets  # noqa: PLC0415 - slow to load, and few processes need it

    key, secret = settings.aws_access_key_id, settings.aws_secret_access_key
    keys = (key, secret) if key and secret else None
    return AwsSecrets(region=settings.aws_region, clock=SystemClock(), keys=keys)
