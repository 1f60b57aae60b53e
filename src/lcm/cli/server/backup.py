"""`lcm backup` and `lcm restore`: the whole store in one file, lab files and collected work in another next to it.

Files are stored before the store refers to them, so they are saved after the store and restored before it. Restoring
adds files and removes none, since no file is ever changed.
"""

import asyncio
import io
import os
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from lcm.cli.output.render import format_second, print_line, print_message
from lcm.cli.server.up import Data, with_options
from lcm.compose.api import open_store
from lcm.compose.outside import artifact_store, artifacts_folder
from lcm.control.access.tokens import SIGN_INS_PREFIX, TOKENS_PREFIX, USED_SIGN_INS_PREFIX
from lcm.control.upkeep.installation import PRESENCE_TTL_SECONDS
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Gone, Invalid, Refused, Stuck, TooLarge
from lcm.providers.protocols.artifacts import (
    ArtifactAddress,
    Artifacts,
    check_digest,
    digest_of,
    parse_address,
    temporary_address,
)
from lcm.settings import load
from lcm.settings.load import Settings
from lcm.store import backup as files
from lcm.store.backup import BackupContents
from lcm.store.base import Store, scan_all
from lcm.system import log
from lcm.system.clock import SystemClock, new_epoch
from lcm.system.data_folder import STORE_FILE, claim_folder, has_store

SUFFIX: Final = ".files.tar"
_DIGESTS, _NAMES = "sha256/", "tmp/"
_CLOCK_SKEW: Final = timedelta(days=1)
"""Files that were just stored by a clock that is ahead are included too."""
_REMEDY: Final = "use another backup, or move this file away to restore without files; the store was not changed"


@dataclass
class SavedFiles:
    """How many files an archive holds, how large they are, and which could not be read."""

    count: int = 0
    size_bytes: int = 0
    damaged: tuple[str, ...] = ()


def files_archive_of(file: Path) -> Path:
    """Return the path of the archive with a backup's files."""
    return file.with_name(file.name + SUFFIX)


