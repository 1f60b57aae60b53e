"""Documents to bytes and back, across versions of this software.

A stored value is a line `SCHEMA/READS` and a JSON document: the schema it was written in, and the oldest schema whose
reader understands it. An older document is upgraded when read. A newer one is read as far as it is known, and what is
not known is carried over when it is written again. Called by `control`.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from lcm.model.base.errors import Stuck

T = TypeVar("T", bound=msgspec.Struct)
Json = Any
"""What a JSON document holds before it has a type; it never leaves this file."""

Upgrade = Callable[[dict[str, Json]], dict[str, Json]]
_IDENTITIES: Final = ("uid", "type", "name", "number", "node_id", "interface_id")
"""Fields by which a member of a list is the same one after a change."""

_UNREADABLE: Final = (ValueError, RecursionError)
"""What msgspec raises for bytes that are no JSON of the wanted type; its own errors are ValueErrors."""

_REMEMBERED: Final = 512
_SMALL: Final = 16_384
"""Longer documents are read anew each time."""

_HEAD: Final = re.compile(rb"([0-9]{1,6})/([0-9]{1,6})")


class Codec:
    """Encodes and decodes documents of one schema version."""

    def __init__(
        self, schema: int = 1, *, reads: int = 1, upgrades: Mapping[int, Mapping[str, Upgrade]] | None = None
    ) -> None:
        """Write `schema`, which readers of `reads` understand. `upgrades` lead from a schema to the next, by struct."""
        self._schema = schema
        self._head = f"{schema}/{reads}".encode()
        self._upgrades = upgrades or {}
        # All who follow a kind in one process are told of the same bytes; what is read of them never changes.
        self._read_once = lru_cache(_REMEMBERED)(self._read)

    def encode(self, value: msgspec.Struct, *, onto: bytes | None = None) -> bytes:
        """Write a document; `onto` is the stored state it replaces, whose unknown fields are kept."""
        body = msgspec.json.encode(value)
        if onto is None or self._plain(onto, type(value)):
            return self._head + b"\n" + body
        head, old = self._open(onto, type(value))
        merged = _merge(msgspec.json.decode(body), old, _info(type(value)))
        newer = _versions(head)[0] > self._schema
        return (head if newer else self._head) + b"\n" + msgspec.json.encode(merged)

    def decode(self, raw: bytes, kind: type[T]) -> T:
        """Read a document. Raises Stuck when this version cannot."""
        read = self._read_once if len(raw) <= _SMALL else self._read
        return read(raw, kind)

    def _read(self, raw: bytes, kind: type[T]) -> T:
        head, _, body = raw.partition(b"\n")
        if head == self._head:
            try:
                return _decoder(kind).decode(body)
            except _UNREADABLE:
                pass  # perhaps only fields of a newer minor version: read what is known
        _, document = self._open(raw, kind)
        try:
            return msgspec.convert(_prune(document, _info(kind)), kind)
        except msgspec.ValidationError as error:
            message = f"a stored {kind.__name__} cannot be read ({error}); run the version that wrote it, or newer"
            raise Stuck("UnreadableDocument", message) from error

    def _plain(self, raw: bytes, kind: type[msgspec.Struct]) -> bool:
        head, _, body = raw.partition(b"\n")
        if head != self._head:
            return False
        try:
            _decoder(kind).decode(body)
        except _UNREADABLE:
            return False
        return True

    def _open(self, raw: bytes, kind: type[msgspec.Struct]) -> tuple[bytes, dict[str, Json]]:
        head, _, body = raw.partition(b"\n")
        try:
            schema, reads = _versions(head)
            document = msgspec.json.decode(body, type=dict[str, Json])
        except _UNREADABLE as error:
            raise Stuck("UnreadableDocument", f"a stored value is no document: {raw[:60]!r}") from error
        if reads > self._schema:
            message = f"a stored document needs schema {reads}, this version reads up to {self._schema}; upgrade it"
            raise Stuck("NewerSchema", message)
        for step in range(schema, self._schema):
            upgrade = self._upgrades.get(step, {}).get(kind.__name__)
            document = upgrade(document) if upgrade else document
        return head, document


def read_known(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Read JSON that this or a newer version wrote, as far as it is known. Raises ValueError when it is something else.

    Made for those who get documents from another process, which may be upgraded first.
    """
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError:
        document = msgspec.json.decode(body)
        return msgspec.convert(_prune(document, _info(kind)), kind)


def _versions(head: bytes) -> tuple[int, int]:
    found = _HEAD.fullmatch(head)
    if found is None:
        raise ValueError("no versions")
    return int(found[1]), int(found[2])


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


@cache
def _info(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _prune(document: Json, info: inspect.Type) -> Json:
    match _concrete(info, document), document:
        case inspect.StructType() as struct, dict():
            known = _fields(struct)
            return {name: _prune(value, known[name]) for name, value in document.items() if name in known}
        case inspect.DictType(value_type=item), dict():
            return {name: _prune(value, item) for name, value in document.items()}
        case (inspect.ListType() | inspect.VarTupleType()) as array, list():
            return [_prune(value, array.item_type) for value in document]
    return document


def _merge(new: Json, old: Json, info: inspect.Type) -> Json:
    match _concrete(info, new), new, old:
        case inspect.StructType() as struct, dict(), dict():
            known = _fields(struct)
            kept = {name: value for name, value in old.items() if name not in known}
            return kept | {name: _merge(value, old.get(name), known[name]) for name, value in new.items()}
        case inspect.DictType(value_type=item), dict(), dict():
            return {name: _merge(value, old.get(name), item) for name, value in new.items()}
        case (inspect.ListType() | inspect.VarTupleType()) as array, list(), list():
            left = list(old)
            return [_merge(value, _partner(value, left, array.item_type), array.item_type) for value in new]
    return new


def _partner(new: Json, left: list[Json], info: inspect.Type) -> Json:
    """Take out the old state of a list's member: by identity where it has one, else by equality of what is known."""
    struct = _concrete(info, new)
    if not isinstance(struct, inspect.StructType):
        return None
    identity = next((name for name in _IDENTITIES if name in _fields(struct)), None)
    for place, old in enumerate(left):
        if (_understood(old, struct) == new) if identity is None else _value(old, identity) == new[identity]:
            return left.pop(place)
    return None


def _understood(document: Json, struct: inspect.StructType) -> Json:
    """Write a member as this version would; None when it cannot be read."""
    try:
        return msgspec.json.decode(msgspec.json.encode(msgspec.convert(_prune(document, struct), struct.cls)))
    except msgspec.ValidationError:
        return None


def _value(document: Json, name: str) -> Json:
    return document.get(name) if isinstance(document, dict) else None


def _concrete(info: inspect.Type, document: Json) -> inspect.Type:
    """Resolve an optional or annotated type to the part that describes this document."""
    if isinstance(info, inspect.Metadata):
        return _concrete(info.type, document)
    if not isinstance(info, inspect.UnionType):
        return info
    parts = [_concrete(one, document) for one in info.types]
    if isinstance(document, dict):
        return next((one for one in parts if isinstance(one, inspect.StructType | inspect.DictType)), info)
    return next((one for one in parts if isinstance(one, inspect.ListType | inspect.VarTupleType)), info)


@cache
def _known(kind: type) -> dict[str, inspect.Type]:
    struct = inspect.type_info(kind)
    assert isinstance(struct, inspect.StructType)
    return {field.encode_name: field.type for field in struct.fields}


def _fields(struct: inspect.StructType) -> dict[str, inspect.Type]:
    return _known(struct.cls)
