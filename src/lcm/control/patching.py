"""Merge patches (RFC 7396) of stored objects.

Pure. Called by `local`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lcm.control.plane import R
from lcm.model.errors import Fault, Invalid
from lcm.model.resource import Metadata

_DEEPEST: Final = 32
_TOP: Final = ("api_version", "kind", "metadata", "spec", "status")
_MINE: Final = ("labels", "annotations")


def patched(stored: R, patch: Mapping[str, Any]) -> dict[str, Any]:
    """Give the document that a patch makes of a stored object; what nobody may write is left out of it."""
    if faults := list(_unknown(patch)):
        raise Invalid(*faults)
    metadata, theirs = stored.metadata, patch.get("metadata") or {}
    document = {
        "kind": stored.kind,
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "labels": dict(metadata.labels),
            "annotations": dict(metadata.annotations),
        },
        "spec": msgspec.to_builtins(stored.spec),
    }
    mine: dict[str, Any] = {"metadata": {name: theirs[name] for name in _MINE if name in theirs}}
    return merged(document, mine | ({"spec": patch["spec"]} if "spec" in patch else {}))


def merged(document: Mapping[str, Any], patch: Mapping[str, Any], *, depth: int = 0) -> dict[str, Any]:
    """Merge a patch into a document: null removes, an object goes deeper, all else replaces."""
    if depth > _DEEPEST:
        raise Invalid(Fault("document", f"more than {_DEEPEST} objects within each other", "no kind is so deep"))
    result = dict(document)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            old = result.get(name)
            result[name] = merged(old if isinstance(old, Mapping) else {}, value, depth=depth + 1)
        else:
            result[name] = value
    return result


def _unknown(patch: Mapping[str, Any]) -> Iterator[Fault]:
    """Find mis-spelt fields; those that exist but are not for writing are no fault."""
    for name in patch:
        if name not in _TOP:
            yield Fault(str(name), "unknown field", f"use one of {', '.join(_TOP)}")
    metadata = patch.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        yield Fault("metadata", "not an object", "write an object with labels or annotations")
        return
    for name in metadata:
        if name not in Metadata.__struct_fields__:
            yield Fault(f"metadata.{name}", "unknown field", "use labels or annotations")
