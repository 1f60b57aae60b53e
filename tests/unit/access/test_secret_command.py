"""`lcm secret` as a person uses it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.api_world import ApiServer, Shell, served, shell
from harness.credentials import OLD, given_keys
from harness.documents import document
from lcm.model.access.secret import Secret, fingerprint_of

WORD = "swordfish"


@pytest.fixture(name="api", scope="module")
def serve_api() -> Iterator[ApiServer]:
    with served() as api:
        yield api


@pytest.mark.parametrize("text", [WORD, f"{WORD}\n", f"{WORD}\r\n"])
def test_what_is_piped_in_is_sealed(api: ApiServer, tmp_path: Path, text: str) -> None:
    sealed = shell(api, tmp_path).out("secret", "seal", "LabWorker.admin_password", stdin=text).strip()
    assert given_keys(OLD).unseal(sealed) == Secret(WORD)


def test_a_sealed_text_can_be_put_into_a_file(api: ApiServer, tmp_path: Path) -> None:
    person = shell(api, tmp_path)
    sealed = person.out("secret", "seal", "LabWorker.admin_password", stdin=WORD).strip()
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(document("LabWorker", cml={"admin_password": sealed})))
    assert "created" in person.out("apply", "-f", tmp_path / "w.yaml")
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(document("LabWorker", cml={"admin_password": f"plain:{WORD}"})))
    assert "unchanged" in person.out("apply", "-f", tmp_path / "w.yaml")
    shown = person.out("get", "worker", "w1", "-o", "yaml").replace("\n", "")
    assert sealed not in shown
    assert fingerprint_of(sealed) in shown
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(document("LabWorker", cml={"license_token": sealed})))
    refused = person.lcm("apply", "-f", tmp_path / "w.yaml")
    assert "sealed for LabWorker.admin_password, not for LabWorker.license_token" in refused.output


@pytest.mark.parametrize("text", ["", "\n", "x" * 3001, "é" * 2000])
def test_what_cannot_be_sealed_is_refused(api: ApiServer, tmp_path: Path, text: str) -> None:
    result = shell(api, tmp_path).lcm("secret", "seal", "LabWorker.admin_password", stdin=text)
    assert result.exit_code in {2, 5}
    assert "xxx" not in result.output


def test_rotation_says_what_it_did(api: ApiServer, tmp_path: Path) -> None:
    output = shell(api, tmp_path).out("secret", "rotate")
    assert "0 secrets encrypted again, 0 old keys deleted" in output
    refused = shell(api, tmp_path).lcm("secret", "rotate", "--drop-old")
    assert refused.exit_code == 5
    assert "LCM_SEAL_KEYS" in refused.output


@pytest.mark.parametrize("name", ["anna", "ada"])
@pytest.mark.parametrize("command", [("seal", "Sink.secret"), ("rotate",)])
def test_who_may_not_is_told_so(api: ApiServer, tmp_path: Path, name: str, command: tuple[str, ...]) -> None:
    assert shell(api, tmp_path, name).lcm("secret", *command, stdin=WORD).exit_code == 5


def test_with_nobody_to_ask_a_secret_in_clear_is_no_fault_of_a_file(tmp_path: Path) -> None:
    lonely = Shell(tmp_path)
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(document("LabWorker", cml={"admin_password": f"plain:{WORD}"})))
    result = lonely.lcm("apply", "-f", tmp_path / "w.yaml")
    assert "no API is configured" in result.output
    assert "admin_password" not in result.output
