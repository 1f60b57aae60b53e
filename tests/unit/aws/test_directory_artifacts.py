"""Artifacts in a folder, and labs in other folders: what only disks can do to them."""

import asyncio
import errno
import fcntl
import os
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from harness.stores import HandClock
from lcm.model.base.errors import Gone, Invalid, Later, Stuck, Throttled, TooLarge, Unreachable
from lcm.providers.local import directory
from lcm.providers.local.directory import DirectoryArtifacts
from lcm.providers.local.files import FileSource, translate_os_error
from lcm.providers.protocols.artifacts import ArtifactAddress, digest_of
from lcm.system.clock import SystemClock

LAB = b"lab:\n"
SECRET = b"of somebody else"
ESCAPES = [
    "file://",
    "file:///",
    "file://etc/passwd",
    "file://host/labs/a",
    "file://localhostlabs/a",
    "file:{labs}/a",
    "file:/{labs}/../secret",
    "file://{labs}",
    "file://{labs}/",
    "file://{labs}/../secret",
    "file://{labs}/./a",
    "file://{labs}//a",
    "file://{labs}/sub/../../secret",
    "file://{labs}/%2e%2e/secret",
    "file://{labs}/..%2fsecret",
    "file://{labs}%2f..%2fsecret",
    "file://{labs}/%2E%2E%5Csecret",
    "file://{labs}/..\\secret",
    "file://{labs}/a%00",
    "file://{labs}/a\0",
    "file://{labs}/a%0a",
    "file://{labs}/%c0%ae%c0%ae/secret",
    "file://{labs}/%ff",
    "file://{labs}/\uff0e\uff0e/secret",
    "file://{labs}/\u2025/secret",
    "file://{labs}/a\uff0f..\uff0f..\uff0fsecret",
    "file://{labs}/a\u202e",
    "file://{labs}/a\u200b",
    "file://{labs}/\ud800",
    "file://{labs}/a?x",
    "file://{labs}/a#x",
    "file:///C:/labs/a",
    "file:///c%3a/labs/a",
    "file:///etc/passwd",
    "file:///proc/self/environ",
    "file:///dev/zero",
    "file://{labs}-beside/secret",
    "file://{secret}",
    "file://{labs}/link",
    "file://{labs}/linked-folder/secret",
    "file://{labs}/broken",
    "file://{labs}/loop",
    "file://{labs}/sub",
    "file://{labs}/pipe",
    "file://{labs}/socket",
    "FILE://{labs}/a",
]


@pytest.fixture
async def store(tmp_path: Path) -> DirectoryArtifacts:
    return await DirectoryArtifacts.open(tmp_path / "root", clock=SystemClock())


@pytest.fixture
def labs(tmp_path: Path) -> Path:
    """Make a folder to read from, full of ways out of it."""
    folder = tmp_path / "labs"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "labs-beside").mkdir()
    (folder / "a").write_bytes(LAB)
    for path in (tmp_path / "secret", tmp_path / "labs-beside" / "secret"):
        path.write_bytes(SECRET)
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "linked-folder").symlink_to(tmp_path)
    (folder / "broken").symlink_to(tmp_path / "nowhere")
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "pipe")
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)
    return folder


async def test_no_address_leads_out_of_the_folder(tmp_path: Path, labs: Path) -> None:
    source = FileSource([labs])
    store = await DirectoryArtifacts.open(tmp_path / "root", clock=SystemClock(), sources=[source])
    for escape in ESCAPES:
        uri = escape.format(labs=labs, secret=tmp_path / "secret")
        with pytest.raises(Invalid):
            await store.get(uri)
        with pytest.raises(Invalid):  # nor when asked without the store's own check before it
            await source.read(uri, limit_bytes=1000)


async def test_files_below_the_folder_are_read_whatever_their_names(labs: Path) -> None:
    (labs / "sub" / "Übung 1%.yaml").write_bytes(LAB)
    (labs / "good-link").symlink_to("sub/Übung 1%.yaml")
    (labs.parent / "other-name").symlink_to(labs)
    for folder in (labs, labs.parent / "other-name"):
        source = FileSource([folder])
        for uri in (
            (folder / "sub" / "Übung 1%.yaml").as_uri(),
            f"file://localhost{folder}/sub/Übung%201%25.yaml",
            f"file://{folder}/good-link",
        ):
            assert source.allows(uri)
            assert (await source.read(uri, limit_bytes=100)).data == LAB


async def test_a_missing_file_is_gone_but_a_missing_folder_is_an_outage(labs: Path) -> None:
    source = FileSource([labs])
    for missing in ("b", "sub/b", "a/b"):
        with pytest.raises(Gone):
            await source.read(f"file://{labs}/{missing}", limit_bytes=100)
    unmount(labs)
    with pytest.raises(Unreachable):
        await source.read(f"file://{labs}/a", limit_bytes=100)


