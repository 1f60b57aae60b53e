"""`lcm artifacts` and `lcm logs`: what a session leaves to its owner."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, served, shell
from lcm.cli.booking.artifacts import format_size
from lcm.control.objects.session_files import stored_name
from lcm.model.kinds.session import Artifact, LabletSession, SessionPhase
from lcm.providers.protocols.artifacts import digest_of
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.system.clock import SystemClock

FILES = {"lab.yaml": b"lab:\n  title: done\n", "notes.txt": b"n" * 2_500}


def entry(name: str, data: bytes) -> Artifact:
    now = SystemClock().now()
    expires = now + timedelta(days=30)
    return Artifact(name=name, digest=digest_of(data), size_bytes=len(data), collected_at=now, expires_at=expires)


def ended(files: dict[str, bytes]) -> LabletSession:
    listed = tuple(entry(name, data) for name, data in files.items())
    story = given.history("PENDING", "COMPLETED")
    return given.session(owner="ada", phase=SessionPhase.COMPLETED, artifacts=listed, history=story)


@pytest.fixture(name="api")
def api_with_files() -> Iterator[ApiServer]:
    store = SimulatedArtifacts(SystemClock())
    with served(artifacts=store) as api:
        session = ended(FILES)
        api.put(session, given.session(name="new", uid="uid-new", owner="ada"))
        for name, data in FILES.items():
            asyncio.run(store.put_temporary(stored_name(session, name), data))
        yield api


@pytest.fixture(name="desk")
def desk_of_ada(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path / "home", "ada")


def test_what_was_collected_is_listed(desk: Shell) -> None:
    heading, first, second = desk.out("artifacts", "s1").splitlines()
    assert heading.split() == ["NAME", "SIZE", "AGE", "EXPIRES", "DIGEST"]
    assert first.split()[:3] == ["lab.yaml", "19", "B"]
    assert second.split()[:3] == ["notes.txt", "2.5", "kB"]
    assert desk.out("artifacts", "session", "s1", "-o", "name") == "lab.yaml\nnotes.txt\n"
    assert '"name": "lab.yaml"' in desk.out("artifacts", "s/s1", "-o", "json")


def test_all_go_into_a_folder_and_replace_nothing_unasked(desk: Shell, tmp_path: Path) -> None:
    told = desk.out("artifacts", "s1", "--download", f"{tmp_path}/new/")
    assert told.splitlines() == [f"{tmp_path}/new/lab.yaml 19 B", f"{tmp_path}/new/notes.txt 2.5 kB"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == FILES
    (tmp_path / "new" / "lab.yaml").write_text("mine")
    assert desk.lcm("artifacts", "s1", "--download", tmp_path / "new").exit_code == 2
    assert (tmp_path / "new" / "lab.yaml").read_text() == "mine"
    desk.out("artifacts", "s1", "--download", tmp_path / "new", "--force")
    assert (tmp_path / "new" / "lab.yaml").read_bytes() == FILES["lab.yaml"]


def test_one_goes_to_a_file_or_to_standard_output(desk: Shell, tmp_path: Path) -> None:
    desk.out("artifacts", "s1", "--only", "lab.yaml", "--download", tmp_path / "mine.yaml")
    assert (tmp_path / "mine.yaml").read_bytes() == FILES["lab.yaml"]
    assert desk.out("artifacts", "s1", "--only", "lab.yaml", "--download", "-").encode() == FILES["lab.yaml"]
    assert desk.lcm("artifacts", "s1", "--download", tmp_path / "both").exit_code == 2
    assert desk.lcm("artifacts", "s1", "--only", "none.yaml").exit_code == 3
    assert desk.lcm("artifacts", "s1", "--only", "lab.yaml", "--download", "/proc/none/x").exit_code == 2


def test_nothing_collected_is_said(desk: Shell) -> None:
    result = desk.lcm("artifacts", "new")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing was collected from session/new so far" in result.stderr
    assert desk.lcm("artifacts", "new", "--download", "-").exit_code == 3


def test_nobody_else_learns_of_it(api: ApiServer, tmp_path: Path) -> None:
    bob = shell(api, tmp_path, "bob")
    for command in ("artifacts", "logs"):
        result = bob.lcm(command, "s1")
        assert (result.exit_code, "there is no session/s1" in result.stderr) == (3, True)


def test_a_name_that_leads_elsewhere_is_not_followed(api: ApiServer, desk: Shell, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    evil = given.with_fields(ended({"../evil": b"x"}), {"name": "evil", "uid": "uid-evil"})
    api.put(evil)
    assert desk.lcm("artifacts", "evil", "--download", tmp_path / "in").exit_code == 2
    assert not (tmp_path / "evil").exists()


def test_a_session_tells_its_story_line_by_line(desk: Shell) -> None:
    lines = desk.out("logs", "s1").splitlines()
    assert "PENDING" in lines[0]
    assert any("collected: lab.yaml, 19 bytes" in line for line in lines)
    assert desk.lcm("logs", "worker", "w1").exit_code == 2


@pytest.mark.parametrize(("count", "told"), [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (8_400_000, "8.4 MB")])
def test_sizes_are_written_in_one_unit(count: int, told: str) -> None:
    assert format_size(count) == told
