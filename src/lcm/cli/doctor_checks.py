"""What `lcm doctor` finds on this machine: packages, settings, the data folder, the clock. Nothing is changed."""

import re
import shutil
import stat
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from importlib import metadata
from os import W_OK, access
from pathlib import Path
from typing import Final

import msgspec

from lcm.config import Configuration
from lcm.config_values import VARIABLES
from lcm.data_folder import open_to_others
from lcm.providers.directory import PARTS

PACKAGE: Final = "lablet-cloud-manager"
_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH
_LITTLE_BYTES, _TOO_LITTLE_BYTES = 1_000_000_000, 50_000_000
_YEARS: Final = range(2025, 2100)
_ASTRAY, _FAR_ASTRAY = timedelta(seconds=30), timedelta(minutes=5)


class State(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at, and what to do about it."""

    name: str
    state: State
    detail: str
    remedy: str = ""


def packages() -> Iterator[Check]:
    """Look for every package that this one needs."""
    found, missing = [], []
    for name in sorted(re.split(r"[^A-Za-z0-9._-]", line)[0] for line in metadata.requires(PACKAGE) or ()):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    yield Check("packages", State.OK, ", ".join(found))
    if missing:
        yield Check("packages", State.FAIL, f"missing: {', '.join(missing)}", "install this package anew")


def configuration(found: Configuration) -> Iterator[Check]:
    """Tell what is wrong with the settings, or may be."""
    where = f"file {found.file}" if found.file else "no file: the environment and defaults count"
    yield Check("configuration", State.FAIL if found.faults else State.OK, where)
    for state, faults in ((State.FAIL, found.faults), (State.WARN, found.doubts)):
        yield from (Check(fault.path, state, fault.problem, fault.remedy) for fault in faults)
    secret = [one.name for one in VARIABLES if one.secret and found.sources.get(one.name, "").startswith("file ")]
    if found.file and secret and found.file.stat().st_mode & _OTHERS:
        problem = f"others may read {', '.join(secret)} in {found.file}"
        yield Check("configuration", State.WARN, problem, f"chmod 600 {found.file}")


def data_folder(folder: Path) -> Check:
    """Look at the folder of the store and of what else the process keeps."""
    return _folder("data folder", folder, "LCM_DATA_DIR")


def artifacts_folder(folder: Path) -> Check:
    """Look at the folder of lab files and collected work, and at those in it."""
    parts = [part for part in (folder / name for name in PARTS) if part.exists()]
    for part in parts:
        if not part.is_dir() or not access(part, W_OK):
            return Check("artifacts", State.FAIL, f"{part} cannot be written", f"chown or chmod {part}")
    return _folder("artifacts", folder, "ARTIFACTS_DIR")


def _folder(name: str, folder: Path, variable: str) -> Check:
    """Look whether files can be written, and how much room there is for them."""
    whole = folder.absolute()
    there = next(path for path in (whole, *whole.parents) if path.exists())
    if not there.is_dir() or not access(there, W_OK):
        return Check(name, State.FAIL, f"{there} cannot be written", f"choose another folder by {variable}")
    free = shutil.disk_usage(there).free
    detail = f"{whole}{'' if there == whole else ' (not made yet)'}, {free / 1e9:.1f} GB free"
    if free >= _LITTLE_BYTES and open_to_others(whole):
        return Check(name, State.WARN, f"{detail}; others may look into it", f"chmod 700 {whole}")
    if free >= _LITTLE_BYTES:
        return Check(name, State.OK, detail)
    return Check(name, State.WARN if free >= _TOO_LITTLE_BYTES else State.FAIL, detail, "make room on the disk")


def clock(now: datetime, *, elsewhere: datetime | None = None, written: datetime | None = None) -> Check:
    """Hold the clock against the API's, against the newest write of the store, and against sense."""
    detail = f"{now:%Y-%m-%d %H:%M:%S}Z"
    remedy = "let the machine's clock follow a time server"
    if now.year not in _YEARS:
        return Check("clock", State.FAIL, f"{detail} cannot be", remedy)
    if elsewhere is not None and abs(now - elsewhere) > _ASTRAY:
        state = State.FAIL if abs(now - elsewhere) > _FAR_ASTRAY else State.WARN
        return Check("clock", state, f"{detail}, where the API runs {elsewhere:%Y-%m-%d %H:%M:%S}Z", remedy)
    if written is not None and written - now > _ASTRAY:
        return Check(
            "clock", State.WARN, f"{detail}, but the store was written at {written:%Y-%m-%d %H:%M:%S}Z", remedy
        )
    return Check("clock", State.OK, detail)
