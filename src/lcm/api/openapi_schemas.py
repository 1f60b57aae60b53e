"""The schemas of the description: made by msgspec from the very types that are read and written, and patches of them.

Used by `openapi`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

import msgspec

from lcm.api.routes import Patch, Route
from lcm.api.shapes import SCHEMAS
from lcm.control.problems import Problem
from lcm.model.event import Data
from lcm.model.kinds import KINDS
from lcm.model.resource import Part

Json = Any
"""A part of the document; JSON Schema has no better type here."""

_NULL: Final = {"type": "null"}
_TEMPLATE: Final = SCHEMAS + "{name}"


class Schemas:
    """Every schema that a table of routes needs, by name."""

    def __init__(self, routes: Iterable[Route]) -> None:
        shapes = [shape for route in routes for shape in (route.body, route.answer) if _is_struct(shape)]
        kinds = [kind.struct for kind in KINDS.values()]
        every = list(dict.fromkeys([Problem, *kinds, *get_args(Data), *shapes]))
        _, self._named = msgspec.json.schema_components(every, ref_template=_TEMPLATE)
        for route in routes:
            if isinstance(route.body, Patch):
                self._patch(route.body.of.__name__)

    @property
    def named(self) -> Mapping[str, Json]:
        """All of them, in the order of their names."""
        return dict(sorted(self._named.items()))

    def of(self, shape: Json) -> Json:
        """Refer to the schema of a type."""
        return {"type": "string"} if _is_text(shape) else {"$ref": SCHEMAS + name_of(shape)}

    def _patch(self, name: str) -> Json:
        """Make the schema of a merge patch: nothing is required, and null unsets."""
        patch = f"{name}Patch"
        if patch not in self._named:
            whole = self._named[name]
            self._named[patch] = {}  # named before its parts are made, lest one refer to it
            self._named[patch] = {
                "title": patch,
                "description": f"A merge patch (RFC 7396): {whole['description']}",
                "type": "object",
                "properties": {field: self._nullable(part) for field, part in whole["properties"].items()},
                "additionalProperties": False,
            }
        return {"$ref": SCHEMAS + patch}

    def _nullable(self, schema: Json) -> Json:
        options = [self._patched(one) for one in schema.get("anyOf", [_without_default(schema)])]
        return {"anyOf": [*(one for one in options if one != _NULL), _NULL]}

    def _patched(self, schema: Json) -> Json:
        name = schema.get("$ref", "").removeprefix(SCHEMAS)
        if name and self._named[name].get("type") == "object":
            return self._patch(name)
        values = schema.get("additionalProperties")
        return {**schema, "additionalProperties": self._nullable(values)} if isinstance(values, dict) else schema


def parameters(query: type[Part]) -> list[Json]:
    """Describe the fields of a query."""
    _, named = msgspec.json.schema_components([query], ref_template=_TEMPLATE)
    whole = named[query.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in whole.get("required", ()),
            **({"description": schema["description"]} if "description" in schema else {}),
            "schema": {key: part for key, part in schema.items() if key != "description"},
        }
        for name, schema in whole["properties"].items()
    ]


def name_of(shape: Json) -> str:
    """Name the schema of a type."""
    return f"{shape.of.__name__}Patch" if isinstance(shape, Patch) else str(shape.__name__)


def _is_struct(shape: Json) -> bool:
    return isinstance(shape, type) and issubclass(shape, msgspec.Struct)


def _is_text(shape: Json) -> bool:
    return isinstance(shape, type) and issubclass(shape, str)


def _without_default(schema: Json) -> Json:
    return {key: part for key, part in schema.items() if key != "default"}