async def save_files(artifacts: Artifacts, path: Path, *, clock: Clock) -> SavedFiles:
    """Write every file into an archive that only its owner can read; it replaces an earlier one."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)  # a file left by a crash may be readable by others
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                saved = await _fill_archive(archive, artifacts, clock)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        problem = f"it cannot be written: {error.strerror}"
        raise Invalid(Fault(str(path), problem, "choose a folder that exists, with room and rights")) from error
    return saved


async def restore_files(artifacts: Artifacts, path: Path) -> SavedFiles:
    """Store every file of an archive again; raise Invalid if it is damaged or holds anything else."""
    saved = SavedFiles()
    try:
        with tarfile.open(path, mode="r:") as archive:
            for address, data in _read_archive(archive, path):
                stored = await (artifacts.put_temporary(address.name, data) if address.name else artifacts.put(data))
                saved.count += 1
                saved.size_bytes += stored.size_bytes
                await asyncio.sleep(0)
    except (OSError, tarfile.TarError) as error:
        raise Invalid(Fault(str(path), f"it cannot be read: {error}", _REMEDY)) from error
    return saved


async def _fill_archive(archive: tarfile.TarFile, artifacts: Artifacts, clock: Clock) -> SavedFiles:
    saved = SavedFiles()
    listed = await artifacts.list_stored(before=clock.now() + _CLOCK_SKEW)
    for one in (*listed, *await artifacts.list_temporary()):
        try:
            data = await artifacts.get(one.uri)
        except Gone:  # deleted since it was listed
            continue
        except Stuck as error:
            saved.damaged += (str(error),)
            continue
        member = tarfile.TarInfo(_member_name(parse_address(one.uri)))
        member.size, member.mode, member.mtime = len(data), 0o600, int(one.stored_at.timestamp())
        archive.addfile(member, io.BytesIO(data))
        saved.count += 1
        saved.size_bytes += len(data)
    return saved


def _member_name(address: ArtifactAddress) -> str:
    return _NAMES + address.name if address.name else _DIGESTS + address.digest.partition(":")[2]


def _read_archive(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[ArtifactAddress, bytes]]:
    """Yield each file with its address; a name that is a digest is verified. Nothing is unpacked by its name."""
    for member in archive:
        opened = archive.extractfile(member) if member.isreg() else None
        address = _address_of(member.name) if opened else None
        if opened is None or address is None:
            raise Invalid(Fault(str(path), f"{member.name!r} in it is not a file of a backup", _REMEDY))
        data = opened.read()
        if address.digest and digest_of(data) != address.digest:
            raise Invalid(Fault(str(path), f"{member.name} in it is damaged", _REMEDY))
        yield address, data


def _address_of(name: str) -> ArtifactAddress | None:
    with suppress(Invalid):
        if name.startswith(_NAMES):
            return temporary_address(name.removeprefix(_NAMES))
        if name.startswith(_DIGESTS):
            return ArtifactAddress(digest=check_digest(f"sha256:{name.removeprefix(_DIGESTS)}"))
    return None


File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup's file.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DropTokens = Annotated[
    bool,
    typer.Option("--drop-tokens", help="Leave out all tokens: those revoked since the backup would be valid again."),
]
_LEASE_WAIT_SECONDS: Final = PRESENCE_TTL_SECONDS + 5


def backup(file: File, data: Data = None) -> None:
    """Write a consistent backup of the whole store to a file. The system may keep running.

    Lab files and collected work go into FILE.files.tar, unless they are in a bucket. Settings of the process are not
    included. Secrets stay encrypted: keep a copy of their keys in another place.
    """
    settings = _load_settings(data)
    asyncio.run(_backup(settings, file))


def restore(file: File, data: Data = None, *, drop_tokens: DropTokens = False, yes: Yes = False) -> None:
    """Replace the whole store by a backup. Stop every process first.

    Lab files and collected work are added from FILE.files.tar, if that exists; no files are removed. Tokens come back
    as they were, also those that were revoked since; sign-in links do not.
    """
    settings = _load_settings(data)
    asyncio.run(_restore(settings, file, yes=yes, drop_tokens=drop_tokens))


async def _backup(settings: Settings, file: Path) -> None:
    check_store_exists(settings)
    async with open_for_command(settings) as store:
        await files.write_backup(store, file, now=SystemClock().now())
    print_line(f"{file}: {_describe_contents(await files.inspect_backup(file))}")
    await _save_files(settings, files_archive_of(file))
    print_line(f"Not in it: {'; '.join(_not_included(settings))}.")


async def _save_files(settings: Settings, file: Path) -> None:
    """Save lab files and collected work if they are on this machine."""
    if settings.artifacts_s3_bucket or not artifacts_folder(settings).is_dir():
        await asyncio.to_thread(file.unlink, missing_ok=True)  # it belongs to an earlier backup of this name
        return
    async with artifact_store(settings) as artifacts:
        saved = await save_files(artifacts, file, clock=SystemClock())
    print_line(f"{file}: {saved.count} lab files and pieces of collected work, {saved.size_bytes} bytes")
    for problem in saved.damaged:
        print_message(f"left out: {problem}")


def _not_included(settings: Settings) -> Iterator[str]:
    """Yield what else a person needs who has nothing but a backup."""
    yield "the keys of sealed secrets (keep a copy in another place)"
    yield "the settings of the process (file and environment)"
    if settings.artifacts_s3_bucket:
        yield f"lab files and collected work, which stay in the bucket {settings.artifacts_s3_bucket}"
    elif not artifacts_folder(settings).is_dir():
        yield f"lab files and collected work: there is no folder {artifacts_folder(settings)} on this machine"


async def _restore_files(settings: Settings, file: Path) -> None:
    if not await asyncio.to_thread(file.exists):
        print_line(f"There is no {file}: lab files and collected work stay as they are.")
        return
    async with artifact_store(settings) as artifacts:
        saved = await restore_files(artifacts, file)
    print_line(f"{file}: {saved.count} lab files and pieces of collected work restored, {saved.size_bytes} bytes")


async def _restore(settings: Settings, file: Path, *, yes: bool, drop_tokens: bool = False) -> None:
    contents = await files.inspect_backup(file)
    print_line(f"{file}: {_describe_contents(contents)}")
    print_line(f"  taken {format_second(contents.header.taken_at)} of epoch {contents.header.epoch}")
    async with AsyncExitStack() as undo:
        if settings.engine == "sqlite":
            undo.enter_context(claim_folder(settings.data_dir, alone=True))
        store = await undo.enter_async_context(open_for_command(settings, restoring=True))
        present = await scan_all(store, "")
        tokens = contents.keys.get(TOKENS_PREFIX.rstrip("/"), 0)
        if tokens:
            print_line(_describe_tokens(tokens, dropped=drop_tokens))
        _confirm(
            f"Replace {len(present.entries)} keys at revision {present.revision} in {_store_location(settings)}?",
            yes=yes,
        )
        await _restore_files(settings, files_archive_of(file))
        epoch = new_epoch()
        without = [SIGN_INS_PREFIX, USED_SIGN_INS_PREFIX, *([TOKENS_PREFIX] if drop_tokens else [])]
        await _restore_store(store, file, epoch, alone=settings.engine == "sqlite", without=without)
    print_line(f"Restored under the new epoch {epoch}: clients that follow events start again.")


async def _restore_store(store: Store, file: Path, epoch: str, *, alone: bool, without: Sequence[str]) -> None:
    """Restore the store. If nothing else can run, a held lease is that of a killed process: wait until it expires."""
    for second in range(_LEASE_WAIT_SECONDS):
        try:
            await files.restore_backup(store, file, epoch=epoch, without=without)
        except (Invalid, TooLarge):
            raise
        except Refused as error:
            if not alone:
                ends = f"Leases of processes that were killed end within {PRESENCE_TTL_SECONDS} seconds"
                message = f"{error}. {ends}: repeat the command then"
                raise Refused(message) from error
            if second == _LEASE_WAIT_SECONDS - 1:
                raise
            if second == 0:
                print_message(
                    "A process that was killed left leases behind, "
                    f"which end within {PRESENCE_TTL_SECONDS} seconds: {error}"
                )
            await asyncio.sleep(1)
        else:
            return


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused("there is nobody to ask; add --yes to replace everything in the store")
    typer.confirm(question, abort=True)


def _describe_contents(contents: BackupContents) -> str:
    kinds = ", ".join(f"{count} {word}" for word, count in sorted(contents.keys.items())) or "nothing"
    count = sum(contents.keys.values())
    return f"revision {contents.header.revision}, {count} keys, {contents.size_bytes} bytes ({kinds})"


def _describe_tokens(count: int, *, dropped: bool) -> str:
    if dropped:
        return f"All {count} tokens are left out: `lcm token create NAME --role admin --offline` makes the first one."
    return (
        f"{count} tokens come back as they were then, also those that were revoked since:"
        " revoke them again, or leave all out with --drop-tokens."
    )


def _store_location(settings: Settings) -> str:
    if settings.engine == "sqlite":
        return str((settings.data_dir / STORE_FILE).absolute())
    return f"etcd at {', '.join(settings.etcd_addresses)} under {settings.etcd_root}"


def check_store_exists(settings: Settings) -> None:
    """Raise Invalid if the folder has no store, rather than create one; Stuck if it cannot be looked into."""
    if settings.engine == "sqlite" and not has_store(settings.data_dir):
        raise Invalid(
            Fault(str(settings.data_dir), "there is no store in this folder", "name the right one with --data")
        )


def _load_settings(data: Path | None) -> Settings:
    settings = with_options(load.load_settings(), data_dir=data)
    log.configure_logging(settings.log_level)
    return settings


@asynccontextmanager
async def open_for_command(settings: Settings, *, restoring: bool = False) -> AsyncIterator[Store]:
    """Open the store of the settings for one command. Other processes on it may keep running."""
    store = await open_store(settings, restoring=restoring)
    try:
        yield store
    finally:
        await store.close()
