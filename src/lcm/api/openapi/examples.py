"""One example of each body and answer, for the OpenAPI document; the tests send every one of them.

They are in `data/examples.json`. The documents are those of one small site: a worker, its pool and template, a lab, a
booking. What was measured is in the past: a measurement cannot be of the future.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lcm.model.base.data_files import read_data_file
from lcm.model.base.resource import Part
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.validate import parse_document

Json = Any
"""A JSON value, as an example shows it."""


class ExampleFile(Part):
    """The examples that are written down; those of stored objects are made from their documents."""

    documents: Mapping[str, Json]
    """Documents as a user would write them, in an order in which each finds what it refers to."""
    bodies: Mapping[str, Json]
    stored_metadata: Mapping[str, Json]
    """What the metadata of a stored object has besides."""


_FILE: Final = read_data_file("lcm.api.openapi", "examples.json", ExampleFile)
DOCUMENTS: Final = _FILE.documents


def _stored_example(kind: str) -> Json:
    """Return an object as the API answers it."""
    document = DOCUMENTS[kind]
    found = parse_document({**document, "metadata": document["metadata"] | _FILE.stored_metadata})
    return msgspec.json.decode(msgspec.json.encode(found))


def _examples_of_kind(kind: str) -> dict[str, Json]:
    stored = _stored_example(kind)
    return {
        kind: DOCUMENTS[kind],
        f"{kind}Patch": {"metadata": {"labels": {"tier": "exam"}}},
        f"{kind}List": {"items": [stored], "revision": 42, "next": None},
        f"{kind}StatusReport": {"resource_version": 42, "status": stored["status"], "reason": "nothing changed"},
    }


BODIES: Final[Mapping[str, Json]] = {
    **{name: example for kind in KINDS for name, example in _examples_of_kind(kind).items()},
    "MadeSessions": {"items": [_stored_example("LabletSession")]},
    **_FILE.bodies,
}
"""Examples by the name of the type in the OpenAPI document."""

ANSWERS: Final[Mapping[str, Json]] = {**BODIES, **{kind: _stored_example(kind) for kind in KINDS}}