def unmount(folder: Path) -> None:
    folder.rename(folder.parent / "unmounted")


async def test_a_folder_exchanged_for_a_link_after_the_look_leads_nowhere(
    labs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "realpath", str)  # as if the links came a moment later
    source = FileSource([labs])
    for way, error in (("link", Invalid), ("linked-folder/secret", Gone)):
        with pytest.raises(error):
            await source.read(f"file://{labs}/{way}", limit_bytes=100)


async def test_a_file_that_is_longer_than_it_says_is_cut_off() -> None:
    with pytest.raises(TooLarge):  # such a file says that it is empty
        await FileSource([Path("/proc")]).read(f"file:///proc/{os.getpid()}/status", limit_bytes=10)


async def test_a_source_may_not_show_the_store_itself(tmp_path: Path) -> None:
    root, link = tmp_path / "root", tmp_path / "link"
    link.symlink_to(tmp_path)
    below = [root / name for name in ("tmp", "sha256", "sha256/3a", "incoming", "tmp/a")]
    for folder in (tmp_path, root, *below, Path("/"), link, link / "root", link / "root" / "sha256" / "3a"):
        for way in (root, link / "root"):
            with pytest.raises(Invalid, match="everybody"):
                await DirectoryArtifacts.open(way, clock=SystemClock(), sources=[FileSource([folder])])


async def test_a_source_may_be_beside_the_store_whatever_its_name(tmp_path: Path) -> None:
    sources = [FileSource([tmp_path / name]) for name in ("root-labs", "roo", "labs/root")]
    await DirectoryArtifacts.open(tmp_path / "root", clock=SystemClock(), sources=sources)
    assert not any(source.meets("s3://bucket/root") for source in sources)


async def test_a_name_that_no_disk_can_hold_is_no_outage(tmp_path: Path, labs: Path) -> None:
    for part in ("x" * 256, "ü" * 128, f"sub/{'x' * 256}/a"):
        with pytest.raises(Invalid, match="too long"):
            await FileSource([labs]).read(f"file://{labs}/{part}", limit_bytes=100)
    with pytest.raises(Invalid, match="too long"):
        await DirectoryArtifacts.open(tmp_path / ("x" * 256), clock=SystemClock())


async def test_only_its_owner_may_look_into_the_store(tmp_path: Path, store: DirectoryArtifacts) -> None:
    await store.put(LAB)
    await store.put_temporary("a/b:c", LAB)
    assert modes(tmp_path / "root") == {True: {0o600}, False: {0o700}}


def modes(root: Path) -> dict[bool, set[int]]:
    found: dict[bool, set[int]] = {}
    for path in (root, *root.rglob("*")):
        found.setdefault(path.is_file(), set()).add(path.stat().st_mode & 0o777)
    return found


async def test_a_link_or_a_folder_in_the_place_of_an_artifact_is_not_followed(
    tmp_path: Path, store: DirectoryArtifacts
) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "root" / "tmp" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "root" / "tmp" / "folder").mkdir()
    (tmp_path / "root" / "tmp" / "empty").touch()
    stored = await store.put(LAB)
    place = tmp_path / "root" / "sha256" / stored.digest[7:9] / stored.digest[7:]
    place.unlink()
    place.mkdir()
    for call in (store.get(stored.uri), store.find(stored.uri), store.put(LAB), store.remove(stored.uri)):
        with pytest.raises(Stuck):
            await call
    for name in ("link", "folder", "empty"):
        for call in (store.get(f"artifact://tmp/{name}"), store.find(f"artifact://tmp/{name}")):
            with pytest.raises(Stuck):
                await call
    await store.put_temporary("link", LAB)
    assert await store.get("artifact://tmp/link") == LAB
    assert (tmp_path / "secret").read_bytes() == SECRET


async def test_strangers_in_the_folder_are_not_listed(tmp_path: Path, store: DirectoryArtifacts) -> None:
    stored = await store.put(LAB)
    (tmp_path / "root" / "tmp" / ".DS_Store").touch()
    (tmp_path / "root" / "sha256" / "lost+found").mkdir()
    (tmp_path / "root" / "sha256" / "lost+found" / "x").touch()
    assert await store.list_temporary() == []
    listed = await store.list_stored(before=stored.stored_at + timedelta(hours=1))
    assert [one.uri for one in listed] == [stored.uri]


async def test_a_disk_that_is_not_mounted_is_an_outage_and_not_an_empty_store(
    tmp_path: Path, store: DirectoryArtifacts
) -> None:
    stored, temporary = await store.put(LAB), await store.put_temporary("s1", LAB)
    unmount(tmp_path / "root")
    (tmp_path / "root").mkdir()
    for call in (
        store.put(LAB),
        store.put_temporary("s1", LAB),
        store.get(stored.uri),
        store.get(temporary.uri),
        store.find(stored.uri),
        store.find(temporary.uri),
        store.remove(stored.uri),
        store.remove(temporary.uri),
        store.list_temporary(),
        store.list_stored(before=stored.stored_at + timedelta(hours=1)),
    ):
        with pytest.raises(Unreachable):
            await call
    assert list((tmp_path / "root").iterdir()) == []


