"""`lcm backup` and `lcm restore` as a person runs them, beside and after `lcm up`."""

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from harness.api_world import Shell
from harness.commands import up
from harness.documents import document
from harness.session_world import SMALL
from harness.stores import opened
from lcm.cli.server import backup as command
from lcm.cli.server.backup import files_archive_of
from lcm.control.access.sign_in import SignIns
from lcm.control.access.tokens import SIGN_INS_PREFIX, Tokens
from lcm.control.objects.writer import Writer
from lcm.model.access.identity import Caller, Role
from lcm.providers.local.directory import DirectoryArtifacts
from lcm.settings.load import Settings
from lcm.store import backup as files
from lcm.system.clock import SystemClock
from lcm.system.data_folder import STORE_FILE

YAML = {"Content-Type": "text/yaml"}


async def test_a_backup_is_taken_beside_a_running_up_and_restored_when_it_is_gone(tmp_path: Path) -> None:
    file, data, person = tmp_path / "backup", f"--data={tmp_path / 'data'}", Shell(tmp_path / "config")
    with up(tmp_path) as it:
        async with it.ready().client() as client:
            assert (await client.post("/api/workers", json=document("LabWorker"))).status_code == 201
            lab = (await client.post("/api/topologies", content=SMALL, headers=YAML)).json()
            taken = await asyncio.to_thread(person.lcm, "backup", file, data)
            assert taken.exit_code == 0, taken.stderr
            assert re.search(rf"revision \d+, \d+ keys, {file.stat().st_size} bytes .*\b1 workers\b", taken.stdout)
            assert f"{files_archive_of(file)}: 1 lab files" in taken.stdout
            assert "Not in it: the keys of sealed secrets" in taken.stdout
            assert (await client.delete("/api/workers/w1")).status_code == 200
        refused = await asyncio.to_thread(person.lcm, "restore", file, data, "--yes")
        assert refused.exit_code == 5
        assert f"process {it.process.pid} runs" in refused.stderr
        assert it.stop()[0] == 0
    shutil.rmtree(tmp_path / "data" / "artifacts")
    restored = await asyncio.to_thread(person.lcm, "restore", file, data, "--yes")
    assert restored.exit_code == 0, restored.stderr
    assert f"{files_archive_of(file)}: 1 lab files and pieces of collected work restored" in restored.stdout
    kept = await DirectoryArtifacts.open(tmp_path / "data" / "artifacts", clock=SystemClock())
    assert await kept.get(lab["uri"]) == SMALL.encode()
    with up(tmp_path) as it:
        async with it.ready().client() as client:
            worker = (await client.get("/api/workers/w1")).json()
            assert worker["metadata"]["deletion_timestamp"] is None
        new = restored.stdout.partition("new epoch ")[2].split(":")[0]
        assert f"epoch {new}" in it.output


async def test_a_restore_waits_for_the_lease_of_a_killed_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, settings = tmp_path / "backup", Settings(data_dir=tmp_path)
    async with opened(tmp_path / STORE_FILE) as store:
        await files.write_backup(store, file, now=SystemClock().now())
        await store.acquire("processes/killed", "killed", ttl_seconds=2)
    await command._restore(settings, file, yes=True)
    told = capsys.readouterr()
    assert "processes/killed" in told.err
    assert "Restored" in told.out
    assert f"There is no {files_archive_of(file)}: lab files and collected work stay as they are" in told.out


async def test_a_restore_says_that_revoked_tokens_come_back_and_can_leave_all_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, settings, clock = tmp_path / "backup", Settings(data_dir=tmp_path), SystemClock()
    async with opened(tmp_path / STORE_FILE) as store:
        tokens = Tokens(store, clock=clock)
        _, made = await tokens.make("ada", Role.ADMIN)
        writer = Writer(store, clock, Caller(name="ada", role=Role.ADMIN))
        await SignIns(store, tokens, clock=clock).make_code("ada", Role.ADMIN, writer=writer)
        await files.write_backup(store, file, now=clock.now())
        await tokens.revoke(made.id)
    for drop, told in ((False, "1 tokens come back as they were then"), (True, "All 1 tokens are left out")):
        await command._restore(settings, file, yes=True, drop_tokens=drop)
        assert told in capsys.readouterr().out
        async with opened(tmp_path / STORE_FILE) as store:
            assert [one.id for one in await Tokens(store, clock=clock).list()] == ([] if drop else [made.id])
            assert not (await store.scan(SIGN_INS_PREFIX)).entries


def test_nothing_is_replaced_without_a_yes(tmp_path: Path) -> None:
    async def make_store() -> None:
        async with opened(tmp_path / "data" / STORE_FILE):
            pass

    (tmp_path / "data").mkdir(0o700)
    asyncio.run(make_store())
    desk, file, data = Shell(tmp_path), tmp_path / "backup", f"--data={tmp_path / 'data'}"
    desk.out("backup", file, data)
    refused = desk.lcm("restore", file, data)
    assert refused.exit_code == 5
    assert "--yes" in refused.stderr


def test_what_is_no_store_and_what_is_no_backup_is_told(tmp_path: Path) -> None:
    desk = Shell(tmp_path)
    refused = desk.lcm("backup", tmp_path / "backup", f"--data={tmp_path}")
    assert (refused.exit_code, "there is no store in this folder" in refused.stderr) == (5, True)
    assert not list(tmp_path.glob("lcm*"))
    (tmp_path / "photo").write_bytes(b"a photo")
    refused = desk.lcm("restore", tmp_path / "photo", f"--data={tmp_path / 'data'}", "--yes")
    assert (refused.exit_code, "it is no backup of this software" in refused.stderr) == (5, True)
    assert not (tmp_path / "data").exists()
