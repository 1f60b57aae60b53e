"""The Secret type, which prints as `***`, and the search for secret references in documents.

Admission uses the search to seal what a user wrote in clear; the command line and the leak checks use it too. A field
of type `SecretRef` is found by its type wherever it stands: in nested structs, lists, mappings and optional fields.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, NoReturn, TypeVar, Union, cast, get_args, get_origin

import msgspec

from lcm.model.base.errors import Stuck
from lcm.model.base.resource import SecretRef, SecretUse, shorten_text

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
        """Return a text that somebody else wrote, with the secret replaced by `***`."""
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
ReplaceRef = Callable[[str, str, str], str]
"""Takes the path of a reference, spelt as in faults, the reference, and its use; returns what replaces it."""

PLAIN_PREFIX: Final = "plain:"
"""Begins a secret that somebody wrote in clear."""
SEALED_PREFIX: Final = "sealed:"
PLACEHOLDER_REF: Final = f"{SEALED_PREFIX}…"
"""A reference that leads nowhere, for places where some reference must stand."""
FINGERPRINT_PREFIX: Final = f"{SEALED_PREFIX}fingerprint:"
"""Begins what people are shown of a sealed text: enough to recognise it, too little to use it elsewhere."""
SEALED_FORM: Final = re.compile(
    r"sealed:(?P<key>[0-9a-f]{12}):(?:(?P<use>[A-Za-z]+\.[a-z_]+):)?(?P<body>[A-Za-z0-9_-]+)"
)
"""A sealed text: the id of its key, its use, and what is encrypted. Older versions named no use."""
MISPLACED: Final = "SecretMisplaced"
"""A sealed text stands where another use is meant."""
_FINGERPRINT_LENGTH: Final = 16

_SECRET_REF_META: Final = get_args(SecretRef)[1]
_MAX_STRAYS: Final = 100
_MAX_STEP_LENGTH: Final = 130
_Trail = tuple[Any, str] | None
"""A path into a document as a linked list: the path to the container, and one more step."""


def holds_secrets(kind: type[msgspec.Struct]) -> bool:
    """Return True if documents of this type can refer to secrets."""
    return bool(_secret_fields(kind))


def list_secrets(document: msgspec.Struct) -> list[tuple[str, str]]:
    """Return the path and the text of every secret reference in a document."""
    return [(path, ref) for path, ref, _ in list_secret_uses(document)]


def list_secret_uses(document: msgspec.Struct) -> list[tuple[str, str, str]]:
    """Return the path, the text and the use of every secret reference in a document."""
    found: list[tuple[str, str, str]] = []

    def note(path: str, ref: str, use: str) -> str:
        found.append((path, ref, use))
        return ref

    replace_secrets(document, note)
    return found


def use_of(sealed: str) -> str:
    """Return the use that a sealed text was sealed for; empty for one of an older version, which fits everywhere."""
    form = SEALED_FORM.fullmatch(sealed)
    return (form["use"] or "") if form else ""


def check_use(ref: str, use: SecretUse) -> None:
    """Raise Stuck if a reference is a text that was sealed for another use."""
    if use_of(ref) not in ("", use):
        raise Stuck(MISPLACED, f"the secret was sealed for {use_of(ref)}, not for {use}: write the right one")


def fingerprint_of(sealed: str) -> str:
    """Return what is shown of a sealed text."""
    return FINGERPRINT_PREFIX + hashlib.sha256(sealed.encode()).hexdigest()[:_FINGERPRINT_LENGTH]


_MOST_SHOWN: Final = 1_000
_shown: Final[dict[int, tuple[msgspec.Struct, msgspec.Struct]]] = {}
"""Documents as people see them, by `id()` of what is stored. The entry holds that, so that its id stays its own."""


def show_fingerprints(document: S) -> S:
    """Return a document as people see it: with fingerprints for sealed texts."""
    if not holds_secrets(type(document)):
        return document
    kept = _shown.get(id(document))
    if kept is not None and kept[0] is document:
        return cast("S", kept[1])
    shown = replace_secrets(document, lambda _, ref, __: fingerprint_of(ref) if SEALED_FORM.fullmatch(ref) else ref)
    if len(_shown) >= _MOST_SHOWN:
        _shown.clear()
    _shown[id(document)] = (document, shown)
    return shown


def replace_secrets(document: S, change: ReplaceRef) -> S:
    """Return a document with every reference replaced; the same object when nothing changes."""
    changed: S = _replace_refs(document, type(document), "", change)
    return changed


def replace_raw_secrets(document: object, kind: type[msgspec.Struct], change: ReplaceRef) -> Any:  # noqa: ANN401 - what came in
    """Replace the references in a document that was not validated yet.

    Whatever does not have the shape of the kind stays as it is.
    """
    return _replace_refs(document, kind, "", change)


def hide_plain_secrets(document: object, kind: type[msgspec.Struct]) -> Any:  # noqa: ANN401 - likewise
    """Replace every secret in clear by a placeholder, so that a document can be checked and shown."""

    def hide(_path: str, ref: str, _use: str) -> str:
        return PLACEHOLDER_REF if ref.startswith(PLAIN_PREFIX) else ref

    return replace_raw_secrets(document, kind, hide)


def find_stray_secrets(document: object) -> list[str]:
    """Return the paths of texts marked as secrets that stand where no secret belongs.

    Call it after all secrets in their proper fields were taken out. A name that is itself marked as a secret
    is not part of the path.
    """
    found: list[_Trail] = []
    left: list[tuple[_Trail, object]] = [(None, document)]
    while left and len(found) < _MAX_STRAYS:
        trail, value = left.pop()
        if isinstance(value, str) and value.startswith(PLAIN_PREFIX):
            found.append(trail)
        elif isinstance(value, Mapping):
            left += (
                ((trail, f".{name}"), item) for name, item in value.items() if not str(name).startswith(PLAIN_PREFIX)
            )
            found += [trail for name in value if str(name).startswith(PLAIN_PREFIX)][:_MAX_STRAYS]
        elif isinstance(value, list | tuple):
            left += (((trail, f"[{number}]"), item) for number, item in enumerate(value))
    return sorted({_format_trail(trail) for trail in found})


def _format_trail(trail: "_Trail") -> str:
    """Return a trail as a path. Called only for the few that are reported, because every step may be long."""
    steps = []
    while trail is not None:
        trail, step = trail
        steps.append(shorten_text(step, _MAX_STEP_LENGTH))
    return "".join(reversed(steps)).removeprefix(".") or "document"


def _replace_refs(value: Any, hint: Any, path: str, change: ReplaceRef) -> Any:  # noqa: ANN401 - a value of any type, and its hint
    if isinstance(value, str):
        use = next((_use_in(one) for one in _union_members(hint) if _SECRET_REF_META in get_args(one)), None)
        return value if use is None else change(path, value, use)
    if isinstance(value, msgspec.Struct):
        return _replace_in_struct(value, path, change)
    if isinstance(value, Mapping):
        return _replace_in_mapping(value, hint, path, change)
    inner = next(_item_types(hint, Sequence), None)
    if isinstance(value, list | tuple) and inner is not None:
        return type(value)(_replace_refs(item, inner, f"{path}[{number}]", change) for number, item in enumerate(value))
    return value


def _replace_in_struct(value: S, path: str, change: ReplaceRef) -> S:
    new = {
        name: _replace_refs(getattr(value, name), hint, _join_path(path, encoded), change)
        for encoded, (name, hint) in _secret_fields(type(value)).items()
    }
    changed = {name: item for name, item in new.items() if item != getattr(value, name)}
    return msgspec.structs.replace(value, **changed) if changed else value


def _replace_in_mapping(value: Mapping[Any, Any], hint: Any, path: str, change: ReplaceRef) -> Mapping[Any, Any]:  # noqa: ANN401
    hints: dict[Any, Any] = {}
    for one in _struct_types(hint):
        hints |= {encoded: inner for encoded, (_, inner) in _secret_fields(one).items()}
    for one in _item_types(hint, Mapping):
        hints |= dict.fromkeys(value, one)
    return {
        # Do not descend into values without a type: a user may nest them to any depth.
        name: _replace_refs(item, hints[name], _join_path(path, name), change) if name in hints else item
        for name, item in value.items()
    }


@cache
def _secret_fields(kind: type[msgspec.Struct]) -> Mapping[str, tuple[str, Any]]:
    """Return the fields of a struct that lead to references: name and type, by their name in documents."""
    fields = msgspec.structs.fields(kind)
    return {field.encode_name: (field.name, field.type) for field in fields if _leads_to_secrets(field.type)}


def _leads_to_secrets(hint: Any) -> bool:  # noqa: ANN401 - a type hint has no better type
    return (
        any(_SECRET_REF_META in get_args(one) for one in _union_members(hint))
        or any(_secret_fields(one) for one in _struct_types(hint))
        or any(_leads_to_secrets(one) for one in _item_types(hint, Sequence, Mapping))
    )


def _use_in(hint: Any) -> str:  # noqa: ANN401 - likewise
    return next((str(one) for one in get_args(hint) if isinstance(one, SecretUse)), "")


def _union_members(hint: Any) -> Iterator[Any]:  # noqa: ANN401 - likewise
    """Yield the members of a union, or the type itself."""
    if get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from _union_members(one)
    else:
        yield hint


def _plain_types(hint: Any) -> Iterator[Any]:  # noqa: ANN401 - likewise
    for one in _union_members(hint):
        yield from _plain_types(get_args(one)[0]) if get_origin(one) is Annotated else (one,)


def _struct_types(hint: Any) -> Iterator[type[msgspec.Struct]]:  # noqa: ANN401 - likewise
    return (one for one in _plain_types(hint) if isinstance(one, type) and issubclass(one, msgspec.Struct))


def _item_types(hint: Any, *containers: type) -> Iterator[Any]:  # noqa: ANN401 - likewise
    """Yield the types inside these containers: the values of a mapping, the items of a list."""
    for one in _plain_types(hint):
        origin = get_origin(one)
        if isinstance(origin, type) and issubclass(origin, containers):
            yield get_args(one)[1 if issubclass(origin, Mapping) else 0]


def _join_path(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
