"""Documents to bytes and back, across versions of this software.

A stored value is a line `SCHEMA/READS` and a JSON document: the schema it was written in, and the oldest schema whose
reader understands it. An older document is upgraded when it is read. A newer one is read as far as its fields are
known,
and unknown fields are kept when it is written again. Called by `control`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
        self._parse_once = lru_cache(_CACHE_SIZE)(self._parse)

    def encode(self, value: msgspec.Struct, *, onto: bytes | None = None) -> bytes:
        """Encode a document. `onto` is the stored state it replaces, whose unknown fields are kept."""
        body = msgspec.json.encode(value)
        if onto is None or self.is_fully_known(onto, type(value)):
            return self._head + b"\n" + body
        parse = self._parse_once if len(onto) <= _MAX_CACHED_BYTES else self._parse
        head, old, unknown = parse(onto, type(value))
        merged = _merge(msgspec.json.decode(body), old, unknown, _shape_of_struct(type(value)))
        newer = _versions(head)[0] > self._schema
        return (head if newer else self._head) + b"\n" + msgspec.json.encode(merged)

    def decode(self, raw: bytes, kind: type[T]) -> T:
        """Decode a document. Raises Stuck when this version cannot."""
        read = self._read_once if len(raw) <= _MAX_CACHED_BYTES else self._read
        return read(raw, kind)[0]

    def is_fully_known(self, raw: bytes, kind: type[T]) -> bool:
        """Return whether a document is of this schema and has no fields that this version does not know."""
        read = self._read_once if len(raw) <= _MAX_CACHED_BYTES else self._read
        try:
            return read(raw, kind)[1]
        except Stuck:
            return False

    def _read(self, raw: bytes, kind: type[T]) -> tuple[T, bool]:
        head, _, body = raw.partition(b"\n")
        if head == self._head:
            try:
                return _decoder(kind).decode(body), True
            except _DECODE_ERRORS:
                pass  # perhaps it only has fields of a newer minor version: read the known ones
        _, document, unknown = (self._parse_once if len(raw) <= _MAX_CACHED_BYTES else self._parse)(raw, kind)
        try:
            return msgspec.convert(_without(document, unknown), kind), False
        except msgspec.ValidationError as error:
            message = f"a stored {kind.__name__} cannot be read ({error}); run the version that wrote it, or newer"
            raise Stuck("UnreadableDocument", message) from error

    def _parse(self, raw: bytes, kind: type[msgspec.Struct]) -> "tuple[bytes, dict[str, Json], _Unknown | None]":
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
        return head, document, _find_unknown(document, _shape_of_struct(kind))


def decode_known(body: bytes | msgspec.Raw, kind: type[D]) -> D:
    """Decode JSON that this or a newer version wrote, as far as its fields are known.

    Raises ValueError for anything else. Meant for documents from another process, which may have been
    upgraded first.
    """
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError:
        document = msgspec.json.decode(body)
        return msgspec.convert(_prune(document, _shape_of_type(kind)), kind)


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


@dataclass(slots=True)
class _Shape:
    """Where in documents of a type there may be fields that this version does not know. None is for types without any.

    A union has the shape of its first part for objects and of its first part for arrays.
    """

    struct: type[msgspec.Struct] | None = None
    fields: "dict[str, _Shape | None] | None" = None
    """Of a struct, by name."""
    values: "_Shape | None" = None
    """Of a dict's values."""
    members: "_Shape | None" = None
    """Of an array's members."""
    identity: str | None = None
    """The field of a struct that identifies it in a list, if there is one."""


_struct_shapes: dict[type, _Shape] = {}


def _shape_of_struct(kind: type[msgspec.Struct]) -> _Shape:
    if (known := _struct_shapes.get(kind)) is not None:
        return known
    shape = _struct_shapes[kind] = _Shape(struct=kind)  # known before its fields, which may refer to it
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    shape.fields = {field.encode_name: _shape_of(field.type) for field in info.fields}
    shape.identity = next((name for name in _IDENTITY_FIELDS if name in shape.fields), None)
    return shape


def _shape_of(info: inspect.Type) -> _Shape | None:
    match info:
        case inspect.Metadata(type=inner):
            return _shape_of(inner)
        case inspect.StructType(cls=kind):
            return _shape_of_struct(kind)
        case inspect.DictType(value_type=inner):
            values = _shape_of(inner)
            return _Shape(values=values) if values else None
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            members = _shape_of(inner)
            return _Shape(members=members) if members else None
        case inspect.UnionType(types=types):
            return _shape_of_union([shape for one in types if (shape := _shape_of(one))])
    return None


