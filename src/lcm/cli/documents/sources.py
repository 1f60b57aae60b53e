"""Documents from files, folders and standard input, each of which knows its place. Called by `apply` and `delete`."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import typer

from lcm.cli.documents.texts import MOST_BYTES, Written, read
from lcm.model.access.secret import without_plain
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import DEFAULT_NAMESPACE
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.validate import read as read_resource

_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
_DASH: Final = "-"
STDIN: Final = "stdin"
"""What standard input is called where a file would be."""
_FIRST_WORD: Final = re.compile(r"documents\[([0-9]+)\]")
_OF_DOCUMENT: Final = re.compile(r"documents\[([0-9]+)\]\.?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """A document and the file it is from."""

    file: str
    written: Written

    @property
    def value(self) -> dict[str, Any]:
        """The document itself."""
        value: dict[str, Any] = self.written.value
        return value

    def fault(self, fault: Fault) -> Fault:
        """Say where in its file a fault is."""
        return located(self.file, self.written.line_of(fault.path), fault)


@dataclass(slots=True)
class Gathered:
    """Everything that was read, and everything that is wrong with it so far."""

    sources: list[Source]
    faults: list[Fault]
    whole: bool = True
    """Whether every file could be read to its end."""
    labs: list[str] = field(default_factory=list)
    """Files that hold a lab and no document: a definition may name them."""


def located(file: str, line: int, fault: Fault) -> Fault:
    """Put file and line before a fault, as editors and terminals understand them."""
    return Fault(f"{file}:{line}: {fault.path}", fault.problem, fault.remedy)


def gather(paths: Sequence[str], *, recursive: bool) -> Gathered:
    """Read files, folders and `-`; the same object twice is a fault that names both places."""
    found = Gathered([], [])
    for file, data in texts(paths, recursive=recursive):
        written, flaws = read(data)
        if _is_lab(written):
            found.labs.append(file)
            continue
        found.sources += (Source(file, one) for one in written)
        found.faults += (located(file, flaw.line, flaw.fault) for flaw in flaws)
        found.whole &= not any(flaw.fatal for flaw in flaws)
    _note_doubles(found)
    return found


def checked_here(sources: Sequence[Source]) -> Iterator[Fault]:
    """Find the faults that can be found without asking anybody."""
    for source in sources:
        try:
            read_resource(_without_plain(source.value))
        except Invalid as error:
            yield from map(source.fault, error.faults)


def traced(faults: Sequence[Fault], sources: Sequence[Source]) -> Iterator[Fault]:
    """Turn faults of `documents[3]…` into faults of a file's line."""
    for fault in faults:
        found = _OF_DOCUMENT.fullmatch(fault.path)
        if found and int(found[1]) < len(sources):
            yield sources[int(found[1])].fault(Fault(found[2] or "document", fault.problem, fault.remedy))
        else:
            yield fault


def placed(message: str, sources: Sequence[Source]) -> str:
    """Say of a message about `documents[3]` which file's line that is."""
    found = _FIRST_WORD.match(message)
    if not found or int(found[1]) >= len(sources):
        return message
    source = sources[int(found[1])]
    return f"{source.file}:{source.written.line_of('spec')}: {source.value.get('kind')}{message[found.end() :]}"


def identity(value: dict[str, Any]) -> tuple[str, str, str] | None:
    """Say which object a document is about: kind, namespace, name; None when it does not say."""
    kind, metadata = value.get("kind"), value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(kind, str) or not isinstance(name, str) or not isinstance(metadata, dict):
        return None
    return kind, str(metadata.get("namespace") or DEFAULT_NAMESPACE), name


def key_of(value: dict[str, Any]) -> str | None:
    """Say under which key the object of a document is stored."""
    who = identity(value)
    return KINDS[who[0]].key(who[1], who[2]) if who and who[0] in KINDS else None


def _is_lab(written: Sequence[Written]) -> bool:
    """Tell whether a file holds a lab of CML: that says nothing of a kind."""
    value = written[0].value if len(written) == 1 else {}
    if "kind" in value or "metadata" in value:
        return False
    return isinstance(value.get("nodes"), list) or isinstance(value.get("lab"), dict)


def _without_plain(value: dict[str, Any]) -> object:
    """Hide secrets in clear, which the API would seal."""
    known = KINDS.get(str(value.get("kind")))
    return without_plain(value, known.struct) if known else value


def _note_doubles(found: Gathered) -> None:
    """Keep the first of each object, and name both places of every other."""
    first: dict[tuple[str, str, str], Source] = {}
    kept = []
    for source in found.sources:
        who = identity(source.value)
        before = first.setdefault(who, source) if who else source
        if before is source:
            kept.append(source)
            continue
        there = f"{before.file}:{before.written.line_of('metadata.name')}"
        problem = f"{who[0]} {who[2]} stands also at {there}" if who else ""
        found.faults.append(source.fault(Fault("metadata.name", problem, "keep one of them")))
    found.sources = kept


def texts(paths: Sequence[str], *, recursive: bool) -> Iterator[tuple[str, bytes]]:
    """Read files, folders and `-`, each file once."""
    taken: set[Path] = set()
    for path in dict.fromkeys(paths):
        if path == _DASH:
            yield STDIN, sys.stdin.buffer.read(MOST_BYTES + 1)
            continue
        for file in _files(Path(path), recursive=recursive):
            if file.resolve() not in taken:
                taken.add(file.resolve())
                yield str(file), _bytes(file)


def _files(path: Path, *, recursive: bool) -> list[Path]:
    if path.is_file() or path.is_fifo() or path.is_char_device():
        return [path]
    if not path.is_dir():
        raise typer.BadParameter(f"there is no {path}", param_hint="-f")
    files = path.rglob("*") if recursive else path.iterdir()
    found = sorted(file for file in files if file.suffix in _SUFFIXES and file.is_file())
    if not found:
        deeper = "" if recursive else "; -R looks into its folders as well"
        raise typer.BadParameter(f"{path} holds no .yaml, .yml or .json file{deeper}", param_hint="-f")
    return found


def _bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror or error}", param_hint="-f") from error
