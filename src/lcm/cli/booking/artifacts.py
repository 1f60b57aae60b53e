"""`lcm artifacts`: list or download what was collected from a session."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from lcm.cli.booking.extend import parse_session_name
from lcm.cli.output import connection, render
from lcm.cli.output.nouns import naming_missing, title_of
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace, Output, SessionName
from lcm.cli.output.printer import print_value
from lcm.cli.output.table import print_rows
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Gone
from lcm.model.kinds.session import Artifact, LabletSession
from lcm.system.clock import SystemClock

_UNITS: Final = ((1_000_000, "MB"), (1_000, "kB"))


def artifacts(
    words: SessionName,
    *,
    download: Annotated[
        str,
        typer.Option(
            "--download",
            metavar="PATH",
            help="Download to this folder; a single file also to a file, or - (standard output).",
        ),
    ] = "",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="FILE", help="Only files with this name; repeatable.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="Output format: table, name, json, yaml.")
    ] = Output.TABLE,
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """List what was collected from a session, or download it with --download.

    A session's lab is saved with its final configurations before it is removed, and kept for a while.
    """
    name = parse_session_name(words, "write `lcm artifacts NAME`, such as `lcm artifacts basics-x7k2p`")
    ref: Ref[LabletSession] = Ref(LabletSession, name, namespace)
    title = title_of(LabletSession, name)

    async def work(plane: Plane) -> None:
        with naming_missing(ref):
            found = await plane.artifacts(ref)
        for file in only or ():
            if file not in {one.name for one in found}:
                raise Gone(f"there is no file {file!r} of {title}, or it has expired")
        found = [one for one in found if not only or one.name in only]
        if not download:
            _print_list(found, title, output)
        elif not found:
            raise Gone(f"nothing was collected from {title}, or it has expired")
        else:
            await _download(plane, ref, _choose_paths(found, download, force=force))

    connection.with_plane(work, context)


def _print_list(found: Sequence[Artifact], title: str, output: Output) -> None:
    if output in {Output.JSON, Output.YAML}:
        print_value(found, output)
        return
    if output is Output.NAME:
        for one in found:
            render.print_line(render.sanitize(one.name))
        return
    if not found:
        render.print_message(f"nothing was collected from {title} so far, or it has expired")
        return
    now = SystemClock().now()
    rows = []
    for one in found:
        age, expires = render.format_age(one.collected_at, now), render.format_moment(one.expires_at)
        rows.append((one.name, format_size(one.size_bytes), age, expires, one.digest))
    print_rows(("NAME", "SIZE", "AGE", "EXPIRES", "DIGEST"), rows, now, whole=("NAME",))


def format_size(count: int) -> str:
    """Format a number of bytes in one unit."""
    for least, unit in _UNITS:
        if count >= least:
            return f"{count / least:.3g} {unit}"
    return f"{count} B"


def _choose_paths(found: Sequence[Artifact], where: str, *, force: bool) -> list[tuple[str, Path | None]]:
    """Choose where each file goes before any is downloaded; None is standard output."""
    folder = Path(where)
    if folder.is_dir() or where.endswith(os.sep):
        places: list[tuple[str, Path | None]] = [(one.name, folder / _check_file_name(one.name)) for one in found]
    elif len(found) > 1:
        raise typer.BadParameter(f"{len(found)} files need a folder; name a folder, or choose one file with --only")
    else:
        places = [(found[0].name, None if where == "-" else folder)]
    for _, path in places:
        if path is not None and path.exists() and not force:
            raise typer.BadParameter(f"{path} exists already; --force replaces it", param_hint="--download")
    return places


def _check_file_name(name: str) -> str:
    """Refuse a name that would lead out of the folder."""
    if name != Path(name).name or name in {"", ".", ".."} or render.UNSAFE.search(name):
        raise typer.BadParameter(
            f"{name!r} cannot be used as a file name; choose another with --only and --download FILE"
        )
    return name


async def _download(plane: Plane, ref: Ref[LabletSession], places: Sequence[tuple[str, Path | None]]) -> None:
    for name, path in places:
        data = await plane.download(ref, name)
        if path is None:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
        else:
            _write_file(path, data)
            render.print_line(f"{path} {format_size(len(data))}")


def _write_file(path: Path, data: bytes) -> None:
    """Write a file completely, or leave the existing one; only its owner can read it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lcm-") as folder:
            new = Path(folder) / "new"
            new.touch(mode=0o600)
            new.write_bytes(data)
            new.replace(path)
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror or error}"
        raise typer.BadParameter(problem, param_hint="--download") from error
