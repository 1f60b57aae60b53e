"""Every reference to a secret is found by its type, wherever it stands."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import pytest

from harness import documents, given
from lcm.model.access.secret import list_secrets, replace_raw_secrets, replace_secrets
from lcm.model.base.resource import Part, SecretRef
from lcm.model.kinds.registry import KINDS


class Plain(Part, tag=True):
    note: str = "env:NOT_A_SECRET"


class Leaf(Part, tag=True):
    token: SecretRef = "env:TOKEN"
    maybe: SecretRef | None = None
    also: Annotated[SecretRef, msgspec.Meta(title="narrowed")] | None = None
    plain: str = "env:NOT_A_SECRET"


class Tree(Part, rename="camel"):
    one_leaf: Leaf = Leaf()
    leaves: tuple[Leaf, ...] = ()
    by_name: Annotated[Mapping[str, Leaf], msgspec.Meta(max_length=9)] = {}
    refs: tuple[SecretRef, ...] = ()
    refs_by_name: Mapping[str, SecretRef] | None = None
    either: Plain | Leaf | None = None
    plain: Plain = Plain()


TREE = Tree(
    one_leaf=Leaf(maybe="aws:a", also="file:/b"),
    leaves=(Leaf(token="aws:c"), Leaf(token="aws:d")),
    by_name={"x": Leaf(token="aws:e")},
    refs=("aws:f",),
    refs_by_name={"y": "aws:g"},
    either=Leaf(token="aws:h"),
)
PATHS = {
    "oneLeaf.token": "env:TOKEN",
    "oneLeaf.maybe": "aws:a",
    "oneLeaf.also": "file:/b",
    "leaves[0].token": "aws:c",
    "leaves[1].token": "aws:d",
    "byName.x.token": "aws:e",
    "refs[0]": "aws:f",
    "refsByName.y": "aws:g",
    "either.token": "aws:h",
}


def sealed(path: str, _ref: str, _use: str) -> str:
    return f"sealed:{path}"


def test_a_reference_is_found_in_parts_lists_mappings_and_unions() -> None:
    assert dict(list_secrets(TREE)) == PATHS


def test_every_reference_is_replaced_and_nothing_else() -> None:
    changed = replace_secrets(TREE, sealed)
    assert dict(list_secrets(changed)) == {path: f"sealed:{path}" for path in PATHS}
    assert replace_secrets(changed, lambda path, *_: PATHS[path]) == TREE
    assert changed.plain == TREE.plain


def test_a_document_in_which_nothing_changes_stays_itself() -> None:
    assert replace_secrets(TREE, lambda _, ref, __: ref) is TREE


def test_an_unchecked_document_is_changed_in_the_same_places() -> None:
    raw = msgspec.to_builtins(TREE)
    assert msgspec.convert(replace_raw_secrets(raw, Tree, sealed), Tree) == replace_secrets(TREE, sealed)
    assert raw == msgspec.to_builtins(TREE)


@pytest.mark.parametrize(
    "odd",
    [
        None,
        7,
        "env:TOKEN",
        [],
        {},
        {"oneLeaf": "env:TOKEN"},
        {"oneLeaf": ["env:TOKEN"], "leaves": {"token": "env:TOKEN"}, "refs": "env:TOKEN", "stranger": "env:TOKEN"},
        {"refsByName": [["env:TOKEN"]], "oneLeaf": {"token": 7, "maybe": {"token": "env:TOKEN"}}, 5: "env:TOKEN"},
    ],
)
def test_what_has_not_the_shape_of_its_kind_stays_as_it_is(odd: object) -> None:
    assert replace_raw_secrets(odd, Tree, sealed) == odd


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_each_reference_of_each_kind_is_found(kind: Any) -> None:
    document = documents.filled_document(kind.struct)
    full = msgspec.convert(document, kind.struct)
    written = msgspec.json.encode(full).decode()
    found = list_secrets(full)
    assert len(found) == written.count('"env:NAME"')
    assert msgspec.to_builtins(replace_secrets(full, lambda *_: "aws:other")) == replace_raw_secrets(
        msgspec.to_builtins(full), kind.struct, lambda *_: "aws:other"
    )


def test_workers_and_templates_have_passwords_and_licence_tokens() -> None:
    worker = given.worker(cml={"license_token": "aws:lcm/licence"})
    assert list_secrets(worker) == [
        ("spec.cml.admin_password", "env:CML_ADMIN_PASSWORD"),
        ("spec.cml.license_token", "aws:lcm/licence"),
    ]
    assert list_secrets(given.template()) == [("spec.worker.cml.admin_password", "env:CML_ADMIN_PASSWORD")]
    assert list_secrets(given.session()) == []
