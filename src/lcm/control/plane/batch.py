"""What a batch asks for and answers: many creations, deletions, actions and label changes in one call.

`control.plane.protocol` has the contract, `control.objects.batch` does the work.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from lcm.control.plane.problems import Problem
from lcm.control.plane.protocol import Action
from lcm.model.base.resource import DEFAULT_NAMESPACE, Count, LabelName, LabelText, Name, Part, ShortText
from lcm.model.kinds.registry import KINDS

LONGEST_BATCH: Final = 1000
"""The most items that one batch may hold."""
SCHEMAS: Final = "#/components/schemas/"
KIND_SCHEMAS: Final = [{"$ref": SCHEMAS + name} for name in KINDS]
AnyObject = Annotated[Any, Meta(extra_json_schema={"oneOf": KIND_SCHEMAS, "discriminator": {"propertyName": "kind"}})]
"""A document of any kind; its `kind` tells which."""
ObjectOrNull = Annotated[Any, Meta(extra_json_schema={"anyOf": [*KIND_SCHEMAS, {"type": "null"}]})]
_KindName = Annotated[str, Meta(max_length=64, examples=["LabletSession"], description="One of the kinds of objects.")]
_Unread = Annotated[Any, Meta(extra_json_schema={"anyOf": [*KIND_SCHEMAS, {}]})]
"""A document of any kind, or what somebody takes for one: what is wrong with it is told in its own result."""
BatchMode = Literal["each", "all"]
"""Each item by itself, or all of them in one commit or none."""


class CreateItem(Part, tag_field="op", tag="create"):
    """Create an object."""

    document: _Unread


class NamedItem(Part):
    """The object that an item is about; `name` may also be its uid."""

    kind: _KindName
    name: ShortText
    namespace: Name = DEFAULT_NAMESPACE


class DeleteItem(NamedItem, tag_field="op", tag="delete"):
    """Delete an object, at exactly this revision if one is given."""

    resource_version: Count | None = None


class ActionItem(NamedItem, tag_field="op", tag="action", kw_only=True):
    """Perform one of an object's actions."""

    action: Action


class LabelItem(NamedItem, tag_field="op", tag="label", kw_only=True):
    """Set labels of an object; null removes one, and all others stay."""

    labels: Annotated[Mapping[LabelName, LabelText | None], Meta(min_length=1, max_length=64)]


BatchItem = CreateItem | DeleteItem | ActionItem | LabelItem


class BatchRequest(Part):
    """What to do, in this order."""

    items: Annotated[tuple[BatchItem, ...], Meta(max_length=LONGEST_BATCH)]
    mode: BatchMode = "each"


class BatchResult(Struct, frozen=True, kw_only=True):
    """What became of one item, and the object as it is then.

    `skipped` says that the item itself may be done, but others of an all-or-none batch may not.
    """

    op: str
    kind: str
    namespace: str
    name: str
    outcome: Literal["done", "unchanged", "refused", "skipped"]
    object: ObjectOrNull = None
    problem: Problem | UnsetType = UNSET


class BatchAnswer(Struct, frozen=True):
    """The outcomes, in the order of the items, and how many were done and refused."""

    results: tuple[BatchResult, ...]
    done: int
    refused: int
