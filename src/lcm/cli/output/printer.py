"""Objects as rows of tables, names, JSON or YAML. Called by `get`, once or for each change."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from lcm.cli.output import render
from lcm.cli.output.columns import TelemetryByUid, columns_of_kind
from lcm.cli.output.nouns import NamedObjects, Noun, noun_of, title
from lcm.cli.output.options import Output
from lcm.cli.output.table import TextTable
from lcm.model.base.clock import Clock
from lcm.model.base.resource import API_VERSION
from lcm.model.kinds.registry import Resource

WIDE_WIDTH: Final = 200
"""How wide `-o wide` may be."""
_PARTS: Final = ("api_version", "kind", "metadata", "spec", "status")


class Printer:
    """Prints objects in the output format that was asked for."""

    def __init__(self, output: Output, named: Sequence[NamedObjects], *, clock: Clock, with_namespace: bool) -> None:
        self._output = output
        self._clock = clock
        self._with_namespace = with_namespace
        self._with_kind = len(named) > 1
        self._single = len(named) == 1 and len(named[0].names) == 1
        self._tables: dict[Noun, TextTable[Resource]] = {}
        self._begun = False
        self._measured: TelemetryByUid | None = None

    @property
    def is_tabular(self) -> bool:
        """Whether it prints tables."""
        return self._output in {Output.TABLE, Output.WIDE}

    def print_all(self, objects: Sequence[Resource], measured: TelemetryByUid | None = None) -> None:
        """Print everything that was found, when nothing follows."""
        self._measured = measured
        if self._output is not Output.JSON:
            self.print_more(objects)
        elif self._single and objects:
            print_json(_order_parts(objects[0]), indent=2)
        elif not self._single:
            print_json({"api_version": API_VERSION, "kind": "List", "items": [*map(_order_parts, objects)]}, indent=2)

    def print_more(self, objects: Sequence[Resource]) -> None:
        """Print objects below those printed before; JSON takes one line per object."""
        match self._output:
            case Output.JSON:
                for one in objects:
                    print_json(_order_parts(one))
            case Output.YAML:
                for one in objects:
                    if self._begun:
                        render.print_line("---")
                    self._begun = True
                    print_value(_order_parts(one), Output.YAML)
            case Output.NAME:
                for one in objects:
                    render.print_line(title(one))
            case _:
                for line in self._row_lines(objects):
                    render.print_line(line)

    def table_lines(self, objects: Sequence[Resource]) -> Iterator[str]:
        """Yield tables of all objects from the start, in the place of those printed before."""
        before, self._tables = self._tables, {}
        return self._row_lines(objects, before)

    def print_deleted(self, last: Resource) -> None:
        """Print that an object no longer exists."""
        match self._output:
            case Output.JSON:
                meta = last.metadata
                print_json({"gone": {"kind": last.kind, "namespace": meta.namespace, "name": meta.name}})
            case Output.YAML:
                render.print_line(f"# {title(last)} is gone")
            case _:
                render.print_line(f"{title(last)} is gone")

    def _row_lines(
        self, objects: Sequence[Resource], before: Mapping[Noun, TextTable[Resource]] | None = None
    ) -> Iterator[str]:
        for noun in dict.fromkeys(noun_of(one.kind) for one in objects):
            if self._tables and noun not in self._tables:
                yield ""
            table = self._tables.setdefault(noun, self._new_table(noun, (before or {}).get(noun)))
            yield from table.lines([one for one in objects if noun_of(one.kind) is noun], self._clock.now())

    def _new_table(self, noun: Noun, before: TextTable[Resource] | None) -> TextTable[Resource]:
        wide = self._output is Output.WIDE
        shown = columns_of_kind(
            noun.struct,
            wide=wide,
            with_namespace=self._with_namespace,
            with_kind=self._with_kind,
            measured=self._measured,
        )
        return TextTable(shown, WIDE_WIDTH if wide else render.output_width(), before)


def print_value(value: object, output: Output) -> None:
    """Print one value that is not an object, as JSON or YAML."""
    if output is Output.JSON:
        print_json(value, indent=2)
        return
    from lcm.cli.documents import texts  # noqa: PLC0415 - a table needs no YAML

    render.print_line(texts.write_document(value).rstrip("\n"))


def _order_parts(resource: Resource) -> dict[str, object]:
    """Return an object's parts in the order in which people write them."""
    return {name: getattr(resource, name) for name in _PARTS}


def print_json(value: object, *, indent: int = -1) -> None:
    """Print a value as JSON that is safe for a terminal: on one line, or indented."""
    render.print_line(render.escape_json(msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()))
