"""`lcm backup` and `lcm restore`: the whole store through a file, and lab files and collected work through another."""

import asyncio
import io
import os
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from lcm.cli.output.render import out, say
from lcm.cli.server.up import Data, with_options
from lcm.compose.api import open_store
from lcm.compose.outside import artifact_store, artifacts_folder
from lcm.control.upkeep.installation import TTL_SECONDS
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Gone, Invalid, Refused, Stuck, TooLarge
from lcm.providers.protocols.artifacts import Address, Artifacts, check_digest, digest_of, named, parse
from lcm.settings import load
from lcm.settings.load import Settings
from lcm.store import backup as files
from lcm.store.backup import Contents
from lcm.store.base import Store, everything
from lcm.system import log
from lcm.system.clock import SystemClock, new_epoch
from lcm.system.data_folder import STORE, claimed

SUFFIX: Final = ".files.tar"
_DIGESTS, _NAMES = "sha256/", "tmp/"
_AHEAD: Final = timedelta(days=1)
"""What was stored a moment ago by a clock that is ahead counts too."""
_REMEDY: Final = "use another backup, or move this file away to restore without files; the store was not changed"


@dataclass
class Saved:
    """How many files there are in an archive, how large they are, and which could not be read."""

    count: int = 0
    size_bytes: int = 0
    damaged: tuple[str, ...] = ()


def beside(file: Path) -> Path:
    """Say where the files of a backup are."""
    return file.with_name(file.name + SUFFIX)


