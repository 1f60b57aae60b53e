"""Nothing that a caller writes is without bounds: no text, no list, no mapping."""

from collections.abc import Iterator
from typing import get_args

import msgspec
import pytest
from msgspec import Struct, inspect

from harness.documents import document, paths, structs
from lcm.control.plane.protocol import Action
from lcm.model.base.resource import Metadata
from lcm.model.kinds.registry import KINDS

SPECS = [
    next(field.type for field in msgspec.structs.fields(kind.struct) if field.name == "spec") for kind in KINDS.values()
]
WRITTEN = sorted(
    {one for root in (*SPECS, Metadata, *get_args(Action)) for one in structs(root)},
    key=lambda one: one.__name__,
)


def unbounded(info: inspect.Type, path: str) -> Iterator[str]:
    match info:
        case inspect.Metadata(type=inner):
            yield from unbounded(inner, path)
        case inspect.UnionType(types=types):
            for one in types:
                yield from unbounded(one, path)
        case inspect.DictType(key_type=key, value_type=item, max_length=most):
            yield from [path] if most is None else []
            yield from unbounded(key, f"{path}.key")
            yield from unbounded(item, f"{path}.value")
        case inspect.VarTupleType(item_type=item, max_length=most):
            yield from [path] if most is None else []
            yield from unbounded(item, f"{path}[]")
        case inspect.StrType(max_length=None) | inspect.AnyType() | inspect.ListType() | inspect.BytesType():
            yield path


@pytest.mark.parametrize("struct", WRITTEN, ids=lambda one: one.__name__)
def test_every_text_list_and_mapping_that_is_written_has_a_length(struct: type[Struct]) -> None:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    assert [path for field in info.fields for path in unbounded(field.type, field.name)] == []


@pytest.mark.parametrize("part", ["labels", "annotations"])
@pytest.mark.parametrize("text", ["\x00", "a\x1b[2J", "a\n", "a\nb", "\x7f", "\x9b2J"])
def test_labels_hold_no_control_characters(part: str, text: str) -> None:
    wrong = document("LabWorker")
    wrong["metadata"][part] = {"a": text}
    assert paths(wrong) == [f"metadata.{part}.a"]
    wrong["metadata"][part] = {text: "a"}
    assert len(paths(wrong)) == 1
