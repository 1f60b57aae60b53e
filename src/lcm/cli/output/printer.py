"""Objects as rows of tables, names, JSON or YAML. Called by `get`, once or for each change."""

from collections.abc import Sequence
from typing import Final

import msgspec

from lcm.cli.output import render
from lcm.cli.output.columns import Measured, columns
from lcm.cli.output.nouns import Noun, Wanted, noun_of, title
from lcm.cli.output.options import Output
from lcm.cli.output.table import Table
from lcm.model.base.clock import Clock
from lcm.model.base.resource import API_VERSION
from lcm.model.kinds.registry import Resource

_BETWEEN: Final = "---"
_PARTS: Final = ("api_version", "kind", "metadata", "spec", "status")


class Printer:
    """Writes objects as somebody wants them."""

    def __init__(self, output: Output, named: Sequence[Wanted], *, clock: Clock, with_namespace: bool) -> None:
        self._output = output
        self._clock = clock
        self._with_namespace = with_namespace
        self._with_kind = len(named) > 1
        self._single = len(named) == 1 and len(named[0].names) == 1
        self._tables: dict[Noun, Table[Resource]] = {}
        self._begun = False
        self._measured: Measured | None = None

    @property
    def tabular(self) -> bool:
        """Whether it writes tables."""
        return self._output in {Output.TABLE, Output.WIDE}

    def whole(self, objects: Sequence[Resource], measured: Measured | None = None) -> None:
        """Write all that was found, where nothing follows."""
        self._measured = measured
        if self._output is not Output.JSON:
            self.some(objects)
        elif self._single and objects:
            _json(_ordered(objects[0]), indent=2)
        elif not self._single:
            _json({"api_version": API_VERSION, "kind": "List", "items": [*map(_ordered, objects)]}, indent=2)

    def some(self, objects: Sequence[Resource]) -> None:
        """Write objects below those written before; JSON in one line each."""
        match self._output:
            case Output.JSON:
                for one in objects:
                    _json(_ordered(one))
            case Output.YAML:
                for one in objects:
                    self._yaml(one)
            case Output.NAME:
                for one in objects:
                    render.out(title(one))
            case _:
                self._rows(objects)

    def gone(self, last: Resource) -> None:
        """Say that an object is no longer there."""
        match self._output:
            case Output.JSON:
                meta = last.metadata
                _json({"gone": {"kind": last.kind, "namespace": meta.namespace, "name": meta.name}})
            case Output.YAML:
                render.out(f"# {title(last)} is gone")
            case _:
                render.out(f"{title(last)} is gone")

    def _yaml(self, resource: Resource) -> None:
        if self._begun:
            render.out(_BETWEEN)
        self._begun = True
        from lcm.cli.documents import texts  # noqa: PLC0415 - a table needs no YAML

        render.out(texts.write(_ordered(resource)).rstrip("\n"))

    def _rows(self, objects: Sequence[Resource]) -> None:
        for noun in dict.fromkeys(noun_of(one.kind) for one in objects):
            if self._tables and noun not in self._tables:
                render.out()
            table = self._tables.setdefault(noun, self._table(noun))
            for line in table.lines([one for one in objects if noun_of(one.kind) is noun], self._clock.now()):
                render.out(line)

    def _table(self, noun: Noun) -> Table[Resource]:
        wide = self._output is Output.WIDE
        shown = columns(
            noun.struct,
            wide=wide,
            with_namespace=self._with_namespace,
            with_kind=self._with_kind,
            measured=self._measured,
        )
        return Table(shown, None if wide else render.room())


def print_value(value: object, output: Output) -> None:
    """Write one value that is no object, as JSON or YAML."""
    if output is Output.JSON:
        _json(value, indent=2)
        return
    from lcm.cli.documents import texts  # noqa: PLC0415 - a table needs no YAML

    render.out(texts.write(value).rstrip("\n"))


def _ordered(resource: Resource) -> dict[str, object]:
    """Give an object's parts in the order in which people write them."""
    return {name: getattr(resource, name) for name in _PARTS}


def _json(value: object, *, indent: int = -1) -> None:
    render.out(render.escaped(msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()))
