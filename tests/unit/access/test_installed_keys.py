"""The keys of an installation: read when they are needed, read anew when they change, and put to use by a process."""

import stat
from pathlib import Path

import pytest

from harness.credentials import NEW, OLD, given_keys, kept_keys
from harness.documents import document
from lcm.compose.process import run_embedded
from lcm.control.plane.protocol import Ref
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, Stuck
from lcm.model.kinds.worker import LabWorker
from lcm.providers.local.sealed import InstalledKeys, add_key, fingerprint, read_keys
from lcm.settings.load import Settings

WORD = Secret("swordfish")
ADMIN = Caller(name="ada", role=Role.ADMIN)
SERVICE = Caller(name="service", role=Role.SERVICE)


def test_nothing_is_read_before_it_is_needed(tmp_path: Path) -> None:
    keys = InstalledKeys(tmp_path / "seal.key")
    with pytest.raises(Stuck, match="does not exist"):
        keys.seal(WORD, "")
    with pytest.raises(Stuck, match="does not exist"):
        keys.unseal(given_keys().seal(WORD, ""))
    made = kept_keys(tmp_path)
    assert keys.unseal(made.seal(WORD, "")) == WORD


def test_a_key_that_somebody_adds_seals_at_once(tmp_path: Path) -> None:
    here, there = kept_keys(tmp_path), InstalledKeys(tmp_path / "seal.key")
    before = there.seal(WORD, "")
    assert here.grow()
    assert there.current == here.current != fingerprint(OLD)
    assert here.unseal(before) == there.unseal(here.seal(WORD, "")) == WORD


def test_a_file_that_others_may_read_is_not_used_any_longer(tmp_path: Path) -> None:
    keys = kept_keys(tmp_path)
    keys.seal(WORD, "")
    (tmp_path / "seal.key").chmod(0o644)
    with pytest.raises(Stuck, match="0600"):
        keys.seal(WORD, "")


def test_given_keys_win_over_the_file_and_are_checked_at_the_start(tmp_path: Path) -> None:
    kept_keys(tmp_path)
    add_key(tmp_path / "seal.key", NEW)
    assert given_keys(OLD).current == fingerprint(OLD)
    assert not given_keys(OLD).grow()
    with pytest.raises(Invalid, match="LCM_SEAL_KEYS"):
        InstalledKeys(tmp_path / "seal.key", given=Secret("swordfish"))


async def test_up_makes_a_key_of_its_own_and_reveals_what_it_sealed(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", port=0)
    for outcome in ("created", "unchanged"):
        async with run_embedded(settings) as it:
            plane = it.running.control.plane_for(ADMIN)
            worker = document("LabWorker", cml={"admin_password": "plain:swordfish"})
            assert [one.outcome for one in await plane.apply([worker])] == [outcome]
            stored = await it.running.control.plane_for(SERVICE).get(Ref(LabWorker, "w1"))
            assert stored is not None
            assert await it.running.secrets.reveal(stored.spec.cml.admin_password) == WORD
    file = tmp_path / "data" / "seal.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(read_keys(file)) == 1


async def test_references_lead_where_the_settings_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "swordfish")
    monkeypatch.setenv("HOMELY", "swordfish")
    (tmp_path / "word").write_text("swordfish\n")
    (tmp_path / "word").chmod(0o600)
    settings = Settings(
        data_dir=tmp_path / "data",
        port=0,
        cml_license_token=WORD,
        secret_file_dirs=(tmp_path,),
    )
    async with run_embedded(settings) as it:
        for ref in ("env:SECRET_OF_MINE", "env:CML_LICENSE_TOKEN", f"file:{tmp_path}/word"):
            assert await it.running.secrets.reveal(ref) == WORD
        for ref in ("env:HOMELY", "file:/etc/hostname", "plain:swordfish"):
            with pytest.raises(Stuck) as raised:
                await it.running.secrets.reveal(ref)
            assert raised.value.reason == "SecretNotAllowed"
            assert "swordfish" not in str(raised.value)
