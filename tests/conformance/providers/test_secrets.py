"""What every source of secrets must do: variables, files, AWS Secrets Manager as moto plays it, and sealed texts."""

import os
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest
from aiobotocore.session import AioSession

from harness.servers import MotoServer
from harness.stores import REGION
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Stuck
from lcm.providers.aws.secrets import AwsSecrets
from lcm.providers.local.sealed import KeyRing
from lcm.providers.local.secrets import EnvSecrets, FileSecrets
from lcm.providers.protocols.secrets import SealedSecrets, Secrets, SecretSources
from lcm.system.clock import SystemClock, new_nonce, new_seal_key

WORD = "swordfish of conformance"


class Safe(Protocol):
    """A source, and how something gets into it."""

    secrets: Secrets
    missing: str

    async def keep(self, text: str) -> str:
        """Put a secret there; return its reference."""
        ...


class Environment:
    missing = "env:CML_MISSING"

    def __init__(self) -> None:
        self._variables = {"HOME": "/"}
        self.secrets: Secrets = EnvSecrets(self._variables, allowed=["CML_*"])

    async def keep(self, text: str) -> str:
        name = f"CML_{len(self._variables)}"
        self._variables[name] = text
        return f"env:{name}"


class Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.missing = f"file:{folder}/missing"
        self.secrets: Secrets = FileSecrets([folder])

    async def keep(self, text: str) -> str:
        path = self._folder / uuid.uuid4().hex
        path.write_text(text)
        return f"file:{path}"


class Aws:
    def __init__(self, secrets: AwsSecrets) -> None:
        self.manager = secrets
        self.secrets: Secrets = secrets
        self.missing = f"aws:lcm/{uuid.uuid4().hex}"

    async def keep(self, text: str) -> str:
        name = f"lcm/{os.getpid()}/{uuid.uuid4().hex}"
        await (await self.manager._get_client()).create_secret(Name=name, SecretString=text)
        return f"aws:{name}"


class Sealed:
    def __init__(self) -> None:
        self._ring = KeyRing([new_seal_key()], new_nonce=new_nonce)
        self.missing = KeyRing([new_seal_key()], new_nonce=new_nonce).seal(Secret(WORD), "")
        self.secrets: Secrets = SealedSecrets(self._ring)

    async def keep(self, text: str) -> str:
        return self._ring.seal(Secret(text), "")


@pytest.fixture
async def manager(moto: MotoServer, aws: AioSession) -> AsyncIterator[Aws]:
    opened = AwsSecrets(region=REGION, clock=SystemClock(), session=aws, endpoint_url=moto.url, allowed=("*",))
    yield Aws(opened)
    await opened.close()


@pytest.fixture(params=["env", "file", "aws", "sealed"])
def safe(request: pytest.FixtureRequest, tmp_path: Path) -> Safe:
    made: dict[str, Callable[[], Safe]] = {
        "env": Environment,
        "file": lambda: Folder(tmp_path),
        "aws": lambda: request.getfixturevalue("manager"),
        "sealed": Sealed,
    }
    return made[request.param]()


async def test_a_secret_is_revealed_as_often_as_it_is_asked_for(safe: Safe) -> None:
    ref = await safe.keep(WORD)
    sources = SecretSources({ref.partition(":")[0]: safe.secrets})
    assert await safe.secrets.reveal(ref) == await sources.reveal(ref) == Secret(WORD)


async def test_a_secret_that_is_not_there_needs_a_person(safe: Safe) -> None:
    with pytest.raises(Stuck) as caught:
        await safe.secrets.reveal(safe.missing)
    assert caught.value.reason in {"SecretMissing", "SealKeyMissing"}
    assert safe.missing[:18] in str(caught.value)


async def test_secrets_of_all_sizes_and_alphabets_come_back_as_they_were(safe: Safe) -> None:
    for text in ("x", " leading and trailing ", "schlüssel 🔑", "a\nb", "x" * 3000):
        assert await safe.secrets.reveal(await safe.keep(text)) == Secret(text)


async def test_aws_keeps_several_texts_in_one_secret(manager: Aws) -> None:
    ref = await manager.keep('{"token": "one", "pass.word": "two"}')
    assert await manager.secrets.reveal(f"{ref}#token") == Secret("one")
    assert await manager.secrets.reveal(f"{ref}#pass.word") == Secret("two")


async def test_an_aws_secret_can_be_named_by_its_arn(manager: Aws) -> None:
    ref = await manager.keep('{"token": "one"}')
    told = await (await manager.manager._get_client()).describe_secret(SecretId=ref.removeprefix("aws:"))
    assert await manager.secrets.reveal(f"aws:{told['ARN']}#token") == Secret("one")


async def test_an_aws_secret_about_to_be_deleted_is_missing(manager: Aws) -> None:
    ref = await manager.keep(WORD)
    await (await manager.manager._get_client()).delete_secret(SecretId=ref.removeprefix("aws:"))
    with pytest.raises(Stuck) as caught:
        await manager.secrets.reveal(ref)
    assert caught.value.reason == "SecretMissing"


async def test_an_aws_secret_of_bytes_is_not_a_text(manager: Aws) -> None:
    name = f"lcm/{uuid.uuid4().hex}"
    await (await manager.manager._get_client()).create_secret(Name=name, SecretBinary=b"\xff\x00")
    with pytest.raises(Stuck) as caught:
        await manager.secrets.reveal(f"aws:{name}")
    assert caught.value.reason == "SecretUnreadable"


async def test_closing_may_be_repeated(manager: Aws) -> None:
    ref = await manager.keep(WORD)
    await manager.manager.close()
    await manager.manager.close()
    assert await manager.secrets.reveal(ref) == Secret(WORD)
