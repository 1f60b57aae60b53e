"""Reads variables from the environment and a file, and converts texts to values. Knows no particular variable.

Called by `settings.load`. A layer is one place that sets variables by name; a later layer overrides an earlier one.
All faults are collected, so that a refused start reports everything at once.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault
from lcm.model.base.resource import shorten_text

OWN_PREFIX: Final = "LCM_"
"""Names with this prefix are ours: an unknown one is a fault, not another program's variable."""

_BOOLEANS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_SIMILARITY: Final = 0.8
_GUESS_SIMILARITY: Final = 0.9
_MAX_ECHO_LENGTH: Final = 60
_REMEDY: Final = "correct it, or leave it out"
_LINK_SCHEMES: Final = ("tcp://", "udp://", "sctp://")


@dataclass(frozen=True, slots=True)
class Variable:
    """One setting: its name, its type, its meaning."""

    name: str
    field: str
    hint: Any
    default: object
    meaning: str
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name under which it may be set."""
        return (self.name, *self.also)

    @property
    def secret(self) -> bool:
        """Whether its value is never shown."""
        return _item_type(self.hint) is Secret


@dataclass(frozen=True, slots=True)
class Layer:
    """One place that sets variables: names in capitals, values as text or, in a file, with TOML's types."""

    said: Mapping[str, object]
    source: Callable[[str], str]
    text: bool = False


@dataclass(slots=True)
class LayeredValues:
    """What all layers set together; a variable missing from `values` was not set, or not validly."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def declared_variables(struct: type[msgspec.Struct], also: Mapping[str, str]) -> tuple[Variable, ...]:
    """List the variables that a struct declares: encoded names, and the text among a field's annotations."""
    return tuple(
        Variable(
            name=one.encode_name,
            field=one.name,
            hint=one.type,
            default=one.default,
            meaning=next(text for text in get_args(one.type) if isinstance(text, str)),
            also=tuple(alias for alias, name in also.items() if name == one.encode_name),
        )
        for one in msgspec.structs.fields(struct)
    )


def environment_layer(environment: Mapping[str, str], known: Iterable[Variable]) -> Layer:
    """Read our variables from an environment.

    An empty one counts as not set, as container tools leave them so.
    """
    names = {name for one in known for name in one.names}
    said = {name: environment[name] for name in names if environment.get(name, "").strip()}
    return Layer(said, lambda name: f"environment {name}", text=True)


def service_links(environment: Mapping[str, str]) -> dict[str, Fault]:
    """Return the variables that Kubernetes sets for its Services under names that end like some of ours."""
    remedy = "rename the Service, or set enableServiceLinks: false"
    return {
        name: Fault(name, "ignored: Kubernetes sets it for a Service of this name", remedy)
        for name, value in environment.items()
        if name.endswith("_PORT") and value.startswith(_LINK_SCHEMES)
    }


def file_layer(path: Path, known: Sequence[Variable], faults: list[Fault]) -> Layer:
    """Read variables from a TOML file, whose keys are their names in any case."""
    names = [name for one in known for name in one.names]
    said: dict[str, object] = {}
    for key, value in _toml(path, faults).items():
        name = key.upper()
        if name not in names:
            faults.append(Fault(key, f"unknown in {path}", suggest_name(name, names)))
        elif name in said:
            faults.append(Fault(name, f"set twice in {path}", "keep one of the two lines"))
        else:
            said[name] = value
    return Layer(said, lambda _: f"file {path}")


def read_layers(known: Iterable[Variable], layers: Iterable[Layer], faults: list[Fault]) -> LayeredValues:
    """Convert what the layers set into values; a later layer wins."""
    reading = LayeredValues(faults=faults)
    for layer in layers:
        for variable in known:
            _read_variable(variable, layer, reading)
    return reading


def misspelt_variables(environment: Iterable[str], names: Sequence[str], *, ours: bool) -> Iterator[Fault]:
    """Yield a fault for each variable that looks mis-spelt.

    With `ours`, among the names with our prefix; without it, among all others, which is only a guess.
    """
    for name in environment:
        if name not in names and name.startswith(OWN_PREFIX) is ours:
            near = get_close_matches(name, names, n=1, cutoff=_SIMILARITY if ours else _GUESS_SIMILARITY)
            if near:
                yield Fault(name, "unknown in the environment", f"did you mean {near[0]}? Else unset it")


def suggest_name(name: str, names: Sequence[str]) -> str:
    """Suggest the name that was perhaps meant."""
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else "docs/configuration.md lists every variable"


