"""Lab files and collected work through an archive, between places of any sort."""

import io
import tarfile
from pathlib import Path

import pytest

from lcm.cli.server import backup
from lcm.model.base.errors import Invalid
from lcm.providers.local.directory import DirectoryArtifacts
from lcm.providers.protocols.artifacts import digest_of
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.system.clock import SystemClock

LAB, WORK = b"lab: {title: one}\n", b"lab: {title: as somebody left it}\n"
NAME = "collected/default/uid-s1/lab.yaml"
CLOCK = SystemClock()


async def test_what_is_saved_is_brought_back_anywhere_and_adds_to_what_is_there(tmp_path: Path) -> None:
    here, there = SimulatedArtifacts(CLOCK), await DirectoryArtifacts.open(tmp_path / "files", clock=CLOCK)
    stored, named = await here.put(LAB), await here.put_temporary(NAME, WORK)
    file = backup.files_archive_of(tmp_path / "backup")
    saved = await backup.save_files(here, file, clock=CLOCK)
    assert (saved.count, saved.size_bytes, saved.damaged) == (2, len(LAB) + len(WORK), ())
    assert file.stat().st_mode & 0o777 == 0o600
    other = await there.put(b"something else")
    assert (await backup.restore_files(there, file)).count == 2
    assert (await backup.restore_files(there, file)).count == 2, "it may be repeated"
    assert [await there.get(one.uri, digest=one.digest) for one in (stored, named)] == [LAB, WORK]
    assert await there.find(other.uri) is not None


async def test_a_damaged_file_is_left_out_and_told(tmp_path: Path) -> None:
    here = SimulatedArtifacts(CLOCK)
    await here.put(LAB)
    here.damage((await here.put_temporary(NAME, WORK)).uri)
    saved = await backup.save_files(here, tmp_path / "files.tar", clock=CLOCK)
    assert (saved.count, len(saved.damaged)) == (1, 1)
    assert NAME in saved.damaged[0]


@pytest.mark.parametrize(
    ("name", "data"),
    [("../../etc/passwd", LAB), ("tmp/../../x", LAB), ("sha256/" + digest_of(WORK)[7:], LAB), ("sha256/short", LAB)],
)
async def test_what_is_not_ours_or_altered_is_refused(tmp_path: Path, name: str, data: bytes) -> None:
    file, there = tmp_path / "files.tar", SimulatedArtifacts(CLOCK)
    with tarfile.open(file, "w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    with pytest.raises(Invalid, match="the store was not changed"):
        await backup.restore_files(there, file)
    assert await there.list_temporary() == []


async def test_what_is_cut_short_or_no_archive_is_refused(tmp_path: Path) -> None:
    here, file = SimulatedArtifacts(CLOCK), tmp_path / "files.tar"
    await here.put(LAB * 1000)
    await backup.save_files(here, file, clock=CLOCK)
    whole = file.read_bytes()
    for data in (whole[:5000], b"a photo"):
        file.write_bytes(data)
        with pytest.raises(Invalid):
            await backup.restore_files(SimulatedArtifacts(CLOCK), file)


async def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be written"):
        await backup.save_files(SimulatedArtifacts(CLOCK), tmp_path / "nowhere" / "files.tar", clock=CLOCK)
