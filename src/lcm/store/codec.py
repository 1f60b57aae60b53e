"""Documents to bytes and back, across versions of this software.

A stored value is a line `SCHEMA/READS` and a JSON document: the schema it was written in, and the oldest schema whose
reader understands it. An older document is upgraded when it is read. A newer one is read as far as its fields are
known,
and unknown fields are kept when it is written again. Called by `control`.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from lcm.model.base.errors import Stuck

D = TypeVar("D")
T = TypeVar("T", bound=msgspec.Struct)
Json = Any
"""A JSON document that has no type yet; it never leaves this module."""

Upgrade = Callable[[dict[str, Json]], dict[str, Json]]
_IDENTITY_FIELDS: Final = ("uid", "type", "name", "number", "node_id", "interface_id")
"""Fields that identify a member of a list after a change."""

_DECODE_ERRORS: Final = (ValueError, RecursionError)
"""What msgspec raises for bytes that are not JSON of the wanted type; its own errors are ValueErrors."""

_CACHE_SIZE: Final = 512
_MAX_CACHED_BYTES: Final = 16_384
"""Longer documents are decoded again each time."""

_HEADER: Final = re.compile(rb"([0-9]{1,6})/([0-9]{1,6})")


class Codec:
    """Encodes and decodes documents of one schema version."""

    def __init__(
        self, schema: int = 1, *, reads: int = 1, upgrades: Mapping[int, Mapping[str, Upgrade]] | None = None
    ) -> None:
        """Write `schema`, which readers of `reads` understand.

        `upgrades` convert documents from a schema to the next one, by name of the struct.
        """
        self._schema = schema
        self._head = f"{schema}/{reads}".encode()
        self._upgrades = upgrades or {}
        # All watchers of a kind in one process get the same bytes, and a decoded document never changes.
        self._read_once = lru_cache(_CACHE_SIZE)(self._read)

    def encode(self, value: msgspec.Struct, *, onto: bytes | None = None) -> bytes:
        """Encode a document. `onto` is the stored state it replaces, whose unknown fields are kept."""
        body = msgspec.json.encode(value)
        if onto is None or self._is_fully_known(onto, type(value)):
            return self._head + b"\n" + body
        head, old = self._parse(onto, type(value))
        merged = _merge(msgspec.json.decode(body), old, _type_info(type(value)))
        newer = _versions(head)[0] > self._schema
        return (head if newer else self._head) + b"\n" + msgspec.json.encode(merged)

    def decode(self, raw: bytes, kind: type[T]) -> T:
        """Decode a document. Raises Stuck when this version cannot."""
        read = self._read_once if len(raw) <= _MAX_CACHED_BYTES else self._read
        return read(raw, kind)

    def _read(self, raw: bytes, kind: type[T]) -> T:
        head, _, body = raw.partition(b"\n")
        if head == self._head:
            try:
                return _decoder(kind).decode(body)
            except _DECODE_ERRORS:
                pass  # perhaps it only has fields of a newer minor version: read the known ones
        _, document = self._parse(raw, kind)
        try:
            return msgspec.convert(_prune(document, _type_info(kind)), kind)
        except msgspec.ValidationError as error:
            message = f"a stored {kind.__name__} cannot be read ({error}); run the version that wrote it, or newer"
            raise Stuck("UnreadableDocument", message) from error

    def _is_fully_known(self, raw: bytes, kind: type[msgspec.Struct]) -> bool:
        head, _, body = raw.partition(b"\n")
        if head != self._head:
            return False
        try:
            _decoder(kind).decode(body)
        except _DECODE_ERRORS:
            return False
        return True

    def _parse(self, raw: bytes, kind: type[msgspec.Struct]) -> tuple[bytes, dict[str, Json]]:
        head, _, body = raw.partition(b"\n")
        try:
            schema, reads = _versions(head)
            document = msgspec.json.decode(body, type=dict[str, Json])
        except _DECODE_ERRORS as error:
            raise Stuck("UnreadableDocument", f"a stored value is no document: {raw[:60]!r}") from error
        if reads > self._schema:
            message = f"a stored document needs schema {reads}, this version reads up to {self._schema}; upgrade it"
            raise Stuck("NewerSchema", message)
        for step in range(schema, self._schema):
            upgrade = self._upgrades.get(step, {}).get(kind.__name__)
            document = upgrade(document) if upgrade else document
        return head, document


def decode_known(body: bytes | msgspec.Raw, kind: type[D]) -> D:
    """Decode JSON that this or a newer version wrote, as far as its fields are known.

    Raises ValueError for anything else. Meant for documents from another process, which may have been
    upgraded first.
    """
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError:
        document = msgspec.json.decode(body)
        return msgspec.convert(_prune(document, _type_info(kind)), kind)


def is_from_newer(body: bytes, kind: type[msgspec.Struct]) -> bool:
    """Return whether JSON has fields that this version of a type does not know."""
    try:
        _decoder(kind).decode(body)
    except _DECODE_ERRORS:
        return True
    return False


def _versions(head: bytes) -> tuple[int, int]:
    found = _HEADER.fullmatch(head)
    if found is None:
        raise ValueError("no versions")
    return int(found[1]), int(found[2])


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[D]) -> msgspec.json.Decoder[D]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


_type_info: Final[Callable[[Any], inspect.Type]] = cache(inspect.type_info)


def _prune(document: Json, info: inspect.Type) -> Json:
    match _resolve_type(info, document), document:
        case inspect.StructType() as struct, dict():
            known = _read_fields(struct.cls)
            return {name: _prune(value, known[name]) for name, value in document.items() if name in known}
        case inspect.DictType(value_type=item), dict():
            return {name: _prune(value, item) for name, value in document.items()}
        case (inspect.ListType() | inspect.VarTupleType()) as array, list():
            return [_prune(value, array.item_type) for value in document]
    return document


def _merge(new: Json, old: Json, info: inspect.Type) -> Json:
    match _resolve_type(info, new), new, old:
        case inspect.StructType() as struct, dict(), dict():
            known = _read_fields(struct.cls)
            kept = {name: value for name, value in old.items() if name not in known}
            return kept | {name: _merge(value, old.get(name), known[name]) for name, value in new.items()}
        case inspect.DictType(value_type=item), dict(), dict():
            return {name: _merge(value, old.get(name), item) for name, value in new.items()}
        case (inspect.ListType() | inspect.VarTupleType()) as array, list(), list():
            left = list(old)
            return [_merge(value, _take_old_member(value, left, array.item_type), array.item_type) for value in new]
    return new


def _take_old_member(new: Json, left: list[Json], info: inspect.Type) -> Json:
    """Remove and return the old state of a list's member.

    It is found by identity where members have one, else by equality of the known fields.
    """
    struct = _resolve_type(info, new)
    if not isinstance(struct, inspect.StructType):
        return None
    identity = next((name for name in _IDENTITY_FIELDS if name in _read_fields(struct.cls)), None)
    for place, old in enumerate(left):
        if identity is None:
            is_same = _reencode_known(old, struct) == new
        else:
            is_same = (old.get(identity) if isinstance(old, dict) else None) == new[identity]
        if is_same:
            return left.pop(place)
    return None


def _reencode_known(document: Json, struct: inspect.StructType) -> Json:
    """Return a member as this version would write it; None when it cannot be read."""
    try:
        return msgspec.json.decode(msgspec.json.encode(msgspec.convert(_prune(document, struct), struct.cls)))
    except msgspec.ValidationError:
        return None


def _resolve_type(info: inspect.Type, document: Json) -> inspect.Type:
    """Resolve an optional or annotated type to the part that describes this document."""
    if isinstance(info, inspect.Metadata):
        return _resolve_type(info.type, document)
    if not isinstance(info, inspect.UnionType):
        return info
    parts = [_resolve_type(one, document) for one in info.types]
    if isinstance(document, dict):
        return next((one for one in parts if isinstance(one, inspect.StructType | inspect.DictType)), info)
    return next((one for one in parts if isinstance(one, inspect.ListType | inspect.VarTupleType)), info)


@cache
def _read_fields(kind: type) -> dict[str, inspect.Type]:
    struct = inspect.type_info(kind)
    assert isinstance(struct, inspect.StructType)
    return {field.encode_name: field.type for field in struct.fields}
