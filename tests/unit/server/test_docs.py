"""Links and code references in the documentation lead to something that exists."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness import suite
from lcm.cli.main import COMMANDS

SOURCE = suite.ROOT / "src" / "lcm"
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "src/lcm/*/README.md", "tests/*/README.md")
    for path in suite.ROOT.glob(pattern)
)
GUIDES = [path for path in PAGES if path.name != "CHANGELOG.md"]
"""Pages that describe the present; a changelog also names what has gone."""
GLOSSARIES = {"ARCHITECTURE.md"}
"""Pages that also list names which others use."""

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOTTED = re.compile(rf"(?<![\w./-])(?:lcm|{'|'.join(PACKAGES)})(?:\.(?!toml\b|md\b)[A-Za-z_]\w*)+")
NAME = re.compile(r"^([A-Z][a-z]+\w*)(?:\.\w+)*(?:\(\))?$")
FOLDERS = ("docs", "examples", "src", "tests", "tools", *PACKAGES)
PATH = re.compile(rf"(?<![\w./$-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w")
COMMAND = re.compile(r"^lcm ([a-z][a-z-]*)")
MAKE = re.compile(r"^make ([a-z]+)")


def spans(page: Path) -> Iterator[str]:
    """Yield the inline code of a page, without its blocks."""
    yield from (" ".join(one.split()) for one in SPAN.findall(FENCE.sub("", page.read_text())))


def resolves(reference: str) -> bool:
    """Return whether a dotted name leads to a module of ours, or to an attribute in one."""
    names = f"lcm.{reference.removeprefix('lcm.')}".split(".")
    for length in range(len(names), 1, -1):
        module = ".".join(names[:length])
        if not _is_module(module):
            continue
        found: object = import_module(module)
        for name in names[length:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a module and no package
        return False


@cache
def words_of_the_code() -> frozenset[str]:
    return frozenset(word for path in SOURCE.rglob("*.py") for word in re.findall(r"\w+", path.read_text()))


def exists(page: Path, path: str) -> bool:
    return any((folder / path).exists() for folder in (suite.ROOT, SOURCE, page.parent))


def name(page: Path) -> str:
    return page.relative_to(suite.ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(FENCE.sub("", page.read_text())) if "://" not in link]
    assert not [link for link in links if link and not (page.parent / link).exists()]


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_code_references_lead_to_code(page: Path) -> None:
    dotted = {one for span in spans(page) for one in DOTTED.findall(span)}
    paths = {one for span in spans(page) for one in PATH.findall(span)}
    assert not sorted(one for one in dotted if not resolves(one))
    assert not sorted(one for one in paths if not exists(page, one))


@pytest.mark.parametrize("page", [page for page in GUIDES if page.name not in GLOSSARIES], ids=name)
def test_names_of_classes_are_those_of_the_code(page: Path) -> None:
    names = {one for span in spans(page) for one in NAME.findall(span)}
    assert not sorted(names - words_of_the_code())


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (suite.ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {one for span in spans(page) for one in COMMAND.findall(span)} <= COMMANDS.keys()
    assert {one for span in spans(page) for one in MAKE.findall(span)} <= targets


def test_the_checker_finds_what_is_wrong() -> None:
    assert resolves("control.booking.promise")
    assert resolves("lcm.settings.values.Settings")
    assert resolves("control.accounts.allocator.ResourceAllocator.get_resource_usage")
    assert not resolves("control.booking.desk")
    assert not resolves("lcm.settings.values.Configuration.nothing")
    assert DOTTED.findall("see `control.plane.local`, not seal.key or api.md/") == ["control.plane.local"]
    assert PATH.findall("store/etcd/wire.py and /api/plan, https://host/docs/x") == ["store/etcd/wire.py"]
