"""Documents from files, folders and standard input, each with its file and lines. Called by `apply` and `delete`."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import typer

from lcm.cli.documents.texts import MOST_BYTES, ParsedDocument, read_documents
from lcm.model.access.secret import hide_plain_secrets
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import DEFAULT_NAMESPACE
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.validate import parse_document as read_resource

_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
STDIN: Final = "stdin"
"""Stands for standard input where a file name is shown."""
_DOCUMENT_PATH: Final = re.compile(r"documents\[([0-9]+)\]\.?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A document and the file it is from."""

    file: str
    written: ParsedDocument

    @property
    def value(self) -> dict[str, Any]:
        """The document itself."""
        value: dict[str, Any] = self.written.value
        return value

    def locate_fault(self, fault: Fault) -> Fault:
        """Return a fault with its file and line."""
        return fault_at_line(self.file, self.written.line_of(fault.path), fault)


@dataclass(slots=True)
class GatheredDocuments:
    """Everything that was read, and everything found wrong with it so far."""

    sources: list[DocumentSource]
    faults: list[Fault]
    whole: bool = True
    """Whether every file could be read to its end."""
    labs: list[str] = field(default_factory=list)
    """Files that hold a lab and no document. A definition may name them."""


def fault_at_line(file: str, line: int, fault: Fault) -> Fault:
    """Put file and line before a fault, in the form that editors and terminals understand."""
    return Fault(f"{file}:{line}: {fault.path}", fault.problem, fault.remedy)


def gather(paths: Sequence[str], *, recursive: bool) -> GatheredDocuments:
    """Read files, folders and `-`. The same object twice is a fault that names both places."""
    found = GatheredDocuments([], [])
    for file, data in read_files(paths, recursive=recursive):
        written, flaws = read_documents(data)
        alone = written[0].value if len(written) == 1 else {}
        is_lab = isinstance(alone.get("nodes"), list) or isinstance(alone.get("lab"), dict)
        if is_lab and "kind" not in alone and "metadata" not in alone:
            found.labs.append(file)
            continue
        found.sources += (DocumentSource(file, one) for one in written)
        found.faults += (fault_at_line(file, flaw.line, flaw.fault) for flaw in flaws)
        found.whole &= not any(flaw.fatal for flaw in flaws)
    _report_duplicates(found)
    return found


def check_locally(sources: Sequence[DocumentSource]) -> Iterator[Fault]:
    """Yield the faults that can be found without asking the API."""
    for source in sources:
        known = KINDS.get(str(source.value.get("kind")))
        try:
            # The API would seal plain-text secrets.
            read_resource(hide_plain_secrets(source.value, known.struct) if known else source.value)
        except Invalid as error:
            yield from map(source.locate_fault, error.faults)


def trace_faults(faults: Sequence[Fault], sources: Sequence[DocumentSource]) -> Iterator[Fault]:
    """Turn faults of `documents[3]…` into faults at a line of a file."""
    for fault in faults:
        found = _DOCUMENT_PATH.fullmatch(fault.path)
        if found and int(found[1]) < len(sources):
            yield sources[int(found[1])].locate_fault(Fault(found[2] or "document", fault.problem, fault.remedy))
        else:
            yield fault


def message_at_line(message: str, sources: Sequence[DocumentSource]) -> str:
    """Replace `documents[3]` at the start of a message by that document's file and line."""
    found = re.match(r"documents\[([0-9]+)\]", message)
    if not found or int(found[1]) >= len(sources):
        return message
    source = sources[int(found[1])]
    return f"{source.file}:{source.written.line_of('spec')}: {source.value.get('kind')}{message[found.end() :]}"


def identity(value: dict[str, Any]) -> tuple[str, str, str] | None:
    """Return the kind, namespace and name of a document's object; None when the document does not say."""
    kind, metadata = value.get("kind"), value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(kind, str) or not isinstance(name, str) or not isinstance(metadata, dict):
        return None
    return kind, str(metadata.get("namespace") or DEFAULT_NAMESPACE), name


def key_of(value: dict[str, Any]) -> str | None:
    """Return the key under which a document's object is stored; None for an unknown kind."""
    who = identity(value)
    return KINDS[who[0]].key(who[1], who[2]) if who and who[0] in KINDS else None


def _report_duplicates(found: GatheredDocuments) -> None:
    """Keep the first of each object; every further one becomes a fault that names both places."""
    first: dict[tuple[str, str, str], DocumentSource] = {}
    kept = []
    for source in found.sources:
        who = identity(source.value)
        before = first.setdefault(who, source) if who else source
        if before is source:
            kept.append(source)
            continue
        there = f"{before.file}:{before.written.line_of('metadata.name')}"
        problem = f"{who[0]} {who[2]} is also at {there}" if who else ""
        found.faults.append(source.locate_fault(Fault("metadata.name", problem, "keep one of them")))
    found.sources = kept


def read_files(paths: Sequence[str], *, recursive: bool) -> Iterator[tuple[str, bytes]]:
    """Read files, folders and `-`, each file once."""
    taken: set[Path] = set()
    for path in dict.fromkeys(paths):
        if path == "-":
            yield STDIN, sys.stdin.buffer.read(MOST_BYTES + 1)
            continue
        for file in _list_files(Path(path), recursive=recursive):
            if file.resolve() not in taken:
                taken.add(file.resolve())
                yield str(file), _read_bytes(file)


def _list_files(path: Path, *, recursive: bool) -> list[Path]:
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


def _read_bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror or error}", param_hint="-f") from error