def _toml(path: Path, faults: list[Fault]) -> Mapping[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        faults.append(Fault(str(path), f"cannot be read ({error.strerror})", "correct LCM_CONFIG, or make it readable"))
    except ValueError as error:
        faults.append(Fault(str(path), f"is no TOML ({error})", 'write lines such as LOG_LEVEL = "INFO"'))
    return {}


def _read_variable(variable: Variable, layer: Layer, reading: LayeredValues) -> None:
    """Read a variable from a layer, under whichever of its names it is set there."""
    taken: dict[str, object] = {}
    for name in variable.names:
        if name in layer.said:
            try:
                taken[name] = _convert_value(variable.hint, layer.said[name], text=layer.text)
            except (ValueError, TypeError):
                reading.faults.append(_bad_value(variable, name, layer))
    if len(set(taken.values())) > 1:
        first, *others = taken
        problem = f"{' and '.join(others)} has another value, and both mean the same"
        reading.faults.append(Fault(first, problem, "unset one of them"))
    elif taken:
        name, value = next(iter(taken.items()))
        reading.values[variable.field] = value
        reading.sources[variable.name] = layer.source(name)


def _bad_value(variable: Variable, name: str, layer: Layer) -> Fault:
    raw = layer.said[name]
    where = "in the environment" if layer.text else f"in {layer.source(name).removeprefix('file ')}"
    return Fault(
        name, f"{_echo(variable, raw)} {where} is not {describe_type(variable.hint, text=layer.text)}", _REMEDY
    )


def _echo(variable: Variable, raw: object) -> str:
    """Repeat a value unless it is a secret, or a URL that may contain one."""
    text = repr(raw)
    if variable.secret or ("://" in text and "@" in text):
        return "the value"
    return shorten_text(text, _MAX_ECHO_LENGTH)


def _convert_value(hint: Any, raw: object, *, text: bool) -> object:  # noqa: ANN401 - a type hint has no better type
    inner = _bare_type(hint)
    if text and isinstance(raw, str) and get_origin(inner) is tuple:
        raw = [part.strip() for part in raw.split(",") if part.strip()]
    elif isinstance(raw, str) and inner is not Secret:
        raw = _match_choice(inner, raw.strip())
    return msgspec.convert(raw, hint, strict=False, dec_hook=_decode_type)


def _match_choice(inner: Any, raw: str) -> object:  # noqa: ANN401 - likewise
    """Return the choice that a text means: in any case, with or without underscores."""
    if inner is bool:
        return _BOOLEANS.get(raw.lower(), raw)
    same = {str(one).lower(): one for one in _choices(inner)}
    return same.get(raw.lower()) or same.get(raw.replace("_", "").lower()) or raw


def _decode_type(kind: type, raw: object) -> object:
    if not isinstance(raw, str) or not raw or any(ord(sign) < ord(" ") for sign in raw):
        raise ValueError("no plain text")
    return Path(raw).expanduser() if kind is Path else kind(raw)


def describe_type(hint: Any, *, text: bool = True) -> str:  # noqa: ANN401 - likewise
    """Describe what a value of this type looks like."""
    inner = _bare_type(hint)
    if get_origin(inner) is tuple:
        several = "separated by commas" if text else "as a list"
        return f"{describe_type(get_args(inner)[0])}, several {several}"
    if choices := _choices(inner):
        return f"one of {', '.join(map(str, choices))}"
    for meta in _metas(hint):
        if meta.description or meta.examples:
            return meta.description or f"of the form {(meta.examples or [''])[0]}"
    words = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path", Secret: "a line of text"}
    return words.get(inner, "text")


def choices_of(hint: Any) -> tuple[str, ...]:  # noqa: ANN401 - likewise
    """Return the values that a type allows, as texts, if they can be listed."""
    inner = _bare_type(hint)
    return ("true", "false") if inner is bool else tuple(map(str, _choices(inner)))


def document_type(hint: Any) -> Literal["boolean", "number", "text", "list"]:  # noqa: ANN401 - likewise
    """Return what a JSON document holds for a value of this type."""
    inner = _bare_type(hint)
    if get_origin(inner) is tuple:
        return "list"
    return "boolean" if inner is bool else "number" if inner in (int, float) else "text"


def _choices(inner: Any) -> tuple[object, ...]:  # noqa: ANN401 - likewise
    if get_origin(inner) is Literal:
        return get_args(inner)
    return tuple(one.value for one in inner) if isinstance(inner, type) and issubclass(inner, Enum) else ()


def _item_type(hint: Any) -> Any:  # noqa: ANN401 - likewise
    inner = _bare_type(hint)
    return _bare_type(get_args(inner)[0]) if get_origin(inner) is tuple else inner


def _bare_type(hint: Any) -> Any:  # noqa: ANN401 - likewise
    """Strip annotations and None from a type hint."""
    if get_origin(hint) is Annotated:
        return _bare_type(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _bare_type(next(one for one in get_args(hint) if one is not NoneType))
    return hint


def _metas(hint: Any) -> Iterator[msgspec.Meta]:  # noqa: ANN401 - likewise
    for one in get_args(hint):
        if isinstance(one, msgspec.Meta):
            yield one
        elif get_origin(one) in (Annotated, Union, UnionType) and get_origin(hint) is not tuple:
            yield from _metas(one)
