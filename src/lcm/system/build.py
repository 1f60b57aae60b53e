"""Which build this is: the version, the commit it was made of, and the schema in which its processes talk.

A wheel holds its commit in a file that `tools/build_hook.py` writes; in a working copy, git's own files name it.
"""

import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

PACKAGE: Final = "lablet-cloud-manager"
SCHEMA: Final = 2
"""Grows when controllers report something that an API of before does not know. Builds of schema 1 do not name it."""
COMMIT_FILE: Final = "commit.txt"
_COMMIT: Final = re.compile(r"[0-9a-f]{12,64}")
_SHOWN: Final = 12
_LONGEST_FILE: Final = 4096


@cache
def build_name() -> str:
    """Return the version with the commit, as in 0.5.0+3f0c5a9e1b7d; the version alone if no commit is known."""
    folder = Path(__file__).resolve().parents[1]
    commit = _read(folder / COMMIT_FILE) or _commit_of_working_copy(folder.parents[1])
    return f"{version(PACKAGE)}+{commit[:_SHOWN]}" if _COMMIT.fullmatch(commit) else version(PACKAGE)


def _commit_of_working_copy(root: Path) -> str:
    """Return the commit that a working copy is at; empty if the folder is none."""
    if not (root / "pyproject.toml").is_file():
        return ""  # an installed package that happens to lie in somebody's repository
    git = root / ".git"
    if git.is_file():  # a linked working copy names the folder of its own state
        git = root / _read(git).removeprefix("gitdir: ")
    head = _read(git / "HEAD")
    if not head.startswith("ref: "):
        return head
    common = git / (_read(git / "commondir") or ".")
    name = head.removeprefix("ref: ")
    return _read(common / name) or _find_packed(common, name)


def _find_packed(git: Path, name: str) -> str:
    try:
        lines = (git / "packed-refs").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    return next((line.partition(" ")[0] for line in lines if line.endswith(f" {name}")), "")


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_LONGEST_FILE).strip()
    except (OSError, ValueError):
        return ""
