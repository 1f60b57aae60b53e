"""`make topologies DIR=…`: check every lab file of a folder and print a table; exits with 1 when one fails.

Each file gets the checks of publication, is rewritten with two sets of ports, read again and, where its own tags hold
every port, rewritten back to them, which must reproduce the original bytes. Sizes of nodes are those that CML ships,
those of NODE_SIZES and of `--node-size`, and with `--ask` those that the API of the current context knows.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lcm.cli.output import connection
from lcm.control.objects.lab_files import check_lab_file
from lcm.model.base.errors import Invalid, LcmError, Refused
from lcm.model.topology.lab import ParsedLab, compute_needs, parse_lab, rewrite
from lcm.model.topology.node_definitions import NO_SIZE, NodeSize, parse_node_size, shipped_nodes, sizes_of
from lcm.settings.load import load_settings

_FIRST_PORT: Final = 2000
_OK: Final = "ok"
_USAGE: Final = "usage: make topologies DIR=folder [ARGS='--node-size NAME=CPUS/MEMORY … --ask']"
_HEADINGS: Final = ("file", "schema", "nodes", "needs", "ports", "verdict")


class FileCheck(NamedTuple):
    """The result of checking one file."""

    file: str
    schema: str
    nodes: str
    needs: str
    ports: str
    verdict: str

    @property
    def is_ok(self) -> bool:
        """Whether the file can be published."""
        return self.verdict.startswith(_OK)


def check_file(name: str, data: bytes, sizes: Mapping[str, NodeSize]) -> FileCheck:
    """Check one lab file, with these sizes of nodes by their definitions."""
    try:
        lab = check_lab_file(data)
    except Refused as error:
        return FileCheck(name, "-", "-", "-", "-", _refusal(error))
    try:
        verdict = _check_rewriting(data, lab)
        compute_needs(lab, sizes)
    except Refused as error:
        verdict = _refusal(error)
    needs = _needs_text(lab, sizes)
    return FileCheck(name, lab.version, str(lab.node_count), needs, str(len(lab.port_template)), verdict)


def check_folder(folder: Path, sizes: Mapping[str, NodeSize]) -> list[FileCheck]:
    """Check every YAML file in a folder and below."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in {".yaml", ".yml"} and path.is_file())
    return [check_file(str(path.relative_to(folder)), path.read_bytes(), sizes) for path in files]


def format_table(rows: Sequence[FileCheck]) -> Iterator[str]:
    """Format rows as lines in columns."""
    lines = [_HEADINGS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def main(arguments: Sequence[str]) -> int:
    """Check the folder named on the command line."""
    parser = argparse.ArgumentParser(prog="make topologies", add_help=False, exit_on_error=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--node-size", action="append", default=[])
    parser.add_argument("--ask", action="store_true")
    try:
        options, surplus = parser.parse_known_args(arguments)
    except (argparse.ArgumentError, SystemExit):
        options, surplus = None, []
    if options is None or surplus or not options.folder.is_dir():
        _print_lines([_USAGE])
        return 2
    try:
        sizes = _read_sizes(options.node_size, ask=options.ask)
    except LcmError as error:
        _print_lines([f"error: {error}"])
        return 2
    rows = check_folder(options.folder, sizes)
    bad = sum(not row.is_ok for row in rows)
    _print_lines([*format_table(rows), f"{len(rows)} files, {bad} bad"])
    return 1 if bad or not rows else 0


def _read_sizes(given: Sequence[str], *, ask: bool) -> Mapping[str, NodeSize]:
    known = sizes_of(connection.with_plane(lambda plane: plane.node_definitions())) if ask else shipped_nodes()
    declared = () if ask else load_settings().node_sizes
    return {**known, **dict(map(parse_node_size, [*declared, *given]))}


def _refusal(error: Refused) -> str:
    faults = error.faults if isinstance(error, Invalid) else ()
    more = f" | and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"refused: {faults[0] if faults else error}{more}".replace("\n", " | ")


def _check_rewriting(data: bytes, lab: ParsedLab) -> str:
    """Rewrite the file twice, with ports that have nothing in common, and compare the results with it."""
    names = sorted(lab.port_template)
    first = {name: _FIRST_PORT + number for number, name in enumerate(names)}
    second = {name: _FIRST_PORT + len(names) + number for number, name in enumerate(names)}
    one, other = rewrite(data, first), rewrite(data, second)
    held, held_by_other = set(parse_lab(one).ports.values()), set(parse_lab(other).ports.values())
    if held & held_by_other or not held <= set(first.values()):
        return "collision: the rewritten tags hold ports that were not given to them"
    own = lab.ports
    if own.keys() == set(names) and len(set(own.values())) == len(names) and rewrite(one, own) != data:
        return "changed: written back to its own ports, the file is not what it was"
    return _OK if names else f"{_OK}, but nobody can reach it: no node has a port tag"


def _needs_text(lab: ParsedLab, sizes: Mapping[str, NodeSize]) -> str:
    total = compute_needs(lab, sizes, otherwise=NO_SIZE)
    unknown = [name for name in lab.node_definitions if name not in sizes]
    text = f"{total.cpu_cores:g} CPU {total.memory_gb:g} GB {total.storage_gb:g} GB disk"
    return f"{text} + {', '.join(unknown)}" if unknown else text


def _print_lines(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
