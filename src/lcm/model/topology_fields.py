"""Reading typed fields out of a tree, and noting every fault with its line instead of stopping at the first.

Called by `topology`. YAML 1.1 takes `on`, `5041` and `52:54:00:00:00:01` for something else than text, and so does CML:
a field that must be text is refused when YAML would not read it as text.
"""

import re
from collections.abc import Iterator
from typing import Final

from lcm.model.errors import Fault
from lcm.model.topology_yaml import Items, Scalar, Table, Tree, shown

_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,8})")
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{0,17})?")


class Fields:
    """A reader of fields that collects faults."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def fault(self, tree: Tree, path: str, problem: str, remedy: str) -> None:
        """Note one thing wrong."""
        self.faults.append(Fault(f"line {tree.line}: {path}", problem, remedy))

    def table(self, tree: Tree, path: str) -> Table | None:
        """Read a mapping."""
        if isinstance(tree, Table):
            return tree
        self.fault(tree, path, "not a mapping", "write `key: value` lines, indented")
        return None

    def tables(self, within: Table, key: str, path: str = "", *, required: bool = False) -> Iterator[tuple[str, Table]]:
        """Read a list of mappings, each with its path; nothing and null are the empty list."""
        for where, tree in self.members(within, key, path, required=required):
            if (found := self.table(tree, where)) is not None:
                yield where, found

    def members(self, within: Table, key: str, path: str = "", *, required: bool = False) -> Iterator[tuple[str, Tree]]:
        """Read a list, each member with its path; nothing and null are the empty list."""
        where = f"{path}.{key}" if path else key
        tree = within.entries.get(key)
        if isinstance(tree, Items):
            for number, member in enumerate(tree.members):
                yield f"{where}[{number}]", member
        elif required and tree is None:
            self.fault(within, where, "missing", f"add `{key}: []` if there are none")
        elif tree is not None and not (_is_null(tree) and not required):
            self.fault(tree, where, "not a list", "write a list, or []")

    def text(self, within: Table, key: str, path: str, *, most: int, required: bool = False) -> str:
        """Read a text; what is missing or null is empty."""
        where = f"{path}.{key}"
        tree = within.entries.get(key)
        if tree is None or _is_null(tree):
            if required:
                self.fault(tree or within, where, "missing", f"add `{key}: …`")
            return ""
        scalar = self.plain_text(tree, where, most=most)
        if scalar is None:
            return ""
        if required and not scalar.value:
            self.fault(tree, where, "empty", "write at least one character")
        return scalar.value

    def plain_text(self, tree: Tree, path: str, *, most: int) -> Scalar | None:
        """Read a scalar that must be text."""
        if not isinstance(tree, Scalar):
            self.fault(tree, path, "not text", "write one line of text")
        elif tree.kind != "str":
            self.fault(tree, path, f"{shown(tree.value)} is {tree.kind} to YAML, not text", "put it in quotes")
        elif len(tree.value) > most:
            self.fault(tree, path, f"{len(tree.value)} characters; at most {most} are allowed", "shorten it")
        else:
            return tree
        return None

    def whole(self, within: Table, key: str, path: str, *, least: int, most: int) -> int | None:
        """Read a whole number; null, nothing and 0 mean that the value is inherited."""
        tree = within.entries.get(key)
        if tree is None or _is_null(tree):
            return None
        if isinstance(tree, Scalar) and tree.plain and _WHOLE.fullmatch(tree.value):
            number = int(tree.value)
            if number == 0 or least <= number <= most:
                return number or None
        self.fault(tree, f"{path}.{key}", f"not a whole number from {least} to {most}", "correct it, or write null")
        return None

    def number(self, within: Table, key: str, path: str) -> None:
        """Check that a number is there."""
        tree = within.entries.get(key)
        if tree is None:
            self.fault(within, f"{path}.{key}", "missing", f"add `{key}: 0`")
        elif not (isinstance(tree, Scalar) and tree.plain and _NUMBER.fullmatch(tree.value)):
            self.fault(tree, f"{path}.{key}", "not a number", "write a whole number")


def _is_null(tree: Tree) -> bool:
    return isinstance(tree, Scalar) and tree.kind == "null"
