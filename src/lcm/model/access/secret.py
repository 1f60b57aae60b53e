"""Passwords, tokens and licence tokens as a type that prints `***`. Whoever needs the text says `reveal`."""

import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec

from lcm.model.base.resource import SecretRef

_HIDDEN: Final = "***"


class Secret:
    """A text that no log, error, dump or debugger shows by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the one call that sends it."""
        return self._text

    def hide_in(self, text: str) -> str:
        """Blot the secret out of a text that somebody else wrote."""
        return text.replace(self._text, _HIDDEN) if self._text else text

    def __repr__(self) -> str:
        return _HIDDEN

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, _: object) -> "Secret":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written into files: store where it is, not what it is")


S = TypeVar("S", bound=msgspec.Struct)
Change = Callable[[str, str], str]
"""Given the path of a reference, as faults spell it, and the reference; returns what shall stand there instead."""

PLAIN: Final = "plain:"
"""Begins a secret that somebody wrote in clear."""
SEALED: Final = "sealed:"
STAND_IN: Final = f"{SEALED}…"
"""A reference that leads nowhere, for where one must stand."""

_MARK: Final = get_args(SecretRef)[1]
_MOST_STRAYS: Final = 100
_LONGEST_STEP: Final = 130
_Trail = tuple[Any, str] | None
"""A way down into a document: the way to what holds it, and one more step."""


def holds_secrets(kind: type[msgspec.Struct]) -> bool:
    """Tell whether documents of a type refer to secrets."""
    return bool(_bearing(kind))


def secrets_in(document: msgspec.Struct) -> list[tuple[str, str]]:
    """List the path and the text of every reference in a document."""
    found: list[tuple[str, str]] = []

    def note(path: str, ref: str) -> str:
        found.append((path, ref))
        return ref

    with_secrets(document, note)
    return found


def with_secrets(document: S, change: Change) -> S:
    """Return a document with every reference replaced; the same document when nothing changes."""
    changed: S = _changed(document, type(document), "", change)
    return changed


def with_raw_secrets(document: object, kind: type[msgspec.Struct], change: Change) -> Any:  # noqa: ANN401 - what came in
    """Do the same to a document that nobody has checked yet; what is not of the kind's shape stays as it is."""
    return _changed(document, kind, "", change)


def without_plain(document: object, kind: type[msgspec.Struct]) -> Any:  # noqa: ANN401 - likewise
    """Put a stand-in for every secret in clear, so that a document can be checked, and shown, without them."""
    return with_raw_secrets(document, kind, lambda _, ref: STAND_IN if ref.startswith(PLAIN) else ref)


def strays(document: object) -> list[str]:
    """List where texts that call themselves secrets stand; asked of what is left when all that belong were taken out.

    A name that calls itself one is not spelt.
    """
    found: list[_Trail] = []
    left: list[tuple[_Trail, object]] = [(None, document)]
    while left and len(found) < _MOST_STRAYS:
        trail, value = left.pop()
        if isinstance(value, str) and value.startswith(PLAIN):
            found.append(trail)
        elif isinstance(value, Mapping):
            left += (((trail, f".{name}"), item) for name, item in value.items() if not str(name).startswith(PLAIN))
            found += [trail for name in value if str(name).startswith(PLAIN)][:_MOST_STRAYS]
        elif isinstance(value, list | tuple):
            left += (((trail, f"[{number}]"), item) for number, item in enumerate(value))
    return sorted({_spelt(trail) for trail in found})


def _spelt(trail: "_Trail") -> str:
    """Write a way down as a path; only of the few that are told, for every step may be long."""
    steps = []
    while trail is not None:
        trail, step = trail
        steps.append(step[:_LONGEST_STEP])
    return "".join(reversed(steps)).removeprefix(".") or "document"


def _changed(value: Any, hint: Any, path: str, change: Change) -> Any:  # noqa: ANN401 - a value of any type, and its hint
    if isinstance(value, str):
        return change(path, value) if any(_MARK in get_args(one) for one in _options(hint)) else value
    if isinstance(value, msgspec.Struct):
        return _struct_changed(value, path, change)
    if isinstance(value, Mapping):
        return _mapping_changed(value, hint, path, change)
    inner = next(_items(hint, Sequence), None)
    if isinstance(value, list | tuple) and inner is not None:
        return type(value)(_changed(item, inner, f"{path}[{number}]", change) for number, item in enumerate(value))
    return value


def _struct_changed(value: S, path: str, change: Change) -> S:
    new = {
        name: _changed(getattr(value, name), hint, _below(path, encoded), change)
        for encoded, (name, hint) in _bearing(type(value)).items()
    }
    changed = {name: item for name, item in new.items() if item != getattr(value, name)}
    return msgspec.structs.replace(value, **changed) if changed else value


def _mapping_changed(value: Mapping[Any, Any], hint: Any, path: str, change: Change) -> Mapping[Any, Any]:  # noqa: ANN401
    hints: dict[Any, Any] = {}
    for one in _structs(hint):
        hints |= {encoded: inner for encoded, (_, inner) in _bearing(one).items()}
    for one in _items(hint, Mapping):
        hints |= dict.fromkeys(value, one)
    return {
        # What no type leads to may be nested as deep as somebody likes.
        name: _changed(item, hints[name], _below(path, name), change) if name in hints else item
        for name, item in value.items()
    }


@cache
def _bearing(kind: type[msgspec.Struct]) -> Mapping[str, tuple[str, Any]]:
    """Tell which fields of a struct lead to references: their names and types, by their names in documents."""
    fields = msgspec.structs.fields(kind)
    return {field.encode_name: (field.name, field.type) for field in fields if _bears(field.type)}


def _bears(hint: Any) -> bool:  # noqa: ANN401 - a type hint has no better type
    return (
        any(_MARK in get_args(one) for one in _options(hint))
        or any(_bearing(one) for one in _structs(hint))
        or any(_bears(one) for one in _items(hint, Sequence, Mapping))
    )


def _options(hint: Any) -> Iterator[Any]:  # noqa: ANN401 - likewise
    """Take unions apart."""
    if get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from _options(one)
    else:
        yield hint


def _plain(hint: Any) -> Iterator[Any]:  # noqa: ANN401 - likewise
    for one in _options(hint):
        yield from _plain(get_args(one)[0]) if get_origin(one) is Annotated else (one,)


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:  # noqa: ANN401 - likewise
    return (one for one in _plain(hint) if isinstance(one, type) and issubclass(one, msgspec.Struct))


def _items(hint: Any, *containers: type) -> Iterator[Any]:  # noqa: ANN401 - likewise
    """Tell the types of what such containers hold: the values of a mapping, the items of a list."""
    for one in _plain(hint):
        origin = get_origin(one)
        if isinstance(origin, type) and issubclass(origin, containers):
            yield get_args(one)[1 if issubclass(origin, Mapping) else 0]


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
