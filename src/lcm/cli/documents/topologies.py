"""`make topologies DIR=…`: check every lab file of a folder and print a table; exits with 1 when one fails.

Each file is parsed, rewritten with two sets of ports, read again and, where its own tags hold every port, rewritten
back to them, which must reproduce the original bytes.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lcm.model.base.errors import Refused
from lcm.model.topology.lab import ParsedLab, compute_needs, parse_lab, rewrite
from lcm.model.topology.node_definitions import NO_SIZE, shipped_nodes

_FIRST_PORT: Final = 2000
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
        """Whether nothing is wrong with the file."""
        return self.verdict == "ok"


def check_file(name: str, data: bytes) -> FileCheck:
    """Check one lab file."""
    try:
        lab = parse_lab(data)
        verdict = _check_rewriting(data, lab)
    except Refused as error:
        return FileCheck(name, "-", "-", "-", "-", "refused: " + str(error).replace("\n", " | "))
    return FileCheck(name, lab.version, str(lab.node_count), _needs_text(lab), str(len(lab.port_template)), verdict)


def check_folder(folder: Path) -> list[FileCheck]:
    """Check every YAML file in a folder and below."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in {".yaml", ".yml"} and path.is_file())
    return [check_file(str(path.relative_to(folder)), path.read_bytes()) for path in files]


def format_table(rows: Sequence[FileCheck]) -> Iterator[str]:
    """Format rows as lines in columns."""
    lines = [_HEADINGS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def main(arguments: Sequence[str]) -> int:
    """Check the folder named on the command line."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        _print_lines(["usage: make topologies DIR=folder"])
        return 2
    rows = check_folder(Path(arguments[0]))
    bad = sum(not row.is_ok for row in rows)
    _print_lines([*format_table(rows), f"{len(rows)} files, {bad} bad"])
    return 1 if bad or not rows else 0


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
    return "ok"


def _needs_text(lab: ParsedLab) -> str:
    total = compute_needs(lab, shipped_nodes(), otherwise=NO_SIZE)
    unknown = [name for name in lab.node_definitions if name not in shipped_nodes()]
    text = f"{total.cpu_cores:g} CPU {total.memory_gb:g} GB {total.storage_gb:g} GB disk"
    return f"{text} + {', '.join(unknown)}" if unknown else text


def _print_lines(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
