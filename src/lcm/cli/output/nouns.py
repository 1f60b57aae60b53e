"""The words people use for kinds, and how they name objects: `worker w1`, `sessions`, `pool/ccna`, `w,s`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import typer

from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Gone
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import KINDS, Kind, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.worker import LabWorker

ALL: Final = "all"
CALENDAR: Final = "calendar"
"""Not a kind, but `get` shows it too: planned workers against time."""


@dataclass(frozen=True, slots=True)
class Noun:
    """The words people use for a kind; the last of `others` is the shortest."""

    struct: type[Resource]
    singular: str
    plural: str
    others: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """The kind's entry in the registry."""
        return KINDS[self.struct.__name__]

    @property
    def words(self) -> set[str]:
        """Every word that means this kind."""
        return {self.singular, self.plural, *self.others, self.kind.plural, self.kind.name.lower()}


NOUNS: Final = (
    Noun(LabWorker, "worker", "workers", ("w",)),
    Noun(LabWorkerPool, "pool", "pools", ("worker-pool", "p")),
    Noun(WorkerTemplate, "template", "templates", ("worker-template", "t")),
    Noun(LabletDefinition, "definition", "definitions", ("lablet-definition", "def", "d")),
    Noun(LabletSession, "session", "sessions", ("lablet-session", "s")),
    Noun(Reservation, "reservation", "reservations", ("res", "r")),
    Noun(SystemSettings, "settings", "settings", ("setting",)),
    Noun(Sink, "sink", "sinks", ("event-sink",)),
)
_BY_WORD: Final = {word: noun for noun in NOUNS for word in noun.words}
_BY_KIND: Final = {noun.kind.name: noun for noun in NOUNS}


@dataclass(frozen=True, slots=True)
class NamedObjects:
    """Objects of one kind that were named on the command line; no names means all of them."""

    noun: Noun
    names: tuple[str, ...] = ()


def noun_of(kind: str | type[Any]) -> Noun:
    """Return the noun of a kind."""
    return _BY_KIND[kind if isinstance(kind, str) else kind.__name__]


def title(resource: Resource) -> str:
    """Return an object's name as `lcm` prints and accepts it: `worker/w1`."""
    return title_of(type(resource), resource.metadata.name)


def title_of(kind: type[Any], name: str) -> str:
    """Return the printed name of an object from its kind and name."""
    return f"{noun_of(kind).singular}/{name}"


class MissingObject(Gone):
    """An object that was named on the command line does not exist."""

    def __init__(self, ref: Ref[Any]) -> None:
        super().__init__(f"there is no {title_of(ref.kind, ref.name)} in namespace {ref.namespace}")
        self.ref = ref


def missing(ref: Ref[Any]) -> MissingObject:
    """Return the error that an object does not exist."""
    return MissingObject(ref)


@contextmanager
def naming_missing(ref: Ref[Any]) -> Iterator[None]:
    """Name the object in an error that says it does not exist."""
    try:
        yield
    except Gone:
        raise missing(ref) from None


def find_noun(word: str) -> Noun:
    """Find the kind that a word means; an unknown word is wrong usage, with a suggestion."""
    found = _BY_WORD.get(word.lower())
    if found is None:
        close = get_close_matches(word.lower(), [name for name in _BY_WORD if len(name) > 1], n=1)
        remedy = f"did you mean {close[0]}?" if close else f"the kinds are {', '.join(one.plural for one in NOUNS)}"
        raise typer.BadParameter(f"{word!r} is not a kind; {remedy}", param_hint="KIND")
    return found


def parse_targets(words: Sequence[str]) -> list[NamedObjects]:
    """Parse `KIND[,KIND] [NAME …]` or `KIND/NAME …`."""
    if not words:
        kinds = ", ".join(one.plural for one in NOUNS)
        raise typer.BadParameter(f"name a kind: {kinds}, or all", param_hint="KIND")
    if any("/" in word for word in words):
        return _parse_slash_targets(words)
    kinds, names = words[0], tuple(words[1:])
    if kinds.lower() == ALL:
        if names:
            raise typer.BadParameter("`all` takes no names", param_hint="KIND")
        return [NamedObjects(one) for one in NOUNS]
    found = dict.fromkeys(find_noun(word) for word in kinds.split(",") if word)
    if not found:
        raise typer.BadParameter("name a kind", param_hint="KIND")
    return [NamedObjects(one, names) for one in found]


def parse_one_target(words: Sequence[str]) -> tuple[Noun, str]:
    """Parse `KIND NAME` or `KIND/NAME`: exactly one object."""
    found = parse_targets(words)
    if len(found) != 1 or len(found[0].names) != 1:
        raise typer.BadParameter("name one object: KIND NAME, or KIND/NAME", param_hint="KIND NAME")
    return found[0].noun, found[0].names[0]


def _parse_slash_targets(words: Sequence[str]) -> list[NamedObjects]:
    names: dict[Noun, list[str]] = {}
    for word in words:
        kind, slash, name = word.partition("/")
        if not slash or not name or "/" in name:
            raise typer.BadParameter(f"{word!r} is not KIND/NAME; name all in that form, or none", param_hint="KIND")
        names.setdefault(find_noun(kind), []).append(name)
    return [NamedObjects(one, tuple(dict.fromkeys(those))) for one, those in names.items()]
