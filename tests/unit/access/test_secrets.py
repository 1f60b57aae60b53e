"""Which variables and files may be secrets, and what is said of those that cannot."""

import os
from pathlib import Path

import pytest

from lcm.model.access.secret import Secret
from lcm.model.base.errors import LcmError, Stuck
from lcm.providers.local.secrets import MAX_BYTES, EnvSecrets, FileSecrets
from lcm.providers.protocols.secrets import Secrets, SecretSources

ENVIRONMENT = {"CML_ADMIN_PASSWORD": "swordfish", "CML_EMPTY": "", "AWS_SECRET_ACCESS_KEY": "hunter2"}


async def refused(secrets: Secrets, ref: str) -> Stuck:
    with pytest.raises(Stuck) as caught:
        await secrets.reveal(ref)
    assert not any(word in str(caught.value) for word in ("swordfish", "hunter2"))
    return caught.value


def env() -> EnvSecrets:
    return EnvSecrets(ENVIRONMENT, allowed=("CML_*", "LCM_SECRET_*"))


async def test_a_variable_is_a_secret_if_its_name_is_allowed() -> None:
    assert await env().reveal("env:CML_ADMIN_PASSWORD") == Secret("swordfish")
    forbidden = await refused(env(), "env:AWS_SECRET_ACCESS_KEY")
    assert forbidden.reason == "SecretNotAllowed"
    assert "CML_*, LCM_SECRET_*" in str(forbidden)


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("env:CML_OTHER", "SecretMissing"),
        ("env:CML_EMPTY", "SecretEmpty"),
        ("env:cml_admin_password", "SecretNotAllowed"),
        ("env:", "SecretUnreadable"),
        ("env:swordfish is my password", "SecretUnreadable"),
        ("env:CML_ADMIN_PASSWORD\n", "SecretUnreadable"),
    ],
)
async def test_a_variable_that_is_no_secret_says_why(ref: str, reason: str) -> None:
    assert (await refused(env(), ref)).reason == reason


async def test_a_reference_of_no_known_form_is_not_repeated() -> None:
    sources = SecretSources({"env": env()})
    assert await sources.reveal("env:CML_ADMIN_PASSWORD") == Secret("swordfish")
    for ref in ("swordfish", "plain:swordfish", "aws:swordfish", "", ":", "ENV:CML_ADMIN_PASSWORD"):
        assert (await refused(sources, ref)).reason == "SecretNotAllowed"


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b"swordfish", "swordfish"),
        (b"swordfish\n", "swordfish"),
        (b"swordfish\r\n", "swordfish"),
        (b"swordfish\n\n", "swordfish\n"),
        (b" sword fish ", " sword fish "),
        ("schlüssel\n".encode(), "schlüssel"),
        (b"x" * MAX_BYTES, "x" * MAX_BYTES),
    ],
)
async def test_a_file_is_its_text_without_its_last_line_break(tmp_path: Path, data: bytes, want: str) -> None:
    (tmp_path / "word").write_bytes(data)
    assert await FileSecrets([tmp_path]).reveal(f"file:{tmp_path}/word") == Secret(want)


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n"])
async def test_an_empty_file_is_no_secret(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "word").write_bytes(data)
    assert (await refused(FileSecrets([tmp_path]), f"file:{tmp_path}/word")).reason == "SecretEmpty"


@pytest.mark.parametrize("data", [b"swordfish\xff", b"\xed\xa0\x80", b"x" * (MAX_BYTES + 1)])
async def test_a_file_that_is_no_text_or_too_long_is_no_secret(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "word").write_bytes(data)
    assert (await refused(FileSecrets([tmp_path]), f"file:{tmp_path}/word")).reason == "SecretUnreadable"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
async def test_a_file_that_others_can_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "word"
    path.write_text("swordfish")
    path.chmod(mode)
    assert (await refused(FileSecrets([tmp_path]), f"file:{path}")).reason == "SecretExposed"
    path.chmod(0o444)
    assert await FileSecrets([tmp_path]).reveal(f"file:{path}") == Secret("swordfish")


async def test_only_files_below_the_folders_allowed_are_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "word").write_text("swordfish")
    (inside / "out").symlink_to(outside / "word")
    (inside / "in").symlink_to(inside / "word")
    secrets = FileSecrets([inside])
    for ref in (f"file:{outside}/word", f"file:{inside}/out", f"file:{inside}/../out/word", f"file:{tmp_path}/inword"):
        assert (await refused(secrets, ref)).reason == "SecretNotAllowed"
    for ref in (f"file:{inside}/word", f"file:{inside}/in", f"file://{inside}/word", f"file:{inside}/./word"):
        assert await secrets.reveal(ref) == Secret("swordfish")


async def test_links_lead_to_secrets_as_container_platforms_show_them(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "word").write_text("swordfish")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "word").symlink_to("..data/word")
    assert await FileSecrets([tmp_path]).reveal(f"file:{tmp_path}/word") == Secret("swordfish")


async def test_what_is_not_a_file_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "word").write_text("swordfish")
    secrets = FileSecrets([tmp_path])
    for name, reason in (
        ("folder", "SecretUnreadable"),
        ("pipe", "SecretUnreadable"),
        ("loop", "SecretUnreadable"),
        ("missing", "SecretMissing"),
        ("word/below", "SecretMissing"),
        ("", "SecretUnreadable"),
    ):
        assert (await refused(secrets, f"file:{tmp_path}/{name}")).reason == reason, name


@pytest.mark.parametrize("ref", ["file:", "file:word", "file:./word", "file:~/word", "file:/a\0b", "file:/a\nb"])
async def test_a_path_must_begin_at_the_root(ref: str) -> None:
    assert (await refused(FileSecrets([Path("/")]), ref)).reason == "SecretUnreadable"


async def test_no_folder_allowed_means_no_file(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("swordfish")
    assert "none" in str(await refused(FileSecrets([]), f"file:{tmp_path}/word"))


async def test_a_name_that_no_disk_takes_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(LcmError):
        await FileSecrets([tmp_path]).reveal(f"file:{tmp_path}/{'x' * 300}")
