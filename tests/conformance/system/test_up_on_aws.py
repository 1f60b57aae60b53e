"""`lcm up --cloud aws` on an AWS made up by moto: it says whose account it is and what it may cost, and asks."""

from pathlib import Path

import pytest

from harness import suite
from harness.api_world import Shell
from harness.commands import Running, lcm
from harness.servers import ACCOUNT, MotoServer
from lcm.compose.outside import aws_identity
from lcm.model.access.secret import Secret
from lcm.settings.load import Settings

EXAMPLES = suite.ROOT / "examples" / "first"


def said(moto: MotoServer) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": moto.url, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


async def test_aws_is_asked_whose_credentials_these_are(moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Secret("testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
    who = await aws_identity(Settings(aws_access_key_id=key, aws_secret_access_key=key))
    assert who.account == ACCOUNT
    assert who.arn.startswith("arn:aws:")


def test_nothing_is_done_in_a_real_account_when_nobody_is_there_to_agree(tmp_path: Path, moto: MotoServer) -> None:
    refused = lcm(tmp_path, "up", "--port=0", "--cloud=aws", "--data", tmp_path / "data", **said(moto))
    assert refused.returncode == 5, refused.stderr
    assert f"AWS account {ACCOUNT}" in refused.stdout
    assert "at most   0.00 USD an hour" in refused.stdout
    assert "add --yes" in refused.stderr


def test_who_agreed_is_told_what_it_may_cost_and_machines_are_launched_there(tmp_path: Path, moto: MotoServer) -> None:
    data = f"--data={tmp_path / 'data'}"
    with Running(tmp_path, "up", "--port=0", data, "--cloud=aws", "--yes", **said(moto)) as it:
        it.ready()
        assert "machines there cost money" in it.output
        person = Shell(tmp_path / "config")
        person.out("apply", "-f", EXAMPLES / "worker.yaml")
        waited = person.lcm("wait", "worker", "workshop", "--for=condition=EC2Provisioned", "--timeout=60s")
        assert waited.exit_code == 0, it.output
        assert it.stop()[0] == 0, it.output
    with Running(tmp_path, "up", "--port=0", data, "--cloud=aws", "--yes", **said(moto)) as it:
        it.ready()
        assert "worker workshop: up to 1, 0.86 USD an hour each" in it.output
        assert "at most   0.86 USD an hour, by AWS's prices of" in it.output