async def test_storing_again_keeps_an_artifact_from_a_sweep_that_began_before(tmp_path: Path) -> None:
    clock = HandClock()
    store = await DirectoryArtifacts.open(tmp_path / "root", clock=clock)
    stored = await store.put(LAB)
    clock.step(days=2)
    limit = clock.now() - timedelta(days=1)
    (old,) = await store.list_stored(before=limit)
    again = await store.put(LAB)
    await store.remove(old.uri, before=limit)
    assert await store.find(stored.uri) == again
    assert again.stored_at == clock.now()


async def test_what_the_killed_left_is_swept_when_it_is_old(tmp_path: Path, store: DirectoryArtifacts) -> None:
    leftover = tmp_path / "root" / "incoming" / "half"
    leftover.write_bytes(b"half an art")
    await store.list_temporary()
    assert leftover.exists(), "somebody may still be writing it"
    await DirectoryArtifacts.open(tmp_path / "root", clock=SystemClock(), leftover_age=timedelta(0))
    assert not leftover.exists()


async def test_who_gave_up_does_not_replace_what_came_later(tmp_path: Path, store: DirectoryArtifacts) -> None:
    late = Event()
    late.set()
    await store.put_temporary("s1", b"newer")
    store._write(ArtifactAddress(name="s1"), b"older", SystemClock().now(), late)
    assert await store.get("artifact://tmp/s1") == b"newer"
    assert not list((tmp_path / "root" / "incoming").iterdir())


async def test_waiting_for_the_disk_does_not_hold_up_others(tmp_path: Path, store: DirectoryArtifacts) -> None:
    with (tmp_path / "root" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        storing = asyncio.create_task(store.put(LAB))
        for _ in range(10):
            await asyncio.sleep(0.005)
        assert not storing.done()
    stored = await storing
    assert await store.get(stored.uri) == LAB


async def test_a_lock_that_is_never_released_ends_the_wait(
    tmp_path: Path, store: DirectoryArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_LOCK_TRIES", 2)
    stored = await store.put(LAB)
    with (tmp_path / "root" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        await store.put(LAB)
        with pytest.raises(Later, match="locked"):
            await store.remove(stored.uri)
    assert not list((tmp_path / "root" / "incoming").iterdir())


FULL = """
import asyncio, pathlib, resource, sys
from lcm.model.base.errors import Later
from lcm.providers.local.directory import DirectoryArtifacts
from lcm.system.clock import SystemClock

async def main():
    store = await DirectoryArtifacts.open(pathlib.Path(sys.argv[1]), clock=SystemClock())
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    for call in (store.put(bytes(60_000)), store.put_temporary("s1", bytes(60_000))):
        try:
            await call
        except Later as error:
            print(error, error.after.total_seconds())
    print(await store.get((await store.put(b"small")).uri))

asyncio.run(main())
"""


def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    root = tmp_path / "root"
    said = subprocess.run([sys.executable, "-c", FULL, root], capture_output=True, text=True, check=True).stdout
    full = f"'{root}': the disk is full (EFBIG) 30.0\n"
    assert said == full + full + "b'small'\n"
    files = [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]
    assert [path.read_bytes() for path in files] == [b"small"]


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (errno.ENOSPC, Later, "disk is full"),
        (errno.EDQUOT, Later, "disk is full"),
        (errno.EACCES, Stuck, "denied"),
        (errno.EROFS, Stuck, "read-only"),
        (errno.EIO, Stuck, "fails"),
        (errno.ENOENT, Unreachable, "missing"),
        (errno.ESTALE, Unreachable, "does not answer"),
        (errno.ETIMEDOUT, Unreachable, "does not answer"),
        (errno.EMFILE, Unreachable, "does not answer"),
        (None, Unreachable, "does not answer"),
    ],
)
def test_what_the_system_says_is_told_by_what_to_do(number: int | None, error: type[Exception], text: str) -> None:
    told = translate_os_error(OSError(number, "x") if number else OSError(), Path("/data"))
    assert type(told) is error
    assert text in str(told)
    assert not isinstance(told, Throttled)


async def test_two_stores_may_share_a_folder(tmp_path: Path, store: DirectoryArtifacts) -> None:
    other = await DirectoryArtifacts.open(tmp_path / "root", clock=SystemClock())
    data = [b"%d" % number * 10_000 for number in range(20)]
    await asyncio.gather(*(one.put(text) for text in data for one in (store, other)))
    for text in data:
        assert await other.get(f"artifact://{digest_of(text)}") == text