def _shape_of_union(parts: Sequence[_Shape]) -> _Shape | None:
    of_object = next((one for one in parts if one.struct or one.values), None)
    of_array = next((one for one in parts if one.members), None)
    if of_object is None or of_array is None:
        return of_object or of_array
    return replace(of_object, members=of_array.members)


_shape_of_type: Final[Callable[[Any], _Shape | None]] = cache(lambda kind: _shape_of(inspect.type_info(kind)))


@dataclass(slots=True)
class _Unknown:
    """What this version does not know of an object or an array. None stands for nothing."""

    fields: dict[str, Json]
    """The object's own fields that are not known."""
    within: "dict[Any, _Unknown]"
    """What is not known of its values or members, by name or place."""


_NO_FIELD: Final = _Shape()


def _find_unknown(document: Json, shape: _Shape | None) -> _Unknown | None:
    """Return what is not known of a document."""
    if shape is None:
        return None
    if isinstance(document, list):
        found = ((place, _find_unknown(value, shape.members)) for place, value in enumerate(document))
        inner: dict[Any, _Unknown] = {place: one for place, one in found if one is not None}
        return _Unknown({}, inner) if inner else None
    return _find_unknown_fields(document, shape) if isinstance(document, dict) else None


def _find_unknown_fields(document: dict[str, Json], shape: _Shape) -> _Unknown | None:
    own: dict[str, Json] = {}
    within: dict[Any, _Unknown] = {}
    fields, values = shape.fields, shape.values
    for name, value in document.items():
        inner = values if fields is None else fields.get(name, _NO_FIELD)
        if inner is _NO_FIELD:
            own[name] = value
        elif inner is not None and value and (found := _find_unknown(value, inner)) is not None:
            within[name] = found
    return _Unknown(own, within) if own or within else None


def _without(document: Json, unknown: _Unknown | None) -> Json:
    """Return a document without what is not known of it."""
    if unknown is None:
        return document
    if isinstance(document, list):
        return [_without(value, unknown.within.get(place)) for place, value in enumerate(document)]
    known = {name: value for name, value in document.items() if name not in unknown.fields}
    return known | {name: _without(document[name], inner) for name, inner in unknown.within.items()}


def _prune(document: Json, shape: _Shape | None) -> Json:
    return _without(document, _find_unknown(document, shape))


def _merge(new: Json, old: Json, unknown: _Unknown | None, shape: _Shape | None) -> Json:
    """Return a document with what was not known of its old state."""
    if unknown is None or shape is None:
        return new
    if isinstance(new, dict) and isinstance(old, dict):
        merged = unknown.fields | new
        for name, inner in unknown.within.items():
            if name in new:
                known = shape.values if shape.fields is None else shape.fields[name]
                merged[name] = _merge(new[name], old[name], inner, known)
        return merged
    if isinstance(new, list) and isinstance(old, list) and shape.members is not None:
        return _merge_members(new, old, unknown, shape.members)
    return new


def _merge_members(new: list[Json], old: list[Json], unknown: _Unknown, shape: _Shape) -> list[Json]:
    """Merge the members of lists. The old state of a member is found by identity, or by all that is known of it."""
    if shape.fields is None:
        return new
    left = [(_identify_member(one, shape), one, unknown.within.get(place)) for place, one in enumerate(old)]
    merged = []
    for value in new:
        wanted = value if shape.identity is None else value[shape.identity]
        place = next((place for place, (known, _, _) in enumerate(left) if known == wanted), None)
        merged.append(value if place is None else _merge(value, *left.pop(place)[1:], shape))
    return merged


def _identify_member(document: Json, shape: _Shape) -> Json:
    if shape.identity is not None:
        return document.get(shape.identity) if isinstance(document, dict) else None
    return _reencode_known(document, shape)


def _reencode_known(document: Json, shape: _Shape) -> Json:
    """Return a member as this version would write it; None when it cannot be read."""
    assert shape.struct is not None, "only structs have fields"
    try:
        return msgspec.json.decode(msgspec.json.encode(msgspec.convert(_prune(document, shape), shape.struct)))
    except msgspec.ValidationError:
        return None