async def save(artifacts: Artifacts, path: Path, *, clock: Clock) -> Saved:
    """Write every file into an archive that only its owner can read; it replaces what was there."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)  # what a crash left behind may be readable by others
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                saved = await _fill(archive, artifacts, clock)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        problem = f"it cannot be written: {error.strerror}"
        raise Invalid(Fault(str(path), problem, "choose a folder that exists, with room and rights")) from error
    return saved


async def bring_back(artifacts: Artifacts, path: Path) -> Saved:
    """Store every file of an archive again. One that is damaged, or holds anything else, is refused."""
    saved = Saved()
    try:
        with tarfile.open(path, mode="r:") as archive:
            for address, data in _contents(archive, path):
                stored = await (artifacts.put_temporary(address.name, data) if address.name else artifacts.put(data))
                saved.count += 1
                saved.size_bytes += stored.size_bytes
                await asyncio.sleep(0)
    except (OSError, tarfile.TarError) as error:
        raise Invalid(Fault(str(path), f"it cannot be read: {error}", _REMEDY)) from error
    return saved


async def _fill(archive: tarfile.TarFile, artifacts: Artifacts, clock: Clock) -> Saved:
    saved = Saved()
    listed = await artifacts.list_stored(before=clock.now() + _AHEAD)
    for one in (*listed, *await artifacts.list_temporary()):
        try:
            data = await artifacts.get(one.uri)
        except Gone:  # since it was listed
            continue
        except Stuck as error:
            saved.damaged += (str(error),)
            continue
        member = tarfile.TarInfo(_member(parse(one.uri)))
        member.size, member.mode, member.mtime = len(data), 0o600, int(one.stored_at.timestamp())
        archive.addfile(member, io.BytesIO(data))
        saved.count += 1
        saved.size_bytes += len(data)
    return saved


def _member(address: Address) -> str:
    return _NAMES + address.name if address.name else _DIGESTS + address.digest.partition(":")[2]


def _contents(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[Address, bytes]]:
    """Give each file and its address, proven where its name is its digest. Nothing is unpacked by its name."""
    for member in archive:
        opened = archive.extractfile(member) if member.isreg() else None
        address = _address(member.name) if opened else None
        if opened is None or address is None:
            raise Invalid(Fault(str(path), f"{member.name!r} in it is no file of ours", _REMEDY))
        data = opened.read()
        if address.digest and digest_of(data) != address.digest:
            raise Invalid(Fault(str(path), f"{member.name} in it is damaged", _REMEDY))
        yield address, data


def _address(name: str) -> Address | None:
    with suppress(Invalid):
        if name.startswith(_NAMES):
            return named(name.removeprefix(_NAMES))
        if name.startswith(_DIGESTS):
            return Address(digest=check_digest(f"sha256:{name.removeprefix(_DIGESTS)}"))
    return None


File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup's file.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_PATIENCE_SECONDS: Final = TTL_SECONDS + 5


def backup(file: File, data: Data = None) -> None:
    """Write everything that is stored, as it is at one moment, into a file. What runs may go on running.

    Lab files and collected work go into FILE.files.tar, unless they are in a bucket. Settings of the process are not in
    it. Sealed secrets stay sealed: keep a copy of their keys too, but elsewhere.
    """
    settings = _settings(data)
    asyncio.run(_backup(settings, file))


def restore(file: File, data: Data = None, *, yes: Yes = False) -> None:
    """Replace everything that is stored by what a backup holds. Every process must be stopped first.

    Lab files and collected work are added from FILE.files.tar, if that is there; none are removed.
    """
    settings = _settings(data)
    asyncio.run(_restore(settings, file, yes=yes))


async def _backup(settings: Settings, file: Path) -> None:
    check_there(settings)
    async with opened(settings) as store:
        await files.backup(store, file, now=SystemClock().now())
    out(f"{file}: {_described(await files.inspect(file))}")
    await _save_files(settings, beside(file))
    out(f"Not in it: {'; '.join(_left_out(settings))}.")


async def _save_files(settings: Settings, file: Path) -> None:
    """Save lab files and collected work, where they are on this machine."""
    if settings.artifacts_s3_bucket or not artifacts_folder(settings).is_dir():
        await asyncio.to_thread(file.unlink, missing_ok=True)  # of an earlier backup under this name
        return
    async with artifact_store(settings) as artifacts:
        saved = await save(artifacts, file, clock=SystemClock())
    out(f"{file}: {saved.count} lab files and pieces of collected work, {saved.size_bytes} bytes")
    for problem in saved.damaged:
        say(f"left out: {problem}")


def _left_out(settings: Settings) -> Iterator[str]:
    """Say what else somebody needs who has nothing but a backup."""
    yield "the keys of sealed secrets (keep a copy of them elsewhere)"
    yield "the settings of the process (file and environment)"
    if settings.artifacts_s3_bucket:
        yield f"lab files and collected work, which stay in the bucket {settings.artifacts_s3_bucket}"
    elif not artifacts_folder(settings).is_dir():
        yield f"lab files and collected work: there is no folder {artifacts_folder(settings)} on this machine"


async def _bring_back_files(settings: Settings, file: Path) -> None:
    if not await asyncio.to_thread(file.exists):
        out(f"{file} is not there: lab files and collected work stay as they are.")
        return
    async with artifact_store(settings) as artifacts:
        saved = await bring_back(artifacts, file)
    out(f"{file}: {saved.count} lab files and pieces of collected work brought back, {saved.size_bytes} bytes")


async def _restore(settings: Settings, file: Path, *, yes: bool) -> None:
    contents = await files.inspect(file)
    out(f"{file}: {_described(contents)}")
    out(f"  taken {contents.header.taken_at:%Y-%m-%d %H:%M:%S} UTC of epoch {contents.header.epoch}")
    async with AsyncExitStack() as undo:
        if settings.engine == "sqlite":
            undo.enter_context(claimed(settings.data_dir, alone=True))
        store = await undo.enter_async_context(opened(settings, restoring=True))
        present = await everything(store, "")
        _ask(
            f"Replace {len(present.entries)} keys at revision {present.revision} in {_where(settings)} by it?", yes=yes
        )
        await _bring_back_files(settings, beside(file))
        epoch = new_epoch()
        await _load(store, file, epoch, alone=settings.engine == "sqlite")
    out(f"Restored under the new epoch {epoch}: whoever followed events begins anew.")


async def _load(store: Store, file: Path, epoch: str, *, alone: bool) -> None:
    """Restore. Where nothing else can run, a held lease is that of a process that was killed, and ends by itself."""
    for second in range(_PATIENCE_SECONDS):
        try:
            await files.restore(store, file, epoch=epoch)
        except (Invalid, TooLarge):
            raise
        except Refused as error:
            if not alone:
                told = f"{error}. Leases of processes that were killed end within {TTL_SECONDS} seconds: repeat it then"
                raise Refused(told) from error
            if second == _PATIENCE_SECONDS - 1:
                raise
            if second == 0:
                say(f"A process that was killed left leases behind, which end within {TTL_SECONDS} seconds: {error}")
            await asyncio.sleep(1)
        else:
            return


def _ask(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused("there is nobody to ask: say --yes if everything in the store may be replaced")
    typer.confirm(question, abort=True)


def _described(contents: Contents) -> str:
    kinds = ", ".join(f"{count} {word}" for word, count in sorted(contents.keys.items())) or "nothing"
    count = sum(contents.keys.values())
    return f"revision {contents.header.revision}, {count} keys, {contents.size_bytes} bytes ({kinds})"


def _where(settings: Settings) -> str:
    if settings.engine == "sqlite":
        return str((settings.data_dir / STORE).absolute())
    return f"etcd at {', '.join(settings.etcd_addresses)} under {settings.etcd_root}"


def check_there(settings: Settings) -> None:
    """Raise Invalid rather than begin a store in a folder that has none."""
    if settings.engine == "sqlite" and not (settings.data_dir / STORE).exists():
        raise Invalid(
            Fault(str(settings.data_dir), "there is no store in this folder", "name the right one with --data")
        )


def _settings(data: Path | None) -> Settings:
    settings = with_options(load.load(), data_dir=data)
    log.set_up(settings.log_level)
    return settings


@asynccontextmanager
async def opened(settings: Settings, *, restoring: bool = False) -> AsyncIterator[Store]:
    """Open the store of the settings for one command. What runs on it may go on running."""
    store = await open_store(settings, restoring=restoring)
    try:
        yield store
    finally:
        await store.close()
